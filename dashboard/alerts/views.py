"""The inbox of alerts, and the channels their notices go through."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import (
    get_owned_project_or_404,
    get_project_or_404,
    require_role,
    role_in,
    signed_in,
)
from dashboard.accounts.models import Member, Project, Role
from dashboard.alerts.forms import ChannelForm, DecisionForm
from dashboard.alerts.models import Alert, AlertState, Channel, Delivery
from dashboard.alerts.notices import masked
from dashboard.alerts.tasks import deliver_notice

PAGE_SIZE = 50
LOG_LENGTH = 50
LONG = tuple(
    f"{side}__{name}" for side in ("capture", "previous") for name in ("report", "run__meta", "run__config_text")
)
CHANGERS = (Role.OWNER, Role.MEMBER)


@login_required
@require_GET
def inbox(request: HttpRequest) -> HttpResponse:
    projects = Project.objects.visible_to(signed_in(request.user))
    alerts = (
        Alert.objects.filter(project__in=projects)
        .select_related("project", "capture__run", "previous__run", "decided_by")
        .defer(*LONG)
    )
    project = projects.filter(slug=request.GET.get("project", "")).first()
    if project:
        alerts = alerts.filter(project=project)
    counts = _counts(alerts)
    state = request.GET.get("state", AlertState.OPEN)
    if state in AlertState.values:
        alerts = alerts.filter(state=state)
    page = Paginator(alerts, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "state": state,
        "states": [(value, label, counts.get(value, 0)) for value, label in AlertState.choices],
        "project": project,
        "projects": projects,
        "may_decide": _decidable(request, page.object_list),
    }
    return render(request, "alerts/inbox.html", context)


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


@login_required
@require_POST
def decide(request: HttpRequest, alert_id: int) -> HttpResponse:
    """Acknowledge, call a false alarm, accept as expected, or open again."""
    visible = Project.objects.visible_to(signed_in(request.user))
    alert = get_object_or_404(Alert.objects.select_related("project"), pk=alert_id, project__in=visible)
    require_role(request.user, alert.project, *CHANGERS)
    form = DecisionForm(request.POST)
    if form.is_valid():
        opened = form.cleaned_data["state"] == AlertState.OPEN
        alert.state, alert.note = form.cleaned_data["state"], form.cleaned_data["note"]
        alert.decided_by = None if opened else signed_in(request.user)
        alert.decided_at = None if opened else timezone.now()
        alert.save(update_fields=["state", "note", "decided_by", "decided_at"])
        messages.success(request, _("Saved."))
    else:
        messages.error(request, _("That is not one of the answers."))
    following = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(following, allowed_hosts={request.get_host()})
    return redirect(following if safe else "alerts:inbox")


@login_required
@require_GET
def channels(request: HttpRequest, slug: str) -> HttpResponse:
    return _channels_page(request, get_project_or_404(request.user, slug))


@login_required
@require_POST
def channel_new(request: HttpRequest, slug: str) -> HttpResponse:
    project = get_owned_project_or_404(request.user, slug)
    form = ChannelForm(request.POST, instance=Channel(project=project))
    if not form.is_valid():
        return _channels_page(request, project, form)
    form.save()
    messages.success(request, _("The channel is there. Send a test to see that it works."))
    return redirect("alerts:channels", slug)


@login_required
@require_POST
def channel_test(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    channel = _owned_channel(request, slug, channel_id)
    delivery = Delivery.objects.create(channel=channel)
    transaction.on_commit(partial(deliver_notice.delay, delivery.pk), robust=True)
    messages.success(request, _("The test is on its way; the log below says how it went."))
    return redirect("alerts:channels", slug)


@login_required
@require_POST
def channel_switch(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    channel = _owned_channel(request, slug, channel_id)
    Channel.objects.filter(pk=channel.pk).update(active=not channel.active)
    return redirect("alerts:channels", slug)


@login_required
@require_POST
def channel_delete(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    _owned_channel(request, slug, channel_id).delete()
    messages.success(request, _("The channel is gone."))
    return redirect("alerts:channels", slug)


def _owned_channel(request: HttpRequest, slug: str, channel_id: int) -> Channel:
    return get_object_or_404(Channel, pk=channel_id, project=get_owned_project_or_404(request.user, slug))


def _channels_page(request: HttpRequest, project: Project, form: ChannelForm | None = None) -> HttpResponse:
    rows = [(channel, masked(channel.url)) for channel in project.channels.all()]
    log = Delivery.objects.filter(channel__project=project).select_related("channel", "alert__capture__run")
    context = {
        "project": project,
        "is_owner": role_in(request.user, project) == Role.OWNER,
        "channels": rows,
        "log": log[:LOG_LENGTH],
        "form": form or ChannelForm(),
    }
    return render(request, "alerts/channels.html", context, status=422 if form else 200)
