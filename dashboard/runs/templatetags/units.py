"""Times, sizes and shares as text, formatted here and nowhere else. Null is shown as unknown, never as 0."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

register = template.Library()

NARROW = "\u202f"  # keeps a number and its unit on one line
LEAST_PERCENT = 0.1
"""The least share that its one decimal can tell from none, and the least that can be missing from all."""


def unknown() -> SafeString:
    return format_html('<span class="unknown" title="{}">—</span>', _("unknown"))


def significant(value: float, digits: int = 3) -> str:
    """`value` with about `digits` significant figures and no exponent: 7637, 84.2, 0.031."""
    size = abs(value)
    if size == 0:
        return "0"
    for decimals, least in enumerate((10 ** (digits - 1), 10 ** (digits - 2), 1, 0.1, 0.01)):
        if size >= least:
            return f"{value:,.{decimals}f}"
    return f"{value:.2g}"


def ns_text(value: float | None) -> str | None:
    """Nanoseconds as ns, us, ms or s."""
    if value is None:
        return None
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        # Steps of up to ten seconds read better in ms: all of one table then share a unit.
        if abs(value) >= size * (10 if unit == "s" else 1):
            return f"{significant(value / size)}{NARROW}{unit}"
    return f"{value:.0f}{NARROW}ns"


def bytes_text(value: float | None) -> str | None:
    """Bytes in binary units, as npu-smi and the profilers count them."""
    if value is None:
        return None
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if abs(value) >= 1024**power:
            return f"{significant(value / 1024**power)}{NARROW}{unit}"
    return f"{value:.0f}{NARROW}B"


def percent_text(value: float | None) -> str | None:
    """A ratio of 0 to 1 in percent with one decimal; what is not quite nothing or not quite all says so."""
    if value is None:
        return None
    share = round(value * 100, 6)
    if share in (0, 100):
        return f"{share:.0f}{NARROW}%"
    if 0 < share < LEAST_PERCENT:
        return f"<{NARROW}{LEAST_PERCENT}{NARROW}%"
    if 100 - LEAST_PERCENT < share < 100:
        return f">{NARROW}{100 - LEAST_PERCENT}{NARROW}%"
    return f"{share:.1f}{NARROW}%"


def number_text(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,}" if isinstance(value, int) else significant(value)


WRITERS = {"duration": ns_text, "bytes": bytes_text, "percent": percent_text, "number": number_text}


def metric_text(value: float | None, kind: str) -> str | None:
    """A metric's value in the unit of its kind; None stays None."""
    return WRITERS[kind](value)


def _figure(value: Any) -> float | None:
    """The number, or None: what a report lacks reaches a filter as empty text."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _shown(text: str | None) -> str | SafeString:
    return unknown() if text is None else text


@register.filter
def ns(value: float | None) -> str | SafeString:
    return _shown(ns_text(_figure(value)))


@register.filter
def us(value: float | None) -> str | SafeString:
    """Microseconds of a report."""
    figure = _figure(value)
    return _shown(ns_text(None if figure is None else figure * 1000))


@register.filter
def size(value: float | None) -> str | SafeString:
    return _shown(bytes_text(_figure(value)))


@register.filter
def percent(value: float | None) -> str | SafeString:
    return _shown(percent_text(_figure(value)))


@register.filter
def number(value: float | None) -> str | SafeString:
    return _shown(number_text(_figure(value)))


@register.filter
def times(value: float | None) -> str | SafeString:
    """How often something happens: whole where it is, as means over steps need not be."""
    figure = _figure(value)
    return number(round(figure) if figure is not None and figure == round(figure) else figure)


@register.filter
def known(value: Any) -> str | SafeString:
    """Text as it is; unknown for null and empty."""
    return unknown() if value is None or value == "" else str(value)


@register.filter
def as_kind(value: float | None, kind: str) -> str | SafeString:
    return _shown(metric_text(_figure(value), kind))


def points_text(difference: float) -> str:
    """The difference of two shares in percentage points, with its sign."""
    points = _("pts")
    return f"{round(difference * 100, 1) + 0.0:+.1f}{NARROW}{points}".replace("-", "−")


@register.filter
def signed(value: float | None, kind: str = "number") -> str | SafeString:
    """A difference with its sign: percentage points for shares, percent for what is `relative` to something."""
    value = _figure(value)
    if value is None:
        return unknown()
    if kind == "percent":
        return points_text(value)
    if kind == "relative":
        percent, decimals = value * 100, 1 if abs(value) < 10 else 0
        return f"{round(percent, decimals) + 0.0:+,.{decimals}f}{NARROW}%".replace("-", "−")
    text = metric_text(abs(value), kind)
    sign = "+" if value > 0 else "−" if value < 0 else "±"
    return f"{sign}{text}"


@register.filter
def signed_us(value: float | None) -> str | SafeString:
    """A difference in microseconds with its sign."""
    figure = _figure(value)
    return signed(None if figure is None else figure * 1000, "duration")


@register.filter
def kind_text(value: float | None, kind: str) -> str:
    """A metric as plain text for title attributes."""
    return metric_text(value, kind) or _("unknown")


SHARES_WITHOUT_THRESHOLD = ("warmup_mfu", "attention_mask")


@register.filter
def check_figure(value: float | None, item: Any) -> str | SafeString:
    """A value or threshold of a checklist item: in percent where the item judges a share, else as a number."""
    known: dict[str, Any] = item if isinstance(item, dict) else {"id": item.item, "threshold": item.threshold}
    threshold = known.get("threshold")
    is_share = known.get("id") in SHARES_WITHOUT_THRESHOLD or (threshold is not None and 0 < threshold <= 1)
    figure = _figure(value)
    return _shown(percent_text(figure) if is_share else number_text(figure))


LEAST_HOURS = 0.001


@register.filter
def npu_hours(lost_ns: float | None) -> str | SafeString:
    """Nanoseconds lost over all cards and steps as NPU-hours."""
    if lost_ns is None:
        return unknown()
    return hours_text(lost_ns / 3.6e12)


@register.filter(name="hours")
def hours_text(hours: float | None) -> str | SafeString:
    """NPU-hours to read."""
    if hours is None:
        return unknown()
    return f"<{NARROW}{LEAST_HOURS}" if 0 < hours < LEAST_HOURS else significant(hours)


@register.filter
def steps_lost(result: Any) -> int | None:
    """Over how many steps a violation's cost is summed: lost time / (recoverable time x cards)."""
    each = (result.recoverable_ns or 0) * (result.run.world_size or 1)
    return round(result.lost_ns / each) if each and result.lost_ns is not None else None
