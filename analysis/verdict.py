"""What holds a step back: compute, scheduling, communication, the pipeline or input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np

from analysis.entries import Json, judged_steps, number, numbers, slowest
from analysis.thresholds import limit


def bottleneck(steps: Sequence[Json], *, queue_empty_ratio: float | None = None) -> Json:
    """Verdict over the steps (warm-up left out) with its losses: time in which the device did not compute.

    Losses are disjoint parts of the step: "free", "communication" (not hidden under compute, without bubble), "bubble"
    (waiting to receive from another pipeline stage) and "input" (free time under data loading, key `data_wait_us` of a
    step). `us` is the mean per step, `share` is of the step time. `queue_empty_ratio`: how often the device queue was
    found empty (minddata), 0 to 1.
    """
    steps = judged_steps({"steps": list(steps)})
    known = ~np.isnan(numbers(steps, "free_us"))
    judged = [*compress(steps, known)]
    if not judged:
        starved = (queue_empty_ratio or 0.0) >= limit("input_queue_empty")
        return {"verdict": "input" if starved else None, "losses": []}
    total = float(numbers(judged, "step_time_us").sum())
    parts = _parts(judged)
    losses: list[Json] = [
        {"kind": kind, "us": value / len(judged), "share": value / total} for kind, value in parts.items() if value > 0
    ]
    losses.sort(key=lambda loss: -float(loss["us"]))
    computing = float(np.nansum(numbers(judged, "computing_us"))) / total
    shares = {kind: value / total for kind, value in parts.items()}
    return {"verdict": _verdict(shares, computing, queue_empty_ratio), "losses": losses}


def capture_bottleneck(ranks: Sequence[Json]) -> Json:
    """The verdict of the capture: that of its slowest rank, which `rank` names."""
    entry = slowest(ranks)
    if entry is None:
        return {"verdict": None, "losses": []}
    empty = number(entry, "facts", "queue_empty_ratio")
    return {**bottleneck(entry.get("steps") or [], queue_empty_ratio=empty), "rank": entry.get("rank")}


def _parts(steps: Sequence[Json]) -> dict[str, float]:
    free, exposed, waits, bubbles = (
        np.maximum(0.0, np.nan_to_num(numbers(steps, f"{name}_us")))
        for name in ("free", "communication_not_overlapped", "data_wait", "bubble")
    )
    waiting, bubble = np.minimum(free, waits), np.minimum(exposed, bubbles)
    parts = {"free": free - waiting, "communication": exposed - bubble, "bubble": bubble, "input": waiting}
    return {kind: float(values.sum()) for kind, values in parts.items()}


def _verdict(shares: dict[str, float], computing: float, queue_empty_ratio: float | None) -> str:
    free = shares["free"] + shares["input"]
    if _waits_for_input(shares, free, queue_empty_ratio):
        return "input"
    waits = {"communication": shares["communication"], "pipeline": shares["bubble"]}
    largest = max(waits, key=lambda kind: waits[kind])
    if waits[largest] > free and waits[largest] >= limit("communication"):
        return largest
    if free >= limit("scheduling"):
        return "scheduling"
    if free >= limit("mostly_scheduling"):
        return "mostly_scheduling"
    if computing >= limit("compute") or (computing >= limit("compute_low") and free < limit("compute_free")):
        return "compute"
    return "mixed"


def _waits_for_input(shares: dict[str, float], free: float, queue_empty_ratio: float | None) -> bool:
    most_of_free = shares["input"] >= limit("mostly_scheduling") and shares["input"] > free / 2
    return most_of_free or (queue_empty_ratio or 0.0) >= limit("input_queue_empty")
