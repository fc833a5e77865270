"""Which kernels a finding would save, so that savings which share kernels are not added up.

Each kernel may carry several marks. Only its exposed time counts: what no compute kernel of another stream covers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.facts.prepared import us
from analysis.spans import merged

Flags = npt.NDArray[np.bool_]
_MAX_STREAMS = 32


class Marks:
    """Marks on the rows of one frame of compute kernels (`row` is the index)."""

    def __init__(self, compute: pl.DataFrame) -> None:
        self._compute = compute
        self._marks: dict[str, Flags] = {}
        self._exposed: npt.NDArray[np.int64] | None = None

    def add(self, name: str, rows: pl.Series) -> None:
        """Marks the kernels at these row numbers."""
        flags = np.zeros(self._compute.height, dtype=np.bool_)
        flags[rows.to_numpy()] = True
        self._marks[name] = self._marks[name] | flags if name in self._marks else flags

    def exposed_us(self, rows: pl.Series) -> float:
        """Time of these kernels that no compute kernel of another stream covers."""
        return us(int(self._exposures()[rows.to_numpy()].sum()))

    def facts(self) -> list[dict[str, Any]]:
        """Exposed time per combination of marks: [{"marks": [...], "us": ...}], without the unmarked."""
        if not self._marks:
            return []
        names = sorted(self._marks)
        codes = sum(self._marks[name].astype(np.int64) << bit for bit, name in enumerate(names))
        sums = np.bincount(codes, weights=self._exposures(), minlength=1)
        found = []
        for code, total in enumerate(sums):
            if code and total:
                marks = [name for bit, name in enumerate(names) if code >> bit & 1]
                found.append({"marks": marks, "us": us(float(total))})
        return found

    def _exposures(self) -> npt.NDArray[np.int64]:
        if self._exposed is None:
            self._exposed = exposed_ns(self._compute)
        return self._exposed


def exposed_ns(compute: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Per kernel, ns of its duration during which no kernel of another stream runs.

    Kernels of one stream follow one another, so only other streams can hide them. With more than `_MAX_STREAMS`
    streams, the least busy ones are taken as one.
    """
    duration: npt.NDArray[np.int64] = compute["duration_ns"].to_numpy().astype(np.int64)
    if compute["stream_id"].n_unique() < 2 or compute["start_ns"].null_count():
        return duration
    busiest = compute.group_by("stream_id").agg(pl.col("duration_ns").sum()).sort("duration_ns", descending=True)
    kept = busiest["stream_id"].head(_MAX_STREAMS).to_list()
    lane = compute.select(pl.when(pl.col("stream_id").is_in(kept)).then(pl.col("stream_id")).otherwise(-1)).to_series()
    spans = compute.select("start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns")).with_columns(lane=lane)
    lanes = spans["lane"].to_numpy()
    exposed = duration.copy()
    for stream in spans["lane"].unique():
        mine = lanes == stream
        others = merged(spans.filter(pl.col("lane") != stream).select("start_ns", "end_ns"))
        start, end = spans["start_ns"].to_numpy()[mine], spans["end_ns"].to_numpy()[mine]
        exposed[mine] -= covered_until(others, end) - covered_until(others, start)
    return np.maximum(exposed, np.int64(0))


def covered_until(islands: pl.DataFrame, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Total length of the islands (disjoint, in order, at least one) before each time."""
    starts, ends = islands["start_ns"].to_numpy(), islands["end_ns"].to_numpy()
    before: npt.NDArray[np.int64] = np.concatenate(([0], np.cumsum(ends - starts)))
    index = np.searchsorted(starts, times, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.where(index > 0, np.minimum(times, ends[last]) - starts[last], 0)
    covered: npt.NDArray[np.int64] = before[last] + inside
    return covered
