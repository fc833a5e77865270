"""A capture or a comparison as Markdown, to paste into a ticket or a chat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from dashboard.runs.metrics import METRICS
from dashboard.runs.models import Capture, Run
from dashboard.runs.report_rows import check_items
from dashboard.runs.templatetags.units import kind_text, metric_text, percent_text
from dashboard.runs.templatetags.words import item_title, judged, letter, localized, mode_name, tight, verdict_name

TOLD = (
    "mfu", "step_time_ns", "device_ratio", "cast_ratio", "exposed_communication_ratio", "peak_memory_bytes",
)  # fmt: skip
FIXES, CHANGES = 5, 12
MARKUP = str.maketrans({**{mark: f"\\{mark}" for mark in "\\`*[]<|"}, "@": "＠"})
"""What would be read as code, emphasis, a link, an image, a tag or a column; no escape keeps a mention from being one.
"""


def of_capture(shown: Capture, fix: Mapping[str, Any], address: str) -> str:
    """Verdict, known metrics, checklist and what to fix first; unknown metrics are left out."""
    known = [key for key in TOLD if getattr(shown, key) is not None]
    lines = [f"**{_plain(f'{shown.run.name} / {shown.key}')}**", "", _verdict(shown), _setup(shown.run, shown), ""]
    if known:
        values = [metric_text(getattr(shown, key), METRICS[key].kind) for key in known]
        lines += [*_table([[str(METRICS[key].label) for key in known], values]), ""]
    lines += [*_checklist(shown), ""]
    items = fix.get("items") or []
    if items:
        lines += [f"{_('Fix first')}:", *(_fix(place, row) for place, row in enumerate(items[:FIXES], 1)), ""]
    return "\n".join([*lines, address])


def of_comparison(
    captures: Sequence[Capture], sentence: str, metrics: Sequence[Mapping[str, Any]],
    changes: Sequence[Mapping[str, Any]], focus: int, address: str,
) -> str:  # fmt: skip
    """The sentence, which capture is which, their metrics beside each other, and what changed in setup and config up to
    capture `focus`. `metrics` and `changes` as compare_rows has them."""
    names = [
        f"{letter(place)}: {_plain(capture.run.name)} / {_plain(capture.key)}" for place, capture in _numbered(captures)
    ]
    head = ["", *(letter(place) for place, _capture in _numbered(captures))]
    rows = [[str(METRICS[row["key"]].label), *(_cell(cell, row["kind"]) for cell in row["cells"])] for row in metrics]
    lines = [f"**{sentence}**", "", *(f"- {name}" for name in names), "", *_table([head, *rows]), ""]
    if changes:
        told = [f"- {_plain(str(row['name']))}: {_code(row['old'])} → {_code(row['new'])}" for row in changes[:CHANGES]]
        more = [f"- … +{len(changes) - CHANGES}"] if len(changes) > CHANGES else []
        lines += [f"{_('What changed')} (A → {letter(focus + 1)}):", *told, *more, ""]
    return "\n".join([*lines, address])


def _numbered(captures: Iterable[Capture]) -> Iterable[tuple[int, Capture]]:
    return enumerate(captures, 1)


def _cell(cell: Mapping[str, Any], kind: str) -> str:
    value = kind_text(cell["value"], kind)
    return f"{value} ({cell['change']})" if cell["change"] else value


def _verdict(shown: Capture) -> str:
    """As the page's own first sentences say it."""
    if not shown.step_time_ns:
        return _("How long a step takes is not known.")
    words = {
        "step": metric_text(shown.step_time_ns, "duration"),
        "busy": percent_text(shown.device_ratio) or _("unknown"),
    }
    step = _("A step takes %(step)s; the device works %(busy)s of it.") % words
    return tight(f"{verdict_name(shown.verdict)}{_('.')} {step}") if shown.verdict else step


def _setup(run: Run, shown: Capture) -> str:
    chip = f"{run.soc or _('chip unknown')}{f' × {shown.world_size}' if shown.world_size else ''}"
    versions = [shown.framework_version, f"CANN {shown.cann_version}" if shown.cann_version else ""]
    return " · ".join(_plain(text) for text in (run.model_name, chip, mode_name(run.mode), *versions) if text)


def _checklist(shown: Capture) -> list[str]:
    failed = [item for item in check_items(shown.report or {}) if item.get("status") == "fail"]
    passed = _("unknown") if shown.checklist_passed is None else f"{shown.checklist_passed}/{judged(shown)}"
    head = f"{_('Checklist')}: {passed}"
    return [head, *(f"- ❌ {item_title(item['id'])}: {_plain(localized(item, 'summary'))}" for item in failed)]


def _fix(place: int, row: Mapping[str, Any]) -> str:
    won = metric_text(row["recoverable_us"] * 1000, "duration")
    return f"{place}. {item_title(row['id'])} −{won}: {_plain(localized(row, 'advice'))}"


def _table(rows: Sequence[Sequence[str | None]]) -> list[str]:
    head, *body = ([_plain(str(cell)) for cell in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def _plain(text: str) -> str:
    """On one line, as it stands: people's and dumps' own words are no Markdown."""
    return _line(text).translate(MARKUP)


def _code(value: Any) -> str:
    """Within it nothing is Markdown but its end."""
    return f"`{_line(str(value)).replace('`', chr(39))}`"


def _line(text: str) -> str:
    return re.sub(r"[\n\r\v\f\x85\u2028\u2029]+", " ", text)
