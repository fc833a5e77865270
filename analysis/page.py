"""The report as one HTML page to send to a colleague: styles and charts inside, no script, nothing to fetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.entries import (
    Json,
    capture_step_time_us,
    device_ratio,
    judged_steps,
    mean,
    number,
    ratio_of_sums,
    rows,
    slowest,
    step_count,
)
from analysis.markup import Html, bar, line, stacked, table, tag

MAX_STEPS = 24
MAX_RANKS = 64
MAX_TYPES = 20
MAX_EVIDENCE = 6
MAX_LAYERS = 128
VERDICTS = {
    "compute": "The device computes nearly all of the time.",
    "scheduling": "The device waits for the host: the step is bound by scheduling.",
    "mostly_scheduling": "The device often waits for the host: scheduling is the largest loss.",
    "communication": "Communication that no compute hides is the largest loss.",
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
PASSES = ("forward", "recompute", "backward", "none")
BLOCKS = (
    *("norm_attention", "qkv", "position", "attention_core", "attention_out", "residual", "norm_ffn", "ffn_up"),
    *("activation", "ffn_down", "moe_router", "moe_dispatch", "moe_experts", "movement", "communication", "other"),
)


def html_page(report: Mapping[str, Any], title: str) -> str:
    """The whole document. Everything that came from files is escaped."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"),
        tag("title", f"{title} - Stepscope"),
        tag("style", Html(style)),
    )
    parts = [part(report) for part in SECTIONS]
    body = tag("body", tag("main", _header(report, title), _tiles(report), *(part for part in parts if part)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _section(title: str, *children: object) -> Html:
    return tag("section", tag("h2", title), *children)


def _header(report: Mapping[str, Any], title: str) -> Html:
    source = report["source"]
    verdict = report.get("bottleneck") or {}
    told = [
        " ".join(str(part) for part in (source.get("framework"), source.get("framework_version")) if part),
        f"CANN {source['cann_version']}" if source.get("cann_version") else "",
        source.get("soc"),
        f"{len(report['ranks'])} of {source.get('world_size') or '?'} ranks",
        f"{source['mode']} mode" if source.get("mode") else "",
        " ".join(f"{key}{size}" for key, size in (source.get("parallel") or {}).items() if size and size > 1),
        f"{source.get('format')} dump",
    ]
    where = f" (rank {verdict['rank']})" if verdict.get("rank") is not None and len(report["ranks"]) > 1 else ""
    sentence = VERDICTS.get(str(verdict.get("verdict")), "What holds the step back is not known.")
    chips = tag("ul", *(tag("li", text) for text in told if text), cls="chips")
    return tag("header", tag("h1", title), tag("p", sentence + where, cls="verdict"), chips)


def _tiles(report: Mapping[str, Any]) -> Html:
    ranks = report["ranks"]
    entry = slowest(ranks) or {}
    flops = entry.get("flops") or {}
    cast = ratio_of_sums((number(e, "kernels", "cast_us"), number(e, "kernels", "compute_us")) for e in ranks)
    peaks = [peak for e in ranks if (peak := number(e, "memory", "peak_reserved_bytes")) is not None]
    found = report["checklist"]
    judged = found["passed"] + found["failed"]
    shown = [
        ("Step time", _ms(capture_step_time_us(ranks)), "median of the slowest rank"),
        ("MFU", _percent(flops.get("mfu")), f"HFU {_percent(flops.get('hfu'))}"),
        ("Device works", _percent(device_ratio(ranks)), "of the step"),
        ("Cast", _percent(cast), "of device compute"),
        ("Peak memory", _gib(max(peaks) if peaks else None), "reserved"),
        ("Checklist", f"{found['passed']} of {judged}", f"pass, {found['unknown']} unknown"),
    ]
    return tag(
        "dl", *(tag("div", tag("dt", a), tag("dd", b, tag("small", c)), cls="tile") for a, b, c in shown), cls="tiles"
    )


def _fix_first(report: Mapping[str, Any]) -> Html | None:
    found = report.get("fix_first") or {}
    items = rows(found, "items")
    if not items:
        return None
    step = number(found, "step_time_us") or 0.0
    body = [
        (
            str(place),
            item["summary"],
            bar(item["recoverable_us"] / step if step else None, "cast"),
            _ms(item["recoverable_us"]),
            _percent(item.get("mfu_after")),
            _percent(item.get("combined_mfu_after")),
        )
        for place, item in enumerate(items, 1)
    ]
    titles = ("", "What", "Share of the step", "Wins", "MFU then", "with all above")
    gain = f"Together {_ms(found.get('recoverable_us'))} a step; savings that share kernels count once."
    return _section("Fix first", table(titles, body, text=(0, 1, 2)), tag("p", gain, cls="note"))


def _steps(report: Mapping[str, Any]) -> Html | None:
    pairs = [(entry, step) for entry in report["ranks"] for step in entry.get("steps") or []]
    if not pairs:
        return None
    longest = max((number(step, "step_time_us") or 0.0 for _, step in pairs), default=0.0) or 1.0
    body = []
    for entry, step in pairs[:MAX_STEPS]:
        names = ("step_time_us", "computing_us", "communication_not_overlapped_us", "free_us")
        mark = " (warm-up)" if step.get("warmup") else ""
        chart = stacked(_parts(step, longest), f"rank {entry.get('rank')} step {step.get('step')}")
        body.append(
            (entry.get("rank"), f"{_text(step.get('step'))}{mark}", chart, *(_ms(number(step, n)) for n in names),
             _percent(number(step, "device_ratio")))
        )  # fmt: skip
    keys = {"compute": "compute", "communication": "exposed communication", "bubble": "bubble", "free": "free"}
    legend = tag("ul", *(tag("li", tag("i", cls=f"key-{key}"), text) for key, text in keys.items()), cls="legend")
    titles = ("Rank", "Step", "", "Time", "Compute", "Exposed comm.", "Free", "Device")
    more = f"{len(pairs) - MAX_STEPS} more steps are not shown." if len(pairs) > MAX_STEPS else ""
    source = ", ".join(sorted({str(step.get("source")) for _, step in pairs if step.get("source")}))
    note = " ".join(part for part in (f"Milliseconds, from {source}." if source else "Milliseconds.", more) if part)
    return _section("Steps", legend, table(titles, body, text=(0, 1, 2)), tag("p", note, cls="note"))


def _parts(step: Json, longest: float) -> list[tuple[str, float]]:
    exposed = number(step, "communication_not_overlapped_us") or 0.0
    bubble = min(exposed, number(step, "bubble_us") or 0.0)
    times = (
        ("compute", number(step, "computing_us")),
        ("communication", exposed - bubble),
        ("bubble", bubble),
        ("free", number(step, "free_us")),
    )
    return [(name, (us or 0.0) / longest) for name, us in times]


def _checklist(report: Mapping[str, Any]) -> Html:
    items = [
        _item(item["status"], ITEMS.get(item["id"], item["id"]), item, advice=item["status"] != "pass")
        for item in report["checklist"]["items"]
    ]
    return _section("Checklist", *items)


def _findings(report: Mapping[str, Any]) -> Html | None:
    found = rows(report, "findings")
    return _section("Findings", *(_item(row["severity"], None, row, advice=True) for row in found)) if found else None


def _item(badge: str, title: str | None, row: Json, *, advice: bool) -> Html:
    wins = number(row, "recoverable_us")
    head = [tag("h3", title)] if title else []
    text = [tag("p", row["summary"])]
    if advice and row.get("advice"):
        text.append(tag("p", row["advice"], cls="advice"))
    if wins and badge != "pass":
        text.append(tag("p", tag("strong", f"Wins {_ms(wins)} a step.")))
    evidence = [tag("li", _evidence(each)) for each in (row.get("evidence") or [])[:MAX_EVIDENCE]]
    listed = [tag("ul", *evidence, cls="evidence")] if evidence and badge != "pass" else []
    return tag(
        "div", tag("div", tag("span", badge, cls=f"badge {badge}")), tag("div", *head, *text, *listed), cls="item"
    )


def _evidence(row: Mapping[str, Any]) -> str:
    """Names and values of one piece of evidence, times in ms."""
    hidden = ("kind", "text", "rank") if row.get("text") else ("kind",)
    shown = [
        f"{key.removesuffix('_us').replace('_', ' ')} {_ms(value) if key.endswith('_us') else _value(value)}"
        for key, value in row.items()
        if key not in hidden and not key.endswith("_zh") and value is not None and not isinstance(value, (dict, list))
    ]
    return ", ".join([*([str(row["text"])] if row.get("text") else []), *shown])


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)[:160]


def _layers(report: Mapping[str, Any]) -> Html | None:
    entry = next((e for e in report["ranks"] if (e.get("layers") or {}).get("method")), None)
    if entry is None:
        return None
    layers = entry["layers"]
    sums, totals = _by_layer(rows(layers, "parts"))
    used = [block for block in BLOCKS if any(block in blocks for blocks in sums.values())]
    hottest = max((us for blocks in sums.values() for us in blocks.values()), default=1.0) or 1.0
    body = [
        (str(layer), *(_heat(blocks.get(block), hottest) for block in used), _ms(sum(blocks.values())))
        for layer, blocks in sorted(sums.items())[:MAX_LAYERS]
    ]
    place = [
        (part, way, str(count or "–"), _ms(us), bar(us / max(totals_us for *_, totals_us in totals)))
        for part, way, count, us in totals
    ]
    share = _percent(number(layers, "attributed_ratio"))
    note = (
        f"Rank {_text(entry.get('rank'))}: {layers['layer_count']} layers, told by {layers['method']}; {share} of "
        f"compute has a place. Milliseconds a step, all passes and micro-batches together."
    )
    titles = ("Layer", *(block.replace("_", " ") for block in used), "all")
    return _section(
        "Layers",
        tag("p", note, cls="note"),
        table(("Part", "Pass", "Layers", "a step", ""), place, text=(0, 1, 4)),
        tag("h3", "Layer by block"),
        table(titles, body, cls="heat"),
    )


def _by_layer(parts: Sequence[Json]) -> tuple[dict[int, dict[str, float]], list[tuple[str, str, int, float]]]:
    """(layer -> block -> us, (part, pass, layers, us) by pass)."""
    sums: dict[int, dict[str, float]] = {}
    totals: dict[tuple[str, str], float] = {}
    members: dict[tuple[str, str], set[int]] = {}
    for part in parts:
        key = (str(part.get("part")).replace("_", " "), str(part.get("pass") or "–"))
        totals[key] = totals.get(key, 0.0) + (number(part, "total_us") or 0.0)
        if part.get("layer") is None:
            continue
        members.setdefault(key, set()).add(part["layer"])
        blocks = sums.setdefault(part["layer"], {})
        for block in rows(part, "blocks"):
            name = str(block.get("block"))
            blocks[name] = blocks.get(name, 0.0) + (number(block, "total_us") or 0.0)
    ordered = sorted(totals.items(), key=lambda item: PASSES.index(item[0][1]) if item[0][1] in PASSES else -1)
    return sums, [(*key, len(members.get(key, ())), us) for key, us in ordered]


def _heat(us: float | None, hottest: float) -> Html | str:
    if not us:
        return ""
    return tag("span", _ms(us, unit=""), style=f"background: rgb(var(--heat) / {0.06 + 0.54 * us / hottest:.2f})")


def _operators(report: Mapping[str, Any]) -> Html | None:
    entry = next((e for e in report["ranks"] if e.get("op_types")), None)
    if entry is None:
        return None
    found = entry["op_types"]
    body = [
        (
            row.get("type"),
            row.get("core"),
            f"{row['count']:,}" if row.get("count") is not None else None,
            _ms(number(row, "total_us")),
            _percent(number(row, "share")),
            bar(number(row, "share"), "cast" if str(row.get("type")).startswith("Cast") else "compute"),
        )
        for row in found[:MAX_TYPES]
    ]
    note = f"Rank {_text(entry.get('rank'))}, {step_count(entry)} steps; share of compute time."
    return _section(
        "Operators",
        tag("p", note, cls="note"),
        table(("Type", "Core", "Count", "Time", "Share", ""), body, text=(0, 1, 5)),
    )


def _casts(report: Mapping[str, Any]) -> Html | None:
    entry = next((e for e in report["ranks"] if rows(e, "facts", "casts", "by_dtype")), None)
    if entry is None:
        return None
    casts = entry["facts"]["casts"]
    steps = step_count(entry)
    pairs = [(f"{_text(r.get('from'))} to {_text(r.get('to'))}", r["count"], _ms(r["total_us"] / steps))
             for r in rows(casts, "by_dtype")]  # fmt: skip
    placed = [
        (str(r.get("block") or r.get("part")).replace("_", " "), r.get("pass"), r["count"], _ms(r["total_us"] / steps))
        for r in rows(casts, "by_block")[:12]
    ]
    parts: list[Html] = [table(("From, to", "Count", "a step"), pairs)]
    if placed:
        parts += [tag("h3", "Where they stand"), table(("Serves", "Pass", "Count", "a step"), placed, text=(0, 1))]
    return _section("Casts", *parts)


def _free(report: Mapping[str, Any]) -> Html | None:
    entry = next((e for e in report["ranks"] if rows(e, "free_time", "by_cause")), None)
    if entry is None:
        return None
    causes = [
        (row["cause"].replace("_", " "), _ms(row["us"]), _percent(row["share"]), bar(row["share"], "free"))
        for row in rows(entry, "free_time", "by_cause")
    ]
    gaps = [
        (row.get("step"), _ms(row["start_us"]), _ms(row["duration_us"]), row["cause"].replace("_", " "),
         row.get("host_event"), _tail(row.get("before")), _tail(row.get("after")))
        for row in rows(entry, "free_time", "gaps")[:10]
    ]  # fmt: skip
    titles = ("Step", "Begins", "Lasts", "Cause", "Host", "After kernel", "Before kernel")
    return _section(
        "Free time",
        table(("Cause", "a step", "Share", ""), causes, text=(0, 3)),
        tag("h3", "Longest gaps"),
        table(titles, gaps, text=(0, 3, 4, 5, 6)),
    )


def _tail(name: str | None) -> str | None:
    return name.rsplit("/", 1)[-1][:80] if name else None


def _communication(report: Mapping[str, Any]) -> Html | None:
    entry = next((e for e in report["ranks"] if e.get("communication")), None)
    cluster = report.get("cluster") or {}
    parts: list[Html] = []
    if entry is not None:
        body = [
            (r.get("op"), r.get("type"), r.get("link"), r.get("count"), _ms(number(r, "elapse_us")),
             _ms(number(r, "wait_us")), _value(r["bandwidth_gbps"]) if r.get("bandwidth_gbps") is not None else None)
            for r in entry["communication"][:20]
        ]  # fmt: skip
        titles = ("Operation", "Kind", "Link", "Count", "Time", "of it waiting", "GB/s")
        parts += [tag("p", f"Rank {_text(entry.get('rank'))}, whole capture.", cls="note")]
        parts += [table(titles, body, text=(0, 1, 2))]
    slow = [
        (r["rank"], r["kind"], _ms(r["excess_us"]), f"{r['votes']} of {r['of']}") for r in rows(cluster, "slow_ranks")
    ]
    if slow:
        parts += [tag("h3", "Slow ranks"), table(("Rank", "Because of", "Others wait", "Last in"), slow, text=(0, 1))]
    links = [(f"{r['src']} to {r['dst']}{' within its group' if r.get('within_group') else ''}", r["link"],
              _value(r["bandwidth_gbps"]), _value(r["typical_gbps"]))
             for r in rows(cluster, "slow_links")[:20]]  # fmt: skip
    if links:
        parts += [tag("h3", "Slow links"), table(("Ranks", "Kind", "GB/s", "typical GB/s"), links, text=(0, 1))]
    bubble = cluster.get("bubble") or {}
    if number(bubble, "measured") is not None or number(bubble, "theory"):
        told = (
            f"Pipeline bubble: {_percent(bubble.get('measured'))} measured, {_percent(bubble.get('theory'))} in theory."
        )
        parts.append(tag("p", told))
    return _section("Communication", *parts) if parts else None


def _ranks(report: Mapping[str, Any]) -> Html:
    body = []
    for entry in report["ranks"][:MAX_RANKS]:
        flops, kernels = entry.get("flops") or {}, entry.get("kernels") or {}
        body.append(
            (
                entry.get("rank"), entry.get("device_id"), entry.get("host"), kernels.get("count"),
                _ms(mean(number(step, "computing_us") for step in judged_steps(entry))),
                _percent(kernels.get("cast_ratio")), _percent(kernels.get("movement_ratio")),
                _percent(flops.get("mfu")), _percent(flops.get("hfu")),
                _value(flops["tflops_per_device"]) if flops.get("tflops_per_device") is not None else None,
                _gib(number(entry, "memory", "peak_reserved_bytes")),
                (entry.get("bottleneck") or {}).get("verdict"),
            )
        )  # fmt: skip
    titles = (
        "Rank",
        "NPU",
        "Host",
        "Kernels",
        "Compute",
        "Cast",
        "Movement",
        "MFU",
        "HFU",
        "TFLOPS",
        "Memory",
        "Bound by",
    )
    more = len(report["ranks"]) - MAX_RANKS
    note = [tag("p", f"{more} more ranks are not shown.", cls="note")] if more > 0 else []
    return _section("Ranks", table(titles, body, text=(0, 2, 11)), *note)


def _series(report: Mapping[str, Any]) -> Html | None:
    steps = rows(report, "series", "steps")
    names = {"loss": "Loss", "global_norm": "Gradient norm", "step_time_ms": "Step time (ms)", "lr": "Learning rate"}
    figures = []
    for key, title in names.items():
        values = [number(step, key) for step in steps]
        known = [value for value in values if value is not None]
        if len(known) > 1:
            caption = f"{title}: {_value(known[0])} to {_value(known[-1])}, {_value(min(known))} at least"
            figures.append(tag("figure", line(values, title), tag("figcaption", caption)))
    if not figures:
        return None
    note = f"Steps {steps[0].get('step')} to {steps[-1].get('step')} of the log."
    return _section("Training log", tag("p", note, cls="note"), tag("div", *figures, cls="curves"))


def _configuration(report: Mapping[str, Any]) -> Html | None:
    config = {key: value for key, value in (report.get("config") or {}).items() if value not in (None, [], ())}
    environment = (report["source"].get("environment") or {}).items()
    parts: list[Html] = []
    if config:
        parts.append(table(("Setting", "Value"), [(key, str(value)) for key, value in config.items()], text=(0, 1)))
    if environment:
        pairs = [(tag("code", key), tag("code", value)) for key, value in environment]
        parts += [tag("h3", "Environment"), table(("Variable", "Value"), pairs, text=(0, 1))]
    return _section("Configuration", *parts) if parts else None


def _missing(report: Mapping[str, Any]) -> Html | None:
    source = report["source"]
    body = [(r["file"], ", ".join(r["hides"]), r["how"]) for r in source.get("missing") or []]
    parts: list[Html] = []
    if body:
        parts.append(table(("Missing", "Hides", "How to get it"), body, text=(0, 1, 2)))
    if source.get("warnings"):
        warnings = tag("ul", *(tag("li", text) for text in source["warnings"]), cls="evidence")
        parts += [tag("h3", "Warnings"), warnings]
    return _section("Not known", *parts) if parts else None


SECTIONS = (
    *(_fix_first, _steps, _checklist, _findings, _layers, _operators, _casts, _free, _communication, _ranks, _series),
    *(_configuration, _missing),
)


def _text(value: object) -> str:
    return "–" if value is None else str(value)


def _ms(us: float | None, unit: str = " ms") -> str:
    if us is None:
        return "–"
    return f"{us / 1000:,.0f}{unit}" if abs(us) >= 1e6 else f"{us / 1000:,.2f}{unit}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value / (1 << 30):.1f} GiB"
