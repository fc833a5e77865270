"""Numbers of a report as a person reads them; a dash for what is not known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable


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


def file_names(found: Iterable[object]) -> str:
    """Names of files, each once; those that differ in numbers alone, such as ranks, as one: `step_trace_raw_*.csv`."""
    names = sorted({str(name) for name in found if name})
    alike = Counter(map(_numberless, names))
    return ", ".join(dict.fromkeys(name if alike[_numberless(name)] == 1 else _numberless(name) for name in names))


def _numberless(name: str) -> str:
    return re.sub(r"_\d+(?=[_.])", "_*", name)
