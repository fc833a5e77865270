"""An alert's words for pages."""

from __future__ import annotations

from django import template

from dashboard.alerts import wording
from dashboard.alerts.models import Alert
from dashboard.alerts.rules import ITEM_PREFIX

register = template.Library()


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
