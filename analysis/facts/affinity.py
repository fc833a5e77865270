"""Sequences of small kernels for which the device has one fused operator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.facts.prepared import Kernels, us
from analysis.facts.recovery import Marks
from analysis.optypes import normalise

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pattern:
    """A chain of normalised types (regular expressions, in order) and the fused operator that does their work.

    Such kernels cost what they move: `passes` counts the tensors that they read and write all together, `fused_passes`
    those of the fused operator. `even`: all of them give the same shape.
    """

    fused: str
    chain: tuple[str, ...]
    passes: int
    fused_passes: int
    even: bool = False

    @property
    def saved(self) -> float:
        """Share of the time that fusing saves, by estimate."""
        return 1 - self.fused_passes / self.passes


_WORDS = {
    "SQUARE": "square|pows?|powtensorscalar",
    "MEAN": "reducemean|mean",
    "SUM": "reducesum|sum",
    "MAX": "reducemax|amax|max",
    "ADD": "adds?",
    "MUL": "muls?",
    "SUB": "subs?",
    "DIV": "divs?|realdiv",
    "SCALE": "muls?|divs?|realdiv",
    "SILU": "swish|silu",
}


def _pattern(fused: str, chain: str, passes: int, fused_passes: int, *, even: bool = False) -> Pattern:
    return Pattern(fused, tuple(_WORDS.get(word, word) for word in chain.split()), passes, fused_passes, even)


PATTERNS = (
    # x read and written by the square; read for the mean; read and written by each of the two products
    _pattern("RmsNorm", "SQUARE MEAN ADD rsqrt mul mul", 7, 2),
    _pattern("RmsNorm", "SQUARE MEAN ADD sqrt (reciprocal|inv) mul mul", 7, 2),
    _pattern("RmsNorm", "SQUARE MEAN ADD sqrt DIV mul", 7, 2),
    # means read only; difference, square, quotient, scale and shift read and write
    _pattern("LayerNorm", "MEAN SUB SQUARE MEAN ADD (rsqrt|sqrt) (mul|div|realdiv) mul add", 12, 2),
    _pattern("Softmax", "MAX SUB exp SUM DIV", 8, 2),
    _pattern("SwiGlu", "SILU mul", 5, 3, even=True),
    _pattern("SwiGlu", "sigmoid mul mul", 8, 3, even=True),
    _pattern("Gelu", "SQUARE MUL add MUL tanh ADD MUL MUL", 18, 2, even=True),
    _pattern("Gelu", "SCALE erf ADD mul MUL", 11, 2, even=True),
    # x cos, half of x negated, both halves joined, that times sin, the sum
    _pattern("RotaryPositionEmbedding", "mul neg concat mul add", 10, 2),
    _pattern("RotaryPositionEmbedding", "neg concat mul mul add", 10, 2),
    # both moments, root, its correction and epsilon, the weights; fused: weight, gradient, moments in, all but the
    # gradient out
    _pattern("FusedAdamW", "MUL (add|axpy|addn) MUL addcmul sqrt SCALE ADD addcdiv", 20, 7, even=True),
    _pattern("FusedAdamW", "lerp MUL addcmul sqrt SCALE ADD addcdiv", 18, 7, even=True),
    _pattern("FusedAdamW", "mul mul add mul square mul add sqrt ADD DIV", 23, 7, even=True),
    _pattern("FusedAdamW", "mul mul add square mul mul add sqrt ADD DIV", 23, 7, even=True),
    _pattern(
        "FusedAdamW",
        r"foreachlerp\w* foreachmul\w* foreachaddcmul\w* foreachsqrt foreach(div|mul)\w* foreachadd(scalar|list)\w* "
        r"foreachaddcdiv\w*",
        18,
        7,
    ),
    _pattern(
        "FusedAdamW",
        r"foreachmul\w* foreachadd(scalar|list)\w* foreachmul\w* foreachaddcmul\w* foreachsqrt foreach(div|mul)\w* "
        r"foreachadd(scalar|list)\w* foreachaddcdiv\w*",
        20,
        7,
    ),
)
"""Longest chains count first; casts and copies between do not count."""
_LINKS = {link: re.compile(link) for pattern in PATTERNS for link in pattern.chain}
"""Compiled at import, which a nursery's children do not do again."""


def facts(compute: Kernels, marks: Marks) -> list[dict[str, Any]]:
    """Per fused operator that would serve: `count` sequences on one stream, their `total_us`, and `saved_us`, which
    is an estimate of their exposed time."""
    sums: dict[str, dict[str, Any]] = {}
    track = _track(compute)
    for pattern, starts in _hits(track):
        rows = pl.Series(track.row[starts[:, None] + np.arange(len(pattern.chain))].ravel())
        marks.add("affinity", rows)
        found = sums.setdefault(pattern.fused, {"fused": pattern.fused, "count": 0, "total_us": 0.0, "saved_us": 0.0})
        found["count"] += len(starts)
        found["total_us"] += us(int(track.time[starts[:, None] + np.arange(len(pattern.chain))].sum()))
        found["saved_us"] += marks.exposed_us(rows) * pattern.saved
    rounded = ({**row, **{key: round(row[key], 3) for key in ("total_us", "saved_us")}} for row in sums.values())
    return sorted(rounded, key=lambda row: (-row["total_us"], row["fused"]))


@dataclass(frozen=True)
class _Track:
    """Kernels in order of launch by stream, without casts and copies; types and shapes by kind."""

    row: Ints
    kind: Ints
    stream: Ints
    time: Ints
    names: list[str]
    shape: Ints
    count: Ints


def _track(compute: Kernels) -> _Track:
    passing = pl.col("class").is_in(["cast", "movement"])
    kinds = compute.kinds.with_columns(
        name=pl.Series([re.sub("^concatd$", "concat", normalise(str(kind))) for kind in compute.kinds["type"]])
    )
    # a concatenation moves data, but is part of the rotation written out
    kept = kinds.select(~passing.fill_null(False) | (pl.col("name") == "concat")).to_series().to_numpy()
    chosen = compute.rows.filter(kept[compute.rows["kind"].to_numpy()])
    return _Track(
        chosen["row"].to_numpy().astype(np.int64),
        chosen["kind"].to_numpy().astype(np.int64),
        chosen["stream_id"].fill_null(-1).to_numpy(),
        chosen["duration_ns"].to_numpy(),
        kinds["name"].to_list(),
        kinds["output_shapes"].fill_null("").cast(pl.Categorical).to_physical().to_numpy().astype(np.int64),
        kinds["count"].to_numpy(),
    )


def _hits(track: _Track) -> Iterator[tuple[Pattern, Ints]]:
    """Where chains begin. No kernel is part of two."""
    taken = np.zeros(len(track.kind), dtype=np.bool_)
    for pattern in sorted(PATTERNS, key=lambda pattern: -len(pattern.chain)):
        starts = _places(track, pattern)
        steps = np.arange(len(pattern.chain))
        starts = starts[~taken[starts[:, None] + steps].any(axis=1)]
        if len(starts):
            taken[starts[:, None] + steps] = True
            yield pattern, starts


def _places(track: _Track, pattern: Pattern) -> Ints:
    """Types are compared once per kind, and kernels only where the rarest link of the chain stands."""
    links = [_of_type(track.names, link) for link in pattern.chain]
    counts = [int(track.count[link].sum()) for link in links]
    if not all(counts):
        return np.empty(0, dtype=np.int64)
    rarest = int(np.argmin(counts))
    starts: Ints = np.flatnonzero(links[rarest][track.kind]) - rarest
    starts = starts[(starts >= 0) & (starts + len(links) <= len(track.kind))]
    starts = starts[track.stream[starts] == track.stream[starts + len(links) - 1]]
    for place, link in enumerate(links):
        starts = starts[link[track.kind[starts + place]]]
        if pattern.even:
            starts = starts[track.shape[track.kind[starts + place]] == track.shape[track.kind[starts]]]
    return starts


def _of_type(names: Sequence[str], link: str) -> Flags:
    return np.array([_LINKS[link].fullmatch(name) is not None for name in names], dtype=np.bool_)
