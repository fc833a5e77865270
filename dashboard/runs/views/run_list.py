from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import islice

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.http import require_GET, require_POST
from django.views.decorators.vary import vary_on_headers
from django_htmx.http import HttpResponseClientRefresh

from dashboard.runs import columns, queries
from dashboard.runs.access import CHANGERS, get_project_or_404, require_role, role_in, signed_in
from dashboard.runs.forms import RunsForm
from dashboard.runs.models import Run
from dashboard.runs.views.page import page, say_errors

FORMULA_SIGNS = "=+-@＝＋－＠"
PART_ROWS = 200
"""Rows of a file that leave at once: the first ones soon, and not a write for each."""


@login_required
@require_GET
@vary_on_headers("HX-Request")
def run_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = get_project_or_404(request.user, slug)
    params = request.GET.dict()
    found = queries.run_list(project, params)
    shown = columns.chosen(request.GET)
    context = {"found": found, "page": found.page, "columns": shown, "params": params, "checks": queries.CHECK_ORDER}
    if "HX-Request" in request.headers:
        return page(request, "runs/_run_rows.html", context, project)
    query = columns.view_query(request.GET)
    views = queries.saved_views(project, signed_in(request.user))
    around = {
        "facets": queries.run_facets(project),
        "all_columns": columns.COLUMNS.values(),
        "views": views,
        "query": query,
        "current_view": next((view for view in views if view.query == query), None),
        "kept": [(key, params[key]) for key in columns.KEPT if params.get(key)],
        "may_change": role_in(request.user, project) in CHANGERS,
    }
    return page(request, "runs/run_list.html", {**context, **around}, project)


@login_required
@require_POST
def change_runs(request: HttpRequest, slug: str) -> HttpResponse:
    """Tag, untag, archive or bring back the chosen runs, or all that match the filters of this address.

    The page then loads itself again.
    """
    project = get_project_or_404(request.user, slug)
    require_role(request.user, project, *CHANGERS)
    form = RunsForm(request.POST)
    if form.is_valid():
        everything = Run.objects.filter(project=project)
        matching, _chips = queries.filtered_runs(project, request.GET.dict())
        messages.success(request, form.apply(matching if form.cleaned_data["all"] else everything))
    else:
        say_errors(request, form)
    return HttpResponseClientRefresh()


@login_required
@require_GET
def run_list_csv(request: HttpRequest, slug: str) -> StreamingHttpResponse:
    """The runs of the same filters and order as a file, numbers unrounded, unknown empty."""
    project = get_project_or_404(request.user, slug)
    params = request.GET.dict()
    runs, _chips = queries.filtered_runs(project, params)
    runs, _order, _descending = queries.ordered_runs(runs, params.get("order", "newest"))
    response = StreamingHttpResponse(csv_parts(queries.csv_rows(runs)), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{slug}-runs.csv"'
    return response


def csv_parts(rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The lines of a file, many at a time."""
    left = iter(rows)
    while part := list(islice(left, PART_ROWS)):
        text = StringIO()
        csv.writer(text).writerows(map(safe_cell, row) for row in part)
        yield text.getvalue()


def safe_cell(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets a quote in front; names come from outside.

    Some begin reading behind white space, and some take the wide signs of East Asian keyboards for the narrow ones.
    """
    if not isinstance(value, str) or not (bare := value.lstrip()):
        return value
    return f"'{value}" if value[0] in "\t\r\n" or bare[0] in FORMULA_SIGNS else value
