"""The ledger of sick cards: how often each physical NPU was the slow rank, and in which jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Avg, Count, Max, Q, QuerySet

from dashboard.accounts.models import Project
from dashboard.hosts.models import Agent
from dashboard.runs.models import Dump, Run

MOST_CARDS = 50
MOST_RUNS = 6
SUSPECT_TIMES, SUSPECT_RUNS, SUSPECT_SHARE = 3, 2, 0.5
"""Slow at least so often, in so many different runs and in such a share of its captures: the card, not the job."""


@dataclass
class Card:
    """One physical NPU: host and device id."""

    host: str
    device_id: int
    times: int
    run_count: int
    excess_ns: float | None
    last: datetime
    captures: int = 0
    kinds: list[str] = field(default_factory=list)
    chip: str = ""
    serial: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        return self.times / self.captures if self.captures else None

    @property
    def is_suspect(self) -> bool:
        often = self.times >= SUSPECT_TIMES and self.run_count >= SUSPECT_RUNS
        return often and (self.share or 0.0) >= SUSPECT_SHARE


def ledger(project: Project, agents: Sequence[Agent]) -> list[Card]:
    """Cards that were slow at least once, the most suspect first. Three queries, however many captures there are."""
    slow = _of(project).filter(slow=True)
    rows: Any = slow.order_by().values("host", "device_id")
    rows = rows.annotate(
        times=Count("id"),
        run_count=Count("capture__run", distinct=True),
        excess_ns=Avg("excess_ns"),
        last=Max("capture__captured_at"),
    )
    cards = [Card(**row) for row in rows.order_by("-times", "host", "device_id")[:MOST_CARDS]]
    if cards:
        _add_totals(project, cards)
        _add_runs(slow, cards)
        _add_chips(agents, cards)
    return sorted(cards, key=lambda card: (not card.is_suspect, -card.times, -(card.share or 0.0)))


def _of(project: Project) -> QuerySet[Dump]:
    return Dump.objects.filter(capture__run__project=project, device_id__isnull=False).exclude(host="")


def _those(cards: Sequence[Card]) -> Q:
    devices = defaultdict(list)
    for card in cards:
        devices[card.host].append(card.device_id)
    found = Q()
    for host, ids in devices.items():
        found |= Q(host=host, device_id__in=ids)
    return found


def _add_totals(project: Project, cards: Sequence[Card]) -> None:
    judged = _of(project).filter(_those(cards), slow__isnull=False).order_by()
    rows = judged.values_list("host", "device_id").annotate(Count("id"))
    totals = {(host, device): count for host, device, count in rows}
    for card in cards:
        card.captures = totals.get((card.host, card.device_id), 0)


def _add_runs(slow: QuerySet[Dump], cards: Sequence[Card]) -> None:
    rows = slow.filter(_those(cards)).order_by().values("host", "device_id", "slow_kind", "capture__run")
    rows = rows.annotate(times=Count("id"), name=Max("capture__run__name")).order_by("-times", "name")
    by_card: dict[tuple[str, int | None], Card] = {(card.host, card.device_id): card for card in cards}
    for row in rows:
        card = by_card[row["host"], row["device_id"]]
        if row["slow_kind"] and row["slow_kind"] not in card.kinds:
            card.kinds.append(row["slow_kind"])
        known = next((one for one in card.runs if one["pk"] == row["capture__run"]), None)
        if known is not None:
            known["times"] += row["times"]
        elif len(card.runs) < MOST_RUNS:
            url = Run(pk=row["capture__run"]).get_absolute_url()
            card.runs.append({"pk": row["capture__run"], "name": row["name"], "times": row["times"], "url": url})


def _add_chips(agents: Sequence[Agent], cards: Sequence[Card]) -> None:
    known = {(agent.host, npu.get("id")): npu for agent in agents for npu in agent.npus}
    for card in cards:
        npu = known.get((card.host, card.device_id), {})
        card.chip, card.serial = npu.get("chip", ""), npu.get("serial", "")
