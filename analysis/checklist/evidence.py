"""What a check is given and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.entries import Json

if TYPE_CHECKING:
    from analysis.config import ModelConfig

Status = Literal["pass", "fail", "unknown"]


class Text(NamedTuple):
    """One sentence in English and in Simplified Chinese."""

    en: str
    zh: str


@dataclass(frozen=True)
class Evidence:
    """Everything that is known of a capture. `ranks` are the entries of the report, facts included."""

    ranks: Sequence[Json]
    source: Mapping[str, Any] = field(default_factory=dict)
    config: ModelConfig | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    series: Sequence[Json] = ()
    reference: Sequence[Json] | None = None

    @property
    def of_torch(self) -> bool:
        """Whether the job runs on torch_npu: its switches have other names, and eager launches are its normal way."""
        return self.source.get("framework") == "torch_npu"

    def advice(self, mindspore: Text, torch: Text) -> Text:
        """The advice in the words of the job's framework; MindSpore's where that is not known."""
        return torch if self.of_torch else mindspore


@dataclass(frozen=True)
class Item:
    """One answer. For "unknown" the advice says what would supply the evidence. `recoverable_us` is per step."""

    id: str
    status: Status
    summary: Text
    advice: Text
    value: float | None = None
    threshold: float | None = None
    evidence: Sequence[Json] = ()
    recoverable_us: float | None = None

    def as_json(self) -> Json:
        """The item as an object of the report."""
        return {
            "id": self.id,
            "status": self.status,
            "value": self.value,
            "threshold": self.threshold,
            "summary": self.summary.en,
            "summary_zh": self.summary.zh,
            "evidence": list(self.evidence),
            "advice": self.advice.en,
            "advice_zh": self.advice.zh,
            "recoverable_us": self.recoverable_us,
        }


def facts_of(ranks: Sequence[Json], name: str) -> list[tuple[Json, Mapping[str, Any]]]:
    """(entry, its facts of that name) of every rank that has them."""
    found = [(entry, (entry.get("facts") or {}).get(name)) for entry in ranks]
    return [(entry, facts) for entry, facts in found if isinstance(facts, Mapping)]
