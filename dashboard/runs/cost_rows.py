"""Where NPU-hours went: what the runs of a time cost, cut into what the chips' peak needs and what each loss adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from dashboard.accounts.models import Project
from dashboard.runs.models import Run
from dashboard.runs.templatetags.units import percent_text

DAYS = (7, 30, 90, 365)
HOUR_NS = 3.6e12
PARTS = ("peak", "computing", "uncut", "communication", "bubble", "free", "untold")
CSS = {"peak": "pass", "computing": "compute", "uncut": "overlap", "communication": "comm", "bubble": "bubble",
       "free": "free", "untold": "none"}  # fmt: skip
LEAST = 1e-4
"""A share of a run below which a part is rounding."""
MOST_RUNS = 12

FIELDS = (
    "pk", "name", "project_id", "world_size", "step_time_ns", "steps_run", "mfu", "compute_ratio",
    "exposed_communication_ratio", "device_ratio", "recoverable_ns", "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class RunCost:
    """One run: its NPU-hours are cards x steps run x time of a step; None where one of them is not known."""

    pk: int
    name: str
    project_id: int
    world_size: int | None
    step_time_ns: int | None
    steps_run: int | None
    mfu: float | None
    compute_ratio: float | None
    exposed_communication_ratio: float | None
    device_ratio: float | None
    recoverable_ns: int | None
    verdict: str

    @property
    def hours(self) -> float | None:
        if not self.world_size or not self.step_time_ns or not self.steps_run:
            return None
        return self.world_size * self.steps_run * self.step_time_ns / HOUR_NS

    @property
    def recoverable_hours(self) -> float | None:
        """What fixing everything that the newest capture shows would have won."""
        if self.hours is None or self.recoverable_ns is None or not self.step_time_ns:
            return None
        return self.hours * min(1.0, self.recoverable_ns / self.step_time_ns)

    @property
    def shares(self) -> dict[str, float]:
        """Each part's share of a step: 1 together, "untold" being what no number tells, "uncut" computing of which no
        MFU tells how much is work at the peak."""
        found: dict[str, float] = {}
        if self.compute_ratio is not None and self.mfu is not None:
            peak = min(self.mfu, self.compute_ratio)
            found |= {"peak": peak, "computing": self.compute_ratio - peak}
        elif self.compute_ratio is not None:
            found["uncut"] = self.compute_ratio
        if self.exposed_communication_ratio is not None:
            found["communication"] = self.exposed_communication_ratio
        if self.device_ratio is not None:
            found["free"] = 1 - self.device_ratio
        whole = None not in (self.compute_ratio, self.exposed_communication_ratio, self.device_ratio)
        if whole and (rest := 1 - sum(found.values())) > LEAST:
            found["bubble"] = rest  # of the time the device works neither computing nor exposed communication
        told = sum(found.values())
        return {**found, **({"untold": 1 - told} if told < 1 - LEAST else {})}


def run_costs(projects: Sequence[int], begin: datetime, end: datetime) -> list[RunCost]:
    """The runs whose newest capture was taken in that time."""
    runs = Run.objects.filter(project__in=projects, last_capture_at__gte=begin, last_capture_at__lt=end)
    return [RunCost(*row) for row in runs.values_list(*FIELDS)]


@dataclass
class Cost:
    """Sums over runs, in NPU-hours; None where no run tells. `unknown`: runs of which the hours are not known; they
    count nowhere else."""

    runs: int = 0
    unknown: int = 0
    hours: float | None = None
    recoverable: float | None = None
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def add(self, run: RunCost) -> None:
        self.runs += 1
        hours = run.hours
        if hours is None:
            self.unknown += 1
            return
        self.hours = (self.hours or 0.0) + hours
        if (won := run.recoverable_hours) is not None:
            self.recoverable = (self.recoverable or 0.0) + won
        for part, share in run.shares.items():
            self.parts[part] += hours * share

    @property
    def recoverable_share(self) -> float | None:
        return self.recoverable / self.hours if self.hours and self.recoverable is not None else None

    @property
    def bar(self) -> list[dict[str, Any]]:
        """Parts for a bar and its legend, those that are there."""
        names = part_names()
        return [
            {"key": part, "name": names[part], "css": CSS[part], "hours": hours, "share": hours / self.hours,
             "title": f"{names[part]}: {percent_text(hours / self.hours)}"}
            for part, hours in self.parts.items()
            if self.hours and hours / self.hours > LEAST
        ]  # fmt: skip


def part_names() -> dict[str, str]:
    return {
        "peak": _("Work at the chips' peak"),
        "computing": _("Computing below the peak"),
        "uncut": _("Computing, MFU unknown"),
        "communication": _("Exposed communication"),
        "bubble": _("Pipeline bubble"),
        "free": _("Free"),
        "untold": _("Not known"),
    }


def summed(runs: Iterable[RunCost]) -> Cost:
    total = Cost()
    for run in runs:
        total.add(run)
    return total


def costs(projects: Sequence[Project], days: int, now: datetime) -> dict[str, Any]:
    """The last `days` of these projects, each project for itself, and the same time before."""
    ids = [project.pk for project in projects]
    begin = now - timedelta(days=days)
    runs = run_costs(ids, begin, now)
    before = summed(run_costs(ids, begin - timedelta(days=days), begin))
    named = {project.pk: project for project in projects}
    rows = [(named[pk], summed(run for run in runs if run.project_id == pk)) for pk in {run.project_id for run in runs}]
    dearest = sorted((run for run in runs if run.recoverable_hours), key=lambda run: -(run.recoverable_hours or 0.0))
    return {
        "total": summed(runs),
        "before": before,
        "projects": sorted(rows, key=lambda row: (-(row[1].hours or 0.0), row[0].name)),
        "dearest": [(run, named[run.project_id]) for run in dearest[:MOST_RUNS]],
    }
