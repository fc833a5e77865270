"""Calls that scripts and pages read: runs, captures, reports, step records, dumps."""

from __future__ import annotations

from typing import Annotated, Any

from django.conf import settings
from django.db.models import Count, F, Q, QuerySet
from django.http import HttpRequest
from ninja import Query, Router

from dashboard.accounts.models import Scope
from dashboard.ingest.api_upload import ERRORS, Id, caller_of, dump_json
from dashboard.ingest.api_upload import router as sending
from dashboard.ingest.auth import find_capture, find_dump, find_run
from dashboard.ingest.errors import ApiError
from dashboard.ingest.schemas import DumpAnswer
from dashboard.runs.models import METRIC_FIELDS, Capture, ChecklistResult, DumpState, Run, StepRecord
from dashboard.runs.rollup import whole_report

router = Router()
PER_PAGE = 50
STEPS_PER_PAGE = 5000
ORDERS = (
    "last_capture_at",
    "created",
    "name",
    "step_time_ns",
    "mfu",
    "device_ratio",
    "cast_ratio",
    "peak_memory_bytes",
)
IDENTITY = (
    *("framework", "framework_version", "cann_version", "soc", "mode", "jit_level", "sink", "model_name", "world_size"),
    *("dp", "tp", "pp", "cp", "ep", "tags", "archived", "capture_count"),
)
Page = Annotated[int, Query(ge=1, le=1_000_000)]


@router.get("/runs", response={200: dict[str, Any], **ERRORS}, operation_id="list_runs")
def list_runs(
    request: HttpRequest, project: str = "", q: str = "", order: str = "-last_capture_at", page: Page = 1
) -> dict[str, Any]:
    """Runs, 50 a page. `order`: one of the metrics, `-` before it for largest first; unknown values come last."""
    runs = caller_of(request, Scope.READ).runs()
    refuse_nul(project, q)
    if project:
        runs = runs.filter(project__slug=project)
    if q:
        runs = runs.filter(Q(name__icontains=q) | Q(key__icontains=q))
    rows, has_next = page_of(ordered(runs.defer("meta", "config_text"), order), page, PER_PAGE)
    return {"runs": [run_row(run) for run in rows], "page": page, "next": page + 1 if has_next else None}


@router.get("/runs/{run_id}", response={200: dict[str, Any], **ERRORS}, operation_id="get_run")
def get_run(request: HttpRequest, run_id: Id) -> dict[str, Any]:
    run = find_run(caller_of(request, Scope.READ), run_id)
    return {"run": {**run_row(run), "meta": run.meta, "config": {"name": run.config_name, "text": run.config_text}}}


@router.get("/runs/{run_id}/captures", response={200: dict[str, Any], **ERRORS}, operation_id="list_captures")
def list_captures(request: HttpRequest, run_id: Id, page: Page = 1) -> dict[str, Any]:
    """Captures of a run, newest first."""
    run = find_run(caller_of(request, Scope.READ), run_id)
    captures = Capture.objects.filter(run=run).defer("report").order_by("-captured_at", "-id")
    rows, has_next = page_of(captures, page, PER_PAGE)
    return {"captures": [capture_row(row) for row in rows], "page": page, "next": page + 1 if has_next else None}


# On the router that has the POST of this address: Django asks the first view that an address matches and no other.
@sending.get("/runs/{run_id}/steps", response={200: dict[str, Any], **ERRORS}, operation_id="list_steps", tags=["read"])
def list_steps(request: HttpRequest, run_id: Id, after: Annotated[int, Query(ge=-1, le=2**53)] = -1) -> dict[str, Any]:
    """Step records in order, at most 5000: those after step `after`."""
    run = find_run(caller_of(request, Scope.READ), run_id)
    rows = list(StepRecord.objects.filter(run=run, step__gt=after).order_by("step")[: STEPS_PER_PAGE + 1])
    shown = rows[:STEPS_PER_PAGE]
    return {"steps": [_step_row(row) for row in shown], "next": shown[-1].step if len(rows) > STEPS_PER_PAGE else None}


@router.get("/captures/{capture_id}", response={200: dict[str, Any], **ERRORS}, operation_id="get_capture")
def get_capture(request: HttpRequest, capture_id: Id) -> dict[str, Any]:
    capture = find_capture(caller_of(request, Scope.READ), capture_id)
    counts = dict(capture.dumps.order_by().values_list("state").annotate(Count("id")))
    run = capture.run
    checklist = {
        "passed": capture.checklist_passed,
        "failed": capture.checklist_failed,
        "unknown": capture.checklist_unknown,
        "items": [
            {"id": row.item, **{name: getattr(row, name) for name in ("status", "value", "threshold", "summary")}}
            for row in ChecklistResult.objects.filter(capture=capture).order_by("id")
        ],
    }
    return {
        "capture": {
            **capture_row(capture),
            "run": {"id": run.pk, "key": run.key, "name": run.name},
            "dumps": {state: counts.get(state, 0) for state in DumpState.values},
            "checklist": checklist,
            "error": capture.error or None,
        }
    }


@router.get("/captures/{capture_id}/report", response={200: dict[str, Any], **ERRORS}, operation_id="get_report")
def get_report(request: HttpRequest, capture_id: Id) -> dict[str, Any]:
    """The whole report, as `python -m analysis report --json` writes it."""
    capture = find_capture(caller_of(request, Scope.READ), capture_id)
    if not capture.report:
        raise ApiError(409, "incomplete", f"the capture is {capture.state}: it has no report yet")
    return whole_report(capture)


@router.get("/captures/{capture_id}/dumps", response={200: dict[str, Any], **ERRORS}, operation_id="list_dumps")
def list_dumps(request: HttpRequest, capture_id: Id, page: Page = 1) -> dict[str, Any]:
    """The dumps of a capture by rank, 200 a page."""
    capture = find_capture(caller_of(request, Scope.READ), capture_id)
    dumps = capture.dumps.defer("entry", "source", "files").select_related("capture")
    rows, has_next = page_of(dumps, page, 200)
    return {"dumps": [dump_json(row) for row in rows], "page": page, "next": page + 1 if has_next else None}


@router.get("/dumps/{dump_id}", response={200: DumpAnswer, **ERRORS}, operation_id="get_dump")
def get_dump(request: HttpRequest, dump_id: Id) -> dict[str, Any]:
    """State and progress of one dump; the token that sent it may watch it."""
    caller = request.auth  # type: ignore[attr-defined]
    return {"dump": dump_json(find_dump(caller, dump_id))}


def refuse_nul(*texts: str) -> None:
    """Raise for a text that PostgreSQL cannot look up."""
    if any("\0" in text for text in texts):
        raise ApiError(400, "bad_request", "a parameter holds a NUL character")


def ordered(runs: QuerySet[Run], order: str) -> QuerySet[Run]:
    """`runs` by one of `ORDERS`, `-` before it for largest first. Raises ApiError for another."""
    field, descending = order.removeprefix("-"), order.startswith("-")
    if field not in ORDERS:
        raise ApiError(400, "bad_request", f"order may be {', '.join(ORDERS)}, with - before it for descending")
    key = F(field).desc(nulls_last=True) if descending else F(field).asc(nulls_last=True)
    return runs.order_by(key, F("id").desc())


def page_of(rows: QuerySet[Any], page: int, size: int) -> tuple[list[Any], bool]:
    """The rows of a page, from 1 on, and whether there are more."""
    first = (page - 1) * size
    found = list(rows[first : first + size + 1])
    return found[:size], len(found) > size


def run_row(run: Run) -> dict[str, Any]:
    """A run as lists give it."""
    return {
        "id": run.pk,
        "key": run.key,
        "name": run.name,
        "project": run.project.slug,
        "url": settings.SITE_URL + run.get_absolute_url(),
        "created": run.created,
        "last_capture_at": run.last_capture_at,
        **{name: getattr(run, name) for name in IDENTITY},
        "metrics": metrics_json(run),
    }


def capture_row(capture: Capture) -> dict[str, Any]:
    """A capture as lists give it."""
    return {
        "id": capture.pk,
        "key": capture.key,
        "state": capture.state,
        "url": settings.SITE_URL + capture.get_absolute_url(),
        "captured_at": capture.captured_at,
        "first_step": capture.first_step,
        "last_step": capture.last_step,
        "world_size": capture.world_size,
        "rank_count": capture.rank_count,
        "metrics": metrics_json(capture),
    }


def metrics_json(row: Run | Capture) -> dict[str, Any]:
    """The metrics of a run or capture; what is unknown is null."""
    return {name: value if (value := getattr(row, name)) != "" else None for name in METRIC_FIELDS}


def _step_row(row: StepRecord) -> dict[str, Any]:
    return {
        "step": row.step,
        "loss": row.loss,
        "lr": row.lr,
        "global_norm": row.global_norm,
        "step_time_ms": None if row.step_time_ns is None else row.step_time_ns / 1e6,
        "tflops_per_device": row.tflops_per_device,
        "loss_scale": row.loss_scale,
        "overflow": row.overflow,
        "source": row.source,
    }
