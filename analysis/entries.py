"""Numbers out of the rank entries of a report: plain JSON, so stored ones work as well. Null means unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.columns import Columns

Floats = npt.NDArray[np.float64]
_NUMBERS = {float, int, type(None)}
Json = dict[str, Any]


def number(entry: Mapping[str, Any], *path: str) -> float | None:
    """The number at `path`, None where any part is missing or not a number."""
    value: Any = entry
    for key in path:
        if type(value) is not dict and not isinstance(value, Mapping):  # a dump may have 100 000 steps: dicts first
            return None
        value = value.get(key)
    if type(value) is float:
        return value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def numbers(entries: Sequence[Mapping[str, Any]], key: str) -> Floats:
    """The number under `key` of each entry; NaN where it is missing or not a number."""
    values = [entry.get(key) for entry in entries]
    if not set(map(type, values)) <= _NUMBERS:
        values = [value if type(value) in _NUMBERS else None for value in values]
    return np.array(values, dtype=np.float64)


def rows(entry: Mapping[str, Any], *path: str) -> list[Json]:
    """The list of objects at `path`, empty where any part is missing."""
    value: Any = entry
    for key in path:
        if not isinstance(value, Mapping):
            return []
        value = value.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, (list, Columns)) else []


def judged_steps(entry: Mapping[str, Any]) -> list[Json]:
    """Steps of known, positive length that are not warm-up."""
    steps = [step for step in rows(entry, "steps") if not step.get("warmup")]
    return [*compress(steps, numbers(steps, "step_time_us") > 0)]


def step_time_us(entry: Mapping[str, Any]) -> float | None:
    """Median step time of the judged steps of one rank."""
    times = numbers(judged_steps(entry), "step_time_us")
    return float(np.median(times)) if len(times) else None


def bubble_us(step: Mapping[str, Any]) -> float:
    """The step's pipeline bubble, 0 where none was seen, and no more than the communication that no compute hides."""
    exposed, bubble = number(step, "communication_not_overlapped_us"), number(step, "bubble_us") or 0.0
    return max(0.0, bubble if exposed is None else min(bubble, exposed))


def exposed_us(step: Mapping[str, Any]) -> float | None:
    """Communication that no compute hides, without the pipeline's bubble."""
    exposed = number(step, "communication_not_overlapped_us")
    return None if exposed is None else exposed - bubble_us(step)


def step_count(entry: Mapping[str, Any]) -> int:
    """Number of steps the kernel sums of this rank cover, at least 1."""
    known = number(entry, "facts", "steps")
    return max(1, int(known) if known else len(rows(entry, "steps")))


def slowest(ranks: Sequence[Json]) -> Json | None:
    """The entry with the longest step: the capture is as fast as this one. The first when no step time is known."""
    timed = [(time, entry) for entry in ranks if (time := step_time_us(entry)) is not None]
    if timed:
        return max(timed, key=lambda pair: pair[0])[1]
    return ranks[0] if ranks else None


def capture_step_time_us(ranks: Sequence[Json]) -> float | None:
    """Step time of the capture: that of its slowest rank."""
    entry = slowest(ranks)
    return step_time_us(entry) if entry else None


def ratio_of_sums(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Sum of parts / sum of wholes over the pairs where both are known; None without any."""
    known = [(part, whole) for part, whole in pairs if part is not None and whole]
    return sum(part for part, _ in known) / sum(whole for _, whole in known) if known else None


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values, None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def ratio_of(part: float | None, whole: float | None) -> float | None:
    """part / whole, None when either is unknown or the whole is 0."""
    return part / whole if part is not None and whole else None


def device_ratio(ranks: Sequence[Json]) -> float | None:
    """Share of the judged steps of all ranks in which the device works: 1 - sum of free / sum of step time."""
    steps = [step for entry in ranks for step in judged_steps(entry)]
    free, time = numbers(steps, "free_us"), numbers(steps, "step_time_us")
    whole = float(time[~np.isnan(free)].sum())
    return 1 - float(np.nansum(free)) / whole if whole else None


def free_us(ranks: Sequence[Json]) -> float | None:
    """Mean free time per judged step over all ranks."""
    free = numbers([step for entry in ranks for step in judged_steps(entry)], "free_us")
    known = free[~np.isnan(free)]
    return float(known.mean()) if len(known) else None


def rank_name(entry: Mapping[str, Any]) -> str:
    """ "rank 3", or "this rank" where the rank is not known."""
    return f"rank {entry['rank']}" if entry.get("rank") is not None else "this rank"
