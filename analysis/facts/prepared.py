"""The kernels of a rank as the facts need them: numbers by row, words once per kind.

A capture of a million kernels has a few thousand kinds of them (type, core, shapes, dtypes, place). Sorting and joining
numbers is cheap; dragging twelve text columns along is what takes time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.communication import operation
from analysis.words import as_text, combined

_WORDS = [
    *("type", "class", "core", "op_state", "block_num", "input_shapes", "input_dtypes", "output_shapes"),
    *("output_dtypes", "part", "block", "pass", "within"),
]
_OPTIONAL = {
    **dict.fromkeys(("class", "part", "block", "pass", "within"), pl.String),
    "layer": pl.Int64,
}


@dataclass(frozen=True)
class Kernels:
    """`rows`: row, kind, step (a hash), start_ns, duration_ns, stream_id and layer, in launch order per stream.
    `kinds`: kind, its words, count and duration_ns (the sum)."""

    rows: pl.DataFrame
    kinds: pl.DataFrame

    @property
    def typed(self) -> bool:
        """Whether any operator type is known."""
        return self.kinds["type"].null_count() < self.kinds.height

    @property
    def attributed(self) -> bool:
        """Whether any kernel has a place in the model."""
        return self.kinds["part"].null_count() < self.kinds.height

    def where(self, *conditions: pl.Expr) -> pl.DataFrame:
        """Rows of the kinds that fulfil the conditions on words, words included."""
        return self.of(self.kinds.filter(*conditions))

    def of(self, kinds: pl.DataFrame) -> pl.DataFrame:
        """Rows of these kinds, words included."""
        words = kinds.drop("count", "duration_ns")
        chosen = self.rows.filter(pl.col("kind").is_in(words["kind"].to_list()))
        return chosen.join(words, on="kind", how="left", maintain_order="left")


def prepare(kernels: pl.DataFrame) -> tuple[Kernels, pl.DataFrame]:
    """(compute kernels, frame of communication kernels with `op`, the collective), both with known duration."""
    absent = [pl.lit(None, kind()).alias(name) for name, kind in _OPTIONAL.items() if name not in kernels.columns]
    frame = kernels.with_columns(absent)
    timed = pl.col("duration_ns").is_not_null()
    numbers = frame.select(pl.col("step").hash(), "start_ns", "duration_ns", "stream_id", "layer")
    computes = frame.select((pl.col("kind") == "compute") & timed).to_series()
    rows = numbers.filter(computes)
    words = frame.select(_WORDS).filter(computes)
    kind, first = combined(words.get_columns())
    count = np.bincount(kind, minlength=len(first))
    time = np.bincount(kind, weights=rows["duration_ns"].to_numpy(), minlength=len(first)).astype(np.int64)
    kinds = as_text(words[first]).with_row_index("kind")
    kinds = kinds.with_columns(count=pl.Series(count, dtype=pl.Int64), duration_ns=pl.Series(time, dtype=pl.Int64))
    rows = rows.with_columns(kind=pl.Series(kind, dtype=pl.UInt32))
    rows = rows.sort("stream_id", "start_ns", nulls_last=True).with_row_index("row")
    talking = (pl.col("kind") == "communication") & timed
    talk = as_text(frame.filter(talking).select("name", "start_ns", "duration_ns", "part"))
    ops = pl.Series("op", [operation(name or "") for name in talk["name"]], dtype=pl.String)
    return Kernels(rows, kinds), talk.with_columns(ops)


def us(ns: int | float | None) -> float:
    """Nanoseconds as microseconds, to the nanosecond."""
    return round((ns or 0) / 1000, 3)


def total_ns(frame: pl.DataFrame) -> int:
    """Sum of the durations."""
    return int(frame["duration_ns"].sum())


def totals(frame: pl.DataFrame, keys: list[str], limit: int) -> list[dict[str, object]]:
    """Count and total_us per combination of `keys`, longest first; of rows, or of kinds with their count."""
    count = pl.col("count").sum() if "count" in frame.columns else pl.len()
    grouped = frame.group_by(keys).agg(count=count, total=pl.col("duration_ns").sum())
    grouped = grouped.sort(["total", *keys], descending=[True] + [False] * len(keys), nulls_last=True).head(limit)
    return [
        {**{key: row[key] for key in keys}, "count": row["count"], "total_us": us(row["total"])}
        for row in grouped.iter_rows(named=True)
    ]
