"""What each attention core is: which layer, which micro-batch, forward, backward or recompute.

Read as letters, a step is F F F B B B, pipelined F F F F B B F F B B, recomputed F F F (F B)(F B)(F B). Marks between
letters (an embedding look-up, a loss, an optimizer, a point-to-point transfer) show where a pass through the stage
ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

import numpy as np
import numpy.typing as npt

from analysis.layers.anchors import Anchors
from analysis.layers.chunks import UNKNOWN, Chunks, Pipeline, Unit, find_chunks
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
    chunks: Chunks = Chunks()

    def taken(self, index: Ints) -> Places:
        columns = {name: getattr(self, name)[index] for name in ("pass_", "layer", "micro_batch", "chunk", "step")}
        return replace(self, **columns)


@dataclass(frozen=True)
class Marks:
    """Per gap between an anchor and the next: what lies in it. `hard` ends a pass for sure, `soft` perhaps.

    `embeds` and `ends` run over the stretches in front of each anchor and behind the last: whether an embedding, a
    loss lies there, forward (row 0) and backward (row 1).
    """

    hard: Bools
    soft: Bools
    step: Bools
    embeds: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.bool_]
    positions: Ints  # main kernels at which a mark lies, in order


def find_places(anchors: Anchors, marks: Marks, pipeline: Pipeline = UNKNOWN) -> Places:
    """Place of every anchor. `pipeline` is what is known of it from elsewhere."""
    count = len(anchors)
    step = np.concatenate(([0], np.cumsum(marks.step)))[:count]
    pass_ = np.where(anchors.backward, BACKWARD, FORWARD).astype(np.int64)
    partner = np.full(count, -1, dtype=np.int64)
    for begin, end in _spans(step):
        _find_recompute(pass_, partner, marks, begin, end)
    runs = _runs(pass_, marks, step)
    split = _split_at_stacks(runs, anchors.stack)
    stacks = _stacks(split, pass_, anchors.stack)
    runs = split if stacks else runs
    stacks = stacks or {(_layer_count(runs, marks),): 0}
    layer, micro_batch, chunk = _number(runs, pass_, step, stacks, anchors.stack)
    layers = sum(key[0] for key in stacks)
    chunks = Chunks()
    if len(stacks) == 1 and marks.soft.any():
        chunks = find_chunks(_units(pass_, chunk, step, marks), pipeline)
        _spread(chunks, pass_, layer, micro_batch, layers)
    again = partner >= 0
    for values in (layer, micro_batch, chunk):
        values[again] = values[partner[again]]
    count = int(micro_batch.max(initial=-1)) + 1
    return Places(pass_, layer, micro_batch, chunk, step, layers * chunks.count, count, chunks)


def _units(pass_: Ints, chunk: Ints, step: Ints, marks: Marks) -> list[list[Unit]]:
    """Passes of each step in order."""
    found: dict[int, list[Unit]] = {}
    for number in range(int(chunk.max(initial=-1)) + 1):
        members = np.flatnonzero(chunk == number)
        if not len(members):
            continue
        before, behind = int(members[0]), int(members[-1]) + 1
        backward = bool(pass_[before] == BACKWARD)
        embeds, ends = (behind, before) if backward else (before, behind)
        row = int(backward)
        unit = Unit(backward, bool(marks.embeds[row, embeds]), bool(marks.ends[row, ends]))
        found.setdefault(int(step[before]), []).append(unit)
    return list(found.values())


def _spread(chunks: Chunks, pass_: Ints, layer: Ints, micro_batch: Ints, layers: int) -> None:
    """Where the stage holds several chunks: passes counted as micro-batches become chunks of fewer micro-batches."""
    if chunks.count == 1:
        return
    for backward in (False, True):
        rows = (pass_ == BACKWARD) == backward
        rows &= micro_batch >= 0
        for index in np.unique(micro_batch[rows]).tolist():
            members = rows & (micro_batch == index)
            at, batch = chunks.place(index, backward=backward)
            layer[members] += at * layers
            micro_batch[members] = ~batch
        micro_batch[rows] = ~micro_batch[rows]


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
    edges = np.concatenate(([0], anchors.last + 1)), np.append(anchors.first, len(track.main))
    grads = track.is_grad
    embeds, ended = (
        np.stack([_holds(track.flag(name) & ~grads, *edges), _holds(track.flag(name) & grads, *edges)])
        for name in ("embedding", "loss")
    )
    return Marks(hard, soft, new_step, embeds, ended, np.sort(np.concatenate(positions)))


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


def _split_at_stacks(runs: list[list[int]], stack: Ints) -> list[list[int]]:
    """Runs cut where one stack follows another; runs in which layers of two kinds take turns stay whole."""
    found = []
    for run in runs:
        changes = (np.flatnonzero(np.diff(stack[run])) + 1).tolist()
        edges = [0, *changes, len(run)] if len(changes) == 1 else [0, len(run)]
        found += [run[a:b] for a, b in pairwise(edges)]
    return found


Stack = tuple[int, ...]
"""Number of layers, then the codes of the kinds of layers in it."""


def _stack_of(run: Sequence[int], stack: Ints) -> Stack:
    return (len(run), *np.unique(stack[run]).tolist())


def _stacks(runs: list[list[int]], pass_: Ints, stack: Ints) -> dict[Stack, int]:
    """Stack -> first layer, where a model has several: of different depth (a vision encoder before a language model)
    or of different layers (an encoder, a decoder that attends to it).

    Each must be passed as often backward as forward, and no depth be a multiple of another of the same layers; else
    there is one stack.
    """
    counts: dict[Stack, list[int]] = {}
    for run in runs:
        counts.setdefault(_stack_of(run, stack), [0, 0])[int(pass_[run[0]] == BACKWARD)] += 1
    trained = all(forward == backward for forward, backward in counts.values())
    parted = all(a == b or a[1:] != b[1:] or a[0] % b[0] for a in counts for b in counts)
    if len(counts) < 2 or not trained or not parted:
        return {}
    sizes = [key[0] for key in counts]
    return {key: sum(sizes[:place]) for place, key in enumerate(counts)}


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


def _number(
    runs: list[list[int]], pass_: Ints, step: Ints, stacks: dict[Stack, int], stack: Ints
) -> tuple[Ints, Ints, Ints]:
    """(layer, micro-batch, chunk) of each anchor: forward counts up, backward down, micro-batches in order."""
    layer, micro_batch, chunk = (np.full(len(pass_), -1, dtype=np.int64) for _ in range(3))
    seen: Counter[tuple[int, int, Stack]] = Counter()
    chunks = 0
    for run in runs:
        direction, here = int(pass_[run[0]]), int(step[run[0]])
        key = _stack_of(run, stack)
        key = key if key in stacks else next(iter(stacks))
        size = key[0]
        for begin in range(0, len(run), size):
            part = run[begin : begin + size]
            places = np.arange(len(part))
            layer[part] = stacks[key] + (places if direction == FORWARD else size - 1 - places)
            micro_batch[part] = seen[here, direction, key]
            chunk[part] = chunks
            seen[here, direction, key] += 1
            chunks += 1
    return layer, micro_batch, chunk
