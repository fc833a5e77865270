"""What the run page includes (runs know nothing of hosts, templates know both), and names of codes."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.context import Context
from django.utils.translation import gettext_lazy as _

from dashboard.hosts.views import run_requests

register = template.Library()
SPOOL = {
    "sent": _("sent"),
    "failed": _("failed"),
    "skipped": _("skipped"),
    "waiting": _("waiting"),
    "sending": _("sending"),
}
SLOW_KINDS = {"compute": _("more compute"), "host": _("waits for its host"), "unknown": _("unclear")}


@register.simple_tag(takes_context=True)
def requests_of(context: Context, run: Any) -> dict[str, Any]:
    """Requests of the run, who could carry one out, and whether this person may ask."""
    return run_requests(context["request"], run, may_ask=context.get("may_change"))


@register.filter
def spool_name(state: str) -> str:
    return str(SPOOL.get(state, state))


@register.filter
def slow_kind_name(kind: str) -> str:
    return str(SLOW_KINDS.get(kind, kind))
