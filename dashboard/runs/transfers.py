"""How large one rank's transfers are, and how fast those of each size: small ones never reach the link's speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from pyecharts import options as opts
from pyecharts.charts import Bar

from dashboard.runs.charts import Spec, axes, empty, rounded, spec
from dashboard.runs.frames import frames_path
from dashboard.runs.operator_rows import judged
from dashboard.runs.templatetags.units import bytes_text, metric_text, number_text

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import polars as pl

EDGES = (0, 1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
"""Sizes, in bytes, at which the classes begin: 4 and 64 KiB, then 1, 4, 16, 64 and 256 MiB."""
LINK_COLOURS = {"HCCS": "$comm", "RDMA": "$c3", "SDMA": "$c1", "PCIE": "$c4", "SIO": "$c5"}


def size_classes(frames: str, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Transfers of the judged steps by link and size class: count, elapsed and transit ns, bytes; the smallest first.

    Those of unknown size are left out. [] where no communication is kept.
    """
    from analysis.store import scan

    try:
        return _classes(judged(scan(frames_path(frames), "communication"), entry))
    except FileNotFoundError:
        return []


def _classes(frame: pl.LazyFrame) -> list[dict[str, Any]]:
    import polars as pl

    size = pl.col("size_bytes")
    place = pl.sum_horizontal((size >= edge).cast(pl.Int64) for edge in EDGES[1:]).alias("place")
    sums = [pl.len().alias("count"), *(pl.col(name).sum() for name in ("elapse_ns", "transit_ns", "size_bytes"))]
    # Speed is of those whose transit is known alone.
    sums.append(pl.when(pl.col("transit_ns") > 0).then(size).sum().alias("timed_bytes"))
    known = frame.filter(size > 0).with_columns(place)
    return known.group_by("link", "place").agg(*sums).sort("place", "link").collect().to_dicts()


def class_name(place: int) -> str:
    """A size class in words: "< 4 KiB", "1-4 MiB", "≥ 256 MiB"."""
    if place == 0:
        return f"< {_plain(EDGES[1])}"
    if place == len(EDGES) - 1:
        return f"≥ {_plain(EDGES[-1])}"
    return f"{_plain(EDGES[place])} – {_plain(EDGES[place + 1])}"


def _plain(size: int) -> str:
    unit, power = ("MiB", 20) if size >= 1 << 20 else ("KiB", 10)
    return f"{size >> power}\u202f{unit}"


def chart(rows: Sequence[Mapping[str, Any]]) -> Spec:
    """Time of each size class, a bar for each link, and the speed that its transfers reached."""
    if not rows:
        return empty(_("The sizes of transfers come from communication.json: profile with Level1 or higher."))
    places = sorted({row["place"] for row in rows})
    drawn = Bar().add_xaxis([class_name(place) for place in places])
    for link in sorted({row["link"] or "" for row in rows}):
        of_link = {row["place"]: row for row in rows if (row["link"] or "") == link}
        bars = [_bar(of_link[place], place) if place in of_link else None for place in places]
        drawn.add_yaxis(
            link or _("link not known"), [], stack="time", bar_max_width=56,
            itemstyle_opts=opts.ItemStyleOpts(color=LINK_COLOURS.get(link, "$c8")),
            label_opts=opts.LabelOpts(is_show=False),
        )  # fmt: skip
        drawn.options["series"][-1]["data"] = bars
    axes(drawn, "ms")
    drawn.options["tooltip"].opts["trigger"] = "item"
    drawn.options["xAxis"][0]["axisLabel"] = {"interval": 0, "rotate": 32}
    speeds = [_speed([row for row in rows if row["place"] == place]) for place in places]
    drawn.options["series"].append(
        {
            "type": "scatter", "name": _("GB/s in transit"), "yAxisIndex": 1, "symbol": "diamond", "symbolSize": 13,
            "itemStyle": {"color": "$ink", "borderColor": "$surface", "borderWidth": 1.5},
            "data": [_mark(speed, place) for speed, place in zip(speeds, places, strict=True)],
        }
    )  # fmt: skip
    drawn.options["legend"][0]["data"] = [series["name"] for series in drawn.options["series"]]
    if not any(speeds):
        drawn.options["series"].pop()
        return _told(drawn, rows)
    drawn.options["yAxis"].append({"type": "value", "axisLabel": {"formatter": "@gbps"}, "splitLine": {"show": False}})
    return _told(drawn, rows)


def _told(drawn: Bar, rows: Sequence[Mapping[str, Any]]) -> Spec:
    """The chart with its table, each column in its own unit."""
    table = [
        [f"{class_name(row['place'])} {row['link'] or ''}".strip(), row["count"], rounded(row["elapse_ns"] / 1e6),
         row["size_bytes"], rounded(_speed([row]))]
        for row in rows
    ]  # fmt: skip
    told = spec(drawn, "ms", [_("Size"), _("Count"), _("Elapsed"), _("Bytes"), "GB/s"], table)
    told["table"]["formats"] = ["plain", "number", "ms", "bytes", "gbps"]
    return told


def _speed(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Bytes over transit time in GB/s, of those whose transit is known."""
    transit = sum(row["transit_ns"] or 0 for row in rows)
    return sum(row["timed_bytes"] or 0 for row in rows) / transit if transit else None


def _bar(row: Mapping[str, Any], place: int) -> dict[str, Any]:
    lines = [
        [_("Elapsed"), metric_text(row["elapse_ns"], "duration")],
        [_("Count"), number_text(row["count"])],
        [_("Size"), bytes_text(row["size_bytes"])],
        ["GB/s", number_text(_speed([row])) or _("unknown")],
    ]
    return {"value": rounded(row["elapse_ns"] / 1e6), "title": class_name(place), "lines": lines}


def _mark(speed: float | None, place: int) -> dict[str, Any] | None:
    if speed is None:
        return None
    return {"value": rounded(speed), "title": class_name(place), "lines": [["GB/s", number_text(speed)]]}
