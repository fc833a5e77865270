"""How far a capture's own steps lie apart: what its value might as well have been."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from analysis.entries import judged_steps, number, slowest
from analysis.flops import unprofiled_steps_us
from dashboard.runs.frames import frames_path
from dashboard.runs.models import Capture
from dashboard.runs.rollup import step_series

LEAST_STEPS = 2
MOST_RANKS = 8

Entry = dict[str, Any]


def spread_of(capture: Capture, metric: str) -> float | None:
    """Standard deviation of `metric` from step to step, in its own unit; None where one step alone is known.

    Peak memory is one number of a whole capture and has no steps.
    """
    values = by_step(capture, metric)
    return stdev(values) if len(values) >= LEAST_STEPS else None


def by_step(capture: Capture, metric: str) -> list[float]:
    """`metric` of each judged step, in its own unit; empty where steps do not tell it."""
    entries = list(capture.dumps.exclude(entry={}).order_by("rank").values_list("entry", flat=True))
    if metric == "step_time_ns":
        return [time * 1000 for time in step_times_us(entries)]
    if metric == "mfu":
        return _mfus(capture.mfu, step_times_us(entries))
    if metric == "device_ratio":
        return device_ratios(entries)
    if metric == "cast_ratio":
        return _cast_ratios(capture)
    return []


def logged_us(capture: Capture) -> list[float]:
    """Step times of the run's log, newest last, without warm-up and the capture's own steps."""
    first, last = capture.first_step, capture.last_step
    return unprofiled_steps_us(step_series(capture.run_id), None if first is None or last is None else (first, last))


def step_times_us(entries: Sequence[Entry]) -> list[float]:
    """Judged steps of the slowest rank, whose step time is the capture's."""
    return [step["step_time_us"] for step in judged_steps(slowest(entries) or {})]


def device_ratios(entries: Sequence[Entry]) -> list[float]:
    """Device ratio of each judged step over the ranks, by the step's place in its window."""
    free: dict[int, float] = defaultdict(float)
    total: dict[int, float] = defaultdict(float)
    for entry in entries:
        for place, step in enumerate(judged_steps(entry)):
            idle = number(step, "free_us")
            if idle is not None:
                free[place] += idle
                total[place] += step["step_time_us"]
    return [1 - free[place] / total[place] for place in sorted(total)]


def _mfus(mfu: float | None, times: Sequence[float]) -> list[float]:
    # FLOPs of a step are the same in every step: its MFU goes as the inverse of its time.
    if mfu is None or not times:
        return []
    middle = mean(times)
    return [mfu * middle / time for time in times if time]


def _cast_ratios(capture: Capture) -> list[float]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    dumps = capture.dumps.exclude(frames="").order_by("rank").only("frames", "entry")
    for dump in dumps[:MOST_RANKS]:
        judged = {str(step.get("step")) for step in judged_steps(dump.entry)}
        for step, (cast, compute) in _cast_by_step(dump.frames).items():
            if step in judged:
                sums[step][0] += cast
                sums[step][1] += compute
    return [cast / compute for cast, compute in sums.values() if compute]


def _cast_by_step(frames: str) -> Mapping[str, tuple[float, float]]:
    """Step -> time in Cast kernels and in all compute kernels; empty when the kernels are no longer kept."""
    import polars as pl

    from analysis.store import scan

    of_cast = pl.col("duration_ns").filter(pl.col("class") == "cast").sum()
    try:
        compute = scan(frames_path(frames), "kernels").filter(pl.col("kind") == "compute")
        sums = compute.group_by("step").agg(of_cast.alias("cast"), pl.sum("duration_ns")).collect()
    except FileNotFoundError:
        return {}
    return {str(step): (cast, total) for step, cast, total in sums.iter_rows()}
