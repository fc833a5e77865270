"""Communication: part of a layer, gradient synchronisation, a pipeline transfer, or the optimizer's.

A group that is used within forward layers for an operation belongs to the layers (tensor, sequence, expert or sharded
parameters). What appears in backward alone carries gradients.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analysis.layers.layout import BLOCK_CODE, PART_CODE, PARTS, PASSES, Layout
from analysis.layers.track import MATMUL, Bools, Ints, Track

_LAYER, _EMBEDDING, _OPTIMIZER, _SYNC, _OTHER = (
    PART_CODE[name] for name in ("layer", "embedding", "optimizer", "gradient_sync", "other")
)
_FORWARD, _NONE = PASSES.index("forward"), PASSES.index("none")


def place_collectives(kernels: pl.DataFrame, track: Track, layout: Layout) -> None:
    """Rewrite part, block and pass of communication rows. `layout` is in track order."""
    rows = np.flatnonzero(track.communication)
    if not len(rows):
        return
    group, operation, p2p = (column[track.order[rows]] for column in _groups(kernels))
    layout.block[rows] = BLOCK_CODE["communication"]
    part = layout.part[rows]
    within = _used_in_forward(layout, rows, group * (int(operation.max()) + 1) + operation)
    _move_to_next(track, layout, rows[within & ~p2p])
    part = layout.part[rows]
    carries = ~p2p & (part == _LAYER) & ~within & (layout.pass_[rows] != _FORWARD)
    after = ~p2p & np.isin(part, (_OPTIMIZER, _OTHER, _EMBEDDING)) & (layout.pass_[rows] != _FORWARD)
    early = after & (part == _EMBEDDING)
    owners = carries | early | (after & _is_sharding(kernels, track, rows))
    sync = carries | early | (after & np.isin(group, group[owners]) & (part != _OTHER))
    _write(layout, rows[sync], _SYNC)
    _write(layout, rows[p2p], _OTHER)


def _move_to_next(track: Track, layout: Layout, rows: Ints) -> None:
    """A layer's collective between two layers belongs to the product it feeds, unless a product feeds it."""
    product = track.flag(*MATMUL)
    left = track.before[rows]
    right = np.minimum(left + 1, len(track.main) - 1)
    moves = (left >= 0) & ~product[left] & product[right] & (layout.part[track.main[right]] == _LAYER)
    moves &= track.steps[track.main[right]] == track.steps[rows]
    for name in ("part", "layer", "pass_", "micro_batch", "within"):
        column = getattr(layout, name)
        column[rows[moves]] = column[track.main[right[moves]]]


def _write(layout: Layout, rows: Ints, part: int) -> None:
    layout.part[rows] = part
    layout.layer[rows] = -1
    layout.pass_[rows] = _NONE
    layout.micro_batch[rows] = -1
    layout.within[rows] = BLOCK_CODE[PARTS[part]]


def _groups(kernels: pl.DataFrame) -> tuple[Ints, Ints, Bools]:
    """(group, operation, point-to-point) of every row; a group is the digits that HCCL ends its names with."""
    text = pl.coalesce("type", "name").fill_null("").str.to_lowercase()
    short = text.str.extract(
        r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|send|rece?i?ve?)"
    )
    columns = kernels.select(
        group=pl.col("name").str.extract(r"__(\d+)_").fill_null("").cast(pl.Categorical).to_physical(),
        operation=short.str.replace_all("_", "").fill_null("").cast(pl.Categorical).to_physical(),
        p2p=text.str.contains(r"send|recv|receive"),
    )
    group, operation = (columns[name].to_numpy().astype(np.int64) for name in ("group", "operation"))
    return group, operation, columns["p2p"].to_numpy()


def _used_in_forward(layout: Layout, rows: Ints, key: Ints) -> Bools:
    forward = (layout.part[rows] == _LAYER) & (layout.pass_[rows] == _FORWARD)
    return np.isin(key, np.unique(key[forward]))


def _is_sharding(kernels: pl.DataFrame, track: Track, rows: Ints) -> Bools:
    text = pl.coalesce("type", "name").fill_null("").str.to_lowercase()
    flags = kernels.select(text.str.contains(r"reduce_?scatter")).to_series().to_numpy()
    return np.asarray(flags[track.order[rows]])
