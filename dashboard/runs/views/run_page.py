from __future__ import annotations

import json

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.runs import charts, queries, reference
from dashboard.runs.access import CHANGERS, get_run_or_404, require_role, role_in, visible_runs
from dashboard.runs.before import run_before, with_before
from dashboard.runs.forms import RunForm
from dashboard.runs.models import Run
from dashboard.runs.views.page import chart_response, page, say_errors

MARKED_CAPTURES = 40
STRIP_BESIDE = 12
"""A strip of so many captures leaves room for the run's identity beside it."""
SERIES = {
    "loss": ("loss", "number", 1.0),
    "norm": ("global_norm", "number", 1.0),
    "step_time": ("step_time_ns", "ms", 1e-6),
    "mfu": ("tflops_per_device", "percent", 100.0),
    "tflops": ("tflops_per_device", "number", 1.0),
}


@login_required
@require_GET
def run_page(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(with_before(visible_runs(request.user)), pk=run_id)
    captures = queries.run_captures(run, request.GET.get("page"))
    underway, failed = queries.run_dumps_underway(run)
    known = queries.has_series(run)
    variables = environment(run)
    context = {
        "run": run,
        "before": run_before(run),
        "captures": captures.newest,
        "page": captures.page,
        "strip": queries.checklist_strip(captures.strip),
        "beside": 0 < len(captures.strip) <= STRIP_BESIDE,
        "underway": underway,
        "live": bool(underway) or any(capture.rollup_due for capture in captures.newest),
        "failed": failed,
        "series": known,
        "any_series": any(known.values()),
        "environment": [row for row in variables if row[1]],
        "unset": [name for name, value in variables if not value],
        "meta_text": json.dumps(run.meta, ensure_ascii=False, indent=2, sort_keys=True),
        "may_change": role_in(request.user, run.project) in CHANGERS,
        "form": RunForm(instance=run),
    }
    return page(request, "runs/run.html", context, run.project)


def environment(run: Run) -> list[tuple[str, str]]:
    """Metadata of the agent as sorted name and text, nested names joined by a dot; alignment is the checklist's."""
    if not isinstance(run.meta, dict):
        return []
    return sorted(_flat("", {name: value for name, value in run.meta.items() if name != "alignment"}))


def _flat(prefix: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flat(f"{prefix}.{key}" if prefix else str(key), item)]
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [(prefix, text)]


@login_required
@require_GET
def run_live(request: HttpRequest, run_id: int) -> HttpResponse:
    """The part of the run page that htmx asks for again while dumps are on their way."""
    run = get_run_or_404(request.user, run_id)
    underway, failed = queries.run_dumps_underway(run)
    may_change = role_in(request.user, run.project) in CHANGERS
    live = bool(underway) or run.captures.filter(rollup_due=True).exists()  # its numbers are on no page yet
    context = {"run": run, "underway": underway, "live": live, "failed": failed, "may_change": may_change}
    response = page(request, "runs/_live.html", context, run.project)
    if not live:
        response["HX-Refresh"] = "true"  # the last one is done: the rest of the page has news too
    return response


@login_required
@require_POST
def run_edit(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_run_or_404(request.user, run_id)
    require_role(request.user, run.project, *CHANGERS)
    form = RunForm(request.POST, instance=run)
    if form.is_valid():
        form.save()
        if "reference" in form.changed_data:
            change_reference(run, form.cleaned_data["reference"])
        messages.success(request, _("Saved."))
    else:
        say_errors(request, form)
    return redirect(run)


def change_reference(run: Run, wanted: bool) -> None:
    if wanted:
        reference.name(run, replace=True)
    else:
        reference.drop(run)


@login_required
@require_GET
def run_chart(request: HttpRequest, run_id: int, field: str) -> JsonResponse:
    run = get_run_or_404(request.user, run_id)
    if field not in SERIES:
        raise Http404
    column, unit, scale = SERIES[field]
    if field == "mfu":
        if not run.peak_tflops:
            return chart_response(charts.empty(_("MFU by step needs the chip's peak.")))
        scale = 100 / run.peak_tflops
    series, stride = queries.run_series([run.pk], column)
    windows = queries.profiled_windows(run, MARKED_CAPTURES)
    points = series.get(run.pk, [])
    times = series if field == "step_time" else queries.run_series([run.pk], "step_time_ns")[0]
    warmup = warmup_end(times.get(run.pk, []))
    name = str(TITLES[field]()) + (_(" (mean of %d steps)") % stride if stride > 1 else "")
    return chart_response(charts.step_series({name: points}, unit, scale, windows, warmup))


TITLES = {
    "loss": lambda: _("Loss"),
    "norm": lambda: _("Gradient norm"),
    "step_time": lambda: _("Step time"),
    "mfu": lambda: _("MFU"),
    "tflops": lambda: _("TFLOPS per device"),
}


def warmup_end(points: list[tuple[int, float | None]]) -> int | None:
    """The step at which judging begins: after the first, and after leading steps over 1.5 x the median of the rest."""
    values = [(step, value) for step, value in points if value is not None]
    if len(values) < 5:
        return None
    typical = sorted(value for _step, value in values)[len(values) // 2]
    start = 1
    while start < len(values) and values[start][1] > 1.5 * typical:
        start += 1
    return values[min(start, len(values) - 1)][0]
