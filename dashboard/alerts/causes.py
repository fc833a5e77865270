"""Why a number got worse: one sentence in English and one in Chinese, from the two captures' rank entries.

Each figure is per step and the mean over the ranks that both captures have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils import translation

from analysis.entries import bubble_us, exposed_us, number, step_count
from analysis.optypes import op_class
from dashboard.runs.metrics import BLOCKS

Entry = Mapping[str, Any]
LEAST_SHARE = 0.05
STEP_PARTS = {
    "computing_us": ("computing", "计算"),
    "exposed_us": ("exposed communication", "未掩盖通信"),
    "bubble_us": ("waiting for other pipeline stages", "等待其他流水线阶段"),
    "free_us": ("waiting for the host", "等待主机"),
}


@dataclass(frozen=True)
class Side:
    """One capture: its rank entries, and what it ran on ("CANN" -> "8.3")."""

    entries: Sequence[Entry]
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cause:
    """The sentences, empty when nothing is known; `evidence` says where to look: rank, type, block."""

    english: str = ""
    chinese: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grown:
    """The operator type that grew most per step (us), the block that got most of it and how much a layer."""

    type: str
    total: float
    block: str = ""
    us: float = 0.0
    by_layer: float | None = None

    @property
    def amount(self) -> float:
        return self.us if self.block else self.total


def cause(metric: str, old: Side, new: Side) -> Cause:
    """Why `metric` is worse in `new` than in `old`."""
    pairs = _pairs(old.entries, new.entries)
    since = _since(old.versions, new.versions)
    if metric == "peak_memory_bytes":
        return _memory(pairs, since)
    if metric in ("cast_ratio", "item:dtype_cast"):
        return _cast(pairs, since)
    return _step(pairs, since)


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
    part = {"exposed_us": exposed_us, "bubble_us": bubble_us}.get(key) or (lambda step: number(step, key))
    values = [value for step in entry.get("steps") or [] if (value := part(step)) is not None]
    return sum(values) / len(values) if values else None


def _mean(pairs: list[tuple[Entry, Entry]], side: int, key: str) -> float | None:
    values = [value for pair in pairs if (value := _mean_step(pair[side], key)) is not None]
    return sum(values) / len(values) if values else None


def _step(pairs: list[tuple[Entry, Entry]], since: tuple[str, str]) -> Cause:
    """Of a longer step: the operator and block that grew most, then the part of the step."""
    grown = _most_grown(pairs)
    before, after = _mean(pairs, 0, "step_time_us"), _mean(pairs, 1, "step_time_us")
    if before is None or after is None or after <= before:
        return _only(grown, since, pairs)
    longer = after - before
    part = _largest_part(pairs, longer)
    english = f"A step takes {_ms(longer)} longer ({_ms(before)} → {_ms(after)})"
    chinese = f"单步变长 {_ms(longer)}（{_ms(before)} → {_ms(after)}）"
    if part:
        english, chinese = f"{english}, {part[2]} of it {part[0]}", f"{chinese}，其中{part[1]}占 {part[2]}"
    lead = ("", "")
    if grown and grown.amount > 0:
        share = f"{min(grown.amount / longer, 1) * 100:.0f} %"
        lead = (
            f"{share} of it is {_named(grown, 'en')}{_by_layer(grown, 'en')}{since[0]}. ",
            f"其中 {share} 是{_named(grown, 'zh-hans')}{_by_layer(grown, 'zh-hans')}{since[1]}。",
        )
        return Cause(lead[0] + english + ".", lead[1] + chinese + "。", _evidence(grown, pairs))
    return Cause(english + since[0] + ".", chinese + since[1] + "。", _evidence(None, pairs))


def _only(grown: Grown | None, since: tuple[str, str], pairs: list[tuple[Entry, Entry]]) -> Cause:
    """Where no step is longer, as far as is known: what grew all the same."""
    if grown is None:
        return Cause(*_alone(since), _evidence(None, pairs))
    return Cause(
        f"{_named(grown, 'en')} grew most, by {_ms(grown.amount)} a step{_by_layer(grown, 'en')}{since[0]}.",
        f"增长最多的是{_named(grown, 'zh-hans')}，每步多 {_ms(grown.amount)}{_by_layer(grown, 'zh-hans')}{since[1]}。",
        _evidence(grown, pairs),
    )


def _alone(since: tuple[str, str]) -> tuple[str, str]:
    """The clause about versions as a sentence of its own."""
    english, chinese = since[0].lstrip(", "), since[1].lstrip("，")
    return (english[:1].upper() + english[1:] + "." if english else "", chinese + "。" if chinese else "")


def _largest_part(pairs: list[tuple[Entry, Entry]], longer: float) -> tuple[str, str, str] | None:
    growth = {}
    for key in STEP_PARTS:
        was, now = _mean(pairs, 0, key), _mean(pairs, 1, key)
        if was is not None and now is not None:
            growth[key] = now - was
    if not growth or max(growth.values()) <= 0:
        return None
    key = max(growth, key=growth.__getitem__)
    return (*STEP_PARTS[key], f"{min(growth[key] / longer, 1) * 100:.0f} %")


def _most_grown(pairs: list[tuple[Entry, Entry]]) -> Grown | None:
    types = _differences(pairs, _compute_types)
    if not types or types[0][1] <= 0:
        return None
    name, total = types[0]
    return _placed_growth(pairs, name, op_class(name), total)


def _placed_growth(pairs: list[tuple[Entry, Entry]], name: str, kind: str, total: float) -> Grown:
    blocks = _differences(pairs, lambda entry: _by_block(entry, kind))
    if not blocks or blocks[0][1] <= 0 or blocks[0][1] < LEAST_SHARE * total:
        return Grown(name, total)
    block, us = blocks[0]
    inside = dict(_differences(pairs, lambda entry: _by_block(entry, kind, "layer"))).get(block)
    return Grown(name, total, block, us, _for_each_layer(pairs, inside))


def _for_each_layer(pairs: list[tuple[Entry, Entry]], growth: float | None) -> float | None:
    """us in each layer; None where layers are unknown or differ."""
    counts = {number(entry, "layers", "layer_count") for pair in pairs for entry in pair}
    count = counts.pop() if len(counts) == 1 else None
    return growth / count if count and growth is not None and growth > 0 else None


def _named(grown: Grown, language: str) -> str:
    if not grown.block:
        return grown.type if language == "en" else f" {grown.type}"
    with translation.override(language):
        where = str(BLOCKS.get(grown.block, grown.block))
    return f"{grown.type} in {where}" if language == "en" else f"{where}中的 {grown.type}"


def _by_layer(grown: Grown, language: str) -> str:
    if grown.by_layer is None:
        return ""
    return f", +{_ms(grown.by_layer)} a layer" if language == "en" else f"，每层多 {_ms(grown.by_layer)}"


def _evidence(grown: Grown | None, pairs: list[tuple[Entry, Entry]]) -> dict[str, Any]:
    """Rank, type and block of the kernels to look at: the rank whose step grew most."""
    longest = max(pairs, key=_longer, default=None)
    found = {} if longest is None else {"rank": longest[1].get("rank")}
    return found if grown is None else {**found, "type": grown.type, "block": grown.block}


def _longer(pair: tuple[Entry, Entry]) -> float:
    before, after = _mean_step(pair[0], "step_time_us"), _mean_step(pair[1], "step_time_us")
    return after - before if before is not None and after is not None else float("-inf")


def _compute_types(entry: Entry) -> dict[str, float]:
    rows = entry.get("op_types") or []
    return {row["type"]: row["total_us"] for row in rows if row.get("share") is not None and row.get("total_us")}


def _cast(pairs: list[tuple[Entry, Entry]], since: tuple[str, str]) -> Cause:
    was, now = _per_step(pairs, 0, "cast_us"), _per_step(pairs, 1, "cast_us")
    if was is None or now is None:
        return Cause(*_alone(since), _evidence(None, pairs))
    grown = _placed_growth(pairs, "Cast", "cast", now - was)
    english, chinese = f"Cast takes {_ms(now)} a step, {_ms(was)} before", f"Cast 每步 {_ms(now)}，之前 {_ms(was)}"
    if grown.block and now > was:
        share = f"{min(grown.us / (now - was), 1) * 100:.0f} %"
        with translation.override("en"):
            english += f"; {share} of the growth is in {BLOCKS.get(grown.block, grown.block)}{_by_layer(grown, 'en')}"
        with translation.override("zh-hans"):
            where = BLOCKS.get(grown.block, grown.block)
            chinese += f"；增长的 {share} 在{where}{_by_layer(grown, 'zh-hans')}"
    return Cause(f"{english}{since[0]}.", f"{chinese}{since[1]}。", _evidence(grown, pairs))


def _per_step(pairs: list[tuple[Entry, Entry]], side: int, key: str) -> float | None:
    values = [
        pair[side]["kernels"][key] / step_count(pair[side])
        for pair in pairs
        if (pair[side].get("kernels") or {}).get(key) is not None
    ]
    return sum(values) / len(values) if values else None


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


def _memory(pairs: list[tuple[Entry, Entry]], since: tuple[str, str]) -> Cause:
    ranks = [
        (after - before, new.get("rank"))
        for old, new in pairs
        if (before := _reserved(old)) is not None and (after := _reserved(new)) is not None
    ]
    if not ranks or max(ranks, key=lambda item: item[0])[0] <= 0:
        return Cause(*_alone(since))
    growth, rank = max(ranks, key=lambda item: item[0])
    size = f"{growth / 1024**3:.1f} GiB"
    return Cause(
        f"Rank {rank} grew most, by {size}{since[0]}.", f"rank {rank} 增长最多，多 {size}{since[1]}。", {"rank": rank}
    )


def _reserved(entry: Entry) -> float | None:
    value = (entry.get("memory") or {}).get("peak_reserved_bytes")
    return None if value is None else float(value)


def _since(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, str]:
    """ ", first seen with CANN 8.3 (8.2 before)"; empty when nothing that is known changed."""
    changed = [
        (name, old[name], value) for name, value in new.items() if value and old.get(name) and old[name] != value
    ]
    if not changed:
        return "", ""
    english = ", ".join(f"{name} {value} ({was} before)" for name, was, value in changed)
    chinese = "、".join(f"{name} {value}（之前 {was}）" for name, was, value in changed)
    return f", first seen with {english}", f"，首次出现于 {chinese}"


def _ms(us: float) -> str:
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1000:,.0f} ms"
