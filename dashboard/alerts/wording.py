"""How an alert reads, in the active language."""

from __future__ import annotations

import re
import unicodedata

from django.utils.translation import gettext as _

from dashboard.alerts.models import Alert
from dashboard.alerts.rules import BY_METRIC, CHECKLIST, ITEM_PREFIX, Rule
from dashboard.runs.metrics import CHECKLIST as CHECKLIST_ITEMS
from dashboard.runs.metrics import METRICS
from dashboard.runs.templatetags.units import NARROW, metric_text

MOST_TEXT = 600
MARKUP = {"<": "‹", ">": "›", "@": "＠", "](": "] (", "://": ": //", "`": "'"}
"""What chats read as tags, mentions, links or code, and what reads the same but does nothing."""


def name(metric: str) -> str:
    """The metric's or checklist item's name."""
    if metric == CHECKLIST:
        return _("Checklist")
    item = metric.removeprefix(ITEM_PREFIX)
    if metric.startswith(ITEM_PREFIX) and item in CHECKLIST_ITEMS:
        return str(CHECKLIST_ITEMS[item][0])
    return str(METRICS[metric].label) if metric in METRICS else metric


def value_text(metric: str, value: float | None) -> str:
    if value is None:
        return _("unknown")
    text = metric_text(value, METRICS[metric].kind) if metric in METRICS else f"{value:.3g}"
    return str(text)


def change_text(alert: Alert) -> str:
    """By how much: points for shares, percent of the old value for the rest."""
    return change_of(alert.metric, alert.change)


def change_of(metric: str, change: float | None) -> str:
    """As `change_text`, of a change that no alert tells of; empty where it is not known."""
    rule = BY_METRIC.get(metric)
    if rule is None or change is None:
        return ""
    amount = f"{change * 100:+.1f}".replace("-", "\u2212")
    return _("%(amount)s points") % {"amount": amount} if rule.absolute is not None else f"{amount}{NARROW}%"


def headline(alert: Alert) -> str:
    """One line: what got worse by how much, since which run, from what to what."""
    run = alert.capture.run.name
    if alert.metric.startswith(ITEM_PREFIX):
        return _("%(item)s: fails since %(run)s, passed before") % {"item": name(alert.metric), "run": run}
    parts = {
        "name": name(alert.metric),
        "old": value_text(alert.metric, alert.old_value),
        "new": value_text(alert.metric, alert.new_value),
        "change": change_text(alert),
        "run": run,
    }
    if alert.escalates_id is not None:
        return _("Worse again: %(name)s %(change)s since %(run)s (%(old)s → %(new)s)") % parts
    return _("%(name)s %(change)s since %(run)s (%(old)s → %(new)s)") % parts


def effect_text(rule: Rule) -> str:
    """The rule's least change: "1 point", "3 %"."""
    if rule.absolute is not None:
        amount = f"{rule.absolute * 100:g}"
        return (_("%(amount)s point") if amount == "1" else _("%(amount)s points")) % {"amount": amount}
    return f"{(rule.relative or 0) * 100:g}{NARROW}%"


def rule_text(rule: Rule) -> str:
    """The rule in a sentence."""
    if not rule.enabled:
        return _("Off: nothing is told.")
    parts = {"effect": effect_text(rule), "limit": f"{(rule.limit or 0) * 100:g}{NARROW}%"}
    if rule.metric == CHECKLIST:
        items = ", ".join(str(CHECKLIST_ITEMS[item][0]) for item in rule.items if item in CHECKLIST_ITEMS)
        told = (
            _("Told when one of these passed and fails now: %(items)s.")
            if items
            else _("Told when any checklist item passed and fails now.")
        )
        return told % {"items": items}
    if rule.absolute is not None and rule.limit is not None:
        return _("Told when it rises by %(effect)s or more, or passes %(limit)s.") % parts
    if rule.better == "high":
        return _("Told when it falls by %(effect)s or more.") % parts
    return _("Told when it rises by %(effect)s or more.") % parts


def scope_text(rule: Rule) -> str:
    """Which captures it watches."""
    found = []
    if rule.tag:
        found.append(_("runs tagged %(tag)s") % {"tag": rule.tag})
    if rule.model_name:
        found.append(_("model %(model)s") % {"model": rule.model_name})
    if rule.least_devices:
        found.append(_("%(count)s cards or more") % {"count": rule.least_devices})
    return ", ".join(found) or _("all captures")


def plain(text: str) -> str:
    """`text` on one line, without what a chat would take for markup, a mention or a link."""
    kept = (" " if unicodedata.category(one)[0] in "CZ" and one != NARROW else one for one in text)
    line = re.sub(" +", " ", "".join(kept)).strip()
    for mark, harmless in MARKUP.items():
        line = line.replace(mark, harmless)
    return line[:MOST_TEXT]
