"""The inbox of alerts, and what people make of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import require_role, signed_in
from dashboard.accounts.models import Member, Project, Role, User
from dashboard.alerts.forms import DecisionForm
from dashboard.alerts.models import Alert, AlertState, Decision
from dashboard.runs.paging import NarrowPaginator

PAGE_SIZE = 50
LONG = tuple(
    f"{side}__{name}" for side in ("capture", "previous") for name in ("report", "run__meta", "run__config_text")
)
CHANGERS = (Role.OWNER, Role.MEMBER)
MOST_ID_DIGITS = 18


@login_required
@require_GET
def inbox(request: HttpRequest) -> HttpResponse:
    projects = Project.objects.visible_to(signed_in(request.user))
    alerts = _alerts(projects)
    project = projects.filter(slug=request.GET.get("project", "")).first()
    if project:
        alerts = alerts.filter(project=project)
    mine = "mine" in request.GET
    if mine:
        alerts = alerts.filter(assignee=signed_in(request.user))
    counts = _counts(alerts)
    one = request.GET.get("alert", "")
    state = request.GET.get("state", "all" if one else AlertState.OPEN)
    page = NarrowPaginator(_narrowed(alerts, state, one), PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "one": one,
        "mine": mine,
        "state": state,
        "states": [(value, label, counts.get(value, 0)) for value, label in AlertState.choices],
        "project": project,
        "projects": projects,
        "may_decide": _decidable(request, page.object_list),
        "people": _people(page.object_list),
    }
    return render(request, "alerts/inbox.html", context)


def _alerts(projects: QuerySet[Project]) -> QuerySet[Alert]:
    return (
        Alert.objects.filter(project__in=projects)
        .select_related("project", "capture__run", "previous__run", "assignee", "escalates")
        .prefetch_related(Prefetch("decisions", Decision.objects.select_related("person")))
        .defer(*LONG)
    )


def _narrowed(alerts: QuerySet[Alert], state: str, one: str) -> QuerySet[Alert]:
    """Those in that state, and the one with that number; all where the address asks for what there cannot be."""
    if state in AlertState.values:
        alerts = alerts.filter(state=state)
    if one.isascii() and one.isdecimal() and len(one) <= MOST_ID_DIGITS:
        alerts = alerts.filter(pk=int(one))
    return alerts


def _counts(alerts: QuerySet[Alert]) -> dict[str, int]:
    rows = alerts.order_by().values("state").annotate(count=Count("id"))
    return {row["state"]: row["count"] for row in rows}


def _decidable(request: HttpRequest, alerts: Any) -> set[int]:
    """Projects of these alerts in which the person may decide."""
    user, found = signed_in(request.user), {alert.project_id for alert in alerts}
    if user.is_superuser:
        return found
    members = Member.objects.filter(user=user, project__in=found, role__in=CHANGERS)
    return set(members.values_list("project_id", flat=True))


def _people(alerts: Any) -> dict[int, list[User]]:
    """Project -> who an alert of it can be given to."""
    found = defaultdict(list)
    members = Member.objects.filter(project__in={alert.project_id for alert in alerts}, role__in=CHANGERS)
    for member in members.select_related("user").order_by("user__username"):
        found[member.project_id].append(member.user)
    return dict(found)


@login_required
@require_POST
def decide(request: HttpRequest, alert_id: int) -> HttpResponse:
    """Acknowledge, call a false alarm, accept as expected, or open again."""
    alert = _alert_to_change(request, alert_id)
    form = DecisionForm(request.POST)
    if form.is_valid():
        alert.decide(form.cleaned_data["state"], form.cleaned_data["note"], signed_in(request.user))
        messages.success(request, _("Saved."))
    else:
        messages.error(request, _("That is not one of the answers."))
    return _onward(request)


@login_required
@require_POST
def assign(request: HttpRequest, alert_id: int) -> HttpResponse:
    """Give an alert to a member of its project, or to nobody."""
    alert = _alert_to_change(request, alert_id)
    text = request.POST.get("assignee", "")
    member = Member.objects.filter(project=alert.project_id, role__in=CHANGERS, user__username=text).first()
    if text and member is None:
        messages.error(request, _("An alert can be given to the project's owners and members alone."))
    else:
        Alert.objects.filter(pk=alert.pk).update(assignee=member.user_id if member else None)
        messages.success(request, _("Saved."))
    return _onward(request)


def _alert_to_change(request: HttpRequest, alert_id: int) -> Alert:
    visible = Project.objects.visible_to(signed_in(request.user))
    alert = get_object_or_404(Alert.objects.select_related("project"), pk=alert_id, project__in=visible)
    require_role(request.user, alert.project, *CHANGERS)
    return alert


def _onward(request: HttpRequest) -> HttpResponse:
    following = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(following, {request.get_host()}, require_https=request.is_secure())
    # An address, never the name of a view, which is what `redirect` would take any other text for.
    return HttpResponseRedirect(following) if safe and following.startswith("/") else redirect("alerts:inbox")
