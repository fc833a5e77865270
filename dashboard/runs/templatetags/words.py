"""Names and report texts in the reader's language."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django import template
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from analysis.chinese import chinese
from dashboard.runs import metrics
from dashboard.runs.cluster_rows import group_ranks
from dashboard.runs.models import ItemStatus
from dashboard.runs.templatetags.units import as_kind, bytes_text, ns_text, number_text, percent_text

register = template.Library()


@register.filter
def localized(item: Mapping[str, Any] | Any, field: str) -> str:
    """`field` of a report's item in the reader's language."""
    if reads_chinese() and (text := _get(item, f"{field}_zh")):
        return str(text)
    return sentence(str(_get(item, field) or ""))


def reads_chinese() -> bool:
    return (get_language() or "").startswith("zh")


@register.filter
def sentence(text: str | None) -> str:
    """What readers say of a file, in Chinese for who reads Chinese; as it is where its wording is not known."""
    return (chinese(str(text)) or str(text)) if text and reads_chinese() else str(text or "")


AFTER_A_STOP = re.compile(r"(?<=[。，；：！？])[ \n]+")


@register.filter(is_safe=True)
def tight(text: str) -> str:
    """Sentences written one after the other; Chinese ones have no blank between them."""
    return AFTER_A_STOP.sub("", text)


def _get(item: Mapping[str, Any] | Any, field: str) -> Any:
    return item.get(field) if isinstance(item, Mapping) else getattr(item, field, None)


def _named(table: Mapping[str, Any], key: str | None) -> str:
    return str(table.get(key or "", key or ""))


@register.filter
def item_title(key: str) -> str:
    """The title of a checklist item or of a finding."""
    return str(metrics.CHECKLIST[key][0]) if key in metrics.CHECKLIST else _named(metrics.FINDINGS, key)


@register.filter
def item_rule(key: str) -> str:
    return str(metrics.CHECKLIST[key][1]) if key in metrics.CHECKLIST else ""


@register.filter
def status_name(status: str) -> str:
    """A checklist item's status in words."""
    return str(ItemStatus(status).label)


@register.filter
def verdict_name(key: str | None) -> str:
    return _named(metrics.VERDICTS, key)


@register.filter
def loss_name(key: str | None) -> str:
    return _named(metrics.LOSSES, key)


@register.filter
def block_name(key: str | None) -> str:
    return _named(metrics.BLOCKS, key)


@register.filter
def pass_name(key: str | None) -> str:
    return _named(metrics.PASSES, key)


@register.filter
def method_name(key: str | None) -> str:
    return _named(metrics.METHODS, key)


@register.filter
def cause_name(key: str | None) -> str:
    return _named(metrics.FREE_CAUSES, key)


@register.filter
def slow_kind(key: str | None) -> str:
    return _named(metrics.SLOW_KINDS, key)


@register.filter
def source_name(key: str | None) -> str:
    return _named(metrics.SOURCES, key)


@register.filter
def evidence_name(key: str | None) -> str:
    return _named(metrics.EVIDENCE, key)


@register.filter
def class_name(key: str | None) -> str:
    return _named(metrics.CLASSES, key)


@register.filter
def change_name(key: str | None) -> str:
    return _named(metrics.CHANGES, key)


@register.filter
def hidden_names(keys: Sequence[str]) -> str:
    """What a missing file hides: metrics and checklist items by their names."""
    names = (str(metrics.HIDES.get(key) or item_title(key)) for key in keys)
    return ("、" if reads_chinese() else ", ").join(names)


@register.filter
def supplying(missing: Sequence[Mapping[str, Any]] | None, key: str) -> list[Mapping[str, Any]]:
    """Of what a dump lacks, the files and switches that hide this metric or checklist item."""
    return [row for row in missing or [] if key in (row.get("hides") or [])]


@register.filter
def framework_name(key: str | None) -> str:
    return _named(metrics.FRAMEWORKS, key)


@register.filter
def mode_name(key: str | None) -> str:
    return _named(metrics.MODES, key)


@register.filter
def metric_label(key: str) -> str:
    return str(metrics.METRICS[key].label) if key in metrics.METRICS else key


@register.filter
def metric_help(key: str) -> str:
    return str(metrics.METRICS[key].help) if key in metrics.METRICS else ""


@register.inclusion_tag("components/help.html")
def about(key: str) -> dict[str, Any]:
    """A button that tells what a metric or term of a table's head means."""
    if key in metrics.METRICS:
        metric = metrics.METRICS[key]
        return {"label": metric.label, "text": metric.help}
    label, text = metrics.TERMS[key]
    return {"label": label, "text": text}


@register.filter
def lookup(mapping: Mapping[str, Any] | Any, key: str) -> Any:
    return _get(mapping, key)


@register.filter
def open_alerts(projects: Sequence[Any], project: Any) -> int:
    """How many alerts of `project` are open, by the frame's list of projects."""
    return next((one.open_alerts for one in projects if one.pk == project.pk), 0)


@register.filter
def judged(item: Any) -> int:
    """How many checklist items were judged at all."""
    return (_get(item, "checklist_passed") or 0) + (_get(item, "checklist_failed") or 0)


@register.filter
def score_dots(item: Any) -> str:
    """One letter per item: p for each pass, f for each failure, u for each unknown."""
    counts = ((letter, _get(item, name) or 0) for letter, name in zip("pfu", SCORE_FIELDS, strict=True))
    return "".join(letter * count for letter, count in counts)


SCORE_FIELDS = ("checklist_passed", "checklist_failed", "checklist_unknown")


@register.filter
def letter(position: int) -> str:
    """1 is A, 2 is B."""
    return chr(64 + position)


@register.filter
def many_columns(captures: Sequence[Any]) -> bool:
    """Whether tables with a column for each stand below each other, since beside each other they would be cut."""
    return len(captures) > 4


@register.filter
def letter_of(_captures: Sequence[Any], position: int) -> str:
    """The letter of the capture at a position, from 0."""
    return letter(position + 1)


LONGEST_NAME = 96


@register.filter
def short_name(name: str | None) -> str:
    """A kernel's name without what all of them begin with; of a long scope the end, which tells them apart."""
    text = (name or "").removeprefix("Kernel::KernelLaunch::")
    if len(text) <= LONGEST_NAME:
        return text
    cut = text[-LONGEST_NAME:]
    return "…" + cut[max(cut.find("/"), 0) :]


@register.filter
def breakable(name: str) -> SafeString:
    """A long name that wraps after "/" and "_", and not in the middle of a word."""
    pieces = re.split(r"(?<=[/_])(?=[^/_])", name)
    return format_html_join(mark_safe("<wbr>"), "{}", ((piece,) for piece in pieces))


MOST_OPERANDS = 6


@register.filter
def operands(text: str | None) -> str:
    """Shapes or dtypes of kernel_details.csv to read: "2,4;;4,8" is "2×4 · 4×8"; of many operands the first six."""
    given = [part.replace("DT_", "").replace(",", "×") for part in (text or "").replace('"', "").split(";") if part]
    more = len(given) - MOST_OPERANDS
    return " · ".join(given[:MOST_OPERANDS]) + (f" … +{more}" if more > 0 else "")


@register.filter
def bound_name(key: str | None) -> str:
    return _named(metrics.BOUNDS, key)


@register.filter
def rank_metric(key: str) -> str:
    return _named(metrics.RANK_METRICS, key)


@register.filter
def metric_value(value: float | None, key: str) -> str:
    return as_kind(value, metrics.METRICS[key].kind)


@register.filter
def group_name(group: str | None, source: Mapping[str, Any]) -> str:
    """A communication group by the name the dump gives it, else by the start of its id."""
    for name, about in (_get(source, "groups") or {}).items():
        if isinstance(about, Mapping) and group in (name, about.get("group_name"), about.get("hash")):
            return str(about.get("name") or name)
    return str(group or "")[:12]


@register.filter
def group_size(group: str | None, source: Mapping[str, Any]) -> int | None:
    """How many ranks a communication group has, where the dump tells."""
    return group_ranks(group, source or {})


@register.filter
def figure_name(key: str) -> str:
    """A key of evidence in words; without its unit where none are known: "swim_us" is "swim"."""
    if key in metrics.FIGURES:
        return str(metrics.FIGURES[key])
    for ending in ("_us", "_ns", "_bytes", "_ratio"):
        key = key.removesuffix(ending)
    return key.replace("_", " ")


@register.filter
def figure(value: Any, key: str) -> str:
    """A value of evidence in the unit that its key ends in."""
    if isinstance(value, bool):
        return str(_("yes") if value else _("no"))
    if isinstance(value, (int, float)):
        if key.endswith("_us"):
            return ns_text(value * 1000) or ""
        if key.endswith("_ns"):
            return ns_text(value) or ""
        if key.endswith("_bytes"):
            return bytes_text(value) or ""
        if key.endswith(("_ratio", "share")):
            return percent_text(value) or ""
        return number_text(value) or ""
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    tables = {"block": metrics.BLOCKS, "part": metrics.BLOCKS, "pass": metrics.PASSES, "class": metrics.CLASSES}
    if key == "part" and value == "layer":
        return str(_("layer"))
    return _named(tables.get(key, {}), str(value))
