"""Which kernels a finding would save, so that savings which share kernels are not added up.

Each kernel may carry several marks. Only its exposed time counts: what no compute kernel of another stream covers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.facts.prepared import us
from analysis.spans import joined

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
_MAX_STREAMS = 32


class Marks:
    """Marks on the rows of one frame of compute kernels (`row` is the index)."""

    def __init__(self, compute: pl.DataFrame) -> None:
        self._compute = compute
        self._marks: dict[str, Flags] = {}
        self._exposed: Ints | None = None

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

    def _exposures(self) -> Ints:
        if self._exposed is None:
            self._exposed = exposed_ns(self._compute)
        return self._exposed


def exposed_ns(compute: pl.DataFrame) -> Ints:
    """Per kernel, ns of its duration during which no kernel of another stream runs.

    Kernels of one stream follow one another, so only other streams can hide them. With more than `_MAX_STREAMS`
    streams, the least busy ones are taken as one.
    """
    duration: Ints = compute["duration_ns"].to_numpy().astype(np.int64)
    if compute["start_ns"].null_count():
        return duration
    start, lanes = compute["start_ns"].to_numpy(), _lanes(compute["stream_id"], duration)
    end, exposed = start + duration, duration.copy()
    for lane in range(lanes.max(initial=0) + 1):
        mine = lanes == lane
        exposed[mine] -= joined(start[~mine], end[~mine]).within(start[mine], end[mine])
    return np.maximum(exposed, np.int64(0))


def _lanes(streams: pl.Series, duration: Ints) -> Ints:
    """A number for each stream, the busiest from 0; those that are not told, and the least busy, share the last."""
    known = streams.fill_null(-1).to_numpy()
    _, code = np.unique(known, return_inverse=True)
    busy = np.bincount(code, weights=np.where(known < 0, 0, duration))
    place = np.empty(len(busy), dtype=np.int64)
    place[np.argsort(-busy, kind="stable")] = np.arange(len(busy))
    return np.minimum(place, _MAX_STREAMS)[code]
