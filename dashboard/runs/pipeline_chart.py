"""The pipeline over time: the stages of one step beside each other, with the micro-batch each of them is at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from pyecharts.charts import Custom

from dashboard.runs.charts import Spec, axes, empty, rounded, spec
from dashboard.runs.models import Capture, Dump, DumpState
from dashboard.runs.templatetags.units import metric_text, percent_text
from dashboard.runs.templatetags.words import pass_name

ROW_PX = 38
UNTOLD = gettext_noop(
    "When the stages passed which micro-batch is not known: it takes kernel_details.csv and communication.json "
    "(profiler_level=Level1) of this rank, analysed by this version."
)
MOST_STAGES = 64
CLOCK_SLIP = 0.02
"""Of the step. Less may be kernels that a pass begins with and that need nothing from the stage before."""
WAYS = (("forward", "$c1"), ("backward", "$c3"))
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """A line of the chart. `number` is None where the rank's stage is not known; `begin_ms` of its step on the axis."""

    number: int | None
    rank: int
    schedule: Json
    begin_ms: float = 0.0

    @property
    def name(self) -> str:
        if self.number is None:
            return _("rank %(rank)s") % {"rank": self.rank}
        return _("Stage %(stage)d · rank %(rank)d") % {"stage": self.number, "rank": self.rank}


def sizes(capture: Capture) -> tuple[int, int] | None:
    """(stages, ranks of a stage) of the job, None where they are not known."""
    report = capture.report or {}
    told = ((report.get("source") or {}).get("parallel") or {}).get("pp") or (report.get("config") or {}).get("pp")
    count, world = told or capture.run.pp, capture.world_size
    return (count, world // count) if count and count > 1 and world and world % count == 0 else None


def ranks_of_pipeline(capture: Capture, rank: int) -> dict[int, int]:
    """Stage -> the rank that stands for it: the one through which the micro-batches of `rank` go, else the stage's
    first that is there. Stages are blocks of consecutive ranks."""
    known = sizes(capture)
    if known is None:
        return {}
    count, width = known
    there = sorted(capture.dumps.filter(state=DumpState.DIGESTED).values_list("rank", flat=True))
    first: dict[int, int] = {}
    for one in reversed(there):
        first[one // width] = one
    own = {stage: rank % width + stage * width for stage in range(count)}
    present = set(there)
    chosen = {stage: own[stage] if own[stage] in present else first.get(stage) for stage in range(count)}
    return {stage: one for stage, one in chosen.items() if one is not None}


def stages(capture: Capture, rank: int) -> list[Stage]:
    """The stages whose passes are known, in order."""
    chosen: list[tuple[int | None, int]] = [*ranks_of_pipeline(capture, rank).items()] or [(None, rank)]
    ranks = [one for _stage, one in chosen]
    schedules = dict(Dump.objects.filter(capture=capture, rank__in=ranks).values_list("rank", "entry__schedule"))
    found = [(stage, one, schedules.get(one)) for stage, one in chosen[:MOST_STAGES]]
    return [Stage(stage, one, schedule) for stage, one, schedule in found if schedule and schedule.get("passes")]


def placed(rows: Sequence[Stage]) -> tuple[list[Stage], bool]:
    """The rows on one axis in ms, and whether their clocks agree: steps that never overlap are of hosts whose clocks
    differ, or are different steps. Each of those begins at 0."""
    begins = [row.schedule["begin_ns"] for row in rows]
    ends = [row.schedule["begin_ns"] + row.schedule["length_us"] * 1e3 for row in rows]
    agree = bool(rows) and max(begins) < min(ends)
    first = min(begins, default=0)
    at = [(begin - first) / 1e6 if agree else 0.0 for begin in begins]
    return [Stage(row.number, row.rank, row.schedule, begin) for row, begin in zip(rows, at, strict=True)], agree


def theory_ms(rows: Sequence[Stage], count: int | None, bubble: float | None) -> float | None:
    """Where the last pass would end if transfers took no time, counted from the first pass. Of all `count` stages their
    own passes tell it; where some are missing, all are taken to work as long as the longest known: work / (1 - the
    schedule's own `bubble`)."""
    from analysis.schedule import ideal_end_us

    if not rows:
        return None
    begin = min(row.begin_ms + _column(row, "start_us")[0] / 1e3 for row in rows)
    if len(rows) == count:
        end = ideal_end_us([row.schedule["passes"] for row in rows])
        return None if end is None else begin + end / 1e3
    if bubble is None or bubble >= 1:
        return None
    work = max(
        sum(end - start for start, end in zip(_column(row, "start_us"), _column(row, "end_us"), strict=True))
        for row in rows
    )
    return float(begin + work / 1e3 / (1 - bubble))


def _column(row: Stage, name: str) -> list[Any]:
    return list(row.schedule["passes"][name])


def chart(capture: Capture, rank: int | None) -> Spec:
    """A line for each stage: passes by direction with their micro-batch, waits as bubble, the end in theory."""
    rows, agree = placed(stages(capture, rank)) if rank is not None else ([], False)
    if not rows:
        return empty(_(UNTOLD))
    drawn = Custom()
    drawn.options.update(xAxis=[{}], yAxis=[{}])
    names = [row.name for row in rows]
    links = [reverse("runs:step", args=[capture.pk, row.rank]) for row in rows]
    series = [
        _series(pass_name(way), colour, [box for line in range(len(rows)) for box in _passes(rows, line, way, links)])
        for way, colour in WAYS
    ]
    waits = [box for line in range(len(rows)) for box in _waits(rows, line, links)]
    series.append(_series(_("Pipeline bubble"), "$bubble", waits, opacity=0.45))
    bubble = (((capture.report or {}).get("cluster") or {}).get("bubble") or {}).get("theory")
    known = sizes(capture)
    end = theory_ms(rows, known[0] if known else None, bubble)
    if end is not None:
        series[0]["markLine"] = _mark(end)
    axes(drawn, "ms")
    drawn.options["series"] = series
    drawn.options["legend"] = [{"data": [of["name"] for of in series if of["data"]]}]
    drawn.options["tooltip"].opts["trigger"] = "item"
    _set_axes(drawn.options, names, max([*(_end_ms(row) for row in rows), end or 0.0]))
    note = _doubt(rows, agree, known[0] if known else None)
    if note:
        drawn.options["title"] = [{"text": note, "right": 0, "top": 2, "textStyle": {"fontSize": 11, "color": "$warn"}}]
    table = [box["row"] for of in series for box in of["data"]]
    for of in series:
        of["data"] = [{key: value for key, value in box.items() if key != "row"} for box in of["data"]]
    columns = [_("Stage"), _("Pass"), _("Micro-batch"), _("Start"), _("End")]
    return spec(drawn, "ms", columns, table, height=120 + ROW_PX * len(rows)) | {
        "table": {"columns": columns, "rows": table, "formats": ["", "", "plain", "ms", "ms"]}
    }


def _doubt(rows: Sequence[Stage], agree: bool, count: int | None) -> str:
    """What is to be known of the clocks that place the stages; empty where they fit."""
    if len(rows) < 2:
        return ""
    if not agree:
        return _("clocks or steps differ: each stage begins at 0")
    if len(rows) != count:
        return ""
    from analysis.schedule import slip_us

    slip = slip_us([row.schedule["passes"] for row in rows], [row.begin_ms * 1e3 for row in rows])
    if slip <= CLOCK_SLIP * max(row.schedule["length_us"] for row in rows):
        return ""
    return _("clocks of the hosts differ: a pass begins %(time)s before what it needs has ended") % {"time": _us(slip)}


def _set_axes(options: dict[str, Any], names: Sequence[str], last: float) -> None:
    value = {"type": "value", "min": 0, "max": rounded(last), "splitLine": {"show": False}}
    options["xAxis"] = [{**value, "axisLabel": {"formatter": "@ms_axis", "alignMaxLabel": "right"}}]
    options["yAxis"] = [{"type": "category", "data": list(names), "inverse": True, "splitLine": {"show": False}}]
    slider = {"type": "slider", "height": 14, "bottom": 4, "showDataShadow": False, "brushSelect": False}
    options["dataZoom"] = [{**slider, "filterMode": "none"}, {"type": "inside", "filterMode": "none"}]
    options["grid"].update(top=50, bottom=30)


def _end_ms(row: Stage) -> float:
    return float(row.begin_ms + row.schedule["length_us"] / 1e3)


def _series(name: str, colour: str, data: list[dict[str, Any]], opacity: float = 1.0) -> dict[str, Any]:
    style = {"color": colour, "opacity": opacity}
    encode = {"x": [1, 2], "y": 0}
    return {"type": "custom", "name": name, "renderItem": "@span", "encode": encode, "itemStyle": style, "data": data}


def _mark(at: float) -> dict[str, Any]:
    label = {"formatter": _("end in theory"), "color": "$ink-3", "position": "start", "align": "right"}
    line = {"color": "$ink-3", "type": [4, 4]}
    return {"symbol": "none", "silent": True, "lineStyle": line, "label": label, "data": [{"xAxis": rounded(at)}]}


def _passes(rows: Sequence[Stage], line: int, way: str, links: Sequence[str]) -> list[dict[str, Any]]:
    row = rows[line]
    keys = ("pass", "micro_batch", "chunk", "start_us", "end_us", "computing_us")
    found = []
    for pass_, batch, chunk, start, end, computing in zip(*(_column(row, key) for key in keys), strict=True):
        if pass_ != way:
            continue
        said = _("micro-batch %d") % batch + (f" · {_('chunk %d') % chunk}" if chunk is not None else "")
        told = [[_("Time"), _us(end - start)], [_("Computing"), _us(computing)]]
        box = _box(row, line, links[line], start, end, f"{row.name} · {pass_name(way)} · {said}", told)
        box["value"].append(batch)
        box["row"] = [row.name, pass_name(way), batch, *box["value"][1:3]]
        found.append(box)
    return found


def _waits(rows: Sequence[Stage], line: int, links: Sequence[str]) -> list[dict[str, Any]]:
    row, waits = rows[line], rows[line].schedule.get("waits") or {}
    found = []
    for start, end in zip(waits.get("start_us") or (), waits.get("end_us") or (), strict=True):
        share = (end - start) / (row.schedule["length_us"] or 1)
        told = [[_("Time"), _us(end - start)], [_("Of the step"), percent_text(share)]]
        box = _box(row, line, links[line], start, end, f"{row.name} · {_('Pipeline bubble')}", told)
        box["row"] = [row.name, _("Pipeline bubble"), None, *box["value"][1:3]]
        found.append(box)
    return found


def _box(row: Stage, line: int, link: str, start: float, end: float, title: str, lines: list[Any]) -> dict[str, Any]:
    """A box of the chart; it leads to the timeline of its rank at its time, with some of what is around it."""
    around = (end - start) * 0.2
    offset = row.schedule.get("offset_us") or 0.0
    first, last = (round((offset + at) * 1e3) for at in (start - around, end + around))
    value = [line, rounded(row.begin_ms + start / 1e3, 8), rounded(row.begin_ms + end / 1e3, 8)]
    return {"value": value, "title": title, "lines": lines, "url": f"{link}#t={max(0, first)}_{last}"}


def _us(us: float) -> str:
    return str(metric_text(us * 1e3, "duration"))
