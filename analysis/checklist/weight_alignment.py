"""Item 6: after loading weights, layer outputs were compared with those of the source framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.checklist.evidence import Evidence, Item, Text, facts_of
from analysis.entries import Json, number, rows
from analysis.thresholds import limit

_ADVICE = Text(
    "Start at the first layer that differs: compare weight names, transposes and concatenated QKV of that "
    "layer, then its "
    "dtype settings; compare again with dropout off and fixed inputs.",
    "从第一个不一致的层入手：核对该层的权重名称、转置与 QKV 拼接方式，再核对数据类型设置；关闭 dropout "
    "并固定输入后重新比对。",
)
_SUPPLY = Text(
    "Attach a comparison: the agent's layer-output comparison, or the compare_result CSV of MindStudio "
    "Probe put beside the dump.",
    "请附上比对结果：代理的逐层输出比对，或将 MindStudio Probe 的 compare_result CSV 放在采集目录中。",
)


def check(evidence: Evidence) -> Item:
    """Value: share of compared layers within tolerance."""
    alignment = _alignment(evidence)
    layers = rows(alignment, "layers") if alignment else []
    judged = [(row, aligned(row)) for row in layers]
    known = [(row, good) for row, good in judged if good is not None]
    if alignment is None or not known:
        unknown = Text("No comparison of layer outputs is attached.", "未附上逐层输出的比对结果。")
        return Item("weight_alignment", "unknown", unknown, _SUPPLY, None, 1.0)
    compared = int(number(alignment, "compared") or len(known))
    bad = [row for row, good in known if not good]
    differing = int(number(alignment, "differing") or len(bad))
    share = 1 - differing / compared
    summary = Text(
        f"{compared - differing} of {compared} compared outputs are within tolerance.",
        f"{compared} 个比对输出中有 {compared - differing} 个在容差之内。",
    )
    if bad:
        first = str(bad[0].get("name"))
        summary = Text(f"{summary.en} The first that differs: {first}.", f"{summary.zh}首个不一致的输出：{first}。")
    shown = [{"kind": "layer", "aligned": False, **row} for row in bad[:10]]
    shown = shown or [{"kind": "layer", "aligned": True, **row} for row, _ in known[:3]]
    shown.insert(0, {"kind": "source", "tool": alignment.get("tool"), "file": alignment.get("file")})
    return Item("weight_alignment", "fail" if differing else "pass", summary, _ADVICE, share, 1.0, shown)


def _alignment(evidence: Evidence) -> Mapping[str, Any] | None:
    attached = evidence.run.get("alignment")
    if isinstance(attached, dict):
        return attached
    found = facts_of(evidence.ranks, "alignment")
    return found[0][1] if found else None


def aligned(row: Json) -> bool | None:
    """The tool's own word where it gives one, else its rules on cosine and errors; None when nothing was compared."""
    if isinstance(row.get("aligned"), bool):
        return bool(row["aligned"])
    cosine, absolute = number(row, "cosine"), number(row, "max_absolute_error")
    relative = number(row, "max_relative_error")
    if cosine is None:
        return None if relative is None else relative < limit("alignment_relative_error")
    if absolute is None:  # an error that is not known excuses nothing
        return cosine >= limit("alignment_cosine")
    if cosine < limit("alignment_cosine_floor") or absolute > limit("alignment_absolute_ceiling"):
        return False
    return cosine >= limit("alignment_cosine") or absolute <= limit("alignment_absolute_error")
