from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dashboard.runs import queries
from dashboard.runs.access import signed_in
from dashboard.runs.views.page import page


@login_required
@require_GET
def search(request: HttpRequest) -> HttpResponse:
    text = request.GET.get("q", "").strip()[:100]
    found = queries.search(signed_in(request.user), text) if text else {}
    return page(request, "runs/search.html", {"text": text, "found": found, "any": any(found.values())})
