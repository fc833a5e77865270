"""Laying the kernels of a step on the clock, for all ranks that share collectives at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    wait: Floats
    gaps_ns: float
    target_ns: int | None


def nominal(spec: GptSpec, slots: Sequence[Slot]) -> Nominal:
    unit = {id(slot.op): nominal_ns(slot.op, spec) for slot in slots}
    duration = np.array([unit[id(slot.op)] for slot in slots])
    wait = np.array([slot.wait_ns for slot in slots])
    comm = np.array([slot.op.comm is not None for slot in slots])
    casts = np.array([slot.op.type == "Cast" for slot in slots])
    if spec.cast_ratio is not None:
        _set_share(duration, casts, ~comm & ~casts, spec.cast_ratio)
    exposed = np.array([slot.op.comm is not None and not slot.op.comm.overlap for slot in slots])
    exposed_ns = float(duration[exposed].sum()) + (PEER_WAIT_NS * exposed.sum())
    compute_ns = float(duration[~comm].sum())
    if spec.step_us is None:
        busy = compute_ns + exposed_ns + float(wait.sum())
        return Nominal(duration, wait, busy * spec.free_ratio / (1 - spec.free_ratio), None)
    target = spec.step_us * 1000
    available = target * (1 - spec.free_ratio) - exposed_ns
    stretch = available / (compute_ns + float(wait.sum()))
    if stretch <= 0:
        raise ValueError(f"communication alone takes longer than a step of {spec.step_us} us")
    duration[~comm] *= stretch
    return Nominal(duration, wait * stretch, target * spec.free_ratio, target)


def _set_share(duration: Floats, casts: npt.NDArray[np.bool_], rest: npt.NDArray[np.bool_], share: float) -> None:
    if not casts.any():
        raise ValueError("cast_ratio is set but the spec has no Cast kernels")
    duration[casts] *= share / (1 - share) * duration[rest].sum() / duration[casts].sum()


def lay_out(
    spec: GptSpec,
    slots: Sequence[Slot],
    shape: Nominal,
    ranks: Sequence[int],
    begin: Ints,
    rng: np.random.Generator,
    slow: Floats,
) -> Timeline:
    """One step of all `ranks` (of one pipeline stage), beginning at `begin`; `slow` (ranks x 1 or ranks x slots)
    multiplies compute."""
    count, n = len(ranks), len(slots)
    comm = np.array([slot.op.comm is not None for slot in slots])
    noised = shape.duration * (1 + spec.jitter * rng.standard_normal((count, n)).clip(-3, 3))
    noised *= shape.duration[~comm].sum() / noised[:, ~comm].sum(axis=1, keepdims=True)  # jitter moves no totals
    factor = np.where(comm, 1.0, slow)
    duration = _ticks(np.maximum(noised * factor, 1_000))
    gaps = _ticks(_gaps(spec, shape, (count, n), rng))
    start = np.zeros((count, n), np.int64)
    transit = np.where(comm, duration, 0)
    groups = _group_indexes(spec, ranks)
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
        late = _latest(arrival, groups[slot.op.comm.group])
        extra = shape.wait[i] + (PEER_WAIT_NS * rng.exponential() if count == 1 and not overlap else 0)
        end = late + duration[:, i].max() + int(extra) // TICK_NS * TICK_NS
        start[:, i], transit[:, i], duration[:, i] = arrival, duration[:, i].max(), end - arrival
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
    """For each kind of group, the number of the group each rank is in. Pipeline peers are not laid out together."""
    indexes: dict[str, Ints] = {}
    kinds: tuple[Group, ...] = ("tp", "cp", "dp", "ep")
    for kind in kinds:
        firsts = [spec.group(kind, rank)[0] for rank in ranks]
        indexes[kind] = np.unique(firsts, return_inverse=True)[1].astype(np.int64)
    indexes["world"] = np.zeros(len(ranks), np.int64)
    indexes["pp"] = np.arange(len(ranks), dtype=np.int64)
    return indexes


def _latest(arrival: Ints, group: Ints) -> Ints:
    latest = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(latest, group, arrival)
    return latest[group]


def _ticks(ns: Floats) -> Ints:
    return np.asarray(np.rint(ns / TICK_NS) * TICK_NS, np.int64)
