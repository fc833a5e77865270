"""Attention cores: the one thing every transformer layer has once, so the anchor of its place.

A fused core is one FlashAttention kernel (or several with no projection between them, as ring attention launches). An
unfused core is softmax between two batched products; its backward is a softmax gradient between up to four of them, or,
where the gradient is written out in small kernels, four batched products in a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.layers.track import MATMUL, Bools, Ints, Track

_FFN = ("activation", "activation_grad", "moe", "grouped_matmul")
_OFTEN = 0.05
_BREAKS = ("norm", "norm_grad", "activation", "activation_grad")


@dataclass(frozen=True)
class Anchors:
    """Attention cores in order. `first` and `last` are main kernels, both included.

    A decoder layer that also attends to an encoder has two cores: its anchor runs from the first to the last of them;
    `turn` and `rejoin` are the last kernel of the first core and the first of the last one. `stack` is equal for
    layers that may belong to one stack: same number of cores, same width.
    """

    first: Ints
    last: Ints
    backward: Bools
    turn: Ints
    rejoin: Ints
    stack: Ints

    def __len__(self) -> int:
        return len(self.first)

    def taken(self, index: Ints) -> Anchors:
        return Anchors(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def find_anchors(track: Track) -> Anchors:
    """Every attention core of a track, fused ones where there are any, else unfused ones."""
    fused = _fused(track)
    found = fused if fused else _unfused(track)
    columns = np.array(_apart(sorted(found)), dtype=np.int64).reshape(-1, 3)
    return _joined(track, columns[:, 0], columns[:, 1], columns[:, 2].astype(bool), fused=bool(fused))


def _joined(track: Track, first: Ints, last: Ints, backward: Bools, *, fused: bool) -> Anchors:
    """Two cores of one layer become one anchor: between them no feed-forward has its turn."""
    within = _without_ffn(track, first, last, backward)
    begins = np.flatnonzero(np.concatenate(([True], ~within)))[: len(first)]
    ends = np.concatenate((begins[1:], [len(first)])) - 1 if len(begins) else begins
    width = np.array([kind.width for kind in track.kinds], dtype=np.int64)[track.kind[first[begins]]] if fused else 0
    stack = np.unique((width * 64 + ends - begins) + np.zeros(len(begins), dtype=np.int64), return_inverse=True)[1]
    return Anchors(first[begins], last[ends], backward[begins], last[begins], first[ends], stack.astype(np.int64))


def _without_ffn(track: Track, first: Ints, last: Ints, backward: Bools) -> Bools:
    """Per gap: neither activation nor experts in it, though most gaps of that direction have one.

    Believed only where both directions show it, not of a single gap among many (kernels may be missing) and not where
    it would give a layer three cores (order may be lost).
    """
    seen = np.concatenate(([0], np.cumsum(track.flag(*_FFN))))
    marked = np.concatenate(([0], np.cumsum(track.flag("embedding", "loss", "optimizer"))))
    begin, end = last[:-1] + 1, first[1:]
    alike = (np.diff(track.main_steps[first]) == 0) & (np.diff(backward.astype(np.int8)) == 0)
    bare = alike & (seen[end] == seen[begin]) & (marked[end] == marked[begin])
    for way in (False, True):
        here = alike & (backward[:-1] == way)
        if (backward == way).sum() > 1 and (not here.any() or bare[here].mean() < _OFTEN):
            return np.zeros_like(bare)
    return np.zeros_like(bare) if not seen[-1] or (bare[1:] & bare[:-1]).any() else bare


def _apart(found: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Cores that do not overlap: of two that do, the first is kept."""
    kept: list[tuple[int, int, int]] = []
    for core in found:
        if not kept or core[0] > kept[-1][1]:
            kept.append(core)
    return kept


def _fused(track: Track) -> list[tuple[int, int, int]]:
    forward, backward = track.flag("attention"), track.flag("attention_grad")
    positions = np.flatnonzero(forward | backward)
    if not len(positions):
        return []
    matmuls = np.cumsum(track.flag(*MATMUL))[positions]
    kinds, steps = backward[positions], track.main_steps[positions]
    same = (np.diff(matmuls) == 0) & (np.diff(kinds.astype(np.int8)) == 0) & (np.diff(steps) == 0)
    begins = np.flatnonzero(np.concatenate(([True], ~same)))
    ends = np.concatenate((begins[1:], [len(positions)])) - 1
    return list(
        zip(positions[begins].tolist(), positions[ends].tolist(), kinds[begins].astype(int).tolist(), strict=True)
    )


def _unfused(track: Track) -> list[tuple[int, int, int]]:
    products = np.flatnonzero(track.flag(*MATMUL))
    batched = np.array([kind.batched for kind in track.kinds], dtype=bool)[track.kind[products]]
    breaks = np.concatenate(([0], np.cumsum(track.flag(*_BREAKS))))
    forward = _around_softmax(track, products, batched, breaks)
    backward = _around_softmax_grad(track, products, batched, breaks)
    if forward and not backward:
        backward = _written_out(products[batched], forward, breaks)
    return [(a, b, 0) for a, b in forward] + [(a, b, 1) for a, b in backward]


def _around_softmax(track: Track, products: Ints, batched: Bools, breaks: Ints) -> list[tuple[int, int]]:
    found = []
    for softmax in np.flatnonzero(track.flag("softmax")).tolist():
        right = int(np.searchsorted(products, softmax))
        if right == 0 or right == len(products) or not (batched[right - 1] and batched[right]):
            continue
        first, last = int(products[right - 1]), int(products[right])
        scores = track.kinds[track.kind[softmax]].elements
        made = track.kinds[track.kind[first]].out_elements
        if breaks[last] == breaks[first] and (not scores or not made or scores == made):
            found.append((first, last))
    return found


def _around_softmax_grad(track: Track, products: Ints, batched: Bools, breaks: Ints) -> list[tuple[int, int]]:
    found = []
    for softmax in np.flatnonzero(track.flag("softmax_grad")).tolist():
        right = int(np.searchsorted(products, softmax))
        left = right - 1
        if left < 0 or right == len(products) or not (batched[left] and batched[right]):
            continue
        if left > 0 and batched[left - 1] and breaks[products[left - 1]] == breaks[softmax]:
            left -= 1
        if right + 1 < len(products) and batched[right + 1] and breaks[products[right + 1]] == breaks[softmax]:
            right += 1
        found.append((int(products[left]), int(products[right])))
    return found


def _written_out(products: Ints, forward: list[tuple[int, int]], breaks: Ints) -> list[tuple[int, int]]:
    """Groups of exactly four batched products that no forward core has, with no norm or activation among them."""
    taken = {position for pair in forward for position in pair}
    rest = [int(position) for position in products if int(position) not in taken]
    groups: list[list[int]] = []
    for position in rest:
        if groups and breaks[groups[-1][-1]] == breaks[position]:
            groups[-1].append(position)
        else:
            groups.append([position])
    return [(group[0], group[-1]) for group in groups if len(group) == 4]
