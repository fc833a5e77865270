"""kernel_details.csv and op_summary*.csv: one row per launch on the device, whatever the profiler's version called
the columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from analysis.errors import BadDump
from analysis.readers.text import (
    collect,
    evaluated,
    find_titles,
    integer,
    nanoseconds,
    plain,
    read_header,
    scan_text,
    text,
    unit_of,
)
from analysis.schema import KERNEL_COLUMNS, polars_schema
from analysis.words import mapped, mapped_all

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
NAMES = [*TITLES["name"]]

PMU_TITLES = (
    *("aicore_time(us)", "aic_total_cycles"),
    *("aic_mac_ratio", "aic_scalar_ratio", "aic_mte1_ratio", "aic_mte2_ratio", "aic_fixpipe_ratio"),
    *("aiv_vec_ratio", "aiv_scalar_ratio", "aiv_mte2_ratio", "aiv_mte3_ratio"),
    *("aic_icache_miss_rate", "aiv_icache_miss_rate", "cube_utilization(%)"),
)
"""Counters that something reads; the others stay in the file."""

UNSPLIT = {
    "total_cycles": "aic_total_cycles",
    **{f"{pipe}_ratio": f"aic_{pipe}_ratio" for pipe in ("mac", "scalar", "mte1", "mte2")},
    **{f"{pipe}_ratio": f"aiv_{pipe}_ratio" for pipe in ("vec", "mte3")},
    "icache_miss_rate": "aic_icache_miss_rate",
}
"""Counters of chips whose cores have matrix and vector unit in one (910A), and what they are called since."""

WORDS = (
    *("step", "name", "type", "core", "stream_id", "model_id", "device_id", "op_state", "block_num", "mix_block_num"),
    *("hf32", "input_shapes", "input_dtypes", "input_formats", "output_shapes", "output_dtypes", "output_formats"),
)
"""Columns that say the same few things over and over."""

MAX_TIME_NS = 4_000_000_000_000_000_000
"""The year 2096."""
MAX_DURATION_NS = 86_400_000_000_000
MAX_DISTANCE_NS = 30 * MAX_DURATION_NS
"""No window of a profiler lasts a month: a kernel farther than this from the middle one carries a clock gone astray."""
FEW = 0.1
"""Share of the kernels up to which it is they that went astray, and not two windows in one file."""
COMMUNICATION_CORES = ("HCCL", "COMMUNICATION")


def read_kernels(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Kernels of one file with the columns of `KERNEL_COLUMNS`, then those of `PMU_TITLES` the file has.

    Raises BadDump where the file holds no kernel table. Cells that are no number, and negative durations, become null
    with a warning.
    """
    with plain(path, name) as file:
        try:
            rows = _read(file, name, warnings)
        except BadDump:
            scan_text(file, name)  # a file that is no text at all is told so
            raise
        if rows["start_ns"].null_count() and (line := _other_header(file)):
            raise BadDump(name, f"line {line}: another header with other columns: two files were put together")
    return _checked(_without_headers(rows, name, warnings), name, warnings)


def _read(file: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    titles = read_header(file, name)
    positions = find_titles(titles, TITLES)
    for needed in ("name", "start_ns", "duration_ns"):
        if needed not in positions:
            raise BadDump(name, f"is not a kernel table: no column for {needed.removesuffix('_ns')}")
    pmu = _counters(titles)
    units = {column: unit_of(titles[index]) for column, index in positions.items() if column.endswith("_ns")}
    words = [column for column in WORDS if column in positions]
    shape = partial(_typed, units=units, words=[*words, *pmu])
    found = collect(file, name, titles, {**positions, **pmu}, shape, warnings, words, [*pmu])
    return _complete(found, [*pmu])


def _other_header(file: Path) -> int | None:
    """The line at which another header begins whose columns are not those of the first; only asked of files in which
    some start time is no number."""
    with file.open("rb") as lines:
        first = next(lines, b"").strip()
        for number, line in enumerate(lines, 2):
            if b"uration" in line and line.strip() != first:
                titles = find_titles(line.decode("utf-8", errors="replace").split(","), TITLES)
                if {"name", "start_ns", "duration_ns"} <= titles.keys():
                    return number
    return None


def _counters(titles: Sequence[str]) -> dict[str, int]:
    """Counter of `PMU_TITLES` -> its column."""
    bare = [title.replace(" ", "").lower() for title in titles]
    named = [UNSPLIT.get(title, title) for title in bare]
    return {title: named.index(title) for title in PMU_TITLES if title in named}


def _typed(rows: pl.LazyFrame, units: Mapping[str, str | None], words: Sequence[str]) -> pl.LazyFrame:
    """Times of a slice; words as they are: they are worked out once for all slices."""
    numbers = [integer(column).alias(column) for column in ("task_id",) if column in rows.collect_schema()]
    times = [nanoseconds(column, unit).alias(column) for column, unit in units.items()]
    told = [_written("start_ns").alias("__start"), _written("duration_ns").alias("__duration")]
    return rows.select(*words, *numbers, *times, *told)


def _written(column: str) -> pl.Expr:
    """Whether a number ought to stand here: neither nothing nor `N/A`."""
    bare = pl.col(column).str.strip_chars(' \t\r"')
    return bare.is_not_null() & ~bare.is_in(["", "N/A"])


def _complete(rows: pl.DataFrame, pmu: Sequence[str]) -> pl.DataFrame:
    """`rows` with every column of `KERNEL_COLUMNS`: words cleaned or made numbers, absent ones null, kind told."""
    for kind, read in (("str", text), ("i64", integer)):
        words = [column for column in WORDS if column in rows.columns and KERNEL_COLUMNS[column] == kind]
        for column in mapped_all(rows.select(words).get_columns(), partial(evaluated, read)):
            rows.replace_column(rows.get_column_index(column.name), column)
    kinds = {"str": pl.Categorical(), "i64": pl.Int64()}
    absent = [pl.lit(None, kinds[kind]).alias(c) for c, kind in KERNEL_COLUMNS.items() if c not in rows.columns]
    rows = rows.with_columns(absent)
    return rows.with_columns(_kind(rows)).select(*KERNEL_COLUMNS, *pmu, "__start", "__duration")


def _kind(rows: pl.DataFrame) -> pl.Series:
    """`communication` for the cores HCCL and COMMUNICATION, and by name where the core is not told; else `compute`."""
    core = mapped(rows["core"], lambda texts: texts.str.to_uppercase().is_in(COMMUNICATION_CORES).fill_null(False))
    named = mapped(rows["name"], lambda texts: texts.str.contains(r"(?i)^hcom_|^hccl_").fill_null(False))
    return pl.Series("kind", ["compute", "communication"], dtype=pl.Categorical).gather((core | named).cast(pl.UInt32))


def _without_headers(rows: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """Without lines that are no kernels: blank ones and footers, which tell neither name nor times, and headers. Two
    exports put one below the other hold the header twice, and its step is no step."""
    if not rows["start_ns"].null_count():
        return rows
    untimed = rows["start_ns"].is_null() & rows["duration_ns"].is_null()
    told = pl.col("__start") | pl.col("__duration") | pl.col("name").is_not_null()
    blank = untimed & ~rows.select(told).to_series()
    titles = mapped(rows["name"], lambda texts: texts.str.to_lowercase().str.replace_all(r"[\s_]", "").is_in(NAMES))
    again = titles.fill_null(False) & untimed
    count = int(again.sum())
    if count:
        line = int(again.arg_max() or 0) + 2
        warnings.append(f"{name}: line {line}: the header again; {count} such rows are left out")
    return rows.filter(~(again | blank))


def _checked(rows: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """Say which cells were no number, and take nonsense out instead of counting it."""
    rows = _near(rows, name, warnings)
    for what, mask in _complaints().items():
        count = int(rows.select(mask.sum()).item() or 0)
        if count:
            line = int(rows.select(mask.arg_max()).item()) + 2
            warnings.append(f"{name}: line {line}: {what}; in {count} rows it is left unknown")
    return possible(rows.drop("__start", "__duration"))


def _near(rows: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """Few start times a month from all others, as unknown: one such kernel would stretch its step to years."""
    column, start = rows["start_ns"], pl.col("start_ns")
    lowest, highest, middle = column.min(), column.max(), column.median()
    if not (isinstance(lowest, int) and isinstance(highest, int) and isinstance(middle, float)):
        return rows
    if highest - lowest <= MAX_DISTANCE_NS:
        return rows
    possible = (start >= 0) & (start <= MAX_TIME_NS)
    far = (possible & ((start - int(middle)).abs() > MAX_DISTANCE_NS)).fill_null(False)
    count = int(rows.select(far.sum()).item())
    if not 0 < count <= rows.height * FEW:
        return rows
    line = int(rows.select(far.arg_max()).item()) + 2
    warnings.append(f"{name}: line {line}: start time is a month from the others; in {count} rows it is left unknown")
    return rows.with_columns(
        pl.when(far).then(None).otherwise(start).alias("start_ns"), (pl.col("__start") & ~far).alias("__start")
    )


def _complaints() -> dict[str, pl.Expr]:
    start, duration = pl.col("start_ns"), pl.col("duration_ns")
    return {
        "start time is no number": start.is_null() & pl.col("__start"),
        "start time is out of range": (start < 0) | (start > MAX_TIME_NS),
        "duration is no number": duration.is_null() & pl.col("__duration"),
        "duration is negative": duration < 0,
        "duration is longer than a day": duration > MAX_DURATION_NS,
    }


def possible(kernels: pl.DataFrame) -> pl.DataFrame:
    """Times that cannot be, as unknown. So start plus duration fits 64 bits wherever both are known."""
    start, duration = pl.col("start_ns"), pl.col("duration_ns")
    return kernels.with_columns(
        pl.when((start >= 0) & (start <= MAX_TIME_NS)).then(start).alias("start_ns"),
        pl.when((duration >= 0) & (duration <= MAX_DURATION_NS)).then(duration).alias("duration_ns"),
    )


def kernels_of(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows told one by one, all with the same keys, with `KERNEL_COLUMNS`. Types are those of the schema: what the
    first rows leave unknown is not unknown for all."""
    schema = {name: kind for name, kind in polars_schema(KERNEL_COLUMNS).items() if name in rows[0]}
    return columns_only(pl.DataFrame([dict(row) for row in rows], schema=schema))


def columns_only(rows: pl.DataFrame, extra: Sequence[str] = ()) -> pl.DataFrame:
    """`rows` with exactly the columns of the schema, absent ones and impossible times null."""
    absent = [
        pl.lit(None, pl.String() if kind == "str" else pl.Int64()).alias(column)
        for column, kind in KERNEL_COLUMNS.items()
        if column not in rows.columns
    ]
    return possible(rows.with_columns(absent).select(*KERNEL_COLUMNS, *extra))
