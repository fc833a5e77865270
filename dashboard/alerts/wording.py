"""How an alert reads, in the active language."""

from __future__ import annotations

from django.utils.translation import gettext as _

from dashboard.alerts.models import Alert
from dashboard.alerts.rules import BY_METRIC, ITEM_PREFIX
from dashboard.runs.metrics import CHECKLIST, METRICS
from dashboard.runs.templatetags.units import metric_text


def name(metric: str) -> str:
    """The metric's or checklist item's name."""
    item = metric.removeprefix(ITEM_PREFIX)
    if metric.startswith(ITEM_PREFIX) and item in CHECKLIST:
        return str(CHECKLIST[item][0])
    return str(METRICS[metric].label) if metric in METRICS else metric


def value_text(metric: str, value: float | None) -> str:
    if value is None:
        return _("unknown")
    text = metric_text(value, METRICS[metric].kind) if metric in METRICS else f"{value:.3g}"
    return str(text)


def change_text(alert: Alert) -> str:
    """By how much: points for shares, percent of the old value for the rest."""
    rule = BY_METRIC.get(alert.metric)
    if rule is None or alert.change is None:
        return ""
    amount = f"{alert.change * 100:+.1f}"
    return _("%(amount)s points") % {"amount": amount} if rule.absolute is not None else f"{amount} %"


def headline(alert: Alert) -> str:
    """One line: what got worse, from what to what."""
    if alert.metric.startswith(ITEM_PREFIX):
        return _("%(item)s: passed before, fails now") % {"item": name(alert.metric)}
    parts = {
        "name": name(alert.metric),
        "old": value_text(alert.metric, alert.old_value),
        "new": value_text(alert.metric, alert.new_value),
        "change": change_text(alert),
    }
    return _("%(name)s %(old)s -> %(new)s (%(change)s)") % parts
