"""Plain rows to charts. No queries, no requests.

A chart is a dict for charts.js: ECharts options that pyecharts made, the unit of its values, and the same numbers as a
table. Colours are names of CSS tokens ("$compute"), so one chart serves the light and the dark theme.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from django.utils.translation import gettext as _
from pyecharts import options as opts
from pyecharts.charts import Bar, HeatMap, Line
from pyecharts.charts.chart import Chart

from analysis.entries import bubble_us, exposed_us
from dashboard.runs.models import Dump
from dashboard.runs.report_rows import layer_grid, waterfall
from dashboard.runs.templatetags.units import metric_text
from dashboard.runs.templatetags.words import block_name

Spec = dict[str, Any]
SCALES: dict[str, tuple[str, float]] = {
    "duration": ("ms", 1e-6),
    "percent": ("percent", 100),
    "bytes": ("bytes", 1),
    "number": ("number", 1),
}
MAX_RANK_BARS = 1024


def empty(note: str = "") -> Spec:
    return {"empty": True, "note": note}


def rounded(value: float | None, digits: int = 5) -> float | None:
    """`value` with a few significant figures: a chart's JSON has no use for sixteen."""
    return None if value is None else float(f"{value:.{digits}g}")


def spec(chart: Chart, unit: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], **extra: Any) -> Spec:
    """The answer charts.js draws: pyecharts' options without what the page's theme decides."""
    options = json.loads(chart.dump_options_with_quotes())
    for key in [key for key in options if key == "color" or key.startswith("animation")]:
        del options[key]
    table = {"columns": list(columns), "rows": [list(row) for row in rows]}
    return {"options": options, "format": unit, "table": table, **extra}


def axes(chart: Chart, unit: str, *, legend: bool = True, zoom: bool = False, scale: bool = False) -> Chart:
    zooms = [opts.DataZoomOpts(type_="slider", range_start=0, range_end=100), opts.DataZoomOpts(type_="inside")]
    chart.set_global_opts(
        legend_opts=opts.LegendOpts(is_show=legend),
        tooltip_opts=opts.TooltipOpts(trigger="axis", axis_pointer_type="shadow"),
        yaxis_opts=opts.AxisOpts(
            is_scale=scale,
            axislabel_opts=opts.LabelOpts(formatter="@ms_axis" if unit == "ms" else f"@{unit}"),
            split_number=4,
        ),
        datazoom_opts=zooms if zoom else None,
    )
    chart.options["xAxis"][0]["splitLine"] = {"show": False}
    chart.options["grid"] = {
        "left": 8, "right": 16, "top": 34 if legend else 12, "bottom": 46 if zoom else 6, "containLabel": True,
    }  # fmt: skip
    return chart


def name_across(chart: Chart, name: str) -> None:
    """Write below a chart what its columns or places across are."""
    chart.options["xAxis"][0] |= {"name": name, "nameLocation": "middle", "nameGap": 24}
    chart.options["grid"]["bottom"] += 16


def _stacked(
    names: Sequence[str], parts: Sequence[tuple[str, str, Sequence[float | None]]], zoom: bool = False, across: str = ""
) -> Spec:
    """Bars of milliseconds, one for each name, cut into parts: (label, colour, values)."""
    chart = Bar().add_xaxis(list(names))
    for label, colour, values in parts:
        chart.add_yaxis(
            label,
            [rounded(value) for value in values],
            stack="step",
            itemstyle_opts=opts.ItemStyleOpts(color=f"${colour}"),
            label_opts=opts.LabelOpts(is_show=False),
            bar_max_width=56,
        )
    rows = [[name, *(rounded(values[index]) for _label, _colour, values in parts)] for index, name in enumerate(names)]
    axes(chart, "ms", zoom=zoom)
    if across and not zoom:
        name_across(chart, across)
    return spec(chart, "ms", [across, *(part[0] for part in parts)], rows)


def steps_of_rank(entry: Mapping[str, Any]) -> Spec:
    """Each step of one rank: computing, exposed communication, bubble, free; warm-up steps are marked."""
    steps = [step for step in entry.get("steps") or [] if step.get("step_time_us")]
    if not steps:
        return empty()
    names = [
        f"{'—' if step['step'] is None else step['step']}{' · ' + _('warm-up') if step.get('warmup') else ''}"
        for step in steps
    ]
    ms: Callable[[float | None], float | None] = lambda value: None if value is None else value / 1e3  # noqa: E731
    parts = [
        (_("Computing"), "compute", [ms(step.get("computing_us")) for step in steps]),
        (_("Exposed communication"), "comm", [ms(exposed_us(step)) for step in steps]),
        (_("Pipeline bubble"), "bubble", [ms(bubble_us(step)) for step in steps]),
        (_("Free"), "free", [ms(step.get("free_us")) for step in steps]),
    ]
    return _stacked(names, [part for part in parts if any(part[2])], across=_("Step"))


def steps_by_rank(dumps: Sequence[Dump], bubbles: Mapping[int, float]) -> Spec:
    """The mean step of each rank; past a thousand ranks only the first ones, since a screen has no more columns.
    `bubbles`: rank -> ns of its communication that is pipeline bubble."""
    rows = [dump for dump in dumps if dump.step_time_ns is not None][:MAX_RANK_BARS]
    if not rows:
        return empty()
    ms: Callable[[float | None], float | None] = lambda ns: None if ns is None else ns / 1e6  # noqa: E731
    exposed = [row.communication_not_overlapped_ns for row in rows]
    waits = [min(bubbles.get(row.rank, 0), ns or 0) for row, ns in zip(rows, exposed, strict=True)]
    talk = [None if ns is None else ns - wait for ns, wait in zip(exposed, waits, strict=True)]
    parts = [
        (_("Computing"), "compute", [ms(row.computing_ns) for row in rows]),
        (_("Exposed communication"), "comm", [ms(ns) for ns in talk]),
        *([(_("Pipeline bubble"), "bubble", [ms(ns) for ns in waits])] if any(waits) else []),
        (_("Free"), "free", [ms(row.free_ns) for row in rows]),
    ]
    return _stacked([str(row.rank) for row in rows], parts, len(rows) > 48, _("Rank"))


def compared_steps(names: Sequence[str], parts: Sequence[Sequence[Mapping[str, Any]]]) -> Spec:
    """The mean step of several captures beside each other; `parts` as report_rows.step_parts gives them."""
    if not any(parts):
        return empty()
    labels = (
        ("compute", _("Computing")),
        ("comm", _("Exposed communication")),
        ("bubble", _("Pipeline bubble")),
        ("free", _("Free")),
    )
    found = [{part["css"]: part["us"] / 1e3 for part in of} for of in parts]
    columns = [(label, css, [row.get(css) for row in found]) for css, label in labels]
    return _stacked(names, [column for column in columns if any(column[2])])


def waterfall_of(entry: Mapping[str, Any]) -> Spec:
    """From the ideal step to the real one: what each loss adds."""
    rows = waterfall(entry)
    if not rows:
        return empty()
    total = rows[-1]["us"] or 1
    chart = Bar().add_xaxis([row["name"] for row in rows])
    hidden = opts.ItemStyleOpts(color="transparent")
    label = opts.LabelOpts(is_show=False)
    chart.add_yaxis(
        "_start", [rounded(row["start"] / 1e3) for row in rows], stack="w", itemstyle_opts=hidden, label_opts=label
    )
    bars = [
        {
            "value": rounded(row["us"] / 1e3),
            "itemStyle": {"color": f"${row['css']}", "borderRadius": 3},
            "title": row["name"],
            "lines": [
                [_("Time"), metric_text(row["us"] * 1e3, "duration")],
                [_("Of the step"), f"{row['us'] / total:.1%}"],
            ],
        }
        for row in rows
    ]
    chart.add_yaxis(
        "",
        bars,
        stack="w",
        label_opts=opts.LabelOpts(position="top", formatter="@ms", color="$ink-2", text_border_width=0),
        bar_max_width=72,
    )
    axes(chart, "ms", legend=False)
    chart.options["tooltip"].opts["trigger"] = "item"
    chart.options["yAxis"][0]["splitLine"] = {"show": False}  # each bar tells its figure
    chart.options["grid"]["top"] = 24  # above the bars, which may reach the top
    labels = {"interval": 0, "width": 92, "fontSize": 11, "overflow": "break", "hideOverlap": False, "lineHeight": 14}
    chart.options["xAxis"][0]["axisLabel"] = labels
    table = [[row["name"], rounded(row["us"] / 1e3)] for row in rows]
    return spec(chart, "ms", ["", _("Time")], table)


HEAT = [f"$heat-{index}" for index in range(6)]
SPREAD = ["$c1", "$surface-2", "$c6"]
"""Colours of what lies below, at and above the middle."""


def layer_heat(entry: Mapping[str, Any], passes: Sequence[str] = (), relative: bool = False) -> Spec:
    """Layers down, blocks across, coloured by time or, `relative`, by percent above the block's median."""
    grid = layer_grid(entry, passes)
    if not grid["us"]:
        return empty(_("This dump does not tell its layers apart."))
    layers, blocks, cells = grid["layers"], grid["blocks"], grid["us"]
    typical = {block: median(us for (_layer, of), us in cells.items() if of == block) for block in blocks}
    data = []
    for (layer, block), value in cells.items():
        base = typical[block]
        shown = (value / base - 1) * 100 if relative and base else value / 1e3
        data.append([blocks.index(block), layers.index(layer), rounded(shown, 4)])
    values = sorted(row[2] for row in data)
    low, high = (-20, 20) if relative else (0, values[min(len(values) - 1, int(len(values) * 0.99))])
    unit = "percent" if relative else "ms"
    names = [block_name(block) for block in blocks]
    titles = [_("Layer %d") % layer for layer in layers]
    chart = heat_map(names, titles, data, (low, high), unit, SPREAD if relative else HEAT)
    chart.options["xAxis"][0]["axisLabel"] = {"rotate": 32, "interval": 0}
    rows = [
        [title, *(None if (us := cells.get((layer, block))) is None else rounded(us / 1e3) for block in blocks)]
        for layer, title in zip(layers, titles, strict=True)
    ]
    height = min(900, 130 + 16 * len(layers))
    return spec(
        chart,
        unit,
        [_("Layer"), *names],
        rows,
        grid=True,
        x=names,
        y=titles,
        across={"block": blocks},
        down={"layer": layers},
        height=max(280, height),
    )


def heat_map(
    columns: Sequence[str],
    lines: Sequence[str],
    cells: Sequence[Any],
    ends: tuple[float, float],
    unit: str,
    colours: Sequence[str],
) -> Chart:
    """Cells of [column, line, value], or dicts with one as "value", coloured between the `ends`."""
    chart = HeatMap().add_xaxis(list(columns)).add_yaxis("", list(lines), list(cells))
    chart.set_global_opts(legend_opts=opts.LegendOpts(is_show=False), tooltip_opts=opts.TooltipOpts(trigger="item"))
    chart.options.update(
        visualMap={"min": ends[0], "max": ends[1], "calculable": False, "orient": "horizontal", "right": 0, "top": 0,
                   "itemHeight": 120, "itemWidth": 10, "formatter": f"@{unit}", "inRange": {"color": list(colours)},
                   "textStyle": {"color": "$ink-3", "fontSize": 11}},
        grid={"left": 8, "right": 8, "top": 34, "bottom": 4, "containLabel": True},
    )  # fmt: skip
    bare = {"type": "category", "splitLine": {"show": False}}
    chart.options["xAxis"] = [{**bare, "data": list(columns)}]
    chart.options["yAxis"] = [{**bare, "data": list(lines), "inverse": True}]
    chart.options["series"][0].update(
        data=list(cells), label={"show": False},
        itemStyle={"borderColor": "$surface", "borderWidth": 1.5, "borderRadius": 3},
        emphasis={"itemStyle": {"borderColor": "$ink", "borderWidth": 2}},
    )  # fmt: skip
    return chart


def step_series(
    series: Mapping[str, Sequence[tuple[int, float | None]]],
    unit: str,
    scale: float,
    marks: Sequence[tuple[int, int, str]] = (),
    warmup: int | None = None,
) -> Spec:
    """Values by step, a line for each name.

    `marks`: profiled windows (first, last, name) to shade; `warmup`: the first judged step, shaded up to there.
    """
    if not any(value is not None for points in series.values() for _step, value in points):
        return empty()
    chart = Line()
    rows = []
    for index, (name, points) in enumerate(series.items()):
        data = _points(points, scale)
        rows += [[f"{name} · {step}" if len(series) > 1 else step, value] for step, value in data]
        chart.add_xaxis([row[0] for row in data]).add_yaxis(
            name, data, is_symbol_show=len(data) == 1, is_connect_nones=False, label_opts=opts.LabelOpts(is_show=False),
            linestyle_opts=opts.LineStyleOpts(width=1.7, color=f"$c{index % 8 + 1}"),
            itemstyle_opts=opts.ItemStyleOpts(color=f"$c{index % 8 + 1}"),
        )  # fmt: skip
    axes(chart, unit, legend=len(series) > 1, zoom=False, scale=True)
    chart.options["xAxis"] = [
        {
            "type": "value",
            **_step_span(series.values()),
            "splitLine": {"show": False},
            "axisLabel": {"formatter": "@plain"},
        }
    ]
    name_across(chart, _("Step"))
    chart.options["dataZoom"] = [{"type": "inside", "filterMode": "none"}]
    chart.options["tooltip"].opts["axisPointer"] = {"type": "line"}
    for line, points in zip(chart.options["series"], series.values(), strict=True):
        line["data"] = _points(points, scale)  # pyecharts would pair each x with the pair
    first = chart.options["series"][0]
    if warmup is not None:
        _cut_warmup(chart, next(iter(series.values())), warmup, scale)
    areas = [
        [
            {"xAxis": start, "name": name, "itemStyle": {"color": "$accent", "opacity": 0.16}},
            {"xAxis": max(end, start + 1)},
        ]
        for start, end, name in marks[:40]
    ]
    if warmup is not None:
        areas.append(
            [
                {
                    "xAxis": "min",
                    "name": _("warm-up"),
                    "label": {"align": "left"},
                    "itemStyle": {"color": "$free", "opacity": 0.18},
                },
                {"xAxis": warmup},
            ]
        )
    if areas:
        chart.options["grid"]["top"] = 38 if len(series) > 1 else 24
        first["markArea"] = {
            "silent": True,
            "label": {"show": len(areas) < 4, "fontSize": 10, "color": "$ink-3"},
            "data": areas,
        }
    return spec(chart, unit, [_("Step"), next(iter(series)) if len(series) == 1 else _("Value")], rows[:1500])


def _step_span(lines: Iterable[Sequence[tuple[int, float | None]]]) -> dict[str, Any]:
    """Ends of the axis of steps; a single step stands in its middle."""
    steps = {step for points in lines for step, _value in points}
    if len(steps) == 1:
        (only,) = steps
        return {"min": only - 1, "max": only + 1, "interval": 1}
    return {"min": "dataMin", "max": "dataMax"}


def with_band(drawn: Spec, tolerance: float) -> Spec:
    """The step series with a band of `tolerance` (a share of the value) around its first line."""
    series = drawn.get("options", {}).get("series") or []
    if len(series) < 2:
        return drawn
    first = [(step, value) for step, value in series[0]["data"] if value is not None]
    quiet = {"type": "line", "stack": "band", "symbol": "none", "silent": True, "lineStyle": {"opacity": 0},
             "tooltip": {"show": False}}  # fmt: skip
    low = [[step, rounded(value - abs(value) * tolerance)] for step, value in first]
    wide = [[step, rounded(2 * abs(value) * tolerance)] for step, value in first]
    area = {"color": "$c1", "opacity": 0.18}
    series += [{**quiet, "name": "_low", "data": low}, {**quiet, "name": "_band", "data": wide, "areaStyle": area}]
    for legend in drawn["options"].get("legend") or []:
        legend["data"] = [line["name"] for line in series if not line["name"].startswith("_")]
    return drawn


def compared_layers(names: Sequence[str], layers: Sequence[Mapping[int, float]]) -> Spec:
    """Time of each layer, a line for each capture."""
    order = sorted({layer for table in layers for layer in table})
    if len([table for table in layers if table]) < 2:
        return empty(_("These dumps do not tell their layers apart."))
    labels = [_("Layer %d") % layer for layer in order]
    chart = Line().add_xaxis(labels)
    columns = [
        (name, [rounded(_in_ms(table.get(layer))) for layer in order])
        for name, table in zip(names, layers, strict=True)
    ]
    for index, (name, values) in enumerate(columns):
        if all(value is None for value in values):
            continue
        chart.add_yaxis(
            name, values, symbol="circle", symbol_size=6, label_opts=opts.LabelOpts(is_show=False),
            linestyle_opts=opts.LineStyleOpts(width=1.8, color=f"$c{index % 8 + 1}"),
            itemstyle_opts=opts.ItemStyleOpts(color=f"$c{index % 8 + 1}"),
        )  # fmt: skip
    axes(chart, "ms", scale=True)
    chart.options["tooltip"].opts["axisPointer"] = {"type": "line"}
    rows = [[label, *(values[index] for _name, values in columns)] for index, label in enumerate(labels)]
    return spec(chart, "ms", [_("Layer"), *names], rows)


def _in_ms(us: float | None) -> float | None:
    return None if us is None else us / 1e3


def _cut_warmup(chart: Chart, points: Sequence[tuple[int, float | None]], warmup: int, scale: float) -> None:
    """Let the axis end above the judged steps: compile takes a hundred times as long and would flatten them."""
    judged = [value for step, value in points if value is not None and step >= warmup]
    highest = max(value for _step, value in points if value is not None)
    if judged and highest > 2 * max(judged):
        chart.options["yAxis"][0]["max"] = rounded(max(judged) * scale * 1.2, 2)


def _points(points: Sequence[tuple[int, float | None]], scale: float) -> list[list[float | None]]:
    return [[step, rounded(None if value is None else value * scale, 6)] for step, value in points]
