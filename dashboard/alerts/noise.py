"""By how much a capture's value might as well be another, for a judgement that cannot wait for a second capture.

A profile of one step says nothing of how far steps lie apart. Others do: captures before it, the run's step log, the
steps of the baseline. Where nobody does, a bound is assumed that steps of a training on cards of its own do not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

from dashboard.alerts import spread
from dashboard.alerts.judge import ENOUGH_FOR_NOISE, RECENT, SPREAD_WIDTHS, noise
from dashboard.runs.models import Capture

STEPS, HISTORY, LOG, BASELINE, ASSUMED = "steps", "history", "log", "baseline", "assumed"
LEAST_STEPS = 3
LEAST_CAPTURES = 4
LEAST_LOGGED = 8
TIMED = ("step_time_ns", "mfu")
"""Metrics that a step log tells of: MFU goes as the inverse of the step time."""

ASSUMED_RELATIVE = {"step_time_ns": 0.05, "mfu": 0.05, "peak_memory_bytes": 0.02}
ASSUMED_ABSOLUTE = {"device_ratio": 0.02, "cast_ratio": 0.01}
"""Standard deviations from step to step, of the value or in its own unit; of the trainings whose profiles this was
measured on the least steady one had 0.024 of the step time."""

TAIL = (235.8, 19.21, 9.22, 6.62, 5.51, 4.90, 4.53)
"""Student's t for 1, 2, ... degrees of freedom, past which lies as little as past three standard deviations of a normal
distribution (GUM, table G.2, 99.73 %)."""


@dataclass(frozen=True)
class Noise:
    """`deviation`: standard deviation in the metric's own unit, of which SPREAD_WIDTHS rule chance out; `source`: who
    tells it."""

    deviation: float
    source: str


def noise_of(capture: Capture, metric: str, baseline: Sequence[Capture]) -> Noise:
    """How far `metric` of `capture` may lie from the level of `baseline` by chance, as the first tells that can."""
    value = float(getattr(capture, metric))
    own = spread.by_step(capture, metric)
    tellers: list[tuple[str, Callable[[], float | None]]] = [
        (STEPS, lambda: _of_few(own)),
        (HISTORY, lambda: _among([float(getattr(one, metric)) for one in baseline])),
        (LOG, lambda: _logged(capture, value) if metric in TIMED else None),
        (BASELINE, lambda: _of_baseline(metric, value, baseline)),
    ]
    for source, tell in tellers:
        if (deviation := tell()) is not None:
            return Noise(deviation, source)
    assumed = ASSUMED_ABSOLUTE.get(metric) or ASSUMED_RELATIVE[metric] * value
    return Noise(_one_against_one(max(assumed, stdev(own) if len(own) > 1 else 0.0)), ASSUMED)


def _of_few(steps: Sequence[float]) -> float | None:
    """Of steps, for a level of as many; where they are few, what their deviation may leave out counts as well."""
    return stdev(steps) * max(1.0, _tail(len(steps)) * sqrt(2 / len(steps))) if len(steps) >= LEAST_STEPS else None


def _tail(count: int) -> float:
    """By what the deviation of `count` values has to be widened for SPREAD_WIDTHS of it to rule chance out."""
    return TAIL[count - 2] / SPREAD_WIDTHS if count - 2 < len(TAIL) else 1.0


def _among(values: Sequence[float]) -> float | None:
    """Of captures among each other, for one more of them. A climb is no noise where there are enough to see it."""
    if len(values) < LEAST_CAPTURES:
        return None
    deviation = noise(values) if len(values) >= ENOUGH_FOR_NOISE else stdev(values) * _tail(len(values))
    return deviation * sqrt(1 + 1 / len(values))


def _logged(capture: Capture, value: float) -> float | None:
    """Of the steps that the run's log tells of and the profiler did not slow down."""
    times = spread.logged_us(capture)
    return _one_against_one(stdev(times) / mean(times) * value) if len(times) >= LEAST_LOGGED else None


def _of_baseline(metric: str, value: float, baseline: Sequence[Capture]) -> float | None:
    """Of the steps of the newest captures of the baseline, the least steady of them, at the size of `value`."""
    found = []
    for one in baseline[-RECENT:]:
        steps = spread.by_step(one, metric)
        deviation, middle = _of_few(steps), mean(steps) if steps else 0.0
        if deviation is not None:
            found.append(deviation if metric in ASSUMED_ABSOLUTE or not middle else deviation / middle * value)
    return _one_against_one(max(found)) if found else None


def _one_against_one(deviation: float) -> float:
    """Of the difference of two steps."""
    return deviation * sqrt(2)
