"""Short sequences of simple kernels that come back often while the host cannot keep up: candidates for fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.facts.prepared import Kernels, us
from analysis.thresholds import limit
from analysis.words import Ints, recode

Bools = npt.NDArray[np.bool_]

_SIMPLE = (
    "elementwise",
    "cast",
    "movement",
    "activation",
    "activation_grad",
    "reduction",
    "norm",
    "norm_grad",
    "position",
)
_LENGTHS = (2, 3, 4, 5)
_HOST_BOUND = 0.4  # device time below this share of the sequence's wall time


def facts(compute: Kernels) -> list[dict[str, Any]]:
    """Host-bound sequences: types, count, device time and wall time. Longer ones first, parts of those not repeated."""
    simple = compute.kinds.filter(pl.col("class").is_in(_SIMPLE)).select("kind", "type")
    names = sorted(set(simple["type"]))
    code = np.full(compute.kinds.height, -1, dtype=np.int64)
    code[simple["kind"].to_numpy()] = [names.index(name) for name in simple["type"]]
    rows = _Rows.of(compute.rows, code)
    found: list[dict[str, Any]] = []
    for length in reversed(_LENGTHS):
        for row in _of_length(rows, length, names):
            if not any(_inside(row["types"], longer["types"]) for longer in found):
                found.append(row)
    return sorted(found, key=lambda row: -row["wall_us"])[:10]


@dataclass(frozen=True)
class _Rows:
    """Kernels in order of launch by stream. `code`: number of a simple type, -1 for others; `spent`: device time of all
    before each, and of all; `timed`: whether the start is known."""

    code: Ints
    stream: Ints
    timed: Bools
    start: Ints
    end: Ints
    spent: Ints

    @classmethod
    def of(cls, rows: pl.DataFrame, code: Ints) -> _Rows:
        time, start = rows["duration_ns"].to_numpy(), rows["start_ns"].fill_null(0).to_numpy()
        timed, stream = rows["start_ns"].is_not_null().to_numpy(), rows["stream_id"].fill_null(-1).to_numpy()
        return cls(code[rows["kind"].to_numpy()], stream, timed, start, start + time, np.append(0, np.cumsum(time)))


def _of_length(rows: _Rows, length: int, names: list[str]) -> list[dict[str, Any]]:
    """The ten longest sequences of so many simple kernels that are frequent and host-bound."""
    at = np.arange(max(0, len(rows.code) - length + 1))
    at = at[rows.stream[at] == rows.stream[at + length - 1]]
    key = np.zeros(len(at), dtype=np.int64)
    for step in range(length):
        simple = rows.code[at + step] >= 0
        at = at[simple]
        key, _ = recode(key[simple] * len(names) + rows.code[at + step])
    last = at + length - 1
    lasted = np.where(rows.timed[at] & rows.timed[last], rows.end[last] - rows.start[at], 0)
    _, first = recode(key)
    count = np.bincount(key)
    wall = _sums(key, lasted)
    device = _sums(key, rows.spent[at + length] - rows.spent[at])
    kept = np.flatnonzero((count > limit("fusible_count")) & (device < _HOST_BOUND * wall))
    return [
        {
            "types": [names[code] for code in rows.code[at[first[each]] + np.arange(length)]],
            "count": int(count[each]),
            "device_us": us(int(device[each])),
            "wall_us": us(int(wall[each])),
        }
        for each in kept[np.argsort(-wall[kept], kind="stable")[:10]]
    ]


def _sums(key: Ints, values: Ints) -> Ints:
    sums = np.zeros(key.max(initial=-1) + 1, dtype=np.int64)
    np.add.at(sums, key, values)
    return sums


def _inside(short: list[str], long: list[str]) -> bool:
    """Whether `short` is a part of `long`, or of `long` said over and over: one loop has many beginnings."""
    twice = long + long
    return any(twice[at : at + len(short)] == short for at in range(len(long)))
