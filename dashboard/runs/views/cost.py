from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.accounts.models import Project
from dashboard.runs import cost_rows
from dashboard.runs.access import signed_in
from dashboard.runs.views.page import page


@login_required
@require_GET
def cost(request: HttpRequest) -> HttpResponse:
    """Where the NPU-hours of all projects that a person sees went, over the last days."""
    asked = request.GET.get("days", "")
    days = int(asked) if asked in map(str, cost_rows.DAYS) else cost_rows.DAYS[1]
    projects = list(Project.objects.visible_to(signed_in(request.user)))
    found = cost_rows.costs(projects, days, timezone.now())
    return page(request, "runs/cost.html", {**found, "days": days, "choices": cost_rows.DAYS})
