"""Step totals from the laid-out intervals: what computes, communicates, overlaps and stands idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.synthetic.model import Slot
from analysis.synthetic.timing import Ints, Timeline
from analysis.synthetic.truth import StepTruth


def step_truth(step: str | None, slots: Sequence[Slot], timeline: Timeline, index: int, *, torch: bool) -> StepTruth:
    start, end = timeline.start[index], timeline.start[index] + timeline.duration[index]
    comm = np.array([slot.op.comm is not None for slot in slots])
    p2p = np.array([slot.op.comm is not None and slot.op.comm.p2p for slot in slots])
    computing = _covered(start[~comm], end[~comm])
    communication = _covered(start[comm], end[comm])
    either = _covered(start, end)
    begin, length = int(timeline.begin[index]), int(timeline.end[index] - timeline.begin[index])
    bubble = int((end - start)[p2p].sum())
    return StepTruth(
        step,
        begin,
        length,
        computing,
        communication,
        either - computing,
        computing + communication - either,
        length - either,
        bubble,
        int(start.min()) - begin,
        length if torch else _communication_span(start[comm], end[comm]) - bubble,
    )


def _communication_span(start: Ints, end: Ints) -> int:
    if not len(start):
        return 0
    last = int(start.argmax())
    return int(end[last] - start.min())


def _covered(start: Ints, end: Ints) -> int:
    """Length of the union of intervals: walk the merged list of starts and ends, counting how many are open."""
    if not len(start):
        return 0
    times = np.concatenate([start, end])
    change = np.concatenate([np.ones(len(start), np.int64), -np.ones(len(end), np.int64)])
    order = np.lexsort((-change, times))
    times, is_open = times[order], np.cumsum(change[order]) > 0
    return int((np.diff(times) * is_open[:-1]).sum())
