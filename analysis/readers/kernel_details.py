"""kernel_details.csv and op_summary*.csv: one row per launch on the device, whatever the profiler's version called
the columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from analysis.errors import BadDump
from analysis.readers.text import (
    collect,
    find_titles,
    integer,
    nanoseconds,
    number,
    plain,
    read_header,
    scan_text,
    text,
    unit_of,
)
from analysis.schema import KERNEL_COLUMNS

TITLES: dict[str, tuple[str, ...]] = {
    "step": ("stepid", "step"),
    "name": ("name", "opname", "kernelname"),
    "type": ("type", "optype"),
    "core": ("acceleratorcore", "tasktype", "kerneltype"),
    "start_ns": ("starttime", "taskstarttime", "taskstart"),
    "duration_ns": ("duration", "taskduration", "tasktime"),
    "wait_ns": ("waittime", "taskwaittime"),
    "stream_id": ("streamid",),
    "task_id": ("taskid",),
    "model_id": ("modelid",),
    "device_id": ("deviceid",),
    "op_state": ("opstate",),
    "block_num": ("blockdim", "blocknum"),
    "mix_block_num": ("mixblockdim", "mixblocknum"),
    "hf32": ("hf32eligible",),
    "input_shapes": ("inputshapes",),
    "input_dtypes": ("inputdatatypes",),
    "input_formats": ("inputformats",),
    "output_shapes": ("outputshapes",),
    "output_dtypes": ("outputdatatypes",),
    "output_formats": ("outputformats",),
}
"""Our column -> normal forms of the titles it has had."""

PMU_TITLES = (
    "aic_mac_ratio",
    "aiv_vec_ratio",
    "cube_utilization(%)",
)
"""Counters that something reads; the others stay in the file."""

COMMUNICATION_CORES = ("HCCL", "COMMUNICATION")


def read_kernels(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Kernels of one file with the columns of `KERNEL_COLUMNS`, then those of `PMU_TITLES` the file has.

    Raises BadDump where the file holds no kernel table. Cells that are no number, and negative durations, become null
    with a warning.
    """
    with plain(path, name) as file:
        scan_text(file, name)
        titles = read_header(file, name)
        positions = find_titles(titles, TITLES)
        for needed in ("name", "start_ns", "duration_ns"):
            if needed not in positions:
                raise BadDump(name, f"is not a kernel table: no column for {needed.removesuffix('_ns')}")
        pmu = {title: titles.index(title) for title in PMU_TITLES if title in titles}
        units = {column: unit_of(titles[index]) for column, index in positions.items() if column.endswith("_ns")}
        rows = collect(
            file, name, titles, {**positions, **pmu}, lambda lazy: _typed(lazy, positions, pmu, units), warnings
        )
    return _checked(rows, name, warnings)


def _typed(
    rows: pl.LazyFrame, positions: Mapping[str, int], pmu: Mapping[str, int], units: Mapping[str, str | None]
) -> pl.LazyFrame:
    columns = [_column(column, kind, positions, units) for column, kind in KERNEL_COLUMNS.items() if column != "kind"]
    counters = [number(title) for title in pmu]
    told = [_written("start_ns").alias("__start"), _written("duration_ns").alias("__duration")]
    typed = rows.select(*columns, *counters, *told).with_columns(kind_expr())
    return typed.select(*KERNEL_COLUMNS, *pmu, "__start", "__duration")


def _written(column: str) -> pl.Expr:
    """Whether a number ought to stand here: neither nothing nor `N/A`."""
    bare = pl.col(column).str.strip_chars(' \t\r"')
    return bare.is_not_null() & ~bare.is_in(["", "N/A"])


def _column(column: str, kind: str, positions: Mapping[str, int], units: Mapping[str, str | None]) -> pl.Expr:
    if column not in positions:
        return pl.lit(None, pl.String() if kind == "str" else pl.Int64()).alias(column)
    if column.endswith("_ns"):
        return nanoseconds(column, units[column]).alias(column)
    return (text(column) if kind == "str" else integer(column)).alias(column)


def kind_expr() -> pl.Expr:
    """`communication` for the cores HCCL and COMMUNICATION, and by name where the core is not told; else `compute`."""
    core = pl.col("core").str.to_uppercase().is_in(COMMUNICATION_CORES).fill_null(False)
    named = pl.col("name").str.contains(r"(?i)^hcom_|^hccl_").fill_null(False)
    return pl.when(core | named).then(pl.lit("communication")).otherwise(pl.lit("compute")).alias("kind")


def _checked(rows: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """Say which cells were no number, and take nonsense out instead of counting it."""
    unread = rows.select(
        start=(pl.col("start_ns").is_null() & pl.col("__start")).sum(),
        duration=(pl.col("duration_ns").is_null() & pl.col("__duration")).sum(),
        negative=(pl.col("duration_ns") < 0).sum(),
    ).row(0, named=True)
    for what, count in unread.items():
        if count:
            warnings.append(
                f"{name}: line {_first(rows, what) + 2}: {_COMPLAINTS[what]}; {count} such rows have no {_LOST[what]}"
            )
    if unread["negative"]:
        rows = rows.with_columns(pl.when(pl.col("duration_ns") >= 0).then(pl.col("duration_ns")).alias("duration_ns"))
    return rows.drop("__start", "__duration")


_COMPLAINTS = {
    "start": "start time is no number",
    "duration": "duration is no number",
    "negative": "duration is negative",
}
_LOST = {"start": "start time", "duration": "duration", "negative": "duration"}


def _first(rows: pl.DataFrame, what: str) -> int:
    """Row number of the first complaint, counted from 0."""
    masks = {
        "start": pl.col("start_ns").is_null() & pl.col("__start"),
        "duration": pl.col("duration_ns").is_null() & pl.col("__duration"),
        "negative": pl.col("duration_ns") < 0,
    }
    return int(rows.select(masks[what].arg_max()).item())


def columns_only(rows: pl.DataFrame, extra: Sequence[str] = ()) -> pl.DataFrame:
    """`rows` with exactly the columns of the schema, absent ones null."""
    absent = [
        pl.lit(None, pl.String() if kind == "str" else pl.Int64()).alias(column)
        for column, kind in KERNEL_COLUMNS.items()
        if column not in rows.columns
    ]
    return rows.with_columns(absent).select(*KERNEL_COLUMNS, *extra)
