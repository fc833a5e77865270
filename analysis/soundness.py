"""Tables that a reader could read and that still cannot be true: what is done about them, and what is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from analysis.readers.kernel_details import COMMUNICATION_CORES

LEAST = 4
"""Rows from which on it is no chance that all are alike."""
MISSING = 0.005
"""Share of the time from which on kernels are missing and no rounding."""
TIMES = ("communication_us", "communication_not_overlapped_us", "overlapped_us", "free_us", "bubble_us")


def once(table: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """The table without copies where every row stands in it more than once: a file that was joined to itself."""
    if table.height < LEAST or table["start_ns"].n_unique() > table.height // 2:
        return table
    if not table.select(pl.col("start_ns").is_not_null().any() & pl.struct(pl.all()).is_duplicated().all()).item():
        return table
    single = table.unique(maintain_order=True)
    warnings.append(
        f"{name}: every row stands in it more than once; {table.height - single.height} copies are left out"
    )
    return single


def ordered(kernels: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """Kernels whose starts are unknown where all are told to start at the same moment."""
    start = kernels["start_ns"]
    if kernels.height < LEAST or start.null_count() or start.min() != start.max():
        return kernels
    warnings.append(f"{name}: all {kernels.height} kernels start at the same time; when they ran is taken as unknown")
    return kernels.with_columns(start_ns=pl.lit(None, pl.Int64))


def whole(
    kernels: pl.DataFrame, file: str, statistic: Sequence[Mapping[str, Any]], statistic_file: str, warnings: list[str]
) -> None:
    """Say where the profiler itself counted more compute than the table of kernels holds: a slice of it is missing."""
    counted = [row for row in statistic if (row["core"] or "").upper() not in COMMUNICATION_CORES]
    time, count = (sum(row[key] or 0 for row in counted) for key in ("total_ns", "count"))
    compute = (pl.col("kind") == "compute") & pl.col("duration_ns").is_not_null()
    sums = kernels.select((pl.col("duration_ns") * compute).sum(), compute.sum().alias("count"))
    (held, number), typed = sums.row(0), kernels["type"].null_count() < kernels.height
    if typed and held < time * (1 - MISSING):
        told = f"{statistic_file} counts {count} kernels of {time // 1000} us"
        warnings.append(f"{file}: holds {number} kernels of {held // 1000} us where {told}: a part is missing")


def without_communication(
    rows: list[dict[str, Any]], *, seen: bool, world_size: int | None, rank: int | None, warnings: list[str]
) -> None:
    """Steps of one of several ranks that never communicated: nothing of it was recorded, so it is unknown and with it
    what is called free. `seen`: whether any file holds a communication operation."""
    told = [row for row in rows if row["communication_us"] is not None]
    if seen or not told or (world_size or 1) < 2 or any(row["communication_us"] for row in told):
        return
    for row in told:
        row.update(dict.fromkeys((*TIMES, "bubble_source", "device_ratio")))
    who = "this rank" if rank is None else f"rank {rank}"
    warnings.append(
        f"no file holds a communication operation although {who} is one of {world_size}: communication and free time "
        "are unknown; profile with activity NPU at Level1"
    )
