"""Laying the kernels of a step on one clock, for all ranks that share collectives and all stages of their pipelines."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from analysis.synthetic.model import Slot
from analysis.synthetic.ops import nominal_ns
from analysis.synthetic.spec import GptSpec, Group

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TICK_NS = 10
"""The device clock's resolution; every time is a multiple of it."""
PEER_WAIT_NS = 20_000.0
"""Mean wait for the other ranks in a collective when only one rank is written."""


@dataclass(frozen=True)
class Timeline:
    """Times of one step: arrays of ranks x slots, and per rank where the step begins and ends."""

    start: Ints
    duration: Ints
    transit: Ints
    begin: Ints
    end: Ints


@dataclass(frozen=True)
class Nominal:
    """Durations before jitter, with the stretching that makes the step and the Cast share what the spec asks for."""

    duration: Floats
    gaps_ns: float
    target_ns: int | None


@dataclass(frozen=True)
class Stage:
    """What is laid out of one pipeline stage: as many ranks as of every other, whose peers they are in their order.
    `slow` (ranks x 1 or ranks x slots) multiplies compute."""

    slots: Sequence[Slot]
    ranks: Sequence[int]
    shape: Nominal
    slow: Floats
    rng: np.random.Generator


Mail = defaultdict[tuple[str, int], deque[tuple[Ints, int]]]
"""(pass, stage) -> what is on its way there: when each rank sent it and how long its bytes move."""


def nominal(spec: GptSpec, slots: Sequence[Slot], stretch: float = 1.0) -> Nominal:
    """Compute lasts `stretch` times as long as its work says, or as long as a step without a pipeline leaves it."""
    unit = {id(slot.op): nominal_ns(slot.op, spec) for slot in slots}
    duration = np.array([unit[id(slot.op)] for slot in slots])
    comm = np.array([slot.op.comm is not None for slot in slots])
    casts = np.array([slot.op.type == "Cast" for slot in slots])
    if spec.cast_ratio is not None:
        _set_share(duration, casts, ~comm & ~casts, spec.cast_ratio)
    exposed = np.array([slot.op.comm is not None and not slot.op.comm.overlap for slot in slots])
    exposed_ns = float(duration[exposed].sum()) + (PEER_WAIT_NS * exposed.sum())
    compute_ns = float(duration[~comm].sum())
    target = None if spec.step_us is None else spec.step_us * 1000
    if target and spec.pp == 1:
        stretch = (target * (1 - spec.free_ratio) - exposed_ns) / compute_ns
    if stretch <= 0:
        raise ValueError(f"communication alone takes longer than a step of {spec.step_us} us")
    duration[~comm] *= stretch
    busy = compute_ns * stretch + exposed_ns
    return Nominal(duration, busy * spec.free_ratio / (1 - spec.free_ratio), target)


def stretch_of_pipeline(spec: GptSpec, stages: Callable[[float], Sequence[Stage]]) -> float:
    """The stretch at which the first step of `stages` takes as long as the spec asks for, nearly: how
    long stages wait for each other is only known once they are laid out."""
    if spec.step_us is None or spec.pp == 1:
        return 1.0

    def length(stretch: float) -> float:
        laid = [replace(stage, shape=replace(stage.shape, target_ns=None)) for stage in stages(stretch)]
        steps = lay_out(spec, laid, [np.zeros(len(stage.ranks), np.int64) for stage in laid])
        return float(max(step.end.max() for step in steps))

    target = spec.step_us * 1000.0
    before, was = 1.0, length(1.0)
    stretch = target / was
    for _ in range(2):  # nearly a straight line
        now = length(stretch)
        if now == was:
            break
        before, was, stretch = stretch, now, stretch + (target - now) * (stretch - before) / (now - was)
    return stretch


def _set_share(duration: Floats, casts: npt.NDArray[np.bool_], rest: npt.NDArray[np.bool_], share: float) -> None:
    if not casts.any():
        raise ValueError("cast_ratio is set but the spec has no Cast kernels")
    duration[casts] *= share / (1 - share) * duration[rest].sum() / duration[casts].sum()


def lay_out(spec: GptSpec, stages: Sequence[Stage], begin: Sequence[Ints]) -> list[Timeline]:
    """One step of all stages of a job, or of what stands for them, each beginning at its own `begin`."""
    mail: Mail = defaultdict(deque)
    running = {number: _lay_out_stage(spec, number, stage, begin[number], mail) for number, stage in enumerate(stages)}
    done: dict[int, Timeline] = {}
    while running:
        for number, stage in list(running.items()):
            try:
                next(stage)
            except StopIteration as end:
                done[number] = end.value
                del running[number]
    return [done[number] for number in sorted(done)]


def _lay_out_stage(
    spec: GptSpec, number: int, stage: Stage, begin: Ints, mail: Mail
) -> Generator[None, None, Timeline]:
    """One step of a stage; yields while it waits for what another stage has not sent yet."""
    slots, shape, rng = stage.slots, stage.shape, stage.rng
    count, n = len(stage.ranks), len(slots)
    comm = np.array([slot.op.comm is not None for slot in slots])
    noised = shape.duration * (1 + spec.jitter * rng.standard_normal((count, n)).clip(-3, 3))
    noised *= shape.duration[~comm].sum() / noised[:, ~comm].sum(axis=1, keepdims=True)  # jitter moves no totals
    factor = np.where(comm, 1.0, stage.slow)
    duration = _ticks(np.maximum(noised * factor, 1_000))
    gaps = _ticks(_gaps(spec, shape, (count, n), rng))
    start = np.zeros((count, n), np.int64)
    transit = np.where(comm, duration, 0)
    groups = _group_indexes(spec, stage.ranks)
    clock, side = begin.copy(), begin.copy()
    stops = [i for i in range(n) if comm[i] or slots[i].join]
    done = 0
    for i in stops:
        clock = _advance(start, duration, gaps, clock, done, i)
        done = i
        slot = slots[i]
        if slot.join:
            clock = np.maximum(clock, side)
        if slot.op.comm is None:
            continue
        done = i + 1
        overlap = slot.op.comm.overlap
        arrival = np.maximum(clock, side) + TICK_NS if overlap else clock + gaps[:, i]
        late, moving = arrival, int(duration[:, i].max())
        if slot.op.comm.receives:
            inbox = mail[slot.pass_, number]
            while not inbox:
                yield
            sent, moving = inbox.popleft()
            late = np.maximum(arrival, sent)
        elif slot.op.comm.p2p:
            neighbour = number + 1 if slot.pass_ == "forward" else number - 1
            mail[slot.pass_, neighbour % spec.pp].append((arrival, moving))
        else:
            late = _latest(arrival, groups[slot.op.comm.group])
            if count == 1 and not overlap:
                late = late + int(PEER_WAIT_NS * rng.exponential()) // TICK_NS * TICK_NS
        if slot.op.comm.group == "world":
            everybody = mail["none", 0]
            everybody.append((late, moving))
            while len(everybody) < spec.pp:
                yield
            late = np.max([one for one, _ in everybody], axis=0)
            moving = max(one for _, one in everybody)
        end = late + moving
        start[:, i], transit[:, i], duration[:, i] = arrival, moving, end - arrival
        if overlap:
            side = end
        else:
            clock = end
    clock = np.maximum(_advance(start, duration, gaps, clock, done, n), side)
    return Timeline(start, duration, transit, begin, _step_end(begin, clock, shape))


def _step_end(begin: Ints, clock: Ints, shape: Nominal) -> Ints:
    tail = int(shape.gaps_ns * 0.02) // TICK_NS * TICK_NS
    return clock + tail if shape.target_ns is None else np.maximum(clock, begin + shape.target_ns)


def _advance(start: Ints, duration: Ints, gaps: Ints, clock: Ints, first: int, last: int) -> Ints:
    """Lay kernels `first` to `last` one after the other from `clock`; gives the end of the last."""
    if first == last:
        return clock
    ends = clock[:, None] + np.cumsum(duration[:, first:last] + gaps[:, first:last], axis=1)
    start[:, first:last] = ends - duration[:, first:last]
    return np.asarray(ends[:, -1], np.int64)


def _gaps(spec: GptSpec, shape: Nominal, size: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Idle time before each kernel: graph mode waits mostly at the step's start, eager modes before every kernel."""
    gaps: Floats = rng.exponential(1.0, size[1]) * (1 + 0.1 * rng.standard_normal(size)).clip(0.1, 2)
    gaps *= shape.gaps_ns / gaps.sum(axis=1, keepdims=True)
    lead = 0.35 if spec.mode == "graph" else 0.02
    gaps *= 0.98 - lead
    gaps[:, 0] += lead * shape.gaps_ns
    return gaps


def _group_indexes(spec: GptSpec, ranks: Sequence[int]) -> dict[str, Ints]:
    """For each kind of group inside a stage, the number of the group each rank is in."""
    indexes: dict[str, Ints] = {}
    kinds: tuple[Group, ...] = ("tp", "cp", "dp", "ep")
    for kind in kinds:
        firsts = [spec.group(kind, rank)[0] for rank in ranks]
        indexes[kind] = np.unique(firsts, return_inverse=True)[1].astype(np.int64)
    indexes["world"] = np.zeros(len(ranks), np.int64)
    return indexes


def _latest(arrival: Ints, group: Ints) -> Ints:
    latest = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(latest, group, arrival)
    return latest[group]


def _ticks(ns: Floats) -> Ints:
    return np.asarray(np.rint(ns / TICK_NS) * TICK_NS, np.int64)
