"""Numbers out of the rank entries of a report: plain JSON, so stored ones work as well. Null means unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

Json = dict[str, Any]


def number(entry: Mapping[str, Any], *path: str) -> float | None:
    """The number at `path`, None where any part is missing or not a number."""
    value: Any = entry
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def rows(entry: Mapping[str, Any], *path: str) -> list[Json]:
    """The list of objects at `path`, empty where any part is missing."""
    value: Any = entry
    for key in path:
        if not isinstance(value, Mapping):
            return []
        value = value.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def judged_steps(entry: Mapping[str, Any]) -> list[Json]:
    """Steps of known, positive length that are not warm-up."""
    return [step for step in rows(entry, "steps") if not step.get("warmup") and (number(step, "step_time_us") or 0) > 0]


def step_time_us(entry: Mapping[str, Any]) -> float | None:
    """Median step time of the judged steps of one rank."""
    times = [step["step_time_us"] for step in judged_steps(entry)]
    return float(median(times)) if times else None


def step_count(entry: Mapping[str, Any]) -> int:
    """Number of steps the kernel sums of this rank cover, at least 1."""
    known = number(entry, "facts", "steps")
    return max(1, int(known) if known else len(rows(entry, "steps")))


def slowest(ranks: Sequence[Json]) -> Json | None:
    """The entry with the longest step: the capture is as fast as this one. The first when no step time is known."""
    timed = [entry for entry in ranks if step_time_us(entry) is not None]
    if timed:
        return max(timed, key=lambda entry: step_time_us(entry) or 0.0)
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
    free = ratio_of_sums((number(step, "free_us"), number(step, "step_time_us")) for step in steps)
    return None if free is None else 1 - free


def free_us(ranks: Sequence[Json]) -> float | None:
    """Mean free time per judged step over all ranks."""
    return mean(number(step, "free_us") for entry in ranks for step in judged_steps(entry))


def rank_name(entry: Mapping[str, Any]) -> str:
    """ "rank 3", or "this rank" where the rank is not known."""
    return f"rank {entry['rank']}" if entry.get("rank") is not None else "this rank"
