"""The numbers of the page: one function per section, report in, markup out, nothing where there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.entries import Json, bubble_us, exposed_us, judged_steps, mean, number, rows, step_count
from analysis.markup import Html, bar, line, section, stacked, table, tag
from analysis.units import file_names, gib, ms, percent, text_of, value_of
from analysis.wording import Say

Report = Mapping[str, Any]

MAX_STEPS = 24
MAX_RANKS = 64
MAX_TYPES = 20
MAX_LAYERS = 128
PASSES = ("forward", "recompute", "backward", "none")
BLOCKS = (
    *("norm_attention", "qkv", "position", "attention_core", "attention_out", "residual", "norm_ffn", "ffn_up"),
    *("activation", "ffn_down", "moe_router", "moe_dispatch", "moe_experts", "movement", "communication", "other"),
)


def steps(report: Report, say: Say) -> Html | None:
    """Each step split into compute, exposed communication, bubble and free time."""
    pairs = [(entry, step) for entry in report["ranks"] for step in entry.get("steps") or []]
    if not pairs:
        return None
    bubble = any(bubble_us(step) for _, step in pairs)
    longest = max((number(step, "step_time_us") or 0.0 for _, step in pairs), default=0.0) or 1.0
    body = []
    for entry, step in pairs[:MAX_STEPS]:
        mark = say(" (warm-up)") if step.get("warmup") else ""
        label = say("rank {rank} step {step}", rank=text_of(entry.get("rank")), step=text_of(step.get("step")))
        chart = stacked(_parts(step, longest), label)
        times = [number(step, "step_time_us"), number(step, "computing_us"), exposed_us(step), number(step, "free_us")]
        times[3:3] = [number(step, "bubble_us")] if bubble else []
        named = text_of(entry.get("rank")), f"{text_of(step.get('step'))}{mark}", chart
        body.append((*named, *map(ms, times), percent(number(step, "device_ratio"))))
    keys = {"compute": "compute", "communication": "exposed communication", "bubble": "bubble", "free": "free"}
    keys = {key: text for key, text in keys.items() if bubble or key != "bubble"}
    legend = tag("ul", *(tag("li", tag("i", cls=f"key-{key}"), say(text)) for key, text in keys.items()), cls="legend")
    titles = ("Rank", "Step", "", "Time", "Compute", "Exposed comm.", *(["Bubble"] if bubble else []), "Free", "Device")
    source = file_names(step.get("source") for _, step in pairs)
    notes = [say("From {source}.", source=source)] if source else []
    if bubble and (files := file_names(step.get("bubble_source") for _, step in pairs)):
        notes.append(say("Bubble from {source}.", source=files))
    if len(pairs) > MAX_STEPS:
        notes.append(say("{count} more steps are not shown.", count=len(pairs) - MAX_STEPS))
    grid = table(_said(say, titles), body, text=(0, 1, 2))
    return section(say("Steps"), legend, grid, tag("p", " ".join(notes), cls="note"))


def _said(say: Say, titles: Sequence[str]) -> list[str]:
    return [say(title) if title else "" for title in titles]


def _parts(step: Json, longest: float) -> list[tuple[str, float]]:
    times = (
        ("compute", number(step, "computing_us")),
        ("communication", exposed_us(step)),
        ("bubble", bubble_us(step)),
        ("free", number(step, "free_us")),
    )
    return [(name, (us or 0.0) / longest) for name, us in times]


def pass_name(way: str | None, say: Say) -> str:
    """The pass in words; a dash for what belongs to none."""
    return "–" if way in (None, "none") else say.name(way)


def layers(report: Report, say: Say) -> Html | None:
    """Time by part and pass, and each layer by block, of the first rank whose kernels have a place."""
    entry = next((e for e in report["ranks"] if (e.get("layers") or {}).get("method")), None)
    if entry is None:
        return None
    found = entry["layers"]
    sums, totals = _by_layer(rows(found, "parts"))
    used = [block for block in BLOCKS if any(block in blocks for blocks in sums.values())]
    hottest = max((us for blocks in sums.values() for us in blocks.values()), default=1.0) or 1.0
    body = [
        (str(layer), *(_heat(blocks.get(block), hottest) for block in used), ms(sum(blocks.values())))
        for layer, blocks in sorted(sums.items())[:MAX_LAYERS]
    ]
    longest = max((us for *_, us in totals), default=1.0) or 1.0
    place = [
        (say.name(part), pass_name(way, say), str(count or "–"), ms(us), bar(us / longest))
        for part, way, count, us in totals
    ]
    parts = [tag("p", _layers_note(entry, say), cls="note")]
    parts.append(table(_said(say, ("Part", "Pass", "Layers", "a step", "")), place, text=(0, 1), bars=(4,)))
    if found.get("doubt"):
        parts.append(tag("p", say.of(found, "doubt"), cls="advice"))
    parts += _disputed(rows(found, "disputed"), say)
    titles = (say("Layer"), *(say.name(block) for block in used), say("all"))
    return section(say("Layers"), *parts, tag("h3", say("Layer by block")), table(titles, body, cls="heat"))


def _layers_note(entry: Json, say: Say) -> str:
    found = entry["layers"]
    told = say(
        "{count} layers on this rank, told by {method}; {share} of compute has a place. "
        "Milliseconds a step, all passes and micro-batches together.",
        count=found["layer_count"],
        method=say.name(found["method"]),
        share=percent(number(found, "attributed_ratio")),
    )
    chunks = number(found, "chunks") or 1
    more = " " + say("Stages hold {count} chunks of the model.", count=int(chunks)) if chunks > 1 else ""
    return say("Rank {rank}: ", rank=text_of(entry.get("rank"))) + told + more


def _disputed(found: list[Json], say: Say) -> list[Html]:
    if not found:
        return []
    body = [(row["layer"], ms(row["scope_map_us"]), ms(row["structure_us"])) for row in found[:MAX_LAYERS]]
    titles = _said(say, ("Layer", "by the saved graph", "by order and shapes"))
    return [tag("h3", say("Backward by layer, both ways of placing")), table(titles, body)]


def _by_layer(parts: Sequence[Json]) -> tuple[dict[int, dict[str, float]], list[tuple[str, str | None, int, float]]]:
    """(layer -> block -> us, (part, pass, layers, us) by pass)."""
    sums: dict[int, dict[str, float]] = {}
    totals: dict[tuple[str, str | None], float] = {}
    members: dict[tuple[str, str | None], set[int]] = {}
    for part in parts:
        key = (str(part.get("part")), part.get("pass"))
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
    return tag("span", ms(us, unit=""), style=f"background: rgb(var(--heat) / {0.06 + 0.54 * us / hottest:.2f})")


def operators(report: Report, say: Say) -> Html | None:
    """Operator types of the first rank that has any, longest first."""
    entry = next((e for e in report["ranks"] if e.get("op_types")), None)
    if entry is None:
        return None
    body = [
        (
            row.get("type"),
            row.get("core"),
            f"{row['count']:,}" if row.get("count") is not None else None,
            ms(number(row, "total_us")),
            percent(number(row, "share")),
            bar(number(row, "share"), "cast" if str(row.get("type")).startswith("Cast") else "compute"),
        )
        for row in entry["op_types"][:MAX_TYPES]
    ]
    note = say(
        "Rank {rank}, judged steps: {steps}; share of compute time.",
        rank=text_of(entry.get("rank")),
        steps=step_count(entry),
    )
    titles = _said(say, ("Type", "Core", "Count", "Time", "Share", ""))
    return section(say("Operators"), tag("p", note, cls="note"), table(titles, body, text=(0, 1), bars=(5,)))


def casts(report: Report, say: Say) -> Html | None:
    """Casts by what they convert and by what they serve."""
    entry = next((e for e in report["ranks"] if rows(e, "facts", "casts", "by_dtype")), None)
    if entry is None:
        return None
    found = entry["facts"]["casts"]
    count = step_count(entry)
    pairs = [
        (say("{a} to {b}", a=text_of(r.get("from")), b=text_of(r.get("to"))), r["count"], ms(r["total_us"] / count))
        for r in rows(found, "by_dtype")
    ]
    placed = [
        (
            say.name(r.get("block") or r.get("part")),
            pass_name(r.get("pass"), say),
            r["count"],
            ms(r["total_us"] / count),
        )
        for r in rows(found, "by_block")[:12]
    ]
    parts: list[Html] = [table(_said(say, ("From, to", "Count", "a step")), pairs)]
    if placed:
        grid = table(_said(say, ("Serves", "Pass", "Count", "a step")), placed, text=(0, 1))
        parts += [tag("h3", say("Where they stand")), grid]
    return section(say("Casts"), *parts)


def free(report: Report, say: Say) -> Html | None:
    """Free time by cause, and the longest gaps."""
    entry = next((e for e in report["ranks"] if rows(e, "free_time", "by_cause")), None)
    if entry is None:
        return None
    causes = [
        (say.name(row["cause"]), ms(row["us"]), percent(row["share"]), bar(row["share"], "free"))
        for row in rows(entry, "free_time", "by_cause")
    ]
    gaps = [
        (row.get("step"), ms(row["start_us"]), ms(row["duration_us"]), say.name(row["cause"]),
         row.get("host_event"), _tail(row.get("before")), _tail(row.get("after")))
        for row in rows(entry, "free_time", "gaps")[:10]
    ]  # fmt: skip
    titles = _said(say, ("Step", "Begins", "Lasts", "Cause", "Host", "After kernel", "Before kernel"))
    return section(
        say("Free time"),
        table(_said(say, ("Cause", "a step", "Share", "")), causes, bars=(3,)),
        tag("h3", say("Longest gaps")),
        table(titles, gaps, text=(0, 3, 4, 5, 6)),
    )


def _tail(name: str | None) -> str | None:
    return name.rsplit("/", 1)[-1][:80] if name else None


def communication(report: Report, say: Say) -> Html | None:
    """Operations of the first rank that has any, slow ranks and links, pipeline bubble."""
    cluster = report.get("cluster") or {}
    parts = _operations(report, say) + _slow(cluster, say)
    bubble = cluster.get("bubble") or {}
    if number(bubble, "measured") is not None or number(bubble, "theory"):
        told = say(
            "Pipeline bubble: {measured} measured, {theory} in theory.",
            measured=percent(bubble.get("measured")),
            theory=percent(bubble.get("theory")),
        )
        parts.append(tag("p", told))
    return section(say("Communication"), *parts) if parts else None


def _operations(report: Report, say: Say) -> list[Html]:
    entry = next((e for e in report["ranks"] if e.get("communication")), None)
    if entry is None:
        return []
    body = [
        (r.get("op"), say.name(r.get("type")), r.get("link"), r.get("count"), ms(number(r, "elapse_us")),
         ms(number(r, "wait_us")), value_of(r.get("bandwidth_gbps")))
        for r in entry["communication"][:20]
    ]  # fmt: skip
    titles = _said(say, ("Operation", "Kind", "Link", "Count", "Time", "of it waiting", "GB/s"))
    note = say("Rank {rank}, whole capture.", rank=text_of(entry.get("rank")))
    parts = [tag("p", note, cls="note"), table(titles, body, text=(0, 1, 2))]
    steps_ = step_count(entry)
    exposed = [
        (say.name(r.get("part")), r.get("op"), ms(r["total_us"] / steps_), ms(r["exposed_us"] / steps_))
        for r in rows(entry, "facts", "exposed")[:12]
    ]
    if exposed:
        grid = table(_said(say, ("For", "Operation", "a step", "exposed")), exposed, text=(0, 1))
        parts += [tag("h3", say("What no compute hides")), grid]
    return parts


def _slow(cluster: Mapping[str, Any], say: Say) -> list[Html]:
    parts: list[Html] = []
    slow = [
        (r["rank"], say.name(r["kind"]), ms(r["excess_us"]), say("{votes} of {of}", votes=r["votes"], of=r["of"]))
        for r in rows(cluster, "slow_ranks")
    ]
    if slow:
        grid = table(_said(say, ("Rank", "Because of", "Others wait", "Last in")), slow, text=(0, 1))
        parts += [tag("h3", say("Slow ranks")), grid]
    links = [
        (say("{a} to {b} within its group" if r.get("within_group") else "{a} to {b}", a=r["src"], b=r["dst"]),
         r["link"], value_of(r["bandwidth_gbps"]), value_of(r["typical_gbps"]))
        for r in rows(cluster, "slow_links")[:20]
    ]  # fmt: skip
    if links:
        grid = table(_said(say, ("Ranks", "Kind", "GB/s", "typical GB/s")), links, text=(0, 1))
        parts += [tag("h3", say("Slow links")), grid]
    return parts


def experts(report: Report, say: Say) -> Html | None:
    """Tokens of each rank's experts, where shapes show them and ranks differ in their experts."""
    load = (report.get("cluster") or {}).get("expert_load") or {}
    body = [
        (row["rank"], f"{row['tokens']:,.0f}", f"{row['ratio']:.2f}", bar(row["ratio"] / load["ratio"]))
        for row in rows(load, "ranks")[:MAX_RANKS]
    ]
    if not body:
        return None
    note = say(
        "Tokens of each rank's experts in a step, over all layers; the busiest rank has {ratio} times the mean.",
        ratio=f"{load['ratio']:.2f}",
    )
    grid = table(_said(say, ("Rank", "Tokens", "against the mean", "")), body, bars=(3,))
    return section(say("Experts"), tag("p", note, cls="note"), grid)


def ranks(report: Report, say: Say) -> Html:
    """One row per rank."""
    body = []
    for entry in report["ranks"][:MAX_RANKS]:
        flops, kernels = entry.get("flops") or {}, entry.get("kernels") or {}
        body.append(
            (
                entry.get("rank"), entry.get("device_id"), entry.get("host"), kernels.get("count"),
                ms(mean(number(step, "computing_us") for step in judged_steps(entry))),
                percent(kernels.get("cast_ratio")), percent(kernels.get("movement_ratio")),
                percent(flops.get("mfu")), percent(flops.get("hfu")), value_of(flops.get("tflops_per_device")),
                gib(number(entry, "memory", "peak_reserved_bytes")),
                say.name((entry.get("bottleneck") or {}).get("verdict")),
            )
        )  # fmt: skip
    titles = (
        *("Rank", "NPU", "Host", "Kernels", "Compute", "Cast", "Movement", "MFU", "HFU", "TFLOPS", "Memory"),
        "Bound by",
    )
    more = len(report["ranks"]) - MAX_RANKS
    note = [tag("p", say("{count} more ranks are not shown.", count=more), cls="note")] if more > 0 else []
    return section(say("Ranks"), table(_said(say, titles), body, text=(0, 2, 11)), *note)


def series(report: Report, say: Say) -> Html | None:
    """Curves of the training log."""
    found = rows(report, "series", "steps")
    names = {"loss": "Loss", "global_norm": "Gradient norm", "step_time_ms": "Step time (ms)", "lr": "Learning rate"}
    figures = []
    for key, name in names.items():
        values = [number(step, key) for step in found]
        known = [value for value in values if value is not None]
        if len(known) > 1:
            title = say(name)
            ends = {"first": value_of(known[0]), "last": value_of(known[-1]), "least": value_of(min(known))}
            caption = say("{title}: {first} to {last}, {least} at least", title=title, **ends)
            figures.append(tag("figure", line(values, title), tag("figcaption", caption)))
    if not figures:
        return None
    note = say("Steps {first} to {last} of the log.", first=found[0].get("step"), last=found[-1].get("step"))
    return section(say("Training log"), tag("p", note, cls="note"), tag("div", *figures, cls="curves"))
