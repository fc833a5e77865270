"""The index of one dump's kernels by lane and time, kept beside its Parquet files and mapped into memory.

`analysis.lanes` makes it: in the digest for many kernels, at the first view for few ones and for older captures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.schema import KERNEL_KINDS, LANE_COLUMNS, LANES_FILE
from dashboard.runs.frames import frames_path

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

KERNEL_LANES = KERNEL_KINDS


@dataclass(frozen=True)
class Lane:
    """One row of boxes, sorted by start. `kind`: steps, layers, blocks, compute, communication, free or computing.

    Times are ns since the first kernel's start. `row` is a kernel's row in the Parquet file; for a band the first
    kernel's, for free time the kernel's that ends it. Codes point into the index's tables, 0 is unknown; the class of
    free time is its cause.
    """

    number: int
    kind: str
    key: str
    start: Numbers
    duration: Numbers
    row: Numbers
    class_: Numbers
    block: Numbers
    place: Numbers
    type: Numbers
    longest: int

    def within(self, begin: int, end: int) -> slice:
        """Where boxes that touch [begin, end) can be."""
        first = int(self.start.searchsorted(begin - self.longest, "left"))
        return slice(first, int(self.start.searchsorted(end, "left")))


@dataclass(frozen=True)
class Index:
    """Lanes and what their codes mean; `steps` are [label, begin, end] in order of time."""

    origin_ns: int
    end: int
    kernels: int
    lanes: tuple[Lane, ...]
    classes: list[str | None]
    blocks: list[str | None]
    places: list[list[Any]]
    types: list[str | None]
    causes: list[str | None]
    steps: list[list[Any]]

    def of_kind(self, *kinds: str) -> Iterator[Lane]:
        return (lane for lane in self.lanes if lane.kind in kinds)


def open_index(frames: str) -> Index | None:
    """The index of a dump's kernels by `Dump.frames`; made when it is not there. None where no kernels are kept."""
    folder = frames_path(frames) if frames else None
    if folder is None or not (folder / "kernels.parquet").exists():
        return None
    if not (folder / f"{LANES_FILE}.json").exists():
        from analysis.lanes import build

        build(folder)
    return _opened(folder)


@lru_cache(maxsize=8)
def _opened(folder: Path) -> Index:
    """Maps the file; its pages stay the system's to drop."""
    about = json.loads((folder / f"{LANES_FILE}.json").read_bytes())
    columns = dict(_mapped(folder / f"{LANES_FILE}.bin", about.pop("rows")))
    lanes = []
    for number, lane in enumerate(about.pop("lanes")):
        part = slice(lane["first"], lane["first"] + lane["count"])
        values = {name: column[part] for name, column in columns.items()}
        lanes.append(Lane(number, lane["kind"], lane["key"], longest=lane["longest"], **values))
    return Index(lanes=tuple(lanes), **about)


def _mapped(path: Path, rows: int) -> Iterator[tuple[str, Numbers]]:
    import numpy as np

    offset = 0
    for name, kind in LANE_COLUMNS.items():
        # A file of no bytes cannot be mapped.
        yield name, np.memmap(path, kind, "r", offset, (rows,)).view(np.ndarray) if rows else np.empty(0, kind)
        offset += rows * np.dtype(kind).itemsize
