"""The report as one HTML page to send to a colleague: styles and charts inside, no script, nothing to fetch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from analysis import page_tables
from analysis.entries import Json, capture_step_time_us, device_ratio, number, ratio_of_sums, rows, slowest
from analysis.markup import Html, bar, section, table, tag
from analysis.units import gib, ms, percent, value_of
from analysis.wording import Say

MAX_EVIDENCE = 6
LEAST_US = 5.0
"""Less than that would read as 0.00 ms."""
VERDICTS = {
    "compute": "The device computes nearly all of the time.",
    "scheduling": "The device waits for the host: the step is bound by scheduling.",
    "mostly_scheduling": "The device often waits for the host: scheduling is the largest loss.",
    "communication": "Communication that no compute hides is the largest loss.",
    "pipeline": "Waiting for other pipeline stages is the largest loss.",
    "input": "The device waits for data.",
    "mixed": "No single loss dominates.",
}
ITEMS = {
    "dtype_cast": "One dtype, few casts",
    "graph_sink": "Graph mode and data sink",
    "fused_attention": "Fused attention",
    "ffn_parallel": "FFN split and communication volume",
    "attention_mask": "Attention mask",
    "weight_alignment": "Aligned with the source framework",
    "warmup_mfu": "Warm-up left out, MFU recorded",
    "precision_regression": "Loss follows the reference run",
}
LANGUAGE_TAGS = {"en": "en", "zh": "zh-Hans"}


def html_page(report: Mapping[str, Any], title: str, lang: str = "en") -> str:
    """The whole document in English ("en") or Simplified Chinese ("zh"). Everything that came from files is escaped."""
    say = Say(lang)
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"),
        tag("title", f"{title} - Stepscope"),
        tag("style", Html(style)),
    )
    parts = [part(report, say) for part in SECTIONS]
    body = tag("body", tag("main", _header(report, title, say), _tiles(report, say), *(part for part in parts if part)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang=LANGUAGE_TAGS[lang])}\n"


def _header(report: Mapping[str, Any], title: str, say: Say) -> Html:
    source = report["source"]
    verdict = report.get("bottleneck") or {}
    told = [
        " ".join(str(part) for part in (source.get("framework"), source.get("framework_version")) if part),
        f"CANN {source['cann_version']}" if source.get("cann_version") else "",
        source.get("soc"),
        say("{seen} of {all} ranks", seen=len(report["ranks"]), all=source.get("world_size") or "?"),
        say("{mode} mode", mode=source["mode"]) if source.get("mode") else "",
        " ".join(f"{key}{size}" for key, size in (source.get("parallel") or {}).items() if size and size > 1),
        say("{form} dump", form=source.get("format")),
    ]
    many = verdict.get("rank") is not None and len(report["ranks"]) > 1
    where = say(" (rank {rank})", rank=verdict["rank"]) if many else ""
    sentence = say(VERDICTS.get(str(verdict.get("verdict")), "What holds the step back is not known."))
    chips = tag("ul", *(tag("li", text) for text in told if text), cls="chips")
    return tag("header", tag("h1", title), tag("p", sentence + where, cls="verdict"), chips)


def _tiles(report: Mapping[str, Any], say: Say) -> Html:
    ranks = report["ranks"]
    entry = slowest(ranks) or {}
    flops = entry.get("flops") or {}
    cast = ratio_of_sums((number(e, "kernels", "cast_us"), number(e, "kernels", "compute_us")) for e in ranks)
    peaks = [peak for e in ranks if (peak := number(e, "memory", "peak_reserved_bytes")) is not None]
    found = report["checklist"]
    judged = found["passed"] + found["failed"]
    shown = [
        (say("Step time"), ms(capture_step_time_us(ranks)), say("median of the slowest rank")),
        (say("MFU"), percent(flops.get("mfu")), say("HFU {hfu}", hfu=percent(flops.get("hfu")))),
        (say("Device works"), percent(device_ratio(ranks)), say("of the step")),
        (say("Cast"), percent(cast), say("of device compute")),
        (say("Peak memory"), gib(max(peaks) if peaks else None), say("reserved")),
        (
            say("Checklist"),
            say("{passed} of {judged}", passed=found["passed"], judged=judged),
            say("pass, {unknown} unknown", unknown=found["unknown"]),
        ),
    ]
    tiles = (tag("div", tag("dt", a), tag("dd", b, tag("small", c)), cls="tile") for a, b, c in shown)
    return tag("dl", *tiles, cls="tiles")


def _fix_first(report: Mapping[str, Any], say: Say) -> Html | None:
    found = report.get("fix_first") or {}
    items = [item for item in rows(found, "items") if item["recoverable_us"] >= LEAST_US]
    if not items:
        return None
    step, rated = number(found, "step_time_us") or 0.0, number(found, "mfu") is not None
    body = [
        (
            str(place),
            say.of(item, "summary"),
            bar(item["recoverable_us"] / step if step else None, "cast"),
            ms(item["recoverable_us"]),
            *([percent(item.get("mfu_after"))] if rated else []),
            ms(number(item, "combined_step_time_us")),
            *([percent(item.get("combined_mfu_after"))] if rated else []),
        )
        for place, item in enumerate(items, 1)
    ]
    mfu = ("MFU then", "MFU with all above") if rated else ()
    words = ("What", "Share of the step", "Wins", *mfu[:1], "Step with all above", *mfu[1:])
    titles = ["", *(say(word) for word in words)]
    gain = say(
        "Together {time} a step; savings that share kernels count once.", time=ms(number(found, "recoverable_us"))
    )
    return section(say("Fix first"), table(titles, body, text=(0, 1), bars=(2,)), tag("p", gain, cls="note"))


def _checklist(report: Mapping[str, Any], say: Say) -> Html:
    items = [
        _item(item["status"], say(ITEMS[item["id"]]) if item["id"] in ITEMS else item["id"], item, say)
        for item in report["checklist"]["items"]
    ]
    return section(say("Checklist"), *items)


def _findings(report: Mapping[str, Any], say: Say) -> Html | None:
    found = rows(report, "findings")
    return section(say("Findings"), *(_item(row["severity"], None, row, say) for row in found)) if found else None


def _item(badge: str, title: str | None, row: Json, say: Say) -> Html:
    wins = number(row, "recoverable_us")
    head = [tag("h3", title)] if title else []
    text = [tag("p", say.of(row, "summary"))]
    if badge != "pass":
        text += [tag("p", say.of(row, "advice"), cls="advice")] if row.get("advice") else []
        text += (
            [tag("p", tag("strong", say("Wins {time} a step.", time=ms(wins))))] if wins and wins >= LEAST_US else []
        )
        evidence = [tag("li", _evidence(each, say)) for each in (row.get("evidence") or [])[:MAX_EVIDENCE]]
        text += [tag("ul", *evidence, cls="evidence")] if evidence else []
    sign = tag("div", tag("span", say.name(badge), cls=f"badge {badge}"))
    return tag("div", sign, tag("div", *head, *text), cls="item")


def _evidence(row: Mapping[str, Any], say: Say) -> str:
    """Names and values of one piece of evidence, times in ms."""
    hidden = ("kind", "text", "rank") if row.get("text") else ("kind",)
    shown = [
        f"{_key(key, say)} {ms(value) if key.endswith('_us') else _told(value, say)}"
        for key, value in row.items()
        if key not in hidden and not key.endswith("_zh") and value is not None and _is_plain(value)
    ]
    return ", ".join([*([say.of(row, "text")] if row.get("text") else []), *shown])


def _key(key: str, say: Say) -> str:
    return say.name(key.removesuffix("_us").replace("_", " "))


def _is_plain(value: object) -> bool:
    """Whether a value can be told in a line: no objects, and no list of them."""
    return not isinstance(value, dict) and not (
        isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value)
    )


def _told(value: object, say: Say) -> str:
    if isinstance(value, list):
        return value_of(" + ".join(map(str, value)))
    return say.name(value) if say.lang == "zh" and isinstance(value, str) else value_of(value)


def _configuration(report: Mapping[str, Any], say: Say) -> Html | None:
    config = {key: value for key, value in (report.get("config") or {}).items() if value not in (None, [], ())}
    environment = (report["source"].get("environment") or {}).items()
    parts: list[Html] = []
    if config:
        pairs = [(key, str(value)) for key, value in config.items()]
        parts.append(table((say("Setting"), say("Value")), pairs, text=(0, 1)))
    if environment:
        codes = [(tag("code", key), tag("code", value)) for key, value in environment]
        parts += [tag("h3", say("Environment")), table((say("Variable"), say("Value")), codes, text=(0, 1))]
    return section(say("Configuration"), *parts) if parts else None


def _missing(report: Mapping[str, Any], say: Say) -> Html | None:
    source = report["source"]
    body = [
        (say.of(r, "file"), ", ".join(map(say.name, r["hides"])), say.of(r, "how")) for r in source.get("missing") or []
    ]
    parts: list[Html] = []
    if body:
        parts.append(table((say("Missing"), say("Hides"), say("How to get it")), body, text=(0, 1, 2)))
    warnings = source.get("warnings_zh" if say.lang == "zh" else "warnings") or source.get("warnings")
    if warnings:
        listed = tag("ul", *(tag("li", text) for text in warnings), cls="evidence")
        parts += [tag("h3", say("Warnings")), listed]
    return section(say("Not known"), *parts) if parts else None


Section = Callable[[Mapping[str, Any], Say], Html | None]
SECTIONS: tuple[Section, ...] = (
    *(_fix_first, page_tables.steps, _checklist, _findings, page_tables.layers, page_tables.operators),
    *(page_tables.casts, page_tables.free, page_tables.communication, page_tables.experts, page_tables.ranks),
    *(page_tables.series, _configuration, _missing),
)
