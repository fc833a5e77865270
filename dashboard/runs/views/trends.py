from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET

from dashboard.runs import queries, trend_charts
from dashboard.runs.access import get_project_or_404
from dashboard.runs.views.page import chart_response, page

LISTED = 100
"""Newest captures, and newest changes, that stand below the charts; the charts have all."""


@login_required
@require_GET
def trends(request: HttpRequest, slug: str) -> HttpResponse:
    """A project's metrics over its captures."""
    project = get_project_or_404(request.user, slug)
    metric = request.GET.get("metric", "mfu")
    metric = metric if metric in queries.TREND_METRICS else "mfu"
    text = request.GET.get("q", "").strip()[:100]
    rows = queries.trend_rows(project, metric, text)
    marks = trend_charts.version_marks(rows, queries.trend_config_keys(rows))
    others = [name for name in ("step_time_ns", "device_ratio", "cast_ratio", "mfu") if name != metric][:3]
    context = {
        "metric": metric,
        "metrics": queries.TREND_METRICS,
        "others": others,
        "rows": rows[::-1][:LISTED],
        "text": text,
        "marks": [(rows[mark.place], rows[mark.before], mark.changes) for mark in marks[::-1][:LISTED]],
    }
    return page(request, "runs/trends.html", context, project)


@login_required
@require_GET
def trends_chart(request: HttpRequest, slug: str, metric: str) -> JsonResponse:
    project = get_project_or_404(request.user, slug)
    if metric not in queries.TREND_METRICS:
        raise Http404
    rows = queries.trend_rows(project, metric, request.GET.get("q", "").strip()[:100])
    return chart_response(trend_charts.trend(rows, metric, queries.trend_config_keys(rows)))
