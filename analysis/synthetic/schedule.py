"""Pipeline schedule: the order of forward and backward passes on a stage and how long it waits for its neighbours."""

from __future__ import annotations

from analysis.synthetic.spec import GptSpec

Pass = tuple[str, int]
"""("forward" or "backward", micro-batch)."""


def one_forward_one_backward(stages: int, stage: int, micro_batches: int) -> list[Pass]:
    """Order of passes on a stage: warm-up forwards, then one forward and one backward in turn, then what is left."""
    warmup = min(stages - stage - 1, micro_batches)
    order: list[Pass] = [("forward", i) for i in range(warmup)]
    for i in range(micro_batches - warmup):
        order += [("forward", warmup + i), ("backward", i)]
    return order + [("backward", i) for i in range(micro_batches - warmup, micro_batches)]


def receive_waits(spec: GptSpec, stage: int, forward_ns: float, backward_ns: float) -> dict[Pass, float]:
    """How long each receive of `stage` stands waiting when every pass takes the same time on every stage."""
    if spec.pp == 1:
        return {}
    length = {"forward": forward_ns, "backward": backward_ns}
    orders = [one_forward_one_backward(spec.pp, s, spec.micro_batches) for s in range(spec.pp)]
    done: dict[tuple[int, Pass], float] = {}
    waits: dict[Pass, float] = {}
    clock, position = [0.0] * spec.pp, [0] * spec.pp
    while any(position[s] < len(orders[s]) for s in range(spec.pp)):
        for s in range(spec.pp):
            while position[s] < len(orders[s]):
                item = orders[s][position[s]]
                ready = _ready(spec, s, item, done)
                if ready is None:
                    break
                if s == stage:
                    waits[item] = max(0.0, ready - clock[s])
                clock[s] = max(clock[s], ready) + length[item[0]]
                done[s, item] = clock[s]
                position[s] += 1
    return waits


def _ready(spec: GptSpec, stage: int, item: Pass, done: dict[tuple[int, Pass], float]) -> float | None:
    """When the neighbour's result is there; 0 where there is no neighbour, None while it is not known."""
    source = stage - 1 if item[0] == "forward" else stage + 1
    if source in (-1, spec.pp):
        return 0.0
    return done.get((source, item))
