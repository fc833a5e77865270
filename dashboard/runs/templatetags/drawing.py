"""Small pictures drawn on the server as SVG: they need no script, and no style attribute that the CSP would refuse."""

from __future__ import annotations

from collections.abc import Sequence

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

register = template.Library()


def polyline(
    values: Sequence[float | None], width: float, height: float, pad: float = 2, calm: float = 0
) -> list[list[tuple[float, float]]]:
    """Points of `values` scaled into the box, cut into pieces at unknown values."""
    known = [value for value in values if value is not None]
    if not known:
        return []
    # Noise of a percent or two must not look like an upheaval.
    middle, spread = (max(known) + min(known)) / 2, max(max(known) - min(known), max(map(abs, known)) * calm)
    low = middle - spread / 2
    step = (width - 2 * pad) / max(len(values) - 1, 1)
    pieces: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            pieces.append([])
            continue
        level = (value - low) / spread if spread else 0.5
        pieces[-1].append((round(pad + index * step, 1), round(height - pad - level * (height - 2 * pad), 1)))
    return [piece for piece in pieces if piece]


@register.simple_tag
def sparkline(
    values: Sequence[float | None] | None, css: str = "", width: int = 96, height: int = 24, calm: float = 0.0
) -> SafeString:
    """A line over `values` with its last point marked; nothing for fewer than two.

    `calm`: the least span of the picture, as a share of the largest value.
    """
    pieces = polyline(values or [], width, height, 3, calm)
    if sum(len(piece) for piece in pieces) < 2:
        return mark_safe("")
    lines = format_html_join(
        "", '<polyline points="{}"/>', ((" ".join(f"{x},{y}" for x, y in piece),) for piece in pieces)
    )
    x, y = pieces[-1][-1]
    first = pieces[0][0]
    area = format_html(
        '<polygon class="area" points="{},{} {} {},{}"/>',
        first[0],
        height,
        " ".join(f"{x},{y}" for piece in pieces for x, y in piece),
        x,
        height,
    )
    return format_html(
        '<svg class="spark {}" viewBox="0 0 {} {}" width="{}" height="{}" aria-hidden="true" '
        'preserveAspectRatio="none">{}{}<path class="dot" d="M{} {}h.01"/></svg>',
        css, width, height, width, height, area, lines, x, y,
    )  # fmt: skip


@register.filter
def without_warmup(values: Sequence[float | None] | None) -> list[float | None]:
    """Step times without the leading ones over 1.5 x the median, which would flatten the rest of a line."""
    rest = list(values or [])
    known = sorted(value for value in rest if value is not None)
    limit = 1.5 * known[len(known) // 2] if known else 0
    while rest and (rest[0] is None or rest[0] > limit):
        rest.pop(0)
    return rest


@register.simple_tag
def bar(share: float | None, css: str = "") -> SafeString:
    """A bar of `share` (0 to 1) to sit behind or beside a number in a table cell."""
    if not isinstance(share, (int, float)):
        return mark_safe("")
    width = max(0.0, min(share, 1.0)) * 100
    return format_html(
        '<svg class="cellbar {}" aria-hidden="true" preserveAspectRatio="none" viewBox="0 0 100 4">'
        '<rect class="track" width="100" height="4"/><rect class="fill" width="{}" height="4"/></svg>',
        css,
        f"{width:.1f}",
    )


@register.simple_tag
def stacked(parts: Sequence[dict[str, object]], label: str = "") -> SafeString:
    """One bar made of parts, each with `share` (0 to 1), `css` and `title`."""
    left = 0.0
    rows = []
    for part in parts:
        share = part["share"]
        width = max(0.0, min(float(share) if isinstance(share, (int, float)) else 0.0, 1.0)) * 100
        rows.append((part["css"], f"{left:.2f}", f"{max(width - 0.25, 0.05):.2f}", part["title"]))
        left += width
    rects = format_html_join("", '<rect class="{}" x="{}" width="{}" height="10"><title>{}</title></rect>', rows)
    return format_html(
        '<svg class="stackbar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        label,
        rects,
    )


@register.simple_tag
def ring(share: float | None, css: str = "", size: int = 88) -> SafeString:
    """A ring filled to `share`, for the one number that matters most on a page."""
    radius = size / 2 - 6
    around = 2 * 3.141592653589793 * radius
    filled = max(0.0, min(share or 0.0, 1.0)) * around
    return format_html(
        '<svg class="ring {}" viewBox="0 0 {s} {s}" width="{s}" height="{s}" aria-hidden="true">'
        '<circle class="track" cx="{c}" cy="{c}" r="{r}"/>'
        '<circle class="fill" cx="{c}" cy="{c}" r="{r}" stroke-dasharray="{f} {a}" '
        'transform="rotate(-90 {c} {c})"/></svg>',
        css, s=size, c=size / 2, r=radius, f=f"{filled:.1f}", a=f"{around:.1f}",
    )  # fmt: skip


ICONS = {
    "pass": '<path d="M3.5 8.5l3 3 6-7"/>',
    "fail": '<path d="M4 4l8 8M12 4l-8 8"/>',
    "unknown": '<path d="M5.5 6a2.5 2.5 0 1 1 3.6 2.2C8.3 8.7 8 9.2 8 10M8 12.6v.1"/>',
    "search": '<circle cx="7" cy="7" r="4.5"/><path d="M10.5 10.5L14 14"/>',
    "sun": '<circle cx="8" cy="8" r="3"/>'
    '<path d="M8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4M11.6 11.6L13 13M3 13l1.4-1.4M11.6 4.4L13 3"/>',
    "globe": '<circle cx="8" cy="8" r="6.2"/><path d="M1.8 8h12.4M8 1.8c4 4 4 8.4 0 12.4M8 1.8c-4 4-4 8.4 0 12.4"/>',
    "chevron": '<path d="M4 6l4 4 4-4"/>',
    "upload": '<path d="M8 11V2.5M4.5 5.5L8 2l3.5 3.5M2.5 10.5v3h11v-3"/>',
    "download": '<path d="M8 2.5V11M4.5 7.5L8 11l3.5-3.5M2.5 13.5h11"/>',
    "copy": '<rect x="5.5" y="5.5" width="8" height="8" rx="1.5"/><path d="M10.5 5.5v-3h-8v8h3"/>',
    "bell": '<path d="M3 11.5h10l-1.3-2V7a3.7 3.7 0 0 0-7.4 0v2.5zM6.5 13.8h3"/>',
    "user": '<circle cx="8" cy="5.5" r="2.8"/><path d="M2.5 14c.6-3 2.8-4.3 5.5-4.3s4.9 1.3 5.5 4.3"/>',
    "close": '<path d="M4.5 4.5l7 7M11.5 4.5l-7 7"/>',
    "arrow": '<path d="M3 8h10M9 4l4 4-4 4"/>',
    "info": '<circle cx="8" cy="8" r="6.2"/><path d="M8 7.3v4M8 4.8v.1"/>',
    "table": '<rect x="2" y="3" width="12" height="10" rx="1.5"/><path d="M2 6.5h12M6.5 6.5V13"/>',
    "menu": '<path d="M2.5 4.5h11M2.5 8h11M2.5 11.5h11"/>',
    "bolt": '<path d="M8.8 1.8L3.5 9h4l-.5 5.2L12.5 7h-4z"/>',
    "retry": '<path d="M13 8a5 5 0 1 1-1.5-3.6M13 2.5v3h-3"/>',
    "filter": '<path d="M2 3.5h12M4.5 8h7M6.5 12.5h3"/>',
}


@register.simple_tag
def icon(name: str, css: str = "") -> SafeString:
    return format_html(
        '<svg class="icon {}" viewBox="0 0 16 16" aria-hidden="true">{}</svg>', css, mark_safe(ICONS[name])
    )
