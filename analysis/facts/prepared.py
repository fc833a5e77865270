"""The kernels of a rank as the facts need them: two frames with every column there, in launch order per stream."""

from __future__ import annotations

import polars as pl

_OPTIONAL = {"class": pl.String, "part": pl.String, "layer": pl.Int64, "block": pl.String, "pass": pl.String}
_NEEDED = [
    *("step", "name", "type", "core", "kind", "start_ns", "duration_ns", "stream_id", "model_id", "op_state"),
    *("block_num", "input_shapes", "input_dtypes", "output_shapes", "output_dtypes"),
]


def prepare(kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(compute, communication) kernels with known duration, sorted by stream and start."""
    present = [name for name in _OPTIONAL if name in kernels.columns]
    absent = [pl.lit(None, kind()).alias(name) for name, kind in _OPTIONAL.items() if name not in kernels.columns]
    clocks = [name for name in ("aicore_time(us)", "aic_total_cycles") if name in kernels.columns]
    frame = kernels.select(*_NEEDED, *present, *clocks).with_columns(absent)
    frame = frame.filter(pl.col("duration_ns").is_not_null())
    compute = frame.filter(pl.col("kind") == "compute").sort("stream_id", "start_ns", nulls_last=True)
    talk = frame.filter(pl.col("kind") == "communication")
    return compute.with_row_index("row"), talk


def us(ns: int | float | None) -> float:
    """Nanoseconds as microseconds, to the nanosecond."""
    return round((ns or 0) / 1000, 3)


def total_ns(frame: pl.DataFrame) -> int:
    """Sum of the durations."""
    return int(frame["duration_ns"].sum())


def totals(frame: pl.DataFrame, keys: list[str], limit: int) -> list[dict[str, object]]:
    """Count and total_us per combination of `keys`, longest first."""
    grouped = frame.group_by(keys).agg(count=pl.len(), total=pl.col("duration_ns").sum())
    grouped = grouped.sort(["total", *keys], descending=[True] + [False] * len(keys), nulls_last=True).head(limit)
    return [
        {**{key: row[key] for key in keys}, "count": row["count"], "total_us": us(row["total"])}
        for row in grouped.iter_rows(named=True)
    ]
