"""Where a project's notices go, and how each one went."""

from __future__ import annotations

from functools import partial

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import get_owned_project_or_404, get_project_or_404, role_in
from dashboard.accounts.models import Project, Role
from dashboard.alerts.forms import ChannelForm
from dashboard.alerts.models import Alert, Channel, Delivery
from dashboard.alerts.notices import LONG, masked, replan
from dashboard.alerts.tasks import deliver_notice

LOG_LENGTH = 50


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
    channel = owned_channel(request, slug, channel_id)
    delivery = Delivery.objects.create(channel=channel, is_test=True)
    transaction.on_commit(partial(deliver_notice.delay, delivery.pk), robust=True)
    messages.success(request, _("The test is on its way; the log below says how it went."))
    return redirect("alerts:channels", slug)


@login_required
@require_POST
def channel_switch(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    channel = owned_channel(request, slug, channel_id)
    Channel.objects.filter(pk=channel.pk).update(active=not channel.active)
    replan(channel)
    return redirect("alerts:channels", slug)


@login_required
@require_POST
def channel_delete(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    owned_channel(request, slug, channel_id).delete()
    messages.success(request, _("The channel is gone."))
    return redirect("alerts:channels", slug)


def owned_channel(request: HttpRequest, slug: str, channel_id: int) -> Channel:
    return get_object_or_404(Channel, pk=channel_id, project=get_owned_project_or_404(request.user, slug))


def _channels_page(request: HttpRequest, project: Project, form: ChannelForm | None = None) -> HttpResponse:
    rows = [(channel, masked(channel.url)) for channel in project.channels.select_related("weekly")]
    told = Prefetch("alerts", Alert.objects.select_related("capture__run").defer(*LONG).order_by("id"))
    log = Delivery.objects.filter(channel__project=project).select_related("channel").prefetch_related(told)
    context = {
        "project": project,
        "is_owner": role_in(request.user, project) == Role.OWNER,
        "channels": rows,
        "log": log[:LOG_LENGTH],
        "form": form or ChannelForm(),
    }
    return render(request, "alerts/channels.html", context, status=422 if form else 200)
