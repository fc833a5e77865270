"""Where the level of a series changed for good. No queries, no requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import median

SHORTEST = 2
"""Points that make a level: one capture alone may be an accident."""
LEAST_RELATIVE = {"mfu": 0.03, "hfu": 0.03, "tflops_per_device": 0.03, "step_time_ns": 0.03, "peak_memory_bytes": 0.05,
                  "recoverable_ns": 0.1}  # fmt: skip
LEAST_ABSOLUTE = {"cast_ratio": 0.01}
LEAST_SHARE = 0.03


@dataclass(frozen=True)
class Change:
    """The series' level (median of a stretch) from point `index` on is `after`; up to there it was `before`."""

    index: int
    before: float
    after: float


def least_change(metric: str, level: float) -> float:
    """The smallest change of that metric's level that is worth a mark."""
    if metric in LEAST_RELATIVE:
        return LEAST_RELATIVE[metric] * abs(level)
    return LEAST_ABSOLUTE.get(metric, LEAST_SHARE)


def change_points(values: Sequence[float], metric: str) -> list[Change]:
    """Changes of level in `values` (all known, in order of time) that are larger than noise and worth a mark.

    PELT with squared error on values in units of their noise; its penalty grows with the number of points.
    """
    if len(values) < 2 * SHORTEST:
        return []
    noise = max(noise_of(values), 0.002 * abs(median(values)), 1e-12)
    cuts = [0, *_cuts([value / noise for value in without_spikes(values)])]
    while True:
        levels = [median(values[start:end]) for start, end in zip(cuts, [*cuts[1:], len(values)], strict=True)]
        changes = [Change(cut, old, new) for cut, old, new in zip(cuts[1:], levels[:-1], levels[1:], strict=True)]
        small = [
            change for change in changes if abs(change.after - change.before) < least_change(metric, change.before)
        ]
        if not small:
            return changes
        cuts.remove(min(small, key=lambda change: abs(change.after - change.before)).index)


def noise_of(values: Sequence[float]) -> float:
    """Standard deviation from one point to the next, as its median: steps and outliers do not count."""
    steps = [abs(after - before) for before, after in zip(values, values[1:], strict=False)]
    return 1.4826 * median(steps) / sqrt(2)


def without_spikes(values: Sequence[float]) -> list[float]:
    """Each value as the median of three around it: single outliers go, also at the ends; steps stay where they are."""
    inner = [median(values[place - 1 : place + 2]) for place in range(1, len(values) - 1)]
    return [inner[0], *inner, inner[-1]]


def _cuts(values: Sequence[float]) -> list[int]:
    import numpy as np
    import ruptures  # here, not above: it brings SciPy, which only this needs

    search = ruptures.KernelCPD(kernel="linear", min_size=SHORTEST).fit(np.asarray(values).reshape(-1, 1))
    return [int(cut) for cut in search.predict(pen=3 * log(len(values)))[:-1]]
