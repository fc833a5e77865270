from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET
from django.views.decorators.vary import vary_on_headers

from dashboard.runs import (
    capture_charts,
    charts,
    cluster_rows,
    expert_chart,
    memory_rows,
    operator_rows,
    pipeline_chart,
    queries,
    report_rows,
    roofline,
    summary,
    switches,
    transfers,
)
from dashboard.runs.access import CHANGERS, get_capture_or_404, role_in
from dashboard.runs.models import Capture, CaptureState, Dump, DumpState
from dashboard.runs.views.page import chart_response, page

GRID_METRICS = (
    "step_time_ns",
    "computing_ns",
    "communication_not_overlapped_ns",
    "free_ns",
    "device_ratio",
    "cast_ratio",
)


@login_required
@require_GET
def capture(request: HttpRequest, capture_id: int) -> HttpResponse:
    """One profiled window over all its ranks, with one rank in detail."""
    shown = get_capture_or_404(request.user, capture_id)
    dumps = queries.capture_ranks(shown)
    rank = chosen_rank(request, shown, dumps)
    entry = queries.entry_of(shown, rank) if rank is not None else {}
    report = shown.report or {}
    source = report.get("source") or {}
    parts = report_rows.step_parts(entry)
    failed = [dump for dump in dumps if dump.state == DumpState.FAILED]
    layers = entry.get("layers") or {}
    layer_rows = report_rows.layer_rows(entry)
    missing, fix = still_missing(source, shown), report_rows.fix_first(report)
    context = {
        "capture": shown,
        "run": shown.run,
        "report": report,
        "source": {**source, "missing": missing},
        "switches": switches.of(shown.run, missing),
        # No step of it is known: the page then tells what it lacks first, and leaves out what would be empty.
        "bare": shown.state == CaptureState.READY and not parts and shown.step_time_ns is None,
        "rank": rank,
        "for_rank": "" if rank is None else f"rank={rank}",
        "entry": entry,
        "parts": parts,
        "has_layers": bool(report_rows.layer_grid(entry)["us"]),
        "layers": layers,
        "layer_rows": layer_rows,
        "has_recompute": any(row["recompute_us"] for row in layer_rows),
        "unattributed": 1 - attributed if (attributed := layers.get("attributed_ratio")) is not None else None,
        "outside": report_rows.outside_rows(entry),
        "ops": _operator_words(entry_operators(entry, dumps, rank), operator_rows.OperatorSearch()),
        "flops": entry.get("flops") or {},
        "top_kernels": top_kernels(entry),
        "checks": [
            (item, report_rows.evidence_rows(item), report_rows.worth_us(item, report))
            for item in report_rows.check_items(report)
        ],
        "fix": fix,
        "summary": summary.of_capture(shown, fix, request.build_absolute_uri(request.path)),
        "communication": report_rows.communication_rows(entry),
        "groups": cluster_rows.group_rows(entry),
        "has_links": bool(entry.get("links")),
        "memory": entry.get("memory") or {},
        "has_memory": any((entry.get("memory") or {}).values()),
        "cluster": report.get("cluster") or {},
        "losses": ((report.get("bottleneck") or entry.get("bottleneck") or {}).get("losses") or [])[:2],
        **underway(shown, dumps),
        "failed": failed,
        "nothing": nothing_of(request, shown, failed) if failed and len(failed) == len(dumps) else None,
        **grid(request, dumps, report),
        **queries.neighbours(shown),
    }
    return page(request, "runs/capture.html", context, shown.run.project)


FILES_NAMED = 12


def nothing_of(request: HttpRequest, shown: Capture, failed: list[Dump]) -> dict[str, Any]:
    """Of a capture of which no rank could be analysed: its first dump, the files that was sent with, and whether the
    person may have it analysed again."""
    files = shown.dumps.filter(pk=failed[0].pk).values_list("files", flat=True).first() or []
    return {
        "dump": failed[0],
        "files": files[:FILES_NAMED],
        "more": max(0, len(files) - FILES_NAMED),
        "may_change": role_in(request.user, shown.run.project) in CHANGERS,
    }


def underway(shown: Capture, dumps: list[Dump]) -> dict[str, Any]:
    """Ranks on their way, and whether the page has more to show soon: it then asks for `capture_live` again."""
    coming = [dump for dump in dumps if dump.state not in (DumpState.DIGESTED, DumpState.FAILED)]
    return {"underway": coming, "live": bool(coming) or shown.rollup_due}


@login_required
@require_GET
def capture_live(request: HttpRequest, capture_id: int) -> HttpResponse:
    """The part of the capture page that htmx asks for again while ranks are on their way or being summed up."""
    shown = get_capture_or_404(request.user, capture_id)
    context = {"capture": shown, "run": shown.run, **underway(shown, queries.capture_ranks(shown))}
    response = page(request, "runs/capture/_live.html", context, shown.run.project)
    if not context["live"]:
        response["HX-Refresh"] = "true"
    return response


STEP_RECORDS = "stepscope_steps.jsonl"


def still_missing(source: dict[str, Any], shown: Capture) -> list[dict[str, Any]]:
    """What the dump lacks, without step records where the run has sent them apart from it, as a log."""
    rows = source.get("missing") or []
    logged = shown.run.spark_metric == "step_time"  # drawn from step records, not from captures
    return [row for row in rows if row.get("file") != STEP_RECORDS or not logged]


def chosen_rank(request: HttpRequest, shown: Capture, dumps: list[Dump]) -> int | None:
    """The rank the address names, else the one that the verdict is about, else the slowest."""
    there = {dump.rank for dump in dumps}
    asked = request.GET.get("rank", "")
    if asked.isdecimal() and int(asked) in there:
        return int(asked)
    judged = ((shown.report or {}).get("bottleneck") or {}).get("rank")
    return judged if judged in there else report_rows.slowest_rank(dumps)


def grid(request: HttpRequest, dumps: list[Dump], report: dict[str, Any]) -> dict[str, Any]:
    """The rank grid: a coloured cell for each rank by the metric that the address names."""
    metric = request.GET.get("grid", GRID_METRICS[0])
    metric = metric if metric in GRID_METRICS else GRID_METRICS[0]
    values = [getattr(dump, metric) for dump in dumps]
    low, high = report_rows.spread(values)
    return {
        "grid_metric": metric,
        "grid_metrics": GRID_METRICS,
        "grid_kind": "percent" if metric.endswith("ratio") else "duration",
        "grid_lines": cluster_rows.grid_lines(list(zip(dumps, values, report_rows.quantiles(values), strict=True))),
        "grid_slow": {row.get("rank") for row in (report.get("cluster") or {}).get("slow_ranks") or []},
        "rank_count": len(dumps),
        "grid_low": low,
        "grid_high": high,
    }


def entry_operators(entry: dict[str, Any], dumps: list[Dump], rank: int | None) -> dict[str, Any]:
    """Operators by type of the report entry; `kept` where the rank's kernels can be grouped in other ways."""
    rows = operator_rows.types_of(entry)
    kept = any(dump.frames for dump in dumps if dump.rank == rank)
    return {"rows": rows, "total": len(entry.get("op_types") or []), "kept": kept}


def _operator_words(found: dict[str, Any], search: operator_rows.OperatorSearch) -> dict[str, Any]:
    groupings = [("type", _("Type")), ("shape", _("Type and shape")), ("name", _("Name"))]
    told = operator_rows.told(found["rows"])
    return {**found, "groupings": groupings, "by": search.by, "text": search.text, "told": told}


@login_required
@require_GET
@vary_on_headers("HX-Request")
def operators(request: HttpRequest, capture_id: int) -> HttpResponse:
    """Operators of one rank by type, shape or name, from its kernels: the part of the capture page, or a page."""
    shown = get_capture_or_404(request.user, capture_id)
    rank = chosen_rank(request, shown, queries.capture_ranks(shown))
    if rank is None:
        raise Http404
    dump = shown.dumps.get(rank=rank)
    search = operator_rows.OperatorSearch.from_params(request.GET.dict())
    found = operator_rows.operators(dump, search)
    if found is None:
        search = operator_rows.OperatorSearch()
        found = entry_operators(dump.entry, [], rank)
    ops = _operator_words({"kept": True, **found}, search)
    template = "runs/capture/_operators.html" if "HX-Request" in request.headers else "runs/operators.html"
    return page(request, template, {"capture": shown, "run": shown.run, "rank": rank, "ops": ops}, shown.run.project)


def top_kernels(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The longest kernels of the rank, with every key that the page shows."""
    rows = (entry.get("facts") or {}).get("top_kernels") or []
    blank = dict.fromkeys(("name", "type", "input_shapes", "duration_us", "share"))
    return [{**blank, **row} for row in rows if isinstance(row, dict)][:8]


@login_required
@require_GET
def capture_chart(request: HttpRequest, capture_id: int, name: str) -> JsonResponse:
    shown = get_capture_or_404(request.user, capture_id)
    if name in CAPTURE_CHARTS:
        return chart_response(CAPTURE_CHARTS[name](shown, request))
    if name not in RANK_CHARTS:
        raise Http404
    rank = chosen_rank(request, shown, queries.capture_ranks(shown))
    return chart_response(RANK_CHARTS[name](shown, rank, request))


def _entry(shown: Capture, rank: int | None) -> dict[str, Any]:
    return queries.entry_of(shown, rank) if rank is not None else {}


def _layers(shown: Capture, rank: int | None, request: HttpRequest) -> charts.Spec:
    only = request.GET.get("pass", "")
    drawn = charts.layer_heat(_entry(shown, rank), [only] if only else [], request.GET.get("against") == "median")
    return drawn if drawn.get("empty") else {**drawn, "link": reverse("runs:step", args=[shown.pk, rank])}


def _memory(shown: Capture, rank: int | None, request: HttpRequest) -> charts.Spec:
    frames = [dump.frames for dump in queries.capture_ranks(shown) if dump.rank == rank]
    return capture_charts.memory(memory_rows.memory_curve(frames[0]) if frames else None)


def _kept(shown: Capture, rank: int | None) -> Dump | None:
    """The rank's dump, where its tables are kept."""
    return shown.dumps.filter(rank=rank).exclude(frames="").first() if rank is not None else None


def _roofline(shown: Capture, rank: int | None, request: HttpRequest) -> charts.Spec:
    dump = _kept(shown, rank)
    if dump is None:
        return charts.empty()
    peak = (dump.entry.get("flops") or {}).get("peak_tflops")
    return roofline.chart(
        roofline.operators(dump.frames, dump.entry), peak, reverse("runs:step", args=[shown.pk, rank])
    )


def _transfers(shown: Capture, rank: int | None, request: HttpRequest) -> charts.Spec:
    dump = _kept(shown, rank)
    return transfers.chart(transfers.size_classes(dump.frames, dump.entry) if dump else [])


CAPTURE_CHARTS = {
    "ranks": lambda shown, request: charts.steps_by_rank(queries.capture_ranks(shown), queries.capture_bubbles(shown)),
    "stages": lambda shown, request: capture_charts.stages((shown.report.get("cluster") or {}).get("stages") or []),
    "links": lambda shown, request: capture_charts.links(
        cluster_rows.capture_links(shown), request.GET.get("value", "")
    ),
    "experts": lambda shown, request: expert_chart.chart(shown, request.GET.get("value") == "tokens"),
}
RANK_CHARTS = {
    "steps": lambda shown, rank, request: charts.steps_of_rank(_entry(shown, rank)),
    "waterfall": lambda shown, rank, request: charts.waterfall_of(_entry(shown, rank)),
    "layers": _layers,
    "memory": _memory,
    "pipeline": lambda shown, rank, request: pipeline_chart.chart(shown, rank),
    "roofline": _roofline,
    "transfers": _transfers,
}
