"""Numbers of a report as a person reads them; a dash for what is not known."""

from __future__ import annotations


def ms(us: float | None, unit: str = " ms") -> str:
    """Microseconds as milliseconds."""
    if us is None:
        return "–"
    return f"{us / 1000:,.0f}{unit}" if abs(us) >= 1e6 else f"{us / 1000:,.2f}{unit}"


def percent(value: float | None) -> str:
    """A ratio of 0 to 1 in percent."""
    return "–" if value is None else f"{value:.1%}"


def gib(value: float | None) -> str:
    """Bytes in GiB."""
    return "–" if value is None else f"{value / (1 << 30):.1f} GiB"


def text_of(value: object) -> str:
    """Any value as text."""
    return "–" if value is None else str(value)


def value_of(value: object) -> str:
    """Any value, decimals to four digits, texts cut where they are long."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:160]
