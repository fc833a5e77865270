from __future__ import annotations

import csv
from collections.abc import Iterator

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.http import require_GET
from django.views.decorators.vary import vary_on_headers

from dashboard.runs import queries
from dashboard.runs.access import get_project_or_404
from dashboard.runs.views.page import page

COLUMNS = (
    ("step_time", "step_time_ns"),
    ("mfu", "mfu"),
    ("device_ratio", "device_ratio"),
    ("cast", "cast_ratio"),
    ("memory", "peak_memory_bytes"),
)


@login_required
@require_GET
@vary_on_headers("HX-Request")
def run_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = get_project_or_404(request.user, slug)
    params = request.GET.dict()
    found = queries.run_list(project, params)
    context = {"found": found, "page": found.page, "columns": COLUMNS, "params": params, "checks": queries.CHECK_ORDER}
    if "HX-Request" in request.headers:
        return page(request, "runs/_run_rows.html", context, project)
    return page(request, "runs/run_list.html", {**context, "facets": queries.run_facets(project)}, project)


class Echo:
    """What csv writes to: hands each line on."""

    def write(self, line: str) -> str:
        return line


@login_required
@require_GET
def run_list_csv(request: HttpRequest, slug: str) -> StreamingHttpResponse:
    """The runs of the same filters and order as a file, numbers unrounded, unknown empty."""
    project = get_project_or_404(request.user, slug)
    params = request.GET.dict()
    runs, _chips = queries.filtered_runs(project, params)
    runs, _order, _descending = queries.ordered_runs(runs, params.get("order", "newest"))
    writer = csv.writer(Echo())

    def lines() -> Iterator[str]:
        for row in queries.csv_rows(runs):
            yield writer.writerow(safe_cell(value) for value in row)

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{slug}-runs.csv"'
    return response


def safe_cell(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets a quote in front; names come from outside."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value
