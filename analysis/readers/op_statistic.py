"""op_statistic.csv: operator types as the profiler summed them; used where the kernels themselves are not there."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from analysis.errors import BadDump
from analysis.readers.text import find_titles, integer, nanoseconds, plain, read_columns, read_header, text

TITLES: dict[str, tuple[str, ...]] = {
    "type": ("optype",),
    "core": ("coretype",),
    "count": ("count",),
    "total": ("totaltime",),
}
DEVICE = {"device_id": ("deviceid",)}


def read_op_statistic(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """`type`, `core`, `count`, `total_ns` and `device_id` (null where no column tells) of each row."""
    with plain(path, name) as file:
        if set(find_titles(read_header(file, name), TITLES)) != set(TITLES):
            raise BadDump(name, "is not an operator statistic: columns are missing")
        rows = read_columns(file, name, {**TITLES, **DEVICE}, warnings)
    frame = rows.select(
        text("type").alias("type"),
        text("core").alias("core"),
        integer("count").alias("count"),
        nanoseconds("total").alias("total_ns"),
        integer("device_id").alias("device_id"),
    )
    return frame.filter(pl.col("type").is_not_null() & (pl.col("total_ns") >= 0))
