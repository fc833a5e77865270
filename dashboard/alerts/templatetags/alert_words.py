"""An alert's words for pages."""

from __future__ import annotations

from typing import Any

from django import template
from django.urls import reverse
from django.utils.dates import WEEKDAYS
from django.utils.formats import date_format
from django.utils.http import urlencode

from dashboard.accounts.models import Project, User
from dashboard.alerts import wording
from dashboard.alerts.models import Alert, AlertState, WeeklyDigest
from dashboard.alerts.rules import ITEM_PREFIX
from dashboard.alerts.schedule import zone_of

register = template.Library()
MOST_NEWS = 4


@register.inclusion_tag("alerts/_open_card.html")
def what_got_worse(user: User, total: int) -> dict[str, Any]:
    """The newest open alerts of all projects that `user` sees, with their causes; `total` is how many are open."""
    if not total:
        return {}
    alerts = Alert.objects.filter(state=AlertState.OPEN, project__in=Project.objects.visible_to(user))
    named = alerts.select_related("project", "assignee", "capture__run").order_by("-id")
    return {
        "alerts": named.defer("capture__report", "capture__run__meta", "capture__run__config_text")[:MOST_NEWS],
        "total": total,
    }


@register.filter
def headline(alert: Alert) -> str:
    return wording.headline(alert)


@register.filter
def alert_name(alert: Alert) -> str:
    return wording.name(alert.metric)


@register.filter
def old_text(alert: Alert) -> str:
    return wording.value_text(alert.metric, alert.old_value)


@register.filter
def new_text(alert: Alert) -> str:
    return wording.value_text(alert.metric, alert.new_value)


@register.filter
def change_text(alert: Alert) -> str:
    return wording.change_text(alert)


@register.filter
def is_item(alert: Alert) -> bool:
    return alert.metric.startswith(ITEM_PREFIX)


@register.filter
def kernels_url(alert: Alert) -> str:
    """The kernels that the cause speaks of; empty where it names none."""
    found = alert.evidence
    if found.get("rank") is None or not found.get("type"):
        return ""
    asked = {"type": found["type"], **({"block": found["block"]} if found.get("block") else {})}
    return f"{reverse('runs:step', args=[alert.capture_id, found['rank']])}?{urlencode(asked)}#kernels"


@register.filter
def of_project(people: dict[int, Any], project_id: int) -> Any:
    return people.get(project_id, [])


@register.filter
def weekly_time(plan: WeeklyDigest) -> str:
    """When it comes: "Monday 09:00, UTC"."""
    return f"{WEEKDAYS[plan.day]} {plan.hour:02}:00, {plan.zone}"


@register.filter
def weekly_next(plan: WeeklyDigest) -> str:
    """The day it comes next, in its own time zone; empty while it is off."""
    return date_format(plan.due.astimezone(zone_of(plan.zone)), "DATE_FORMAT") if plan.due else ""
