"""Charts of the capture page that need more than one rank's steps: memory, links, stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2
from typing import Any

from django.utils.translation import gettext as _
from pyecharts import options as opts
from pyecharts.charts import Bar, HeatMap, Line

from dashboard.runs.charts import HEAT, Spec, axes, empty, rounded, spec
from dashboard.runs.cluster_rows import link_matrix
from dashboard.runs.templatetags.units import bytes_text, metric_text, significant

SIDE_PX = 26
CALM = 0.5
"""Colours span at least the upper half of the values, so that equal links look equal."""
MATRIX_UNITS = {"bandwidth": "gbps", "size": "bytes", "time": "ms"}


def memory(curve: Mapping[str, Any] | None) -> Spec:
    """Allocated and reserved memory over time, with its peaks marked."""
    if curve is None:
        return empty(_("No memory was recorded. Profile with profile_memory=True."))
    chart = Line()
    series = ((_("Allocated"), 1, "$c1"), (_("Reserved"), 2, "$c2"))
    known = [row for row in series if any(point[row[1]] is not None for point in curve["points"])]
    for name, column, colour in known:
        data = [[rounded(point[0], 7), point[column]] for point in curve["points"] if point[column] is not None]
        chart.add_xaxis([row[0] for row in data]).add_yaxis(
            name, data, is_symbol_show=False, is_step=True, label_opts=opts.LabelOpts(is_show=False),
            linestyle_opts=opts.LineStyleOpts(width=1.6, color=colour),
            itemstyle_opts=opts.ItemStyleOpts(color=colour),
        )  # fmt: skip
        at, peak = max(data, key=lambda row: row[1])
        place = (at - data[0][0]) / (data[-1][0] - data[0][0] or 1)
        mark = _peak(at, peak, colour, place, below=column == 1 and len(known) > 1)
        chart.options["series"][-1].update(data=data, step="end", markPoint=mark)
    axes(chart, "bytes")
    chart.options["yAxis"][0].update(_byte_ticks(max(point[row[1]] or 0 for row in known for point in curve["points"])))
    value = {"type": "value", "min": "dataMin", "max": "dataMax", "splitLine": {"show": False}}
    chart.options["xAxis"] = [{**value, "axisLabel": {"formatter": "@ms"}}]
    chart.options["tooltip"].opts["axisPointer"] = {"type": "line"}
    chart.options["grid"].update(top=46, right=42)
    rows = [[metric_text(at * 1e6, "duration"), *values] for at, *values in curve["points"][::10]]
    return spec(chart, "bytes", [_("Time"), _("Allocated"), _("Reserved")], rows)


def _byte_ticks(most: float) -> dict[str, float]:
    """An axis whose ticks are powers of two: 8, 16, 24 GiB instead of 9.31, 18.6, 27.9."""
    step = 2.0 ** ceil(log2(max(most, 4) / 4))
    return {"min": 0, "max": step * ceil(most / step), "interval": step}


def _peak(at: float, value: float, colour: str, place: float, below: bool) -> dict[str, Any]:
    """`place`: where in the curve the peak is, 0 to 1; at its ends the label stands inwards. `below`: not above it,
    where another curve runs."""
    side = "right" if place < 0.06 else "left" if place > 0.94 else "bottom" if below else "top"
    text: dict[str, Any] = {"formatter": bytes_text(value), "color": "$ink-2", "fontSize": 11}
    text |= {"backgroundColor": "$surface", "padding": [1, 3], "borderRadius": 3}  # over the other curve
    label = {
        "show": True,
        "position": side,
        "offset": [0, 0] if side in ("top", "bottom") else [0, 9 if below else -9],
        **text,
    }
    point = {"coord": [at, value], "symbol": "circle", "symbolSize": 8, "label": label, "itemStyle": {"color": colour}}
    return {"data": [point], "silent": True}


def links(rows: Sequence[Mapping[str, Any]], value: str) -> Spec:
    """Who sends to whom: bandwidth, bytes or time of each pair of ranks (of blocks of ranks where there are many)."""
    value = value if value in MATRIX_UNITS else "bandwidth"
    matrix = link_matrix(rows, value)
    if not matrix["cells"]:
        return empty(_("No links were recorded: they come from communication_matrix.json (profiler_level=Level1)."))
    names, unit = matrix["names"], MATRIX_UNITS[value]
    scale = 1e-3 if value == "time" else 1
    data = [[column, row, rounded(shown * scale, 4)] for column, row, shown in matrix["cells"]]
    known = sorted(cell[2] for cell in data)
    chart = HeatMap().add_xaxis(names).add_yaxis("", names, data)
    chart.set_global_opts(legend_opts=opts.LegendOpts(is_show=False), tooltip_opts=opts.TooltipOpts(trigger="item"))
    colours = HEAT if value != "bandwidth" else HEAT[::-1]  # a slow link is what one looks for
    chart.options.update(
        visualMap={"min": min(known[0], known[-1] * CALM), "max": known[-1] or 1, "calculable": False,
                   "orient": "horizontal", "right": 0, "top": 0, "itemHeight": 120, "itemWidth": 10,
                   "formatter": f"@{unit}", "inRange": {"color": colours},
                   "textStyle": {"color": "$ink-3", "fontSize": 11}},
        grid={"left": 24, "right": 8, "top": 58, "bottom": 4, "containLabel": True},
    )  # fmt: skip
    name = {"nameLocation": "middle", "splitLine": {"show": False}}
    chart.options["xAxis"] = [
        {"type": "category", "data": names, "position": "top", "name": _("to rank"), "nameGap": 22, **name}
    ]
    gap = 18 + 7 * max(map(len, names))  # beside the longest name
    chart.options["yAxis"] = [
        {"type": "category", "data": names, "inverse": True, "name": _("from rank"), "nameGap": gap, **name}
    ]
    chart.options["series"][0].update(
        data=_readable(data, bright_first=value != "bandwidth"),
        label={"show": len(names) <= 8, "formatter": f"@{unit}", "fontSize": 11, "color": "$ink"},
        itemStyle={"borderColor": "$surface", "borderWidth": 1, "borderRadius": 2},
    )  # fmt: skip
    table = [[f"{names[row]} → {names[column]}", shown] for column, row, shown in data]
    titles = {"bandwidth": _("Bandwidth"), "size": _("Size"), "time": _("Transit time")}
    height = min(620, max(240, 90 + SIDE_PX * len(names)))
    return spec(chart, unit, [_("From → to"), titles[value]], table[:2000], grid=True, arrow=True, x=names, y=names,
                height=height)  # fmt: skip


def _readable(cells: Sequence[Sequence[Any]], bright_first: bool) -> list[dict[str, Any]]:
    """Cells whose label stands out from their colour: the far half of the scale is dark in the light theme."""
    values = [cell[2] for cell in cells]
    low = min(*values, max(values) * CALM)
    middle = (low + max(values)) / 2
    return [
        {"value": cell, "label": {"color": "$surface"}} if (cell[2] > middle) == bright_first else {"value": cell}
        for cell in cells
    ]


def stages(rows: Sequence[Mapping[str, Any]]) -> Spec:
    """Computing time of each pipeline stage, with their mean as a line: who is above it makes the others wait."""
    known = [row for row in rows if row.get("computing_us") is not None]
    if len(known) < 2:
        return empty()
    values = [row["computing_us"] / 1e3 for row in known]
    typical = sum(values) / len(values)
    names = [_("Stage %d") % row["stage"] for row in known]
    chart = Bar().add_xaxis(names)
    bars = [
        {
            "value": rounded(value),
            "title": name,
            "lines": [
                [_("Computing"), metric_text(value * 1e6, "duration")],
                [_("Against the mean"), f"{value / typical - 1:+.1%}"],
                [_("Ranks"), significant(float(row.get("ranks") or 0))],
            ],
        }
        for name, value, row in zip(names, values, known, strict=True)
    ]
    chart.add_yaxis(_("Computing"), bars, itemstyle_opts=opts.ItemStyleOpts(color="$compute"), bar_max_width=56,
                    label_opts=opts.LabelOpts(is_show=False))  # fmt: skip
    axes(chart, "ms", legend=False)
    chart.options["tooltip"].opts["trigger"] = "item"
    chart.options["series"][0]["markLine"] = {
        "symbol": "none", "silent": True, "lineStyle": {"color": "$ink-3", "type": [4, 4]},
        "label": {"formatter": _("mean"), "color": "$ink-3", "position": "insideEndTop"},
        "data": [{"yAxis": rounded(typical)}],
    }  # fmt: skip
    rows_ = [[name, rounded(value)] for name, value in zip(names, values, strict=True)]
    return spec(chart, "ms", [_("Stage"), _("Computing")], rows_)
