"""Pipeline schedule: the order of passes on a stage and how long it waits for its neighbours."""

from __future__ import annotations

from typing import NamedTuple

from analysis.synthetic.spec import GptSpec

Pass = tuple[str, int]
"""("forward" or "backward", micro-batch)."""


class Unit(NamedTuple):
    """One pass of a micro-batch through a chunk of a stage: "forward", "backward", or "weights" where the gradients of
    weights are put off."""

    pass_: str
    micro_batch: int
    chunk: int = 0


def one_forward_one_backward(stages: int, stage: int, micro_batches: int) -> list[Pass]:
    """Order of passes on a stage: warm-up forwards, then one forward and one backward in turn, then what is left."""
    warmup = min(stages - stage - 1, micro_batches)
    order: list[Pass] = [("forward", i) for i in range(warmup)]
    for i in range(micro_batches - warmup):
        order += [("forward", warmup + i), ("backward", i)]
    return order + [("backward", i) for i in range(micro_batches - warmup, micro_batches)]


def interleaved(stages: int, stage: int, chunks: int, micro_batches: int) -> list[Unit]:
    """Order of passes on a stage that holds several chunks: as many micro-batches as there are stages go through one
    chunk, then through the next (Megatron-LM). With no more micro-batches than stages all forward passes come first."""
    total = micro_batches * chunks
    warmup = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    if micro_batches == stages:
        warmup = total
    forward = [_unit("forward", i, stages, chunks) for i in range(total)]
    backward = [_unit("backward", i, stages, chunks) for i in range(total)]
    order = forward[:warmup]
    for i in range(total - warmup):
        order += [forward[warmup + i], backward[i]]
    return order + backward[total - warmup :]


def _unit(pass_: str, index: int, stages: int, chunks: int) -> Unit:
    round_, place = divmod(index, stages * chunks)
    chunk = place // stages
    return Unit(pass_, round_ * stages + place % stages, chunk if pass_ == "forward" else chunks - 1 - chunk)


def stage_order(spec: GptSpec, stage: int) -> list[Unit]:
    """All passes of a step on a stage, in order."""
    if spec.interleave > 1:
        return interleaved(spec.pp, stage, spec.interleave, spec.micro_batches)
    order = [Unit(*item) for item in one_forward_one_backward(spec.pp, stage, spec.micro_batches)]
    return _with_weights(order, stage) if spec.defer_wgrad else order


def _with_weights(order: list[Unit], stage: int) -> list[Unit]:
    """Gradients of weights follow `stage` backward passes later, the rest at the end (zero-bubble schedule H1)."""
    found: list[Unit] = []
    waiting: list[Unit] = []
    for unit in order:
        found.append(unit)
        if unit.pass_ == "backward":
            waiting.append(Unit("weights", unit.micro_batch))
            if len(waiting) > stage:
                found.append(waiting.pop(0))
    return found + waiting


def receive_waits(spec: GptSpec, stage: int, forward_ns: float, backward_ns: float) -> dict[Unit, float]:
    """How long each receive of `stage` stands waiting when every pass takes the same time on every stage.

    The times are those of all chunks of a stage together; gradients of weights that are put off are half of backward.
    """
    if spec.pp == 1:
        return {}
    deferred = backward_ns / 2 if spec.defer_wgrad else 0.0
    length = {"forward": forward_ns, "backward": backward_ns - deferred, "weights": deferred}
    orders = [stage_order(spec, s) for s in range(spec.pp)]
    done: dict[tuple[int, Unit], float] = {}
    waits: dict[Unit, float] = {}
    clock, position = [0.0] * spec.pp, [0] * spec.pp
    while any(position[s] < len(orders[s]) for s in range(spec.pp)):
        for s in range(spec.pp):
            while position[s] < len(orders[s]):
                item = orders[s][position[s]]
                ready = _ready(spec, s, item, done)
                if ready is None:
                    break
                if s == stage and item.pass_ != "weights":
                    waits[item] = max(0.0, ready - clock[s])
                clock[s] = max(clock[s], ready) + length[item.pass_] / spec.interleave
                done[s, item] = clock[s]
                position[s] += 1
    return waits


def _ready(spec: GptSpec, stage: int, item: Unit, done: dict[tuple[int, Unit], float]) -> float | None:
    """When the neighbour's result is there; 0 where there is no neighbour, None while it is not known."""
    if item.pass_ == "weights":
        return 0.0
    step = -1 if item.pass_ == "forward" else 1
    source, chunk = stage + step, item.chunk
    if not 0 <= source < spec.pp:
        source, chunk = source % spec.pp, chunk + step
    if not 0 <= chunk < spec.interleave:
        return 0.0
    return done.get((source, item._replace(chunk=chunk)))
