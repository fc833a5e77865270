"""The grid of a capture's ranks, built in one go: template tags are too slow for a thousand cells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django import template
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.runs.templatetags.units import kind_text

register = template.Library()


@register.simple_tag
def rank_grid(
    lines: Sequence[dict[str, Any]], slow: Collection[int], kind: str, shown: int | None, request: HttpRequest
) -> SafeString:
    """A coloured cell for each rank that leads to it; in lines of 32 with the first rank before each where many are."""
    params = request.GET.copy()
    params.pop("rank", None)
    rest = f"&{params.urlencode()}" if params else ""
    many = len(lines) > 1
    rows = [
        format_html(
            '<div class="line">{}{}</div>',
            format_html('<span class="first">{}</span>', line["first"]) if many else "",
            format_html_join("", CELL, (_cell(cell, slow, kind, shown, rest) for cell in line["cells"])),
        )
        for line in lines
    ]
    return format_html(
        '<div class="rankgrid{}">{}</div>',
        " many" if many else "",
        format_html_join("", "{}", ((row,) for row in rows)),
    )


CELL = '<a class="q{}{}" href="?rank={}{}"{} title="{}">{}</a>'


def _cell(
    cell: tuple[Any, float | None, int | None], slow: Collection[int], kind: str, shown: int | None, rest: str
) -> tuple[Any, ...]:
    dump, value, level = cell
    late = dump.rank in slow
    title = f"{_('rank %(rank)s') % {'rank': dump.rank}}: {kind_text(value, kind)}"
    if late:
        title += f" · {_('slow')}"
    current = mark_safe(' aria-current="true"') if dump.rank == shown else ""
    return ("x" if level is None else level, " qslow" if late else "", dump.rank, rest, current, title, dump.rank)
