from __future__ import annotations

from django import template
from django.conf import settings

register = template.Library()


@register.simple_tag
def sends_mail() -> bool:
    """Whether a forgotten password can be answered with a message."""
    return bool(settings.SENDS_MAIL)
