"""Why a number got worse: one sentence in English and one in Chinese, from the two captures' rank entries.

Each figure is per step and the mean over the ranks that both captures have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils import translation

from analysis.entries import number, step_count
from analysis.optypes import op_class
from dashboard.runs.metrics import BLOCKS

Entry = Mapping[str, Any]
LEAST_SHARE = 0.05
STEP_PARTS = {
    "computing_us": ("computing", "计算"),
    "communication_not_overlapped_us": ("exposed communication", "未掩盖通信"),
    "free_us": ("waiting for the host", "等待主机"),
}


@dataclass(frozen=True)
class Side:
    """One capture: its rank entries, and what it ran on ("CANN" -> "8.3")."""

    entries: Sequence[Entry]
    versions: Mapping[str, str] = field(default_factory=dict)


def cause(metric: str, old: Side, new: Side) -> tuple[str, str]:
    """The sentences, English and Chinese; empty when nothing is known."""
    pairs = _pairs(old.entries, new.entries)
    parts = [_cast(pairs)] if metric in ("cast_ratio", "item:dtype_cast") else [_step(pairs), _operators(pairs)]
    parts = [_memory(pairs)] if metric == "peak_memory_bytes" else parts
    parts.append(_versions(old.versions, new.versions))
    return " ".join(part[0] for part in parts if part[0]), "".join(part[1] for part in parts if part[1])


def _pairs(old: Sequence[Entry], new: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    known = {entry.get("rank"): entry for entry in old}
    return [(known[entry.get("rank")], entry) for entry in new if entry.get("rank") in known]


def _differences(
    pairs: list[tuple[Entry, Entry]], amounts: Callable[[Entry], Mapping[str, float]]
) -> list[tuple[str, float]]:
    """Name -> growth in us per step, the largest first; `amounts` gives an entry's totals by name."""
    growth: dict[str, float] = defaultdict(float)
    for old, new in pairs:
        for sign, entry in ((-1, old), (1, new)):
            for name, amount in amounts(entry).items():
                growth[name] += sign * amount / step_count(entry) / len(pairs)
    return sorted(growth.items(), key=lambda item: (-item[1], item[0]))


def _mean_step(entry: Entry, key: str) -> float | None:
    values = [step[key] for step in entry.get("steps") or [] if step.get(key) is not None]
    return sum(values) / len(values) if values else None


def _mean(pairs: list[tuple[Entry, Entry]], side: int, key: str) -> float | None:
    values = [value for pair in pairs if (value := _mean_step(pair[side], key)) is not None]
    return sum(values) / len(values) if values else None


def _step(pairs: list[tuple[Entry, Entry]]) -> tuple[str, str]:
    before, after = _mean(pairs, 0, "step_time_us"), _mean(pairs, 1, "step_time_us")
    if before is None or after is None or after <= before:
        return "", ""
    growth = {}
    for key in STEP_PARTS:
        was, now = _mean(pairs, 0, key), _mean(pairs, 1, key)
        if was is not None and now is not None:
            growth[key] = now - was
    longer = after - before
    english = f"A step takes {_ms(longer)} longer ({_ms(before)} -> {_ms(after)})"
    chinese = f"单步变长 {_ms(longer)}（{_ms(before)} -> {_ms(after)}）"
    if not growth or max(growth.values()) <= 0:
        return english + ".", chinese + "。"
    key = max(growth, key=growth.__getitem__)
    share = f"{min(growth[key] / longer, 1) * 100:.0f} %"
    return f"{english}: {share} of it is {STEP_PARTS[key][0]}.", f"{chinese}，其中 {share} 是{STEP_PARTS[key][1]}。"


def _operators(pairs: list[tuple[Entry, Entry]]) -> tuple[str, str]:
    grown = _differences(pairs, _compute_types)
    total = sum(growth for _, growth in grown if growth > 0)
    if not grown or total <= 0:
        return "", ""
    name, growth = grown[0]
    where = _places(pairs, op_class(name))
    english = f"{name} grew most: {_ms(growth)} a step more{_listed(', most in ', where, 'en')}"
    chinese = f"增长最多的算子是 {name}：每步多 {_ms(growth)}{_listed('，主要在 ', where, 'zh-hans')}"
    layer = _per_layer(pairs, op_class(name))
    return (
        (f"{english}; +{layer} a layer.", f"{chinese}；每层多 {layer}。") if layer else (english + ".", chinese + "。")
    )


def _compute_types(entry: Entry) -> dict[str, float]:
    rows = entry.get("op_types") or []
    return {row["type"]: row["total_us"] for row in rows if row.get("share") is not None and row.get("total_us")}


def _cast(pairs: list[tuple[Entry, Entry]]) -> tuple[str, str]:
    was = _per_step(pairs, 0, "cast_us")
    now = _per_step(pairs, 1, "cast_us")
    if was is None or now is None:
        return "", ""
    where = _places(pairs, "cast")
    english = f"Cast takes {_ms(now)} a step, before {_ms(was)}{_listed('; most of it in ', where, 'en')}."
    chinese = f"Cast 每步 {_ms(now)}，之前 {_ms(was)}{_listed('；主要在 ', where, 'zh-hans')}。"
    return english, chinese


def _per_step(pairs: list[tuple[Entry, Entry]], side: int, key: str) -> float | None:
    values = [
        pair[side]["kernels"][key] / step_count(pair[side])
        for pair in pairs
        if (pair[side].get("kernels") or {}).get(key) is not None
    ]
    return sum(values) / len(values) if values else None


def _places(pairs: list[tuple[Entry, Entry]], kind: str) -> list[tuple[str, float]]:
    """Blocks in which operators of that class grew, as (name, share of the growth)."""
    grown = [item for item in _differences(pairs, lambda entry: _by_block(entry, kind)) if item[1] > 0]
    total = sum(growth for _, growth in grown)
    return [(name, growth / total) for name, growth in grown[:2] if growth / total >= LEAST_SHARE]


def _by_block(entry: Entry, kind: str, part: str | None = None) -> dict[str, float]:
    """us by block, passes together; what lies outside the layers under its part's name."""
    found: dict[str, float] = defaultdict(float)
    for row in _placed(entry, kind):
        name = (row.get("block") if row.get("part") == "layer" else None) or row.get("part")
        if name and row.get("total_us") and part in (None, row.get("part")):
            found[str(name)] += row["total_us"]
    return found


def _placed(entry: Entry, kind: str) -> list[Mapping[str, Any]]:
    """Rows of a class with part, block and total_us; captures read long ago tell it of Cast alone."""
    facts = entry.get("facts") or {}
    if facts.get("places"):
        return [row for row in facts["places"] if row.get("class") == kind]
    return ((facts.get("casts") or {}).get("by_block") or []) if kind == "cast" else []


def _per_layer(pairs: list[tuple[Entry, Entry]], kind: str) -> str:
    """How much longer operators of that class take in each layer; empty where layers are unknown or differ."""
    counts = {number(entry, "layers", "layer_count") for pair in pairs for entry in pair}
    count = counts.pop() if len(counts) == 1 else None
    growth = sum(us for _, us in _differences(pairs, lambda entry: _by_block(entry, kind, "layer")))
    return _ms(growth / count) if count and growth > 0 else ""


def _memory(pairs: list[tuple[Entry, Entry]]) -> tuple[str, str]:
    ranks = [
        (after - before, new.get("rank"))
        for old, new in pairs
        if (before := _reserved(old)) is not None and (after := _reserved(new)) is not None
    ]
    if not ranks or max(ranks, key=lambda item: item[0])[0] <= 0:
        return "", ""
    growth, rank = max(ranks, key=lambda item: item[0])
    size = f"{growth / 1024**3:.1f} GiB"
    return f"Rank {rank} grew most: {size} more.", f"rank {rank} 增长最多：多 {size}。"


def _reserved(entry: Entry) -> float | None:
    value = (entry.get("memory") or {}).get("peak_reserved_bytes")
    return None if value is None else float(value)


def _versions(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, str]:
    changed = [
        f"{name} {old[name]} -> {value}"
        for name, value in new.items()
        if value and old.get(name) and old[name] != value
    ]
    if not changed:
        return "", ""
    return f"Changed since then: {', '.join(changed)}.", f"期间变化：{'，'.join(changed)}。"


def _listed(lead: str, places: list[tuple[str, float]], language: str) -> str:
    if not places:
        return ""
    with translation.override(language):
        return lead + ", ".join(f"{BLOCKS.get(name, name)} ({share * 100:.0f} %)" for name, share in places)


def _ms(us: float) -> str:
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1000:.0f} ms"
