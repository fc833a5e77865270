"""Changed keys of a configuration in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from analysis.config_keys import KeyChange

LONGEST_VALUE = 60
ConfigKeys = Mapping[int, Mapping[str, str]]
"""Flat keys of runs' configurations, by the run's id."""


def key_words(changes: Sequence[KeyChange], limit: int) -> list[str]:
    """Each change as "key old → new", at most `limit` of them; the last line says how many more there are."""
    words = [f"{change.key} {value_text(change.old)} → {value_text(change.new)}" for change in changes[:limit]]
    more = len(changes) - limit
    rest = ngettext("and %(n)d more key", "and %(n)d more keys", more) % {"n": more} if more > 0 else ""
    return [*words, rest] if rest else words


def value_text(value: str | None) -> str:
    """A value as the file has it, cut where it is long."""
    if value is None:
        return _("(not set)")
    if not value:
        return _("(empty)")
    return value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 1] + "…"
