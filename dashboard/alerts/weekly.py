"""What happened in a project in a week, for those who answer for it. A fixed number of queries, and no words.

Weeks are compared by the median of the captures that may be held against each other, as alerts do; unknown values and
other denominators are compared with nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, When

from dashboard.accounts.models import Project
from dashboard.alerts import rules
from dashboard.alerts.models import Alert, AlertState, rules_of
from dashboard.alerts.schedule import week_before, zone_of
from dashboard.hosts.ledger import Card, ledger
from dashboard.hosts.models import Agent
from dashboard.runs.cost_rows import Cost, run_costs, summed
from dashboard.runs.models import Capture, CaptureState, ChecklistResult, ItemStatus, Run, Waiver
from dashboard.runs.violation_rows import assignments_of, in_projects, open_only, waivers_of

SOON = timedelta(days=14)
"""How far ahead the end of a waiver is told."""
VALUES = [rule.metric for rule in rules.RULES]
MODEL = ("config_fingerprint", "world_size", "peak_tflops", "peak_dtype")
ALSO = {"mfu": ("flops_formula",), "step_time_ns": ("step_time_source",)}
"""What else has to be the same for captures to be held against each other, by metric."""
READ = ("pk", "run_id", "captured_at", *MODEL, "flops_formula", "step_time_source", *VALUES)
Row = dict[str, Any]


@dataclass(frozen=True)
class Level:
    """One metric of captures that may be compared: medians of the week and of the one before, None where unknown."""

    metric: str
    model: str
    cards: int | None
    captures: int
    new: float
    old: float | None


@dataclass(frozen=True)
class Violation:
    """A checklist item that fails since this week, or passes again; `owner` is whoever was asked or answers for it."""

    item: str
    run: Run
    lost_ns: float | None
    owner: str = ""


@dataclass(frozen=True)
class Week:
    """What is known of a project's week. Counts are of all there is, `opened` leaves out what an alert tells."""

    project: Project
    begin: datetime
    end: datetime
    zone: str
    cost: Cost
    cost_before: Cost
    captures: int
    levels: list[Level]
    without_mfu: int
    better: list[Level]
    worse: list[Alert]
    older_open: int
    older_unowned: int
    opened: list[Violation]
    closed: list[Violation]
    opened_count: int
    open_count: int
    expiring: list[Waiver]
    unprofiled: list[Run]
    cards: list[Card]

    @property
    def is_quiet(self) -> bool:
        """Nothing ran, nothing changed and nothing ends soon."""
        happened = (self.captures, self.cost.runs, self.worse, self.opened_count, self.closed, self.expiring)
        return not any((*happened, self.unprofiled, self.cards))


def week_of(project: Project, end: datetime, zone: str) -> Week:
    """The seven days up to `end` on the clock of `zone`."""
    begin = week_before(end, zone)
    rows = _captures(project, week_before(begin, zone), end)
    now, earlier = ([row for row in rows if (row["captured_at"] >= begin) is side] for side in (True, False))
    worse = list(_alerts(project).filter(created__gte=begin, created__lt=end).order_by("id"))
    older = Alert.objects.filter(project=project, state=AlertState.OPEN, created__lt=begin)
    opened, closed = _changed(now, begin, project)
    told = {(alert.metric, alert.capture.run_id) for alert in worse}
    return Week(
        project=project,
        begin=begin,
        end=end,
        zone=zone,
        cost=summed(run_costs([project.pk], begin, end)),
        cost_before=summed(run_costs([project.pk], week_before(begin, zone), begin)),
        captures=len(now),
        levels=_levels("mfu", now, earlier),
        without_mfu=sum(row["mfu"] is None for row in now),
        better=_better(rules_of(project.pk), now, earlier),
        worse=worse,
        older_open=older.count(),
        older_unowned=older.filter(assignee=None).count(),
        opened=[one for one in opened if (rules.ITEM_PREFIX + one.item, one.run.pk) not in told],
        closed=closed,
        opened_count=len(opened),
        open_count=open_only(in_projects(Project.objects.filter(pk=project.pk))).order_by().count(),
        expiring=_expiring(project, end.astimezone(zone_of(zone)).date()),
        unprofiled=_unprofiled(project, begin, end),
        cards=_cards(project, begin, end),
    )


def _captures(project: Project, begin: datetime, end: datetime) -> list[Row]:
    ready = Capture.objects.filter(run__project=project, run__archived=False, state=CaptureState.READY)
    taken = ready.filter(captured_at__gte=begin, captured_at__lt=end).order_by("captured_at", "pk")
    return list(taken.values(*READ, model=F("run__model_name"), name=F("run__name"), tags=F("run__tags")))


def _alerts(project: Project) -> QuerySet[Alert]:
    told = Alert.objects.filter(project=project).exclude(state=AlertState.FALSE_ALARM)
    long = ("capture__report", "capture__run__meta", "capture__run__config_text")
    return told.select_related("capture__run", "assignee", "decided_by").defer(*long)


def _series(row: Row, metric: str) -> tuple[Any, ...]:
    """What captures that may be held against each other share; of an unknown model only those of one run do."""
    run = None if row["config_fingerprint"] else row["run_id"]
    return (run, *(row[name] for name in (*MODEL, *ALSO.get(metric, ()))))


def _by_series(rows: Iterable[Row], metric: str) -> dict[tuple[Any, ...], list[Row]]:
    found = defaultdict(list)
    for row in rows:
        if row[metric] is not None:
            found[_series(row, metric)].append(row)
    return found


def _levels(metric: str, now: Iterable[Row], before: Iterable[Row]) -> list[Level]:
    """A level for each series with a known value in this week, those of most captures first."""
    earlier = _by_series(before, metric)
    levels = []
    for series, rows in _by_series(now, metric).items():
        new, old = (median(row[metric] for row in side) if side else None for side in (rows, earlier.get(series, [])))
        assert new is not None
        last = rows[-1]
        levels.append(Level(metric, last["model"] or last["name"], last["world_size"], len(rows), new, old))
    return sorted(levels, key=lambda level: (-level.captures, level.model))


def _better(own: Mapping[str, rules.Rule], now: Sequence[Row], before: Sequence[Row]) -> list[Level]:
    """What is better than the week before by as much as the project's rules call worse, each thing once.

    MFU silences the step time as it does among alerts, and is told with its own levels.
    """
    found: dict[tuple[str, int | None], dict[str, Level]] = defaultdict(dict)
    for metric in VALUES:
        rule = own[metric]
        sides = ([row for row in side if _watched(rule, row)] for side in (now, before))
        for level in _levels(metric, *sides):
            if rules.better_by_effect(rule, level.old, level.new):
                found[level.model, level.cards][metric] = level
    kept = [levels[metric] for levels in found.values() for metric in rules.told_once(list(levels))]
    return [level for level in kept if level.metric != "mfu"]


def _watched(rule: rules.Rule, row: Row) -> bool:
    return rule.watches(row["tags"], row["model"], row["world_size"])


def _changed(now: Sequence[Row], begin: datetime, project: Project) -> tuple[list[Violation], list[Violation]]:
    """Items that the newest capture of a model fails and the one before the week did not, and items it passes again.

    A run of no known model is held against itself alone.
    """
    newest = {_kind(row): row for row in now}
    before = {_kind(row): row["pk"] for row in _newest_before(newest.values(), begin, project)}
    pairs = {row["pk"]: before.get(kind) for kind, row in newest.items()}
    statuses, results = _results([*pairs, *(pk for pk in pairs.values() if pk is not None)])
    opened = [one for one in results if one.capture_id in pairs and one.status == ItemStatus.FAIL
              and statuses.get((pairs[one.capture_id], one.item)) != ItemStatus.FAIL]  # fmt: skip
    closed = [one for one in results if one.capture_id in pairs and one.status == ItemStatus.PASS
              and statuses.get((pairs[one.capture_id], one.item)) == ItemStatus.FAIL]  # fmt: skip
    return _owned(opened), [Violation(one.item, one.run, None) for one in closed]


def _kind(row: Row) -> tuple[str, int]:
    return row["model"], 0 if row["model"] else row["run_id"]


def _newest_before(rows: Iterable[Row], begin: datetime, project: Project) -> list[Row]:
    """The newest ready capture before the week of each model, or nameless run, of these."""
    kinds = [_kind(row) for row in rows]
    names, runs = [name for name, _run in kinds if name], [run for name, run in kinds if not name]
    ready = Capture.objects.filter(run__project=project, run__archived=False, state=CaptureState.READY)
    those = ready.filter(Q(run__model_name__in=names) | Q(run__in=runs), captured_at__lt=begin)
    alone = those.annotate(model=F("run__model_name"), alone=Case(When(run__model_name="", then="run_id"), default=0))
    ordered = alone.order_by("model", "alone", "-captured_at", "-pk").distinct("model", "alone")
    return [dict(row) for row in ordered.values("pk", "run_id", "model", "alone")]


def _results(captures: Iterable[int]) -> tuple[dict[tuple[int | None, str], str], list[ChecklistResult]]:
    rows = ChecklistResult.objects.filter(capture__in=list(captures)).select_related("run")
    results = list(rows.defer("run__meta", "run__config_text").order_by(F("lost_ns").desc(nulls_last=True), "pk"))
    return {(one.capture_id, one.item): one.status for one in results}, results


def _owned(results: Sequence[ChecklistResult]) -> list[Violation]:
    waivers, assigned = waivers_of(results), assignments_of(results)
    owners = {key: row.owner.username for rows in (assigned, waivers) for key, row in rows.items()}
    return [Violation(one.item, one.run, one.lost_ns, owners.get((one.run_id, one.item), "")) for one in results]


def _expiring(project: Project, today: date) -> list[Waiver]:
    """Waivers that end soon of what still fails: in their run, or in any run of the model they hold for."""
    failing = ChecklistResult.objects.filter(item=OuterRef("item"), latest=True, status="fail", run__archived=False)
    of_model = failing.filter(run__project=project, run__model_name=OuterRef("run__model_name"))
    held = Q(Exists(failing.filter(run=OuterRef("run")))) | Q(
        Exists(of_model.exclude(run__model_name="")), every_run=True
    )
    waivers = Waiver.objects.filter(held, run__project=project, expires__gte=today, expires__lte=today + SOON)
    ending = waivers.select_related("run", "owner").defer("run__meta", "run__config_text")
    return list(ending.order_by("expires", "pk"))


def _unprofiled(project: Project, begin: datetime, end: datetime) -> list[Run]:
    """Runs that began in the week and have no analysed capture."""
    ready = Capture.objects.filter(run=OuterRef("pk"), state=CaptureState.READY)
    runs = Run.objects.filter(~Exists(ready), project=project, archived=False, created__gte=begin, created__lt=end)
    return list(runs.only("name", "project_id").order_by("created", "pk"))


def _cards(project: Project, begin: datetime, end: datetime) -> list[Card]:
    """Suspect cards that were slow again in the week."""
    agents = list(Agent.objects.filter(project=project))
    return [card for card in ledger(project, agents) if card.is_suspect and begin <= card.last < end]
