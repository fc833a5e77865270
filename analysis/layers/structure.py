"""Layers from order, type and shapes alone: find attention cores, number them, cut between, name what is inside."""

from __future__ import annotations

import numpy as np
import polars as pl

from analysis.layers.anchors import Anchors, find_anchors
from analysis.layers.blocks import name_blocks
from analysis.layers.chunks import UNKNOWN, Pipeline
from analysis.layers.collectives import place_collectives, read_talk
from analysis.layers.cuts import cut_layers
from analysis.layers.deferred import fill_deferred, find_deferred
from analysis.layers.layout import BLOCK_CODE, COLUMNS, MOVEMENT, PART_CODE, PASSES, Layout
from analysis.layers.outside import Piece, split_outside
from analysis.layers.passes import BACKWARD, RECOMPUTE, Places, find_marks, find_places
from analysis.layers.track import Bools, Ints, Kind, Track, build_track


def by_structure(kernels: pl.DataFrame, pipeline: Pipeline = UNKNOWN) -> Layout:
    """Place kernels by structure. Without a transformer in them nothing is placed and `reason` says so."""
    track = build_track(kernels)
    anchors = find_anchors(track)
    if len(anchors) < 2:
        layout = Layout.empty(kernels.height)
        layout.reason = "no layers found: " + (
            "kernels have no names or types" if not len(track.main) else "no repeating attention core among the kernels"
        )
        return layout
    talk = read_talk(kernels, track).without_rings(track, anchors)
    marks = find_marks(track, anchors, talk.transfers(track))
    places = find_places(anchors, marks, pipeline)
    main = Layout.empty(len(track.main))
    start, end = cut_layers(track, anchors, places, marks)
    late = find_deferred(track, anchors, places, start, end)
    _fill_layers(track, anchors, places, start, end, main, alone=late.alone)
    fill_deferred(track, late, main)
    _fill_outside(track, main)
    for name in COLUMNS:
        getattr(main, name)[late.untold] = -1
    ordered = _with_side_kernels(track, main)
    place_collectives(talk, track, ordered)
    layout = _in_frame_order(track, ordered)
    layout.layers, layout.micro_batches = places.layers, places.micro_batches
    layout.chunks, layout.doubt = places.chunks.count, places.chunks.doubt or late.doubt
    layout.steps = int(places.step.max()) + 1
    return layout


def _fill_layers(
    track: Track, anchors: Anchors, places: Places, start: Ints, end: Ints, main: Layout, *, alone: bool
) -> None:
    """Write layer, pass and blocks of every stretch; stretches that read the same are named once."""
    inner = np.stack(
        [track.signatures(start, end), anchors.first - start, end - start, places.pass_],
        axis=1,
        dtype=np.uint64,
        casting="unsafe",
    )
    _, first, group = np.unique(inner, axis=0, return_index=True, return_inverse=True)
    thin = (anchors.first == start) & (anchors.last + 1 == end)
    for flat in (False, True):
        for g in range(len(first)):
            members = np.flatnonzero((group.ravel() == g) & (thin == flat))
            if len(members):
                _fill_group(track, anchors, places, start, end, members, main, alone=alone)


def _fill_group(
    track: Track, anchors: Anchors, places: Places, start: Ints, end: Ints, members: Ints, main: Layout, *, alone: bool
) -> None:
    one = int(members[0])
    a, b = int(start[one]), int(end[one])
    backward = bool(places.pass_[one] == BACKWARD)
    kinds = track.kinds_of(a, b)
    first, last, turn, rejoin = (int(x[one]) - a for x in (anchors.first, anchors.last, anchors.turn, anchors.rejoin))
    names = name_blocks(kinds, first, last, backward=backward, inner=(turn, rejoin), alone=alone)
    blocks = np.array([BLOCK_CODE[name] for name in names], dtype=np.int64)
    rows = start[members][:, None] + np.arange(b - a)
    main.part[rows] = PART_CODE["layer"]
    main.layer[rows] = places.layer[members][:, None]
    main.within[rows] = blocks
    main.block[rows] = np.where([kind.moves for kind in kinds], MOVEMENT, blocks)
    main.pass_[rows] = places.pass_[members][:, None]
    if backward:
        main.pass_[rows[:, _again(kinds)]] = RECOMPUTE
    main.micro_batch[rows] = places.micro_batch[members][:, None]


def _again(kinds: list[Kind]) -> Bools:
    """Kernels of a backward stretch that belong to forward and have their gradients there too: norms and activations
    that were not kept but are computed again."""
    present = {kind.cls for kind in kinds}
    twice = [cls for cls in ("norm", "activation") if f"{cls}_grad" in present]
    return np.array([kind.cls in twice and not kind.is_grad for kind in kinds], dtype=bool)


def _fill_outside(track: Track, main: Layout) -> None:
    """Name the stretches between passes, within each step."""
    steps = track.main_steps
    covered = np.concatenate(([0], (main.part >= 0).astype(np.int8), [0]))
    edges = np.diff(covered)
    gap_starts = np.concatenate(([0], np.flatnonzero(edges == -1)))
    gap_ends = np.concatenate((np.flatnonzero(edges == 1), [len(steps)]))
    seen: dict[Gap, list[Piece]] = {}
    for a, b in zip(gap_starts.tolist(), gap_ends.tolist(), strict=True):
        cuts = [a, *(np.flatnonzero(np.diff(steps[a:b])) + a + 1).tolist(), b]
        for low, high in zip(cuts, cuts[1:], strict=False):
            if high > low:
                _fill_gap(track, main, steps, low, high, seen)


Gap = tuple[bytes, str | None, str | None]
"""Kinds of its kernels, and the passes around it."""


def _fill_gap(track: Track, main: Layout, steps: Ints, low: int, high: int, seen: dict[Gap, list[Piece]]) -> None:
    """Gaps that read the same, with the same around them, are split once."""
    left, left_batch = _neighbour(main, steps, low - 1, int(steps[low]))
    right, right_batch = _neighbour(main, steps, high, int(steps[low]))
    gap = (track.kind[low:high].tobytes(), left, right)
    if gap not in seen:
        seen[gap] = split_outside(track.kinds_of(low, high), left, right)
    for piece in seen[gap]:
        rows = slice(low + piece.start, low + piece.end)
        main.part[rows] = PART_CODE[piece.part]
        main.within[rows] = BLOCK_CODE[piece.part]
        main.block[rows] = np.where(track.moves[rows], MOVEMENT, BLOCK_CODE[piece.part])
        main.pass_[rows] = PASSES.index(piece.pass_)
        main.micro_batch[rows] = {-1: left_batch, 0: -1, 1: right_batch}[piece.side]


def _neighbour(main: Layout, steps: Ints, index: int, step: int) -> tuple[str | None, int]:
    """(pass, micro-batch) of the layer kernel at `index`, null outside the step. Recompute is part of backward."""
    if not 0 <= index < len(steps) or steps[index] != step or main.part[index] != PART_CODE["layer"]:
        return None, -1
    code = int(main.pass_[index])
    return PASSES[BACKWARD if code == RECOMPUTE else code], int(main.micro_batch[index])


def _with_side_kernels(track: Track, main: Layout) -> Layout:
    """All kernels in order: those beside the main stream take the place of the main kernel they start after."""
    is_main = np.zeros(len(track.order), dtype=np.int64)
    is_main[track.main] = 1
    following = np.minimum(np.cumsum(is_main) - is_main, max(0, len(track.main) - 1))
    ordered = main.taken(np.where(track.before >= 0, track.before, following))
    lost = (track.before < 0) & (track.steps[track.main[following]] != track.steps)
    for name in COLUMNS:
        getattr(ordered, name)[lost] = -1
    return ordered


def _in_frame_order(track: Track, ordered: Layout) -> Layout:
    rows = np.arange(len(track.order))
    if np.array_equal(track.order, rows):
        return ordered
    places = np.empty_like(rows)
    places[track.order] = rows
    return ordered.taken(places)
