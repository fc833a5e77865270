"""Operators against the roof of the chip: what they compute for each byte they move, and how fast. From one rank's
kernels; rows for a chart, no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, prod
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.utils.translation import gettext as _
from pyecharts import options as opts
from pyecharts.charts import Scatter

from dashboard.runs.charts import Spec, axes, empty, rounded, spec
from dashboard.runs.frames import frames_path
from dashboard.runs.operator_rows import judged
from dashboard.runs.templatetags.units import metric_text, number_text, percent_text
from dashboard.runs.templatetags.words import bound_name, operands

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import polars as pl

KEYS = ("type", "input_shapes", "input_dtypes", "output_shapes", "output_dtypes")
BYTES_OF = {
    "DOUBLE": 8, "INT64": 8, "UINT64": 8, "COMPLEX64": 8, "FLOAT": 4, "FLOAT32": 4, "INT32": 4, "UINT32": 4,
    "FLOAT16": 2, "BF16": 2, "BFLOAT16": 2, "INT16": 2, "UINT16": 2, "INT8": 1, "UINT8": 1, "BOOL": 1, "HIFLOAT8": 1,
    "FLOAT8_E4M3FN": 1, "FLOAT8_E5M2": 1,
}  # fmt: skip
SHOWN = 80


LEAST_SHARE = 0.005
"""Of the compute time: what takes less may owe its memory rate to a cache."""


@dataclass(frozen=True)
class Roofline:
    """`rows`: operators whose FLOPs and bytes are known, the longest first; `fastest_gbps`: the memory rate that the
    fastest operator of any kind reached, None where none tells its operands."""

    rows: list[dict[str, Any]]
    fastest_gbps: float | None


def operators(frames: str, entry: Mapping[str, Any]) -> Roofline:
    """The judged steps' kernels grouped by type, shapes and dtypes: `intensity` in FLOPs a byte, `tflops`, `gbps` and
    what binds them. Empty where no kernels are kept."""
    from analysis.store import scan

    try:
        groups = _grouped(judged(scan(frames_path(frames), "kernels"), entry))
    except FileNotFoundError:
        return Roofline([], None)
    rates = [row["gbps"] for row in groups if row["gbps"] is not None and row["share"] >= LEAST_SHARE]
    placed = [row for row in groups if row["intensity"] is not None and row["tflops"]]
    return Roofline(placed[:SHOWN], max((*rates, *(row["gbps"] for row in placed)), default=None))


def _grouped(frame: pl.LazyFrame) -> list[dict[str, Any]]:
    import polars as pl

    from analysis.facts.cores import told_use, use_of

    columns = frame.collect_schema().names()
    if "flops" not in columns:
        return []
    time = pl.col("duration_ns")
    known = frame.filter((pl.col("kind") == "compute") & (time > 0))
    total = known.select(time.sum()).collect().item() or 1
    sums = [pl.len().alias("count"), time.sum().alias("ns"), pl.col("flops").sum().alias("flops")]
    groups = known.group_by(KEYS).agg(*sums, *use_of(columns)).sort("ns", descending=True)
    rows = []
    for row in groups.head(4 * SHOWN).collect().iter_rows(named=True):
        moved = moved_bytes(row)
        rows.append(
            {
                **{key: row[key] for key in (*KEYS, "count", "ns")},
                **told_use(row),
                "share": row["ns"] / total,
                "intensity": row["flops"] / row["count"] / moved if moved and row["flops"] else None,
                "gbps": moved * row["count"] / row["ns"] if moved else None,
            }
        )
    return rows


def moved_bytes(row: Mapping[str, Any]) -> int | None:
    """Bytes of a kernel's operands, each read or written once; None when a shape or dtype is not told."""
    from analysis.shapes import parse_shapes

    found = 0
    for side in ("input", "output"):
        shapes = parse_shapes(row[f"{side}_shapes"])
        dtypes = [name.strip().removeprefix("DT_") for name in (row[f"{side}_dtypes"] or "").split(";")]
        if not shapes or len(dtypes) < len(shapes):
            return None
        for shape, dtype in zip(shapes, dtypes, strict=False):
            if not shape:  # an operand that was left out
                continue
            if dtype not in BYTES_OF or min(shape) < 0:
                return None
            found += prod(shape) * BYTES_OF[dtype]
    return found or None


COLOURS = {"mac": "$c1", "memory": "$c2", "vec": "$c5"}
LEAST_PX, MOST_PX = 7, 40


def chart(found: Roofline, peak_tflops: float | None, link: str) -> Spec:
    """Each operator as a circle as large as its time; the roof is the chip's peak and the fastest memory rate here.

    `link`: the address that lists kernels, to which the type is added.
    """
    rows = found.rows
    if not rows or found.fastest_gbps is None:
        return empty(_("No operator tells its FLOPs and operands: profile with Level1 or higher."))
    drawn = Scatter()
    bounds = list(dict.fromkeys(row["bound"] for row in sorted(rows, key=lambda row: str(row["bound"]))))
    for bound in bounds:
        points = [_point(row, peak_tflops, link) for row in rows if row["bound"] == bound]
        colour = COLOURS.get(bound or "", "$c8")
        drawn.add_xaxis([]).add_yaxis(
            _bound_text(bound), [], label_opts=opts.LabelOpts(is_show=False),
            itemstyle_opts=opts.ItemStyleOpts(color=colour, opacity=0.72, border_color="$surface"),
        )  # fmt: skip
        drawn.options["series"][-1].update(data=points)
    axes(drawn, "number")
    drawn.options["tooltip"].opts["trigger"] = "item"
    fastest = found.fastest_gbps / 1e3  # TB/s: TFLOPS for each FLOP a byte
    ridge = [peak_tflops / fastest] if peak_tflops else []
    across = _doubling([*(row["intensity"] for row in rows), *ridge])
    up = _doubling([*(row["tflops"] for row in rows), *([peak_tflops] if peak_tflops else [])])
    drawn.options["xAxis"] = [{**across, "name": _("FLOPs a byte"), "nameGap": 26}]
    drawn.options["yAxis"] = [{**up, "name": "TFLOPS", "nameGap": 44}]
    drawn.options["grid"].update(left=34, right=30, bottom=28)
    drawn.options["series"].append(_roof_line(_roof(across["min"], across["max"], fastest, peak_tflops)))
    drawn.options["legend"][0]["data"] = [series["name"] for series in drawn.options["series"]]
    table = [
        [f"{row['type']} {operands(row['input_shapes'])}", *(row[key] for key in ("intensity", "tflops", "gbps"))]
        for row in rows
    ]
    columns = [_("Operators"), _("FLOPs a byte"), "TFLOPS", "GB/s"]
    return spec(drawn, "number", columns, [[row[0], *map(rounded, row[1:])] for row in table])


def _bound_text(bound: str | None) -> str:
    if not bound:
        return _("bound not known")
    return _("no unit busy") if bound == "none" else _("bound by %(unit)s") % {"unit": bound_name(bound)}


ROOM = 1.3


def _doubling(values: Sequence[float]) -> dict[str, Any]:
    """An axis whose ticks are powers of two, with room below the least value and above the largest."""
    low, high = 2.0 ** floor(log2(min(values) / ROOM)), 2.0 ** ceil(log2(max(values) * ROOM))
    shown = {"type": "log", "logBase": 2, "min": low, "max": high}
    return {**shown, "nameLocation": "middle", "splitLine": {"show": False}, "axisLabel": {"formatter": "@number"}}


def _point(row: Mapping[str, Any], peak: float | None, link: str) -> dict[str, Any]:
    of_peak = f" ({percent_text(row['tflops'] / peak)})" if peak else ""
    lines = [
        [_("Time"), f"{metric_text(row['ns'], 'duration')} · {percent_text(row['share'])}"],
        [_("Count"), number_text(row["count"])],
        ["TFLOPS", f"{number_text(row['tflops'])}{of_peak}"],
        [_("FLOPs a byte"), number_text(row["intensity"])],
        ["GB/s", number_text(row["gbps"])],
    ]
    return {
        "value": [rounded(row["intensity"]), rounded(row["tflops"])],
        "symbolSize": round(LEAST_PX + (MOST_PX - LEAST_PX) * float(row["share"]) ** 0.5, 1),
        "title": f"{row['type']} · {operands(row['input_shapes'])}",
        "lines": lines,
        "url": f"{link}?{urlencode({'type': row['type']})}#kernels",
    }


def _roof(low: float, high: float, fastest: float, peak: float | None) -> list[list[float]]:
    """Corners of the roof from `low` to `high` FLOPs a byte: along the fastest memory rate in TB/s, then along the peak
    where it is known."""
    if peak is None:
        return [[low, low * fastest], [high, high * fastest]]
    return [[low, min(low * fastest, peak)], [peak / fastest, peak], [high, peak]]


def _roof_line(roof: Sequence[Sequence[float]]) -> dict[str, Any]:
    return {
        "type": "line", "name": _("roof: peak, and fastest memory rate here"), "silent": True, "symbol": "none",
        "data": [[rounded(at), rounded(level)] for at, level in roof], "tooltip": {"show": False},
        "lineStyle": {"color": "$ink-3", "width": 1.5, "type": [5, 4]}, "itemStyle": {"color": "$ink-3"},
    }  # fmt: skip
