"""Pipeline schedule: the order of passes on a stage."""

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
