"""Arithmetic of time intervals. A frame of spans has `start_ns` and `end_ns`; overlapping spans are welcome."""

from __future__ import annotations

import polars as pl


def with_end(kernels: pl.DataFrame) -> pl.DataFrame:
    """Rows that have both a start and a duration, with `end_ns`."""
    known = kernels.filter(pl.col("start_ns").is_not_null() & pl.col("duration_ns").is_not_null())
    return known.with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))


def covered_ns(spans: pl.DataFrame) -> int:
    """Time during which at least one span runs, in ns."""
    return int(spans.sort("start_ns").select(_fresh().sum()).item() or 0)


def covered_by_ns(spans: pl.DataFrame, key: str) -> pl.DataFrame:
    """Per value of `key`: `covered_ns`, the time during which at least one of its spans runs."""
    fresh = spans.sort("start_ns").with_columns(_fresh(key).alias("covered_ns"))
    return fresh.group_by(key, maintain_order=True).agg(pl.col("covered_ns").sum())


def _fresh(key: str | None = None) -> pl.Expr:
    """What each span (sorted by start) covers that no earlier one did."""
    reached = pl.col("end_ns").cum_max().shift(1)
    reached = reached.over(key) if key else reached
    begin = pl.max_horizontal(pl.col("start_ns"), reached)
    return pl.max_horizontal(pl.col("end_ns") - begin, pl.lit(0, pl.Int64))


def overlapped_ns(one: pl.DataFrame, other: pl.DataFrame) -> int:
    """Time during which both run, in ns: |A| + |B| - |A or B|."""
    columns = ["start_ns", "end_ns"]
    return covered_ns(one) + covered_ns(other) - covered_ns(pl.concat([one.select(columns), other.select(columns)]))


def merged(spans: pl.DataFrame) -> pl.DataFrame:
    """The same time as spans that do not touch, in order."""
    ordered = spans.sort("start_ns").select("start_ns", "end_ns")
    reached = pl.col("end_ns").cum_max().shift(1)
    island = (pl.col("start_ns") > reached).fill_null(True).cum_sum()
    grouped = ordered.with_columns(island=island).group_by("island", maintain_order=True)
    return grouped.agg(pl.col("start_ns").first(), pl.col("end_ns").max()).drop("island")


def gaps(spans: pl.DataFrame) -> pl.DataFrame:
    """Times between the spans in which none runs."""
    islands = merged(spans)
    between = islands.select(start_ns=pl.col("end_ns"), end_ns=pl.col("start_ns").shift(-1))
    return between.filter(pl.col("end_ns").is_not_null())
