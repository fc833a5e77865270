from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.runs import queries, violation_rows
from dashboard.runs.access import CHANGERS, get_run_or_404, require_role, signed_in
from dashboard.runs.forms import AssignmentForm, WaiverForm
from dashboard.runs.models import Assignment, Run, Waiver
from dashboard.runs.paging import NarrowPaginator
from dashboard.runs.views.page import page, say_errors

FILTERS = ("project", "item", "runs", "waived", "page")
"""What the list's address may say."""


@login_required
@require_GET
def violations(request: HttpRequest) -> HttpResponse:
    """Open failures over everything the person sees, the dearest first: of each model's newest run, or of `runs=all`;
    waived ones on their own list."""
    user = signed_in(request.user)
    everything = violation_rows.violations(user)
    waived, newest = request.GET.get("waived") == "1", violation_rows.newest_runs(user)
    all_counts = violation_rows.open_counts(everything)
    every_run = waived or request.GET.get("runs") == "all"
    current = everything if every_run else violation_rows.of_newest(everything, newest)
    counts = all_counts if every_run else violation_rows.open_counts(current)
    results = violation_rows.open_only(current, waived)
    item, slug = request.GET.get("item", ""), request.GET.get("project", "")
    if item not in queries.CHECK_ORDER:
        item = ""
    if item:
        results = results.filter(item=item)
    if slug:
        results = results.filter(run__project__slug=slug)
    asked, everywhere = (
        sum(row.count for row in rows if item in ("", row.item) and slug in ("", row.project))
        for rows in (counts, all_counts)
    )
    pages = NarrowPaginator(results, queries.PAGE_SIZE, None if waived else asked)
    found = pages.get_page(request.GET.get("page"))
    waivers, owners = violation_rows.waivers_of(found), violation_rows.assignments_of(found)
    answered = violation_rows.answered_by(found, newest)
    context = {
        "page": found,
        "rows": [
            (result, *(of.get((result.run_id, result.item)) for of in (waivers, owners, answered))) for result in found
        ],
        "members": violation_rows.assignable(found),
        "totals": violation_rows.violation_totals(counts),
        "items": queries.CHECK_ORDER,
        "item": item,
        "slug": slug,
        "waived": waived,
        "every_run": every_run,
        "older": everywhere - asked,
        "query": request.GET.urlencode(),
    }
    return page(request, "runs/violations.html", context)


def _back(request: HttpRequest) -> HttpResponse:
    """To the list as it was when the form was opened: filters, page and all."""
    asked = QueryDict(request.POST.get("query", "")[:2000])
    query = urlencode({name: str(value) for name, value in asked.items() if name in FILTERS})
    return redirect(f"{reverse('runs:violations')}?{query}" if query else "runs:violations")


def _violation_of(request: HttpRequest) -> tuple[Run, str] | None:
    """The run and item that a form names, where the person may decide about them."""
    run_id, item = request.POST.get("run", ""), request.POST.get("item", "")
    if not run_id.isdecimal() or len(run_id) > 18 or item not in queries.CHECK_ORDER:
        return None
    run = get_run_or_404(request.user, int(run_id))
    require_role(request.user, run.project, *CHANGERS)
    return run, item


@login_required
@require_POST
def waive(request: HttpRequest) -> HttpResponse:
    """Take a violation off the list until a day; the member whom the form names answers for it."""
    named = _violation_of(request)
    if named is None:
        messages.error(request, _("There is no such violation."))
        return _back(request)
    run, item = named
    giver = signed_in(request.user)
    form = WaiverForm(run, giver, request.POST)
    if not form.is_valid():
        say_errors(request, form)
        return _back(request)
    values = {**form.cleaned_data, "given_by": giver, "created": timezone.now()}
    Waiver.objects.update_or_create(run=run, item=item, defaults=values)
    day = date_format(form.cleaned_data["expires"])
    messages.success(request, _("Waived until %(day)s.") % {"day": day})
    return _back(request)


@login_required
@require_POST
def assign(request: HttpRequest) -> HttpResponse:
    """Ask a member to fix a violation, or nobody; it stays open."""
    named = _violation_of(request)
    if named is None:
        messages.error(request, _("There is no such violation."))
        return _back(request)
    run, item = named
    form = AssignmentForm(run, request.POST)
    if not form.is_valid():
        say_errors(request, form)
        return _back(request)
    owner = form.cleaned_data["owner"]
    if owner is None:
        Assignment.objects.filter(run=run, item=item).delete()
        messages.success(request, _("Nobody is asked to fix it any more."))
    else:
        values = {"owner": owner, "given_by": signed_in(request.user)}
        Assignment.objects.update_or_create(run=run, item=item, defaults=values)
        messages.success(request, _("Assigned to %(name)s.") % {"name": owner})
    return _back(request)


@login_required
@require_POST
def unwaive(request: HttpRequest) -> HttpResponse:
    named = _violation_of(request)
    if named is not None:
        Waiver.objects.filter(violation_rows.covering(named[0]), item=named[1]).delete()
        messages.success(request, _("The violation is open again."))
    return _back(request)
