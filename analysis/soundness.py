"""Tables that a reader could read and that still cannot be true: what is done about them, and what is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from analysis.readers.kernel_details import COMMUNICATION_CORES
from analysis.spans import Ints

LEAST = 4
"""Rows from which on it is no chance that all are alike."""
NEGATIVE = r"^\s*-\d"
LAUNCHES = ("HostToDevice", "async_npu")
"""Categories of flows from a call of the host to the start of its kernel."""
MISSING = 0.005
"""Share of the time from which on kernels are missing and no rounding."""
LAUNCHED = 10
"""Launches and kernels from which on it is no chance that none belong together."""
LAUNCHED_EACH = 0.2
"""Launches for each kernel below which not every kernel is launched by itself."""
ALIKE = 0.02
"""Share of launches that lead to a kernel below which a trace is of another rank: kernels start at some nanosecond, so
chance makes next to none alike."""
NEAR = 0.5
"""Share of them near a kernel from which on it is the rank's own, with times that were rounded."""
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


def foreign(events: pl.DataFrame, kernels: pl.DataFrame | None) -> int:
    """Number of launches in a trace of which none leads to one of these kernels, in which case it is not of their rank
    or not of their time. 0 where some do, or too few are told."""
    if kernels is None:
        return 0
    ends = events.filter(pl.col("cat").is_in(LAUNCHES) & (pl.col("ph") == "f"))["start_ns"].unique()
    starts = kernels["start_ns"].drop_nulls().unique()
    told = min(len(ends), len(starts))
    if len(ends) < LAUNCHED_EACH * len(starts):
        return 0  # whole graphs are launched, and a launch leads to the graph, not to a kernel
    if told < LAUNCHED or ends.is_in(starts.implode()).sum() >= ALIKE * told:
        return 0
    return 0 if _near(ends.sort().to_numpy(), starts.sort().to_numpy()) >= NEAR * told else len(ends)


def _near(ends: Ints, starts: Ints) -> int:
    """How many ends are those of a start that one of the files has rounded: a tool that takes times for floating-point
    numbers writes them a quarter of a microsecond apart. 0 where both are told alike finely."""
    finest = int(np.gcd.reduce(ends)), int(np.gcd.reduce(starts))
    if finest[0] == finest[1]:
        return 0
    after = np.searchsorted(starts, ends)
    sides = starts[np.maximum(after - 1, 0)], starts[np.minimum(after, len(starts) - 1)]
    distance = np.minimum(*(np.abs(ends - side) for side in sides))
    return int((distance < 2 * max(finest)).sum())


def steps_from_0(table: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """The table with steps of a negative id, which tools give to what lies outside of all steps, as unknown."""
    step = pl.col("step").cast(pl.String).str.contains(NEGATIVE).fill_null(False)
    if not table.select(pl.col("step").unique()).select(step.any()).item():
        return table
    told = table.with_columns(pl.when(~step).then(pl.col("step")).alias("step"))
    count = told["step"].null_count() - table["step"].null_count()
    warnings.append(f"{name}: step ids below 0 are no steps; in {count} rows the step is left unknown")
    return told


def rows_from_0(steps: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """A step trace without rows of a negative id, as long as it has others; else with their id unknown."""
    known = steps.filter(~pl.col("step").str.contains(NEGATIVE).fill_null(False))
    if not known.height:
        return steps_from_0(steps, name, warnings)
    if left := steps.height - known.height:
        warnings.append(f"{name}: step ids below 0 are no steps; {left} such rows are left out")
    return known


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
