from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from dashboard.runs import charts, compare_rows, queries
from dashboard.runs.access import signed_in
from dashboard.runs.models import Capture
from dashboard.runs.views.page import chart_response, number_list, page


@login_required
@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    """2 to 8 captures beside each other; `runs=` or repeated `run=` stand for each run's newest capture."""
    user = signed_in(request.user)
    runs = number_list(",".join([request.GET.get("runs", ""), *request.GET.getlist("run")]))
    if runs:
        ids = queries.newest_captures(user, runs)
        if len(ids) > 1:
            return redirect(f"{reverse('runs:compare')}?captures={','.join(map(str, ids))}")
    captures = queries.compared(user, number_list(request.GET.get("captures", "")))
    if len(captures) < 2:
        return page(request, "runs/compare_empty.html", {"chosen": captures})
    entries = compare_rows.entries(captures)
    projects = {capture.run.project_id: capture.run.project for capture in captures}
    context = {
        "captures": captures,
        "ids": ",".join(str(capture.pk) for capture in captures),
        "metrics": compare_rows.metric_rows(captures),
        "sentence": compare_rows.sentence(captures),
        "changes": compare_rows.step_changes(entries),
        "op_rows": compare_rows.op_rows(entries),
        "blocks": compare_rows.block_rows(entries),
        "checks": compare_rows.check_rows(captures),
        "settings": compare_rows.setting_rows([capture.run for capture in captures]),
        "config": compare_rows.config_diff(captures[0].run, captures[-1].run),
    }
    return page(request, "runs/compare.html", context, next(iter(projects.values())) if len(projects) == 1 else None)


def _names(captures: list[Capture]) -> list[str]:
    return [f"{chr(65 + index)} · {capture.run.name}" for index, capture in enumerate(captures)]


@login_required
@require_GET
def compare_chart(request: HttpRequest, name: str) -> JsonResponse:
    captures = queries.compared(signed_in(request.user), number_list(request.GET.get("captures", "")))
    if name == "steps":
        entries = compare_rows.entries(captures)
        return chart_response(charts.compared_steps(_names(captures), compare_rows.parts_of(entries)))
    if name != "loss":
        raise Http404
    series, _stride = queries.run_series([capture.run_id for capture in captures], "loss")
    # Two captures of one run share a curve.
    named = {name: series.get(capture.run_id, []) for name, capture in zip(_names(captures), captures, strict=True)}
    if not any(named.values()):
        return chart_response(charts.empty(_("None of these runs has sent a loss.")))
    return chart_response(charts.step_series({key: points for key, points in named.items() if points}, "number", 1.0))
