"""Gradients of weights that do not run with their layer's backward pass but later, to fill the pipeline's bubble.

In such a schedule a backward layer holds one product for each projection instead of two, and elsewhere there are
stretches of nothing but products and what sums their results: as many for each layer, last layer first, the same in
every layer. A stretch that reads so is cut into layers; one that does not is left unattributed rather than guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.layers.anchors import Anchors
from analysis.layers.layout import BLOCK_CODE, MOVEMENT, PART_CODE, Layout
from analysis.layers.passes import BACKWARD, FORWARD, Places
from analysis.layers.track import MATMUL, Bools, Ints, Track

UNTOLD = "weight gradients that run apart from their layer cannot be told by layer: they are left unattributed"
_LIGHT = ("cast", "elementwise", "movement", "reduction")


@dataclass(frozen=True)
class Piece:
    """Main kernels [start, end): gradients of one layer's weights for one micro-batch."""

    start: int
    end: int
    layer: int
    micro_batch: int


@dataclass
class Deferred:
    """What was found. `alone`: backward stretches hold no gradients of weights. `untold` are main kernels."""

    alone: bool = False
    pieces: list[Piece] = field(default_factory=list)
    untold: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    projections: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Main kernels of the products of one forward layer, in order, without those of its core."""

    @property
    def doubt(self) -> str | None:
        return UNTOLD if len(self.untold) else None


def find_deferred(track: Track, anchors: Anchors, places: Places, start: Ints, end: Ints) -> Deferred:
    """Stretches outside of the layers that hold the weight gradients of whole passes."""
    product = track.flag(*MATMUL)
    count = np.concatenate(([0], np.cumsum(product)))
    own = count[end] - count[start] - (count[anchors.last + 1] - count[anchors.first])
    own += count[anchors.rejoin] - np.minimum(count[anchors.turn + 1], count[anchors.rejoin])
    forward, backward = own[places.pass_ == FORWARD], own[places.pass_ == BACKWARD]
    if not len(forward) or not len(backward) or not 0 < np.median(backward) < 1.5 * np.median(forward):
        return Deferred()
    covered = np.zeros(len(track.main), dtype=bool)
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        covered[a:b] = True
    stretches = _stretches(track, product, covered, int(np.median(forward)))
    if not stretches:
        return Deferred(alone=True)
    typical = int(np.flatnonzero(places.pass_ == FORWARD)[np.abs(forward - np.median(forward)).argmin()])
    inside = np.arange(start[typical], end[typical])
    core = (inside >= anchors.first[typical]) & (inside <= anchors.last[typical])
    return _cut(track, product, stretches, places.layers, inside[product[inside] & ~core])


def _stretches(track: Track, product: Bools, covered: Bools, least: int) -> list[tuple[int, int]]:
    """[first product, behind the last kernel that belongs to it) of every stretch of products with light kernels
    between, outside of layers, none of them next to a loss."""
    plain = ~covered & (product | track.flag(*_LIGHT))
    edges = np.diff(np.concatenate(([0], plain.astype(np.int8), [0])))
    found = []
    for a, b in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
        inside = np.flatnonzero(product[a:b]) + a
        if len(inside) >= max(2, least):
            found.append((int(inside[0]), b))
    return found


def _cut(track: Track, product: Bools, stretches: list[tuple[int, int]], layers: int, projections: Ints) -> Deferred:
    found = Deferred(alone=True, projections=projections)
    untold: list[int] = []
    seen: dict[int, int] = {}
    for a, b in stretches:
        at = np.flatnonzero(product[a:b]) + a
        passes, rest = divmod(len(at), layers * len(projections)) if len(projections) else (0, 0)
        edges = _edges(track, at, b, layers * passes, len(projections)) if passes and not rest else None
        if edges is None:
            untold += range(a, int(at[-1]) + 1)
            continue
        step = int(track.main_steps[a])
        batch = seen.get(step, 0)
        for i, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):
            found.pieces.append(Piece(low, high, layers - 1 - i % layers, batch + i // layers))
        seen[step] = batch + passes
    found.untold = np.array(untold, dtype=np.int64)
    return found


def _edges(track: Track, at: Ints, end: int, pieces: int, products: int) -> list[int] | None:
    """Where each layer's part begins, and the end of the last; None unless all of them read the same."""
    begins = at[::products]
    length = int(begins[1] - begins[0]) if len(begins) > 1 else end - int(begins[0])
    edges = [*begins.tolist(), int(begins[-1]) + length]
    words = [track.word[a:b].tolist() for a, b in zip(edges, edges[1:], strict=False)]
    same = len(words) == pieces and all(word == words[0] for word in words)
    return edges if same and edges[-1] <= end else None


def fill_deferred(track: Track, late: Deferred, main: Layout) -> None:
    """Write the places of the stretches; a product's block is that of the projection whose weight it is for."""
    named = main.within[late.projections][::-1]
    names = np.where(named < 0, BLOCK_CODE["other"], named)
    for piece in late.pieces:
        rows = np.arange(piece.start, piece.end)
        order = np.cumsum(track.flag(*MATMUL)[rows]) - 1
        main.part[rows] = PART_CODE["layer"]
        main.layer[rows] = piece.layer
        main.pass_[rows] = BACKWARD
        main.micro_batch[rows] = piece.micro_batch
        main.within[rows] = names[np.minimum(order, len(names) - 1)] if len(names) else BLOCK_CODE["other"]
        main.block[rows] = np.where(track.moves[rows], MOVEMENT, main.within[rows])
