"""What a channel is told of each week: when, and what it would be told now."""

from __future__ import annotations

from functools import partial

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import get_project_or_404, role_in
from dashboard.accounts.models import Role
from dashboard.alerts.forms import WeeklyForm
from dashboard.alerts.models import Channel, Delivery, WeeklyDigest
from dashboard.alerts.notices import plan_of, weekly_notice
from dashboard.alerts.tasks import deliver_notice
from dashboard.alerts.views.channels import owned_channel


@login_required
@require_GET
def weekly(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    project = get_project_or_404(request.user, slug)
    return _page(request, get_object_or_404(Channel.objects.select_related("project"), pk=channel_id, project=project))


@login_required
@require_POST
def weekly_save(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    channel = owned_channel(request, slug, channel_id)
    with transaction.atomic():
        plan, _made = WeeklyDigest.objects.select_for_update().get_or_create(channel=channel)
        form = WeeklyForm(request.POST, instance=plan)
        if form.is_valid():
            plan.plan(timezone.now())
            plan.save()
    if not form.is_valid():
        return _page(request, channel, form)
    messages.success(request, _("Saved."))
    return redirect("alerts:weekly", slug, channel_id)


@login_required
@require_POST
def weekly_test(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    channel = owned_channel(request, slug, channel_id)
    delivery = Delivery.objects.create(channel=channel, is_test=True, week_end=timezone.now())
    transaction.on_commit(partial(deliver_notice.delay, delivery.pk), robust=True)
    messages.success(request, _("The test is on its way; the delivery log says how it went."))
    return redirect("alerts:weekly", slug, channel_id)


def _page(request: HttpRequest, channel: Channel, form: WeeklyForm | None = None) -> HttpResponse:
    plan = plan_of(channel)
    with translation.override(channel.language):
        notice = weekly_notice(channel, timezone.now())
    context = {
        "project": channel.project,
        "channel": channel,
        "plan": plan,
        "form": form or WeeklyForm(instance=plan),
        "notice": notice,
        "is_owner": role_in(request.user, channel.project) == Role.OWNER,
    }
    return render(request, "alerts/weekly.html", context, status=422 if form else 200)
