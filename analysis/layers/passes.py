"""What each attention core is: which layer, which micro-batch, forward, backward or recompute.

Read as letters, a step is F F F B B B, pipelined F F F F B B F F B B, recomputed F F F (F B)(F B)(F B). Marks between
letters (an embedding look-up, a loss, an optimizer, a point-to-point transfer) show where a pass through the stage
ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

import numpy as np

from analysis.layers.anchors import Anchors
from analysis.layers.track import Bools, Ints, Track

FORWARD, BACKWARD, RECOMPUTE = 0, 1, 2
HARD = ("embedding", "loss", "optimizer")


@dataclass(frozen=True)
class Places:
    """What each anchor is. `chunk` numbers passes through the stage: its anchors are neighbours in the model."""

    pass_: Ints
    layer: Ints
    micro_batch: Ints
    chunk: Ints
    step: Ints
    layers: int
    micro_batches: int

    def taken(self, index: Ints) -> Places:
        columns = {name: getattr(self, name)[index] for name in ("pass_", "layer", "micro_batch", "chunk", "step")}
        return replace(self, **columns)


@dataclass(frozen=True)
class Marks:
    """Per gap between an anchor and the next: what lies in it. `hard` ends a pass for sure, `soft` perhaps."""

    hard: Bools
    soft: Bools
    step: Bools
    positions: Ints  # main kernels at which a mark lies, in order


def find_places(anchors: Anchors, marks: Marks) -> Places:
    """Place of every anchor."""
    count = len(anchors)
    step = np.concatenate(([0], np.cumsum(marks.step)))[:count]
    pass_ = np.where(anchors.backward, BACKWARD, FORWARD).astype(np.int64)
    partner = np.full(count, -1, dtype=np.int64)
    for begin, end in _spans(step):
        _find_recompute(pass_, partner, marks, begin, end)
    runs = _runs(pass_, marks, step)
    stacks = _stacks(runs, pass_) or {_layer_count(runs, marks): 0}
    layer, micro_batch, chunk = _number(runs, pass_, step, stacks)
    again = partner >= 0
    for values in (layer, micro_batch, chunk):
        values[again] = values[partner[again]]
    return Places(pass_, layer, micro_batch, chunk, step, sum(stacks), int(micro_batch.max(initial=-1)) + 1)


def find_marks(track: Track, anchors: Anchors, p2p: Ints) -> Marks:
    """Marks of the gaps. A class that most gaps hold is part of the layer and marks nothing.

    `p2p` are main kernels after which a point-to-point transfer starts.
    """
    starts, ends = anchors.last[:-1] + 1, anchors.first[1:]
    steps = track.main_steps
    new_step = steps[anchors.first[1:]] != steps[anchors.first[:-1]]
    hard = new_step.copy()
    positions = [p2p]
    alike = ~new_step & (anchors.backward[1:] == anchors.backward[:-1])
    for name in HARD:
        flags = track.flag(name)
        holds = _holds(flags, starts, ends)
        if alike.any() and holds[alike].mean() > 0.5:
            continue
        hard |= holds
        positions.append(np.flatnonzero(flags))
        if name == "optimizer":
            new_step |= holds
    soft = np.searchsorted(p2p, ends) > np.searchsorted(p2p, anchors.last[:-1])
    return Marks(hard, soft, new_step, np.sort(np.concatenate(positions)))


def _holds(flags: Bools, starts: Ints, ends: Ints) -> Bools:
    total = np.concatenate(([0], np.cumsum(flags)))
    return np.asarray(total[ends] > total[starts])


def _spans(step: Ints) -> list[tuple[int, int]]:
    cuts = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist(), len(step)]
    return [(a, b) for a, b in pairwise(cuts) if b > a]


def _find_recompute(pass_: Ints, partner: Ints, marks: Marks, begin: int, end: int) -> None:
    """Mark forward cores that run again for a backward one: more F than B in the step, right before B, nothing between.

    A stretch of B can only go back over forward cores already seen, so that many of the F before it stay forward.
    """
    spare = int((pass_[begin:end] == FORWARD).sum() - (pass_[begin:end] == BACKWARD).sum())
    if spare <= 0 or not (pass_[begin:end] == BACKWARD).any():
        return
    pending = 0
    for a, b in _stretches(pass_, marks, begin, end):
        size = b - a
        if pass_[a] == BACKWARD:
            pending -= size
            continue
        again = 0
        if b < end and pass_[b] == BACKWARD and not (marks.hard[b - 1] or marks.soft[b - 1]):
            following = _length(pass_, b, end)
            again = max(0, min(size, following, size + pending - following, spare))
        for i in range(again):
            pass_[b - 1 - i] = RECOMPUTE
            partner[b - 1 - i] = b + i
        spare -= again
        pending += size - again


def _stretches(pass_: Ints, marks: Marks, begin: int, end: int) -> list[tuple[int, int]]:
    """Stretches of one letter, cut at hard marks too."""
    kind = pass_[begin:end] == BACKWARD
    cut = (np.diff(kind.astype(np.int8)) != 0) | marks.hard[begin : end - 1]
    edges = [begin, *(np.flatnonzero(cut) + begin + 1).tolist(), end]
    return list(pairwise(edges))


def _length(pass_: Ints, start: int, end: int) -> int:
    stop = start
    while stop < end and pass_[stop] == BACKWARD:
        stop += 1
    return stop - start


def _runs(pass_: Ints, marks: Marks, step: Ints) -> list[list[int]]:
    """Anchors that follow each other in one direction with no hard mark between; recomputed ones are left out."""
    runs: list[list[int]] = []
    last = -1
    marked = np.concatenate(([0], np.cumsum(marks.hard)))
    for index in np.flatnonzero(pass_ != RECOMPUTE).tolist():
        joined = last >= 0 and all(values[index] == values[last] for values in (pass_, step, marked))
        if joined:
            runs[-1].append(index)
        else:
            runs.append([index])
        last = index
    return runs


def _stacks(runs: list[list[int]], pass_: Ints) -> dict[int, int]:
    """Length -> first layer, where a model has stacks of different depth (a vision encoder before a language model).

    Each depth must be passed as often backward as forward, and none be a multiple of another; else there is one stack.
    """
    counts: dict[int, list[int]] = {}
    for run in runs:
        counts.setdefault(len(run), [0, 0])[int(pass_[run[0]] == BACKWARD)] += 1
    trained = all(forward == backward for forward, backward in counts.values())
    if len(counts) < 2 or not trained or any(a != b and a % b == 0 for a in counts for b in counts):
        return {}
    return {size: sum(list(counts)[:place]) for place, size in enumerate(counts)}


def _layer_count(runs: list[list[int]], marks: Marks) -> int:
    """Layers of the stage: the shortest length that cuts every run into equal parts, each inner cut at a soft mark."""
    lengths = [len(run) for run in runs]
    if not lengths:
        return 0
    whole = 0
    for length in lengths:
        whole = gcd(whole, length)
    usual = max(Counter(lengths).items(), key=lambda item: (item[1] * item[0], item[0]))[0]
    if usual % whole or (whole < usual and not _cuts_marked(runs, whole, marks)):
        return usual
    for size in (size for size in range(1, whole + 1) if whole % size == 0):
        if _cuts_marked(runs, size, marks):
            return size
    return whole


def _cuts_marked(runs: list[list[int]], size: int, marks: Marks) -> bool:
    cuts = [(run[i - 1], run[i]) for run in runs for i in range(size, len(run), size)]
    return all(marks.soft[a:b].any() for a, b in cuts)


def _number(runs: list[list[int]], pass_: Ints, step: Ints, stacks: dict[int, int]) -> tuple[Ints, Ints, Ints]:
    """(layer, micro-batch, chunk) of each anchor: forward counts up, backward down, micro-batches in order."""
    layer, micro_batch, chunk = (np.full(len(pass_), -1, dtype=np.int64) for _ in range(3))
    seen: Counter[tuple[int, int, int]] = Counter()
    chunks = 0
    for run in runs:
        direction, here = int(pass_[run[0]]), int(step[run[0]])
        size = len(run) if len(run) in stacks else next(iter(stacks))
        for begin in range(0, len(run), size):
            part = run[begin : begin + size]
            places = np.arange(len(part))
            layer[part] = stacks[size] + (places if direction == FORWARD else size - 1 - places)
            micro_batch[part] = seen[here, direction, size]
            chunk[part] = chunks
            seen[here, direction, size] += 1
            chunks += 1
    return layer, micro_batch, chunk
