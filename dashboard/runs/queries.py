"""Every number a page shows: models to plain rows. Each function makes a fixed number of queries, however many rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.core.paginator import Page, Paginator
from django.db.models import (
    Avg,
    Count,
    Exists,
    ExpressionWrapper,
    F,
    FloatField,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Sum,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import MD5, Cast, Length
from django.utils.translation import gettext_lazy as _

from analysis.config_keys import LONGEST, config_keys
from dashboard.accounts.models import Project, User
from dashboard.runs.before import with_before
from dashboard.runs.metrics import METRICS, Text
from dashboard.runs.models import (
    SUMMED_FIELDS,
    Capture,
    CaptureState,
    ChecklistResult,
    Dump,
    DumpState,
    ItemStatus,
    RankStep,
    Run,
    SavedView,
    StepRecord,
    StepSums,
)
from dashboard.runs.paging import NarrowPaginator

PAGE_SIZE = 50
SERIES_POINTS, MOST_POINTS = 1500, 8000
"""Points of one run in a chart by step, and of all runs in it: 8 000 points are about 220 kB."""
TREND_POINTS = 500
SHORTEST_INDEXED = 3
"""A text of fewer characters has no trigram."""


@dataclass(frozen=True)
class Filter:
    """A field that runs may be filtered by; `key` is its name in the address."""

    key: str
    field: str
    label: Text


RUN_FILTERS = {
    item.key: item
    for item in (
        Filter("framework", "framework", _("Framework")),
        Filter("model", "model_name", _("Model")),
        Filter("chip", "soc", _("Chip")),
        Filter("mode", "mode", _("Mode")),
        Filter("cann", "cann_version", _("CANN")),
        Filter("version", "framework_version", _("Framework version")),
        Filter("cards", "world_size", _("Cards")),
        Filter("verdict", "verdict", _("Verdict")),
    )
}
RUN_ORDERS = {
    "newest": ("last_capture_at", True),
    "name": ("name", False),
    "step_time": ("step_time_ns", False),
    "mfu": ("mfu", True),
    "hfu": ("hfu", True),
    "tflops": ("tflops_per_device", True),
    "device_ratio": ("device_ratio", True),
    "compute": ("compute_ratio", True),
    "exposed": ("exposed_communication_ratio", True),
    "cast": ("cast_ratio", True),
    "movement": ("movement_ratio", True),
    "memory": ("peak_memory_bytes", True),
    "recoverable": ("recoverable_ns", True),
    "cards": ("world_size", True),
    "captures": ("capture_count", True),
    "failed": ("checklist_failed", True),
}
NEVER_LISTED = ("meta", "config_text")


@dataclass(frozen=True)
class Chip:
    """A filter that is on, and the address parameter that turns it off."""

    key: str
    value: str
    label: Text


@dataclass(frozen=True)
class RunList:
    page: Page[Run]
    chips: list[Chip]
    order: str
    descending: bool


def filtered_runs(project: Project, params: Mapping[str, str]) -> tuple[QuerySet[Run], list[Chip]]:
    """The project's runs under the address's filters; what the address asks for and nobody offers is left out."""
    runs = Run.objects.filter(project=project).defer(*NEVER_LISTED)
    chips = []
    for key, item in RUN_FILTERS.items():
        value = params.get(key, "").strip()
        if not value or (key == "cards" and not value.isdecimal()):
            continue
        runs = runs.filter(**{item.field: value})
        chips.append(Chip(key, value, item.label))
    if text := params.get("q", "").strip()[:100]:
        runs = runs.filter(Q(name__icontains=text) | Q(key__icontains=text) | Q(tags__contains=[text]))
        chips.append(Chip("q", text, _("Search")))
    if tag := params.get("tag", "").strip()[:40]:
        runs = runs.filter(tags__contains=[tag])
        chips.append(Chip("tag", tag, _("Tag")))
    if (item_id := params.get("fails", "").strip()) and len(item_id) <= 40:
        failing = ChecklistResult.objects.filter(run=OuterRef("pk"), latest=True, status="fail", item=item_id)
        runs = runs.filter(Exists(failing))
        chips.append(Chip("fails", item_id, _("Fails")))
    if params.get("archived"):
        chips.append(Chip("archived", "1", _("With archived")))
    else:
        runs = runs.filter(archived=False)
    return runs, chips


def ordered_runs(runs: QuerySet[Run], order: str) -> tuple[QuerySet[Run], str, bool]:
    """Runs in one of the listed orders, unknown values last; `-` turns it round."""
    key = order.lstrip("-")
    if key not in RUN_ORDERS:
        key, order = "newest", "newest"
    field, descending = RUN_ORDERS[key]
    if order.startswith("-"):
        descending = not descending
    by = F(field).desc(nulls_last=True) if descending else F(field).asc(nulls_last=True)
    return runs.order_by(by, F("id").desc()), key, descending


def run_list(project: Project, params: Mapping[str, str]) -> RunList:
    runs, chips = filtered_runs(project, params)
    runs, order, descending = ordered_runs(runs, params.get("order", "newest"))
    return RunList(NarrowPaginator(with_before(runs), PAGE_SIZE).get_page(params.get("page")), chips, order, descending)


def run_facets(project: Project) -> list[dict[str, Any]]:
    """For each filter, the values that the project's runs have."""
    fields = [item.field for item in RUN_FILTERS.values()]
    # The combinations that occur are few, and stand in an index.
    found = list(Run.objects.filter(project=project).order_by().values_list(*fields).distinct())
    facets = []
    for place, (key, item) in enumerate(RUN_FILTERS.items()):
        values = sorted({row[place] for row in found} - {"", None})[:60]
        facets.append({"key": key, "label": item.label, "values": values})
    return [*facets, {"key": "tag", "label": _("Tag"), "values": run_tags(project)}]


def run_tags(project: Project) -> list[str]:
    """The tags that the project's runs carry, in order of the alphabet."""
    found = Run.objects.filter(project=project).order_by().values_list("tags", flat=True).distinct()
    return sorted({tag for tags in found for tag in tags})[:60]


def saved_views(project: Project, user: User) -> list[SavedView]:
    return list(SavedView.objects.filter(project=project, user=user).order_by("name"))


CSV_COLUMNS = (
    "id", "key", "name", "framework", "framework_version", "cann_version", "soc", "mode", "jit_level", "sink",
    "model_name", "world_size", "dp", "tp", "pp", "cp", "ep", "step_time_ns", "mfu", "hfu", "tflops_per_device",
    "peak_tflops", "peak_dtype", "peak_source", "device_ratio", "compute_ratio", "exposed_communication_ratio",
    "cast_ratio", "movement_ratio", "peak_memory_bytes", "verdict", "checklist_passed", "checklist_failed",
    "checklist_unknown", "recoverable_ns", "last_capture_at", "capture_count", "tags",
)  # fmt: skip


def csv_rows(runs: QuerySet[Run]) -> Iterator[Sequence[Any]]:
    """Header, then a row per run. Empty means unknown."""
    yield CSV_COLUMNS
    for *values, tags in runs.values_list(*CSV_COLUMNS).iterator(chunk_size=2000):
        yield [*values, " ".join(tags)]


# Home


OVERVIEW_RUNS = 24


def project_overview(user: User) -> list[dict[str, Any]]:
    """A row per visible project: its newest run's numbers, the MFU of its last runs, its worst open violation."""
    # The newest of each project by its index, not by ordering the runs of all of them.
    newest = Run.objects.filter(project=OuterRef("pk"), archived=False, last_capture_at__isnull=False)
    ids = newest.order_by(F("last_capture_at").desc(nulls_last=True), "-id").values("pk")[:OVERVIEW_RUNS]
    counted = Project.objects.visible_to(user).annotate(run_count=Count("runs"), newest=ArraySubquery(ids))
    projects: list[Any] = list(counted[:100])
    recent = Run.objects.only(
        "name", "model_name", "mfu", "step_time_ns", "device_ratio", "cast_ratio", "last_capture_at", "soc",
        "checklist_passed", "checklist_failed", "checklist_unknown", "world_size", "peak_tflops",
        "peak_dtype", "project_id",
    ).in_bulk([pk for project in projects for pk in project.newest])  # fmt: skip
    runs = {project.pk: [recent[pk] for pk in project.newest if pk in recent] for project in projects}
    return [_overview(project, runs.get(project.pk, [])) for project in projects]


def _overview(project: Any, runs: list[Run]) -> dict[str, Any]:
    newest = runs[0] if runs else None
    # One line never crosses two denominators or models: it is that of runs like the newest.
    alike = attrgetter("model_name", "peak_tflops", "peak_dtype")
    same = [run for run in runs if newest and alike(run) == alike(newest)]
    trend = [run.mfu for run in reversed(same)]
    known = [value for value in trend if value is not None]
    change = known[-1] - known[-2] if len(known) > 1 else None
    return {"project": project, "run_count": project.run_count, "newest": newest, "trend": trend, "change": change}


def recent_captures(user: User, limit: int = 8) -> list[Capture]:
    captures = (
        Capture.objects.visible_to(user).select_related("run__project").defer("report", "run__config_text", "run__meta")
    )
    return list(captures.order_by("-id")[:limit])


# Run


LATEST_CAPTURES = 1000
STRIP_LENGTH = 40


@dataclass(frozen=True)
class RunCaptures:
    """What a run's page shows of its captures, newest first and without reports: a page of them, the two newest, and
    those of the checklist's strip."""

    page: Page[Any]
    newest: list[Capture]
    strip: list[Capture]


def run_captures(run: Run, number: str | None) -> RunCaptures:
    """Ids of the newest thousand first, then the few that are shown."""
    known = list(run.captures.order_by("-captured_at", "-id").values_list("pk", "state")[:LATEST_CAPTURES])
    page = Paginator(known, PAGE_SIZE).get_page(number)
    paged, newest = ([pk for pk, _state in rows] for rows in (page.object_list, known[:2]))
    strip = [pk for pk, state in known if state == CaptureState.READY][:STRIP_LENGTH]
    found = run.captures.defer("report").in_bulk({*paged, *newest, *strip})
    shown: Page[Any] = Page([found[pk] for pk in paged if pk in found], page.number, page.paginator)
    return RunCaptures(shown, *([found[pk] for pk in ids if pk in found] for ids in (newest, strip)))


def profiled_windows(run: Run, limit: int) -> list[tuple[int, int, str]]:
    """First and last step and the key of the run's newest captures, of those that know their steps."""
    rows = run.captures.order_by("-captured_at", "-id").values_list("first_step", "last_step", "key")[:limit]
    return [(first, first if last is None else last, key) for first, last, key in rows if first is not None]


def checklist_strip(captures: Sequence[Capture]) -> list[dict[str, Any]]:
    """A row per checklist item: its status in each of these captures (newest first), oldest first."""
    shown = captures[::-1]
    results = ChecklistResult.objects.filter(capture__in=shown).values_list("capture_id", "item", "status")
    found = {(capture, item): status for capture, item, status in results}
    items = [item for item in CHECK_ORDER if any((capture.pk, item) in found for capture in shown)]
    return [
        {"item": item, "cells": [(capture, found.get((capture.pk, item), ItemStatus.UNKNOWN)) for capture in shown]}
        for item in items
    ]


CHECK_ORDER = (
    "dtype_cast", "graph_sink", "fused_attention", "ffn_parallel", "attention_mask", "weight_alignment",
    "warmup_mfu", "precision_regression",
)  # fmt: skip


def run_dumps_underway(run: Run) -> tuple[list[Dump], list[Dump]]:
    """Dumps that are on their way or being analysed, and those that failed."""
    fields = ("rank", "state", "progress", "stage", "error", "attempts", "created", "size_bytes", "folder", "host",
              "capture__key", "capture__run_id")  # fmt: skip
    dumps = (
        Dump.objects.filter(capture__run=run).exclude(state=DumpState.DIGESTED).select_related("capture").only(*fields)
    )
    rows = list(dumps.order_by("-created")[:200])
    return [row for row in rows if row.state != DumpState.FAILED], [
        row for row in rows if row.state == DumpState.FAILED
    ]


SUMS_FROM = 2 * StepSums.STEPS
"""Steps a point from which on a chart is drawn from the sums that are kept: then it has two thirds of its points or
more."""


def run_series(runs: Sequence[int], field: str) -> tuple[dict[int, list[tuple[int, float | None]]], int]:
    """(step, value) of each run, and how many steps a point is the mean of, so that a chart stays small."""
    ids = list(dict.fromkeys(runs))
    ends = _ends(ids)
    if field not in SUMMED_FIELDS or not ends:
        return {}, 1
    points = min(SERIES_POINTS, MOST_POINTS // len(ids))
    stride = max(1, -(-(max(ends) - min(ends) + 1) // points))
    summed = stride > SUMS_FROM
    if summed:
        stride = -(-stride // StepSums.STEPS) * StepSums.STEPS
    rows = [_summed_buckets(run, field, stride) if summed else _buckets(run, field, stride) for run in ids]
    series: dict[int, list[tuple[int, float | None]]] = {}
    for run, _bucket, at, value in sorted(_together(rows)):
        series.setdefault(run, []).append((at, value))
    return series, stride


def _ends(runs: Sequence[int]) -> list[int]:
    """First and last step of each run that has steps; each is one look into the index."""
    steps = [StepRecord.objects.filter(run=run).values_list("step", flat=True) for run in runs]
    ends = [rows.order_by(order)[:1] for rows in steps for order in ("step", "-step")]
    return list(_together(ends))


def _buckets(run: int, field: str, stride: int) -> QuerySet[StepRecord, tuple[Any, ...]]:
    rows = StepRecord.objects.filter(run=run).annotate(bucket=F("step") / stride).values("run_id", "bucket")
    return rows.annotate(at=Min("step"), value=_mean(field)).order_by().values_list("run_id", "bucket", "at", "value")


def _summed_buckets(run: int, field: str, stride: int) -> QuerySet[StepSums, tuple[Any, ...]]:
    """The same from the sums, for a stride that is a multiple of theirs."""
    bucket = F("block") / (stride // StepSums.STEPS)
    rows = StepSums.objects.filter(run=run).annotate(bucket=bucket).values("run_id", "bucket")
    mean = ExpressionWrapper(Sum(f"{field}_sum") / Sum(f"{field}_count"), FloatField())
    return rows.annotate(at=Min("first_step"), value=mean).order_by().values_list("run_id", "bucket", "at", "value")


def _together(parts: Sequence[QuerySet[Any, Any]]) -> Iterable[Any]:
    """The rows of all in one query. Apart, each is summed in memory; as one, all would first be sorted on disk."""
    return parts[0].union(*parts[1:], all=True) if len(parts) > 1 else parts[0] if parts else ()


def _mean(field: str) -> Combinable:
    """Not Avg: PostgreSQL's squares what it adds up, and fails for large values of a run that diverged."""
    return ExpressionWrapper(Sum(Cast(field, FloatField())) / Count(field), FloatField())


def has_series(run: Run) -> dict[str, bool]:
    """Which of the step series the run has any value of."""
    fields = {
        f"of_{field}": Exists(StepRecord.objects.filter(run=OuterRef("pk"), **{f"{field}__isnull": False}))
        for field in SUMMED_FIELDS
    }
    found: Any = Run.objects.filter(pk=run.pk).values(**fields).get()
    return {field: found[f"of_{field}"] for field in SUMMED_FIELDS}


# Capture

DUMP_COLUMNS = (
    "id", "capture_id", "rank", "device_id", "host", "state", "progress", "error", "attempts", "framework", "frames",
    "step_time_ns", "computing_ns", "communication_not_overlapped_ns", "free_ns", "device_ratio", "cast_ratio",
)  # fmt: skip


def capture_ranks(capture: Capture) -> list[Dump]:
    """A row per rank, without entries: a thousand of those would be many megabytes."""
    return list(capture.dumps.only(*DUMP_COLUMNS).order_by("rank"))


def capture_bubbles(capture: Capture) -> dict[int, float]:
    """Rank -> mean pipeline bubble of its judged steps, ns; ranks of which it is not known are left out."""
    steps = RankStep.objects.filter(dump__capture=capture, warmup=False, bubble_ns__isnull=False)
    return dict(steps.values_list("dump__rank").annotate(Avg("bubble_ns")))


def entry_of(capture: Capture, rank: int) -> dict[str, Any]:
    """One rank's element of the report; empty when there is none."""
    return capture.dumps.filter(rank=rank).values_list("entry", flat=True).first() or {}


def neighbours(capture: Capture) -> dict[str, Capture | None]:
    """The run's captures before and after this one."""
    others = capture.run.captures.filter(state=CaptureState.READY).exclude(pk=capture.pk).defer("report")
    at = capture.captured_at
    return {
        "before": others.filter(captured_at__lte=at).order_by("-captured_at").first(),
        "after": others.filter(captured_at__gt=at).order_by("captured_at").first(),
    }


# Trends

TREND_METRICS = ("mfu", "step_time_ns", "device_ratio", "cast_ratio", "movement_ratio", "exposed_communication_ratio",
                 "peak_memory_bytes", "hfu", "tflops_per_device", "compute_ratio", "recoverable_ns")  # fmt: skip
UTILISATION = ("mfu", "hfu")


def trend_rows(project: Project, metric: str, text: str = "") -> list[dict[str, Any]]:
    """The project's last captures, oldest first, with `value` of one metric."""
    captures = Capture.objects.filter(run__project=project, run__archived=False, state=CaptureState.READY)
    if text:
        captures = captures.filter(Q(run__name__icontains=text) | Q(run__model_name__icontains=text))
    rows = captures.order_by("-captured_at", "-id").values(
        "id", "key", "captured_at", "cann_version", "framework_version", "peak_tflops", "peak_dtype", "flops_formula",
        "config_fingerprint", "world_size", "run_id", "run__name", "run__mode", "run__soc", "run__model_name",
        "run__meta__git_commit", value=F(metric), config_md5=MD5("run__config_text"),
    )[:TREND_POINTS]  # fmt: skip
    return [dict(row) for row in rows][::-1]


CONFIGS_READ = 60
"""Configurations that are read to tell what changed in them: those of the newest changes."""


def trend_config_keys(rows: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, str]]:
    """Flat keys of the configurations of those of `trend_rows` at which a model's configuration changed, by run; not of
    long ones."""
    last: dict[str, Mapping[str, Any]] = {}
    wanted: list[int] = []
    for row in rows:
        if not row["config_fingerprint"]:
            continue
        before = last.get(row["run__model_name"])
        if before is not None and before["config_md5"] != row["config_md5"]:
            wanted += [before["run_id"], row["run_id"]]
        last[row["run__model_name"]] = row
    newest = list(dict.fromkeys(reversed(wanted)))[:CONFIGS_READ]
    short = Run.objects.alias(length=Length("config_text")).filter(pk__in=newest, length__lte=LONGEST)
    return {pk: config_keys(text) for pk, text in short.values_list("pk", "config_text")}


def line_of(row: Mapping[str, Any], metric: str) -> tuple[Any, ...]:
    """Which line a point belongs to: only captures that may be compared share one."""
    if metric in UTILISATION:
        return (row["peak_tflops"], row["peak_dtype"], row["flops_formula"], row["run__model_name"])
    if METRICS[metric].kind == "percent":
        return (row["run__model_name"],)
    return (row["run__model_name"], row["world_size"])


def compared(user: User, ids: Sequence[int]) -> list[Capture]:
    """The captures asked for, in that order; those a person may not see are left out."""
    found = Capture.objects.visible_to(user).select_related("run__project").in_bulk(list(ids))
    return [found[pk] for pk in dict.fromkeys(ids) if pk in found]


def newest_captures(user: User, runs: Sequence[int], by_time: bool = False) -> list[int]:
    """Each run's newest ready capture, in the order of the runs or of time."""
    rows = (
        Capture.objects.visible_to(user)
        .filter(run__in=runs, state=CaptureState.READY)
        .order_by("run_id", "-captured_at", "-id")
        .distinct("run_id")
        .values_list("run_id", "id", "captured_at")
    )
    found = {run: (at, pk) for run, pk, at in rows}
    ids = [found[run] for run in runs if run in found]
    return [pk for _at, pk in (sorted(ids) if by_time else ids)]


def search(user: User, text: str) -> dict[str, list[Any]]:
    """Projects, runs and, from three characters on, captures whose name, key, model or tag holds the text; at most 20
    of each."""
    runs = Run.objects.visible_to(user).select_related("project").defer(*NEVER_LISTED)
    names = Q(name__icontains=text) | Q(key__icontains=text) | Q(model_name__icontains=text) | Q(tags__contains=[text])
    projects = Project.objects.visible_to(user).filter(Q(name__icontains=text) | Q(slug__icontains=text))
    captures = Capture.objects.visible_to(user).filter(key__icontains=text).select_related("run__project")
    if len(text) < SHORTEST_INDEXED:
        captures = captures.none()  # would read every capture there is
    return {
        "projects": list(projects[:20]),
        "runs": list(runs.filter(names).order_by(F("last_capture_at").desc(nulls_last=True), "-id")[:20]),
        "captures": list(captures.defer("report").order_by("-captured_at")[:20]),
    }
