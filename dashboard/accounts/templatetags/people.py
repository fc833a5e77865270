from __future__ import annotations

from django import template
from django.conf import settings
from django.forms.boundfield import BoundField
from django.utils.safestring import SafeString

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


@register.filter
def with_focus(field: BoundField) -> SafeString:
    """A form's field that the page begins in."""
    return field.as_widget(attrs={"autofocus": True})
