from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dashboard.accounts.models import DEMO
from dashboard.runs import queries, violation_rows
from dashboard.runs.access import signed_in
from dashboard.runs.views.page import page


@login_required
@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """Every project at a glance, and what is worst over all of them."""
    user = signed_in(request.user)
    results = violation_rows.violations(user)
    totals = violation_rows.violation_totals(violation_rows.open_counts(results))
    # What ran before and was fixed since would hide what can be mended now.
    newest = violation_rows.newest_runs(user)
    open_results = list(violation_rows.open_only(results).filter(run__in=newest)[:8])
    projects = queries.project_overview(user)
    worst: dict[int, object] = {}
    for result in open_results:
        worst.setdefault(result.run.project_id, result)
    for row in projects:
        row["worst"] = worst.get(row["project"].pk)
    context = {
        "start": None if request.COOKIES.get("start") == "done" else first_steps(projects),
        "projects": projects,
        "worst": open_results,
        "totals": totals,
        "open_count": sum(row["count"] for row in totals),
        "recent": queries.recent_captures(user),
    }
    return page(request, "runs/home.html", context)


def first_steps(projects: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What leads a new person on, until a project other than the demo's has a capture: where to look and send to."""
    if not projects or any(row["newest"] and row["project"].slug != DEMO for row in projects):
        return None
    demo = next((row["newest"] for row in projects if row["newest"]), None)
    own = next((row["project"] for row in projects if row["newest"] is None), projects[0]["project"])
    return {"demo": demo, "project": own}
