"""Whether a series got worse for good, in numbers. No queries here.

A regression is a move in the bad direction, by at least the rule's effect, away from the level before, confirmed by two
captures or more or by one whose own spread from step to step leaves that level out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from dashboard.alerts.rules import Rule, regressed
from dashboard.runs.changes import change_points

RECENT = 3
"""Captures whose median is the level to hold a new one against: a series that improves has no older level."""
ENOUGH_FOR_NOISE = 8
LOOKED_BACK = 20
NOISE_WIDTHS = 2
SPREAD_WIDTHS = 3
"""Standard deviations from step to step within which a capture's value might as well have been."""

POINTS, SPREAD, WAITING = "points", "spread", "waiting"


@dataclass(frozen=True)
class Regression:
    """The series is worse from its point `start` on. `confirmed_by` is POINTS, SPREAD or WAITING (for a second one)."""

    start: int
    old: float
    new: float
    confirmed_by: str


def judge(values: Sequence[float], rule: Rule, spread: Callable[[], float | None]) -> Regression | None:
    """What the newest of `values` (known, in order of time) shows; `spread` is asked for its step-to-step deviation."""
    return _two(values, rule) or one_worse(values, rule, spread) or _shift(values, rule)


def _two(values: Sequence[float], rule: Rule) -> Regression | None:
    before, newest = values[:-2], values[-2:]
    if not before:
        return None
    level = level_of(before)
    if not all(_worse(rule, before, level, value) for value in newest):
        return None
    return Regression(len(before), level, median(newest), POINTS)


def one_worse(values: Sequence[float], rule: Rule, spread: Callable[[], float | None]) -> Regression | None:
    """Whether the newest value alone is worse; WAITING where its own steps lie too far apart to be sure."""
    before, newest = values[:-1], values[-1]
    if not before:
        return None
    level = level_of(before)
    if not _worse(rule, before, level, newest):
        return None
    deviation = spread()
    excluded = deviation is not None and abs(newest - level) > SPREAD_WIDTHS * deviation
    return Regression(len(before), level, newest, SPREAD if excluded else WAITING)


def _shift(values: Sequence[float], rule: Rule) -> Regression | None:
    """A change of level too small to stand out in two captures of a noisy series."""
    changes = change_points(values, rule.metric)
    if not changes or not regressed(rule, changes[-1].before, changes[-1].after):
        return None
    return Regression(changes[-1].index, changes[-1].before, changes[-1].after, POINTS)


def level_of(before: Sequence[float]) -> float:
    """What a new value is held against."""
    return median(before[-RECENT:])


def _worse(rule: Rule, before: Sequence[float], level: float, value: float) -> bool:
    return regressed(rule, level, value) and abs(value - level) > NOISE_WIDTHS * noise(before[-LOOKED_BACK:])


def noise(values: Sequence[float]) -> float:
    """Standard deviation of captures around their neighbours; 0 where they are too few to tell.

    From second differences: a steady climb is no noise, and of a step two differences are touched at most.
    """
    if len(values) < ENOUGH_FOR_NOISE:
        return 0.0
    bends = [abs(b - (a + c) / 2) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return 1.4826 * median(bends) / sqrt(1.5)
