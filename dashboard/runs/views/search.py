from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET
from django.views.decorators.vary import vary_on_headers

from dashboard.runs import queries
from dashboard.runs.access import signed_in
from dashboard.runs.views.page import page


@login_required
@require_GET
@vary_on_headers("HX-Request")
def search(request: HttpRequest) -> HttpResponse:
    """Projects, runs and captures that hold the text; for the search field the first few, while one types."""
    text = request.GET.get("q", "").strip()[:100]
    found = queries.search(signed_in(request.user), text) if text else {}
    template = "runs/_found.html" if "HX-Request" in request.headers else "runs/search.html"
    return page(request, template, {"text": text, "found": found, "any": any(found.values())})
