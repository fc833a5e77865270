"""Moments as readers meet them: how long ago, and when exactly."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.runs.templatetags.units import unknown

register = template.Library()

MINUTE, HOUR, DAY, WEEK, MONTH, YEAR = 60, 3600, 86_400, 604_800, 2_629_746, 31_556_952


def ago_text(seconds: float) -> str:
    """A span of the past in the largest unit of which there are two or more: "90 minutes ago", "2 hours ago"."""
    if seconds < MINUTE:
        return _("just now")
    unit = next((unit for unit in (YEAR, MONTH, WEEK, DAY, HOUR) if seconds >= 2 * unit), MINUTE)
    count = int(seconds // unit)
    words = {
        MINUTE: ngettext("%(n)s minute ago", "%(n)s minutes ago", count),
        HOUR: ngettext("%(n)s hour ago", "%(n)s hours ago", count),
        DAY: ngettext("%(n)s day ago", "%(n)s days ago", count),
        WEEK: ngettext("%(n)s week ago", "%(n)s weeks ago", count),
        MONTH: ngettext("%(n)s month ago", "%(n)s months ago", count),
        YEAR: ngettext("%(n)s year ago", "%(n)s years ago", count),
    }
    return words[unit] % {"n": count}


def exact_text(when: datetime) -> str:
    """Date, time and time zone."""
    local = timezone.localtime(when)
    return f"{date_format(local, 'DATETIME_FORMAT')} {local.tzname()}"


@register.simple_tag
def ago(when: datetime | None) -> SafeString:
    """How long ago it was; the exact moment is its title."""
    if when is None:
        return unknown()
    return _time(when, ago_text((timezone.now() - when).total_seconds()))


@register.simple_tag
def moment(when: datetime | None) -> SafeString:
    """Date and time; with its time zone as title."""
    if when is None:
        return unknown()
    return _time(when, date_format(timezone.localtime(when), "DATETIME_FORMAT"))


def _time(when: datetime, text: str) -> SafeString:
    exact = exact_text(when)
    return format_html('<time datetime="{}" title="{}">{}</time>', timezone.localtime(when).isoformat(), exact, text)
