"""Communication: part of a layer, gradient synchronisation, a pipeline transfer, or the optimizer's.

A group that is used within forward layers for an operation belongs to the layers (tensor, sequence, expert or sharded
parameters). What appears in backward alone carries gradients. In a pipeline first and last stage may share one
embedding: its gradient is all-reduced between them, in a group of its own, behind the other gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from analysis.layers.anchors import Anchors
from analysis.layers.layout import BLOCK_CODE, PART_CODE, PARTS, PASSES, Layout
from analysis.layers.track import MATMUL, Bools, Ints, Track
from analysis.words import as_text

_LAYER, _EMBEDDING, _OPTIMIZER, _SYNC, _TRANSFERS, _SHARED = (
    PART_CODE[name]
    for name in ("layer", "embedding", "optimizer", "gradient_sync", "pipeline_transfers", "embedding_gradients")
)
_OPERATIONS = r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|send|rece?i?ve?"
_FORWARD, _NONE = PASSES.index("forward"), PASSES.index("none")


@dataclass(frozen=True)
class Talk:
    """Communication rows. `rows` are positions in track order; a group is the digits HCCL puts behind its names."""

    rows: Ints
    group: Ints
    operation: Ints
    p2p: Bools
    scatters: Bools
    reduces: Bools
    """All-reduces."""
    exchanges: Bools
    """All-to-all."""

    def transfers(self, track: Track) -> Ints:
        """Main kernels after which a point-to-point transfer starts."""
        before = track.before[self.rows[self.p2p]]
        return np.unique(before[before >= 0])

    def without_rings(self, track: Track, anchors: Anchors) -> Talk:
        """The same with transfers at an attention core taken for the layer's own: with no projection between, keys and
        values go round a ring of context parallel ranks."""
        products = np.concatenate(([0], np.cumsum(track.flag(*MATMUL))))
        at_core = np.isin(products[track.before[self.rows] + 1], products[anchors.first])
        return replace(self, p2p=self.p2p & ~at_core)


def read_talk(kernels: pl.DataFrame, track: Track) -> Talk:
    """What the communication kernels of a frame are."""
    rows = np.flatnonzero(track.communication)
    texts = as_text(kernels.select("type", "name")[track.order[rows]])
    text = pl.coalesce("type", "name").fill_null("").str.to_lowercase()
    short = text.str.extract(f"({_OPERATIONS})").str.replace_all("_", "").fill_null("")
    columns = texts.select(
        group=pl.col("name").str.extract(r"__(\d+)_").fill_null("").cast(pl.Categorical).to_physical().cast(pl.Int64),
        operation=short.cast(pl.Categorical).to_physical().cast(pl.Int64),
        p2p=text.str.contains(r"send|recv|receive"),
        scatters=text.str.contains(r"reduce_?scatter"),
        reduces=text.str.contains(r"all_?reduce"),
        exchanges=text.str.contains(r"all_?to_?all"),
    )
    return Talk(rows, *(column.to_numpy() for column in columns))


def place_collectives(talk: Talk, track: Track, layout: Layout) -> None:
    """Rewrite part, block and pass of communication rows. `layout` is in track order."""
    rows, p2p = talk.rows, talk.p2p
    if not len(rows):
        return
    within = _used_in_forward(layout, rows, talk.group * (int(talk.operation.max()) + 1) + talk.operation)
    _move_to_next(track, layout, rows[within & ~p2p])
    part = layout.part[rows]
    behind = ~p2p & (layout.pass_[rows] != _FORWARD)
    carries = behind & (part == _LAYER) & ~within
    early = behind & (part == _EMBEDDING)
    after = behind & np.isin(part, (_OPTIMIZER, _EMBEDDING))
    owners = carries | early | (behind & (part != _LAYER) & talk.scatters)
    sync = carries | early | (after & np.isin(talk.group, talk.group[owners]))
    _write(layout, rows[sync], _SYNC)
    _write(layout, rows[_of_shared_embedding(talk, track, sync)], _SHARED)
    _write(layout, rows[p2p], _TRANSFERS)
    layout.block[rows] = np.where(layout.part[rows] < 0, -1, BLOCK_CODE["communication"])


def _of_shared_embedding(talk: Talk, track: Track, sync: Bools) -> Bools:
    """The all-reduces of a pipeline that directly follow the exchange of the other gradients, with no kernel between
    them (what the optimizer exchanges it computes first), and whose group does nothing else. Not where experts are
    exchanged: their gradients have a group of their own as well."""
    found = np.zeros(len(talk.rows), dtype=np.bool_)
    if not talk.p2p.any() or talk.exchanges.any():
        return found
    before, steps = track.before[talk.rows], track.steps[talk.rows]
    follows = (before[1:] == before[:-1]) & (steps[1:] == steps[:-1]) & (talk.group[1:] != talk.group[:-1])
    found[1:] = follows & sync[:-1] & talk.reduces[1:] & ~talk.p2p[1:]
    return found & ~np.isin(talk.group, talk.group[~found])


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


def _used_in_forward(layout: Layout, rows: Ints, key: Ints) -> Bools:
    forward = (layout.part[rows] == _LAYER) & (layout.pass_[rows] == _FORWARD)
    return np.isin(key, np.unique(key[forward]))
