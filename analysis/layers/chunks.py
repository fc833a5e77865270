"""Chunks of the model on a pipeline stage (virtual stages), told from where passes begin and end, and in which order.

With one chunk every forward pass of a stage belongs to another micro-batch. With several, a micro-batch passes once for
each chunk, and nothing in its kernels says so. What tells:

- the embedding in front of passes through the first chunk of the first stage, or the loss behind those through the last
  chunk of the last stage: so many micro-batches, and how many passes there are for each;
- the order of forward and backward passes, where the number of stages and the own stage are known;
- both, where somebody says how many chunks there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_CHUNKS = 16
MANY = "it cannot be told which passes are chunks of one micro-batch: each pass counts as a micro-batch"


@dataclass(frozen=True)
class Pipeline:
    """What is known of a rank's pipeline from elsewhere."""

    stages: int | None = None
    stage: int | None = None
    chunks: int | None = None


UNKNOWN = Pipeline()


@dataclass(frozen=True)
class Unit:
    """One pass through the layers. `ends` says whether the embedding is in front of it or the loss behind it, in
    backward the embedding's gradient behind it or the loss in front of it."""

    backward: bool
    embeds: bool
    ends: bool


@dataclass(frozen=True)
class Chunks:
    """`count` chunks a stage; `group` micro-batches go through one chunk before the next chunk's turn."""

    count: int = 1
    group: int = 1
    doubt: str | None = None

    def place(self, index: int, *, backward: bool) -> tuple[int, int]:
        """(chunk, micro-batch) of the pass at `index` among those of its direction."""
        if self.count == 1:
            return 0, index
        round_, at = divmod(index, self.group * self.count)
        chunk, member = divmod(at, self.group)
        return self.count - 1 - chunk if backward else chunk, round_ * self.group + member


def find_chunks(steps: Sequence[Sequence[Unit]], told: Pipeline) -> Chunks:
    """Chunks that explain the passes of every step. `doubt` where the passes allow several answers."""
    forward = [unit for unit in steps[0] if not unit.backward] if steps else []
    if len(forward) < 2:
        return Chunks()
    for flags, last in (([u.embeds for u in forward], False), ([u.ends for u in forward], True)):
        if any(flags):
            found = _by_flags(flags, last=last)
            return found if found and all(_agrees(step, found, last=last) for step in steps) else Chunks(doubt=MANY)
    return _by_order(steps, told)


def _by_flags(flags: list[bool], *, last: bool) -> Chunks | None:
    """Marked passes are those of the first chunk, or of the `last`; every chunk is passed equally often."""
    marked = sum(flags)
    if len(flags) % marked:
        return None
    count = len(flags) // marked
    if count == 1:
        return Chunks()
    lead = flags.index(True) if last else flags.index(False)
    if not lead or (last and lead % (count - 1)):
        return None  # the passes begin with a chunk that can be no first one: the capture cuts into a step
    return Chunks(count, lead // (count - 1) if last else lead)


def _agrees(step: Sequence[Unit], found: Chunks, *, last: bool) -> bool:
    for backward in (False, True):
        units = [unit for unit in step if unit.backward == backward]
        flags = [unit.ends if last else unit.embeds for unit in units]
        if backward and not any(flags):
            continue  # the embedding may be frozen, and the loss's gradient need not say so
        wanted = found.count - 1 if last else 0
        if flags != [found.place(i, backward=backward)[0] == wanted for i in range(len(units))]:
            return False
    return True


def _by_order(steps: Sequence[Sequence[Unit]], told: Pipeline) -> Chunks:
    order = [[unit.backward for unit in step] for step in steps]
    passes = sum(not backward for backward in order[0])
    if told.chunks is not None and told.stages:
        fits = told.chunks == 1 or (passes % (told.chunks * told.stages) == 0)
        return Chunks(told.chunks, told.stages if told.chunks > 1 else 1) if fits else Chunks(doubt=MANY)
    if not told.stages or told.stage is None:
        several = any(
            _explains(order, passes, s, at, v) for s in range(2, passes + 1) for at in range(s) for v in _more(passes)
        )
        return Chunks(doubt=MANY if several else None)
    stages, stage = told.stages, told.stage
    if _explains(order, passes, stages, stage, 1):
        return Chunks()
    found = [v for v in _more(passes) if _explains(order, passes, stages, stage, v)]
    if len(found) == 1:
        return Chunks(found[0], stages)
    return Chunks(doubt=MANY if found else None)


def _more(passes: int) -> list[int]:
    return [count for count in range(2, min(MAX_CHUNKS, passes) + 1) if passes % count == 0]


def _explains(order: list[list[bool]], passes: int, stages: int, stage: int, count: int) -> bool:
    wanted = _schedule(passes, stages, stage, count)
    return wanted is not None and all(step == wanted for step in order)


def _schedule(passes: int, stages: int, stage: int, count: int) -> list[bool] | None:
    """Forward (False) and backward (True) passes of a stage as they follow one another: warm-up, in turn, rest."""
    batches = passes // count
    warmup = stages - stage - 1
    if count > 1:
        if batches % stages:
            return None
        warmup = passes if batches == stages else 2 * warmup + (count - 1) * stages
    warmup = min(warmup, passes)
    return [False] * warmup + [False, True] * (passes - warmup) + [True] * warmup
