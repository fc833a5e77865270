"""A stored report (docs/report.md) to rows for pages. No queries; missing keys are unknown, never an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from django.utils.translation import gettext as _

from analysis.entries import bubble_us, exposed_us
from dashboard.runs.metrics import FREE_CAUSES

Json = Mapping[str, Any]
PARTS = (
    ("computing_us", "compute"),
    ("communication_us", "comm"),
    ("bubble_us", "bubble"),
    ("free_us", "free"),
)


def judged_steps(entry: Json) -> list[Json]:
    """Steps of a rank without warm-up; all of them when every one is."""
    steps = [step for step in entry.get("steps") or [] if step.get("step_time_us")]
    return [step for step in steps if not step.get("warmup")] or steps


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def step_parts(entry: Json) -> list[dict[str, Any]]:
    """The mean judged step cut into computing, exposed communication, bubble and free, with shares; [] if unknown."""
    steps = judged_steps(entry)
    total = mean(step.get("step_time_us") for step in steps)
    if not total:
        return []
    names = {
        "compute": (_("Computing"), mean(step.get("computing_us") for step in steps)),
        "comm": (_("Exposed communication"), mean(exposed_us(step) for step in steps)),
        "bubble": (_("Pipeline bubble"), mean(map(bubble_us, steps))),
        "free": (_("Free"), mean(step.get("free_us") for step in steps)),
    }
    parts = [
        {"css": css, "name": name, "us": value, "share": value / total, "title": f"{name} {value / total:.1%}"}
        for css, (name, value) in names.items()
        if value
    ]
    return [{**part, "source": _bubble_source(steps)} if part["css"] == "bubble" else part for part in parts]


def _bubble_source(steps: Sequence[Json]) -> str:
    """The file that tells how long the bubble is, in words; empty where the report does not say."""
    file = next((step["bubble_source"] for step in steps if step.get("bubble_source")), None)
    return _("from %(file)s") % {"file": file} if file else ""


def waterfall(entry: Json) -> list[dict[str, Any]]:
    """From the ideal step to the real one, in us: what each loss adds. Ideal only where FLOPs and peak are known."""
    parts = {part["css"]: part for part in step_parts(entry)}
    if not parts:
        return []
    rows = []
    start = 0.0
    compute = parts.get("compute", {}).get("us", 0.0)
    ideal = ideal_us(entry)
    if ideal is not None and ideal < compute:
        rows.append({"name": _("Ideal at peak"), "css": "c3", "start": 0.0, "us": ideal})
        rows.append({"name": _("Compute below peak"), "css": "compute", "start": ideal, "us": compute - ideal})
    elif compute:
        rows.append({"name": _("Computing"), "css": "compute", "start": 0.0, "us": compute})
    start = compute
    losses = [(css, parts[css]["name"], parts[css]["us"]) for css in ("comm", "bubble") if css in parts]
    if "free" in parts:
        losses += [("free", name, us) for name, us in free_causes(entry, parts["free"]["us"])]
    for css, name, us in losses:
        rows.append({"name": name, "css": css, "start": start, "us": us})
        start += us
    rows.append({"name": _("Step"), "css": "ink-2", "start": 0.0, "us": start})
    return rows


LEAST_CAUSE = 0.05
"""Causes below this share of the free time are drawn as one."""


def free_causes(entry: Json, free_us: float) -> list[tuple[str, float]]:
    """Free time cut by its causes, longest first; in one piece where no trace tells them. They add up to `free_us`."""
    told = [row for row in (entry.get("free_time") or {}).get("by_cause") or [] if row.get("share")]
    if not told:
        return [(_("Free"), free_us)]
    large = [row for row in told if row["share"] >= LEAST_CAUSE]
    found = [(str(FREE_CAUSES.get(row["cause"], row["cause"])), row["share"] * free_us) for row in large]
    rest = free_us - sum(us for _name, us in found)
    return [*found, (str(FREE_CAUSES["other"]), rest)] if rest > free_us * SMALL else found


def ideal_us(entry: Json) -> float | None:
    """Time per step that the measured FLOPs would take at peak."""
    flops = entry.get("flops") or {}
    peak = flops.get("peak_tflops")
    measured = flops.get("measured_flops")
    if not peak or not measured:
        return None
    return float(measured) / (float(peak) * 1e6)


def slowest_rank(ranks: Sequence[Any]) -> int | None:
    """Rank with the longest step; the first one where no step time is known."""
    known = [row for row in ranks if row.step_time_ns is not None]
    if known:
        # Ranks of one job step together; of equals the one that computes longest holds the others up.
        return int(max(known, key=lambda row: (row.step_time_ns // 10_000_000, row.computing_ns or 0)).rank)
    return int(ranks[0].rank) if ranks else None


LAYER_BLOCKS = (
    "norm_attention", "qkv", "position", "attention_core", "attention_out", "residual", "norm_ffn", "ffn_up",
    "activation", "ffn_down", "moe_router", "moe_dispatch", "moe_experts", "movement", "communication",
)  # fmt: skip


def layer_grid(entry: Json, passes: Sequence[str] = ()) -> dict[str, Any]:
    """Time of each layer and block over all micro-batches: "layers", "blocks" and "us" by (layer, block)."""
    cells: dict[tuple[int, str], float] = {}
    for part in (entry.get("layers") or {}).get("parts") or []:
        if part.get("part") != "layer" or part.get("layer") is None or (passes and part.get("pass") not in passes):
            continue
        for block in part.get("blocks") or []:
            key = (int(part["layer"]), str(block.get("block") or "other"))
            cells[key] = cells.get(key, 0.0) + (block.get("total_us") or 0.0)
    found = {block for _layer, block in cells}
    order = [block for block in LAYER_BLOCKS if block in found] + sorted(found - set(LAYER_BLOCKS))
    return {"layers": sorted({layer for layer, _block in cells}), "blocks": order, "us": cells}


def layer_rows(entry: Json) -> list[dict[str, Any]]:
    """A row per layer: total, forward, backward and how far above the median layer it is."""
    totals: dict[int, dict[str, float]] = {}
    for part in (entry.get("layers") or {}).get("parts") or []:
        if part.get("part") == "layer" and part.get("layer") is not None:
            row = totals.setdefault(int(part["layer"]), {})
            name = str(part.get("pass") or "none")
            row[name] = row.get(name, 0.0) + (part.get("total_us") or 0.0)
    sums = {layer: sum(row.values()) for layer, row in totals.items()}
    typical = median(sums.values()) if sums else 0
    return [
        {
            "layer": layer,
            "total_us": sums[layer],
            "forward_us": row.get("forward"),
            "backward_us": row.get("backward"),
            "recompute_us": row.get("recompute"),
            "against_median": sums[layer] / typical - 1 if typical else None,
        }
        for layer, row in sorted(totals.items())
    ]


def outside_rows(entry: Json) -> list[dict[str, Any]]:
    """Time outside layers by part, longest first."""
    totals: dict[str, float] = {}
    for part in (entry.get("layers") or {}).get("parts") or []:
        if part.get("part") not in ("layer", None):
            totals[part["part"]] = totals.get(part["part"], 0.0) + (part.get("total_us") or 0.0)
    return [{"part": part, "total_us": value} for part, value in sorted(totals.items(), key=lambda item: -item[1])]


def check_items(report: Json) -> list[Json]:
    return list((report.get("checklist") or {}).get("items") or [])


SMALL = 0.001
"""Savings below this share of the step are counted, not listed."""


def fix_first(report: Json) -> dict[str, Any]:
    """What the report would fix first: `items` with their advice and share of the step, `total` of all together,
    `small`, how many would win next to nothing, and `untimed`, what fails or stands out without a known saving."""
    found = report.get("fix_first") or {}
    step_us = found.get("step_time_us")
    judged = [item for item in check_items(report) if item.get("status") == "fail"] + list(report.get("findings") or [])
    about = {row.get("id"): row for row in [*check_items(report), *judged]}
    items = [
        {**about.get(row.get("id"), {}), **row, "share": row["recoverable_us"] / step_us if step_us else None}
        for row in found.get("items") or []
    ]
    listed = {row.get("id") for row in items}
    total = found.get("recoverable_us")
    return {
        "items": [row for row in items if row["share"] is None or row["share"] >= SMALL],
        "small": sum(row["share"] is not None and row["share"] < SMALL for row in items),
        "untimed": [row for row in judged if row.get("id") not in listed and not row.get("recoverable_us")],
        "total_us": total,
        "total_share": total / step_us if total and step_us else None,
        "step_us": step_us,
        "step_after_us": step_us - total if total and step_us and step_us > total else None,
        "mfu": found.get("mfu"),
        "mfu_after": found.get("mfu_after"),
    }


def worth_us(item: Json, report: Json) -> float | None:
    """What fixing an item would win, unless that is next to nothing."""
    won, step_us = item.get("recoverable_us"), (report.get("fix_first") or {}).get("step_time_us")
    return won if won and not (step_us and won / step_us < SMALL) else None


def evidence_rows(item: Json, limit: int = 6) -> dict[str, Any]:
    """Evidence of an item as sentences and as rows of key and value: whatever the check wrote down, never raw JSON."""
    texts, rows = [], []
    for piece in item.get("evidence") or []:
        if not isinstance(piece, Mapping):
            texts.append(str(piece))
            continue
        figures = {
            key: value for key, value in piece.items() if key not in ("kind", "text", "text_zh") and _plain(value)
        }
        said = {key: piece.get(key) for key in ("text", "text_zh")}
        rows.append({"kind": str(piece.get("kind") or ""), **said, "figures": figures})
    return {"texts": texts[:limit], "rows": rows[:limit], "more": max(0, len(rows) - limit)}


def _plain(value: Any) -> bool:
    return value is not None and not isinstance(value, (list, dict)) or isinstance(value, list) and len(value) <= 8


def communication_rows(entry: Json, limit: int = 40) -> list[dict[str, Any]]:
    rows = sorted(entry.get("communication") or [], key=lambda row: -(row.get("elapse_us") or 0))
    top = max((row.get("elapse_us") or 0 for row in rows), default=0) or 1
    return [{**row, "relative": (row.get("elapse_us") or 0) / top} for row in rows[:limit]]


LEAST_SPREAD = 0.05
"""Colours span at least this share of the largest value: noise must not look like an upheaval."""


def quantiles(values: Sequence[float | None], steps: int = 6) -> list[int | None]:
    """The colour class of each value, 0 to steps - 1 over `spread` from the smallest on; None for unknown."""
    low, high = spread(values)
    if low is None or high is None:
        return [None] * len(values)
    width = high - low
    return [
        None if value is None else min(steps - 1, int((value - low) / width * steps)) if width else 0
        for value in values
    ]


def spread(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Where the colours of these values begin and end."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    low, high = min(known), max(known)
    return low, max(high, low + LEAST_SPREAD * abs(high))
