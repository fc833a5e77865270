from __future__ import annotations

from django import template
from django.conf import settings

from dashboard.accounts.models import AgentToken, Scope

register = template.Library()


@register.simple_tag
def sends_mail() -> bool:
    """Whether a forgotten password can be answered with a message."""
    return bool(settings.SENDS_MAIL)


@register.filter
def scope_names(token: AgentToken) -> str:
    """What a token may do, in the reader's language."""
    return ", ".join(str(Scope(scope).label) for scope in token.scopes)
