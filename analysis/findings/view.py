"""What rules look at, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from analysis.checklist.evidence import Text
from analysis.entries import Json, capture_step_time_us, judged_steps, mean, number, rows, step_count
from analysis.stragglers import cluster
from analysis.thresholds import limit

if TYPE_CHECKING:
    from analysis.checklist import Evidence

Severity = Literal["high", "medium", "low"]
MAX_EVIDENCE = 10


@dataclass(frozen=True)
class Finding:
    """One line of advice. Without `severity` it follows from the share of the step that could be recovered."""

    id: str
    summary: Text
    advice: Text
    evidence: Sequence[Json] = ()
    recoverable_us: float | None = None
    severity: Severity | None = None

    def as_json(self, step_us: float | None) -> Json:
        """The finding as an object of the report."""
        return {
            "id": self.id,
            "severity": self.severity or severity(self.recoverable_us, step_us),
            "summary": self.summary.en,
            "summary_zh": self.summary.zh,
            "evidence": list(self.evidence[:MAX_EVIDENCE]),
            "advice": self.advice.en,
            "advice_zh": self.advice.zh,
            "recoverable_us": None if self.recoverable_us is None else round(self.recoverable_us, 3),
        }


def severity(us: float | None, step_us: float | None) -> Severity:
    """High from 5 % of the step, medium from 3 %, else low."""
    share = us / step_us if us is not None and step_us else 0.0
    if share >= limit("severity_high"):
        return "high"
    return "medium" if share >= limit("severity_medium") else "low"


class View:
    """The evidence with a few numbers every rule needs."""

    def __init__(self, evidence: Evidence, known_cluster: Json | None = None) -> None:
        self.evidence = evidence
        self._cluster = known_cluster
        self.ranks = list(evidence.ranks)
        self.step_us = capture_step_time_us(self.ranks)

    @cached_property
    def cluster(self) -> Json:
        """Slow ranks and links, spread, bubble, stages."""
        return self._cluster if self._cluster is not None else cluster(self.evidence)

    @property
    def collectives(self) -> Iterator[Json]:
        """Single collectives of all ranks, one after another: of a thousand ranks all at once take 100 MB."""
        return (row for entry in self.ranks for row in collectives_of(entry))

    def facts(self, *path: str) -> list[tuple[Json, list[Json]]]:
        """(entry, rows at that path of its facts) of the ranks that have any."""
        return [(entry, found) for entry in self.ranks if (found := rows(entry, "facts", *path))]

    def per_step(self, value: Callable[[Json], float | None]) -> float | None:
        """Mean over ranks of a capture sum per step."""
        sums = [(entry, value(entry)) for entry in self.ranks]
        return mean(total / step_count(entry) for entry, total in sums if total is not None)

    def step_mean(self, key: str) -> float | None:
        """Mean of a step field over judged steps of all ranks."""
        return mean(number(step, key) for entry in self.ranks for step in judged_steps(entry))

    def share(self, us: float | None) -> float:
        """Of the step; 0 when either is not known."""
        return us / self.step_us if us is not None and self.step_us else 0.0


def collectives_of(entry: Json) -> list[Json]:
    """Single collectives of a rank, with its number and the link that their (group, operation) used."""
    links = {(row.get("group"), row.get("op")): row.get("link") for row in rows(entry, "communication")}
    return [
        {**row, "rank": entry.get("rank"), "link": row.get("link") or links.get((row.get("group"), row.get("op")))}
        for row in rows(entry, "collectives")
    ]


def total_us(found: Sequence[Json]) -> float:
    """Sum of the rows' total_us."""
    return sum(number(row, "total_us") or 0.0 for row in found)


def ms(us: float) -> str:
    """Milliseconds with three digits that count."""
    return f"{us / 1000:.3g} ms"
