"""Arithmetic of time intervals. A frame of spans has `start_ns` and `end_ns`; overlapping spans are welcome."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Islands:
    """Spans that do not touch, in order, in ns."""

    starts: Ints
    ends: Ints

    @property
    def total(self) -> int:
        """How long they are together."""
        return int((self.ends - self.starts).sum())

    def before(self, times: Ints) -> Ints:
        """How much of them lies before each time."""
        if not len(self.starts):
            return np.zeros(len(times), dtype=np.int64)
        passed: Ints = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        index = np.searchsorted(self.starts, times, side="right")
        last = np.maximum(index - 1, 0)
        inside = np.where(index > 0, np.minimum(times, self.ends[last]) - self.starts[last], 0)
        return np.asarray(passed[last] + inside, dtype=np.int64)

    def within(self, starts: Ints, ends: Ints) -> Ints:
        """How much of them lies in each of these spans."""
        return self.before(ends) - self.before(starts)


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


def islands(spans: pl.DataFrame) -> Islands:
    """The same time as spans that do not touch."""
    return joined(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())


def joined(starts: Ints, ends: Ints) -> Islands:
    """What `islands` gives, of two arrays."""
    if not (starts[1:] >= starts[:-1]).all():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    apart = np.flatnonzero(starts[1:] > reached[:-1])
    first = np.concatenate(([0], apart + 1)) if len(starts) else apart
    last = np.concatenate((apart, [len(starts) - 1])) if len(starts) else apart
    return Islands(starts[first], reached[last])


def merged(spans: pl.DataFrame) -> pl.DataFrame:
    """`islands` as a frame of spans."""
    found = islands(spans)
    return pl.DataFrame({"start_ns": found.starts, "end_ns": found.ends})


def gaps(spans: pl.DataFrame) -> pl.DataFrame:
    """Times between the spans in which none runs."""
    islands = merged(spans)
    between = islands.select(start_ns=pl.col("end_ns"), end_ns=pl.col("start_ns").shift(-1))
    return between.filter(pl.col("end_ns").is_not_null())
