"""Failed checklist items that wait for someone, over all projects a person sees. Fixed numbers of queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db.models import Count, Exists, F, Max, OuterRef, Q, QuerySet
from django.utils import timezone

from dashboard.accounts.models import Member, Project, User
from dashboard.runs.access import CHANGERS
from dashboard.runs.models import Assignment, ChecklistResult, ItemStatus, Run, Waiver


def violations(user: User) -> QuerySet[ChecklistResult]:
    """Failed items of the newest capture of every run the person sees, the dearest first, with `waived`."""
    return in_projects(Project.objects.visible_to(user))


def in_projects(projects: QuerySet[Project]) -> QuerySet[ChecklistResult]:
    """The same of the runs of these projects."""
    own, of_model = _waived()
    results = ChecklistResult.objects.filter(
        latest=True, status=ItemStatus.FAIL, run__project__in=projects, run__archived=False
    )
    return (
        results.select_related("capture", "run__project")
        .defer("capture__report", "run__config_text", "run__meta")
        .annotate(waived=own | of_model)
        .order_by(F("lost_ns").desc(nulls_last=True), "-id")
    )


def _waived() -> tuple[Exists, Exists]:
    """Whether a waiver of the result's own run is in force, and whether one of every run of its model is."""
    waivers = Waiver.objects.filter(item=OuterRef("item"), expires__gte=today())
    same_model = {"run__project": OuterRef("run__project"), "run__model_name": OuterRef("run__model_name")}
    of_model = waivers.filter(every_run=True, **same_model).exclude(run__model_name="")
    return Exists(waivers.filter(run=OuterRef("run"))), Exists(of_model)


def newest_runs(user: User) -> list[int]:
    """The newest run of each model in each project the person sees: what trains now, or did last."""
    runs = Run.objects.filter(
        project__in=Project.objects.visible_to(user), archived=False, last_capture_at__isnull=False
    )
    ordered = runs.order_by("project_id", "model_name", "-last_capture_at", "-id").distinct("project_id", "model_name")
    return list(ordered.values_list("pk", flat=True))


def of_newest(results: QuerySet[ChecklistResult], newest: Iterable[int]) -> QuerySet[ChecklistResult]:
    """Those of `violations` in the newest runs, and in runs that name no model: of those nobody knows the newest."""
    return results.filter(Q(run__in=list(newest)) | Q(run__model_name=""))


def answered_by(results: Iterable[ChecklistResult], newest: Iterable[int]) -> dict[tuple[int, str], Run]:
    """Of these results those that the newest run of the same project and model passes, by run and item: that run."""
    wanted = [(result.run, result.item) for result in results]
    passing = ChecklistResult.objects.filter(
        run__in=list(newest), run__project__in={run.project_id for run, _item in wanted}, latest=True,
        status=ItemStatus.PASS, item__in={item for _run, item in wanted},
    )  # fmt: skip
    found = {
        (row.run.project_id, row.run.model_name, row.item): row.run
        for row in passing.select_related("run").only("item", "run__name", "run__project_id", "run__model_name")
    }
    return {
        (run.pk, item): newer
        for run, item in wanted
        if run.model_name and (newer := found.get((run.project_id, run.model_name, item))) is not None
    }


def today() -> date:
    return timezone.localdate()


def covering(run: Run) -> Q:
    """The waivers that speak of a run: its own, and those of every run of its model."""
    own = Q(run=run)
    if not run.model_name:
        return own
    return own | Q(every_run=True, run__project=run.project_id, run__model_name=run.model_name)


def waivers_of(results: Iterable[ChecklistResult]) -> dict[tuple[int, str], Waiver]:
    """Waivers of these results by run and item; the page tells those that have ended from those in force. Of several
    the one that holds longest."""
    wanted = list(results)
    own = Q(run__in={result.run_id for result in wanted})
    of_model = Q(every_run=True, run__project__in={result.run.project_id for result in wanted})
    rows = Waiver.objects.filter(own | of_model).select_related("owner", "given_by", "run").order_by("expires")
    rows = rows.defer("run__config_text", "run__meta")
    found: dict[tuple[Any, ...], Waiver] = {}
    for row in rows:
        found[row.run_id, row.item] = row
        if row.every_run and row.run.model_name:
            found[row.run.project_id, row.run.model_name, row.item] = row
    return {
        (result.run_id, result.item): max(held, key=lambda row: row.expires)
        for result in wanted
        if (held := [found[key] for key in _waiver_keys(result) if key in found])
    }


def _waiver_keys(result: ChecklistResult) -> tuple[tuple[Any, ...], ...]:
    return (result.run_id, result.item), (result.run.project_id, result.run.model_name, result.item)


def assignments_of(results: Iterable[ChecklistResult]) -> dict[tuple[int, str], Assignment]:
    """Who was asked to fix these results, by run and item."""
    rows = Assignment.objects.filter(run__in={result.run_id for result in results}).select_related("owner")
    return {(row.run_id, row.item): row for row in rows}


def assignable(results: Iterable[ChecklistResult]) -> list[str]:
    """Names of the owners and members of these results' projects: who can be asked to fix them or answer for them."""
    projects = {result.run.project_id for result in results}
    members = Member.objects.filter(project__in=projects, role__in=CHANGERS, user__is_active=True)
    names = members.order_by("user__username")
    return list(names.values_list("user__username", flat=True).distinct()[:500])


@dataclass(frozen=True)
class OpenCount:
    """Open violations of one item in one project: how many, and the dearest one's `lost_ns`."""

    project: str
    item: str
    count: int
    worst: float | None


def open_counts(results: QuerySet[ChecklistResult]) -> list[OpenCount]:
    """How many of `violations` are open, by project and item: every number a page tells of them is a sum of these."""
    by = open_only(results).order_by().values("run__project__slug", "item")
    rows = by.annotate(count=Count("id"), worst=Max("lost_ns"))
    return [OpenCount(row["run__project__slug"], row["item"], row["count"], row["worst"]) for row in rows]


def violation_totals(counts: Iterable[OpenCount]) -> list[dict[str, Any]]:
    """Open violations by item over all projects: how many, and what the dearest costs."""
    by_item: dict[str, list[OpenCount]] = {}
    for row in counts:
        by_item.setdefault(row.item, []).append(row)
    totals = [
        {
            "item": item,
            "count": sum(row.count for row in rows),
            "worst": max((row.worst for row in rows if row.worst is not None), default=None),
        }
        for item, rows in by_item.items()
    ]
    return sorted(totals, key=lambda row: -row["count"])


def open_only(results: QuerySet[ChecklistResult], waived: bool = False) -> QuerySet[ChecklistResult]:
    """Those of `violations` that nobody answers for; or, `waived`, those that someone does."""
    own, of_model = _waived()
    # Open ones are those of neither kind, each a join of its own: as one condition it would be asked of every row.
    return results.filter(own | of_model) if waived else results.filter(~own, ~of_model)
