"""A project's metrics over its captures as charts: lines that never cross denominators, and marks of what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _noop
from pyecharts import options as opts
from pyecharts.charts import Line

from analysis.config_keys import changed_keys
from dashboard.runs import queries
from dashboard.runs.changes import Change, change_points
from dashboard.runs.charts import SCALES, Spec, axes, empty, rounded, spec
from dashboard.runs.config_words import ConfigKeys, key_words
from dashboard.runs.metrics import METRICS, MODES
from dashboard.runs.templatetags.units import metric_text

Rows = Sequence[Mapping[str, Any]]


def trend(rows: Rows, metric: str, keys: ConfigKeys | None = None) -> Spec:
    """One metric over captures; captures that may not be compared never share a line; marks where versions changed."""
    about = METRICS[metric]
    unit, scale = SCALES[about.kind]
    if not any(row["value"] is not None for row in rows):
        return empty()
    names = [f"{row['run__name']} · {row['key']}" for row in rows]
    lines: dict[tuple[Any, ...], list[Any]] = {}
    for index, row in enumerate(rows):
        points = lines.setdefault(queries.line_of(row, metric), [None] * len(rows))
        if row["value"] is not None:
            points[index] = _trend_point(row, about.kind, rounded(row["value"] * scale))
    chart = Line().add_xaxis([str(index) for index in range(len(rows))])
    for number, (key, points) in enumerate(lines.items()):
        if not any(points):
            continue
        chart.add_yaxis(
            line_label(key, metric), points, is_connect_nones=True, symbol="circle", symbol_size=8,
            label_opts=opts.LabelOpts(is_show=False), itemstyle_opts=opts.ItemStyleOpts(color=f"$c{number % 8 + 1}"),
            linestyle_opts=opts.LineStyleOpts(width=2 if is_told(key) else 0, color=f"$c{number % 8 + 1}"),
        )  # fmt: skip
    drawn = [points for points in lines.values() if any(points)]
    for line, points in zip(chart.options["series"], drawn, strict=True):
        line.update(data=points, showAllSymbol=True)
    axes(chart, unit, legend=len(drawn) > 1, zoom=len(rows) > 30, scale=True)
    chart.options["tooltip"].opts["trigger"] = "item"
    chart.options["xAxis"] = [
        {
            "type": "category",
            "data": [date_format(row["captured_at"], "m-d H:i") for row in rows],
            "splitLine": {"show": False},
            "boundaryGap": False,
        }
    ]
    chart.options["grid"].update(top=58 if len(drawn) > 1 else 36, right=48)
    marks = [*_version_lines(rows, keys), *_level_lines(rows, metric)]
    if marks and chart.options["series"]:
        chart.options["series"][0]["markLine"] = {
            "symbol": "none", "silent": False, "animation": False, "label": {"fontSize": 11, "formatter": "{b}"},
            "data": marks,
        }  # fmt: skip
    # Dragging a range zooms; charts.js turns the hidden tool on.
    chart.options["toolbox"] = {"itemSize": 0, "feature": {"dataZoom": {"yAxisIndex": "none"}}}
    table = [
        [name, None if row["value"] is None else rounded(row["value"] * scale)]
        for name, row in zip(names, rows, strict=True)
    ]
    return spec(chart, unit, [_("Capture"), str(about.label)], table, brush=True)


def _version_lines(rows: Rows, keys: ConfigKeys | None) -> list[dict[str, Any]]:
    """Dashed marks where versions, mode, config or commit changed; only versions and mode are named on the chart."""
    return [
        {
            "xAxis": mark.place,
            "name": mark.short,
            "title": _("Changed"),
            "lines": [[what, ""] for what in mark.changes],
            "lineStyle": {"color": "$ink-3", "type": [4, 4] if mark.short else [1, 4], "width": 1},
            "label": {"show": bool(mark.short), "color": "$ink-2", "position": "end"},
        }
        for mark in version_marks(rows, keys)
    ]


def _level_lines(rows: Rows, metric: str) -> list[dict[str, Any]]:
    """Solid marks where a line's level changed for good."""
    about = METRICS[metric]
    marks = []
    for row_index, change in level_changes(rows, metric):
        better = (change.after < change.before) == (about.better == "low")
        old, new = metric_text(change.before, about.kind), metric_text(change.after, about.kind)
        colour = "$pass" if better else "$fail"
        marks.append(
            {
                "xAxis": row_index,
                "name": f"{'▲' if change.after > change.before else '▼'}",
                "title": _("The level changed"),
                "lines": [[f"{old} → {new}", ""]],
                "lineStyle": {"color": colour, "type": "solid", "width": 1.5, "opacity": 0.55},
                "label": {"color": colour, "position": "insideStartTop", "rotate": 0},
            }
        )
    return marks


def level_changes(rows: Rows, metric: str) -> list[tuple[int, Change]]:
    """Changes of level along each line of the chart, by the row in which the new level begins."""
    lines: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if row["value"] is not None:
            lines.setdefault(queries.line_of(row, metric), []).append(index)
    found = []
    for key, places in lines.items():
        if not is_told(key):
            continue
        changes = change_points([rows[place]["value"] for place in places], metric)
        found += [(places[change.index], change) for change in changes]
    return sorted(found, key=lambda pair: pair[0])


def _trend_point(row: Mapping[str, Any], kind: str, value: float | None) -> dict[str, Any]:
    return {
        "value": value,
        "url": reverse("runs:capture", args=[row["id"]]),
        "title": f"{row['run__name']} · {row['key']}",
        "lines": [
            [date_format(row["captured_at"], "DATETIME_FORMAT"), metric_text(row["value"], kind)],
            *[
                [label, str(row[field])]
                for label, field in (("CANN", "cann_version"), (_("Mode"), "run__mode"), (_("Cards"), "world_size"))
                if row[field]
            ],
        ],
    }


def line_label(key: tuple[Any, ...], metric: str) -> str:
    """What sets a trend line apart from the others: its model with the denominator or the size."""
    if metric in queries.UTILISATION:
        peak, dtype, _formula, model = key
        told = (
            _("peak %(peak)s TFLOPS %(dtype)s") % {"peak": f"{peak:g}", "dtype": dtype} if peak else _("peak unknown")
        )
        return f"{model} · {told}" if model else told
    model, *cards = key
    return " × ".join([model or _("model unknown"), *(str(part) for part in cards if part)])


def is_told(key: tuple[Any, ...]) -> bool:
    """Whether captures of this line are known to be of one kind; a line through any others would show no trend."""
    return bool(key[0])


VERSIONS = (("cann_version", "CANN"), ("framework_version", ""), ("run__mode", ""), ("run__soc", ""))
COMMIT = (("run__meta__git_commit", _noop("commit")),)
TOLD_KEYS = 8
"""Changed keys of a configuration that a mark names; the comparison it leads to has all."""


class Mark(NamedTuple):
    """What changed at row `place`, against row `before`: the newest earlier one of the same model."""

    place: int
    before: int
    short: str
    changes: list[str]


def version_marks(rows: Rows, keys: ConfigKeys | None = None) -> list[Mark]:
    """Where versions, config or commit changed from one capture of a model to its next.

    `short` names versions and mode; config and commit are told only when a mark is pointed at. `keys` are those of
    `queries.trend_config_keys`."""
    marks = []
    last: dict[str, dict[str, Any]] = {}
    for index, row in enumerate(rows):
        known = last.setdefault(row["run__model_name"], {})
        loud = _changed(row, known, VERSIONS)
        commit = _changed(row, known, COMMIT)
        changes = [_words(*change) for change in loud]
        changes += [*_config_changes(row, known, keys or {}), *(_words(*change) for change in commit)]
        if changes:
            short = " + ".join(f"{name} {new}".strip() for name, _old, new in loud)
            marks.append(Mark(index, known["index"], short, changes))
        known["index"] = index
    return marks


def _words(name: str, old: str, new: str) -> str:
    return f"{name} {old} → {new}".strip()


def _config_changes(row: Mapping[str, Any], last: dict[str, Any], keys: ConfigKeys) -> list[str]:
    """The keys in which the configuration differs from the last known one; where no text tells them, that it does."""
    digits = str(row.get("config_fingerprint") or "")
    if not digits:
        return []
    run, text = row.get("run_id", 0), row.get("config_md5")
    old = last.get("config")
    last["config"] = (digits, run, text)
    if old is None or old == last["config"]:
        return []
    if old[1] in keys and run in keys and old[1] != run:
        return key_words(changed_keys(keys[old[1]], keys[run]), TOLD_KEYS)
    return [_("config %(old)s → %(new)s") % {"old": old[0][:12], "new": digits[:12]}] if old[0] != digits else []


def _changed(
    row: Mapping[str, Any], last: dict[str, Any], fields: Sequence[tuple[str, str]]
) -> list[tuple[str, str, str]]:
    """(name, old, new) of each field that has another value than the last known one, which is brought up to date."""
    changes = []
    for field, name in fields:
        value = str(row.get(field) or "")[:12] if field in dict(COMMIT) else row[field]
        if value and last.get(field) not in (None, value):
            changes.append((_(name) if name else "", _shown(field, last[field]), _shown(field, value)))
        if value:
            last[field] = value
    return changes


def _shown(field: str, value: str) -> str:
    return str(MODES.get(value, value)) if field == "run__mode" else value
