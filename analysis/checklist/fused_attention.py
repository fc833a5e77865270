"""Item 3: attention takes the fused path; FlashAttention kernels for long sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.checklist.evidence import Evidence, Item, Status, Text, facts_of
from analysis.entries import Json, mean, number, ratio_of, rows, step_count
from analysis.thresholds import limit

_ADVICE = Text(
    "Switch on use_flash_attention (MindSpore Transformers) or call the fused attention operator "
    "directly; check that head "
    "dimension, dtype and mask are ones it takes, since it falls back to MatMul and Softmax without a word.",
    "开启 use_flash_attention（MindSpore Transformers）或直接调用融合注意力算子；请确认头维度、"
    "数据类型与掩码满足要求，"
    "否则会静默回退到 MatMul 与 Softmax。",
)
_ADVICE_TORCH = Text(
    "Call torch_npu.npu_fusion_attention (--use-flash-attn of MindSpeed and Megatron, "
    'attn_implementation="flash_attention_2" of Transformers); check that head dimension, dtype and mask are ones it '
    "takes: scaled_dot_product_attention falls back to MatMul and Softmax without a word.",
    "调用 torch_npu.npu_fusion_attention（MindSpeed、Megatron 的 --use-flash-attn，Transformers 的 "
    'attn_implementation="flash_attention_2"）；请确认头维度、数据类型与掩码满足要求：'
    "scaled_dot_product_attention 会静默回退到 MatMul 与 Softmax。",
)
_SUPPLY = Text(
    "Profile a training step at Level1 so that kernel types and shapes are recorded.",
    "请以 Level1 采集一个训练步，使算子类型与形状被记录。",
)


def check(evidence: Evidence) -> Item:
    """Value: share of attention time in fused kernels. Passes when no layer computes it by products and softmax."""
    seen = [(entry, facts) for entry, facts in facts_of(evidence.ranks, "attention") if _count(facts)]
    if not seen:
        unknown = Text("No attention was seen in this dump.", "该数据中未发现注意力计算。")
        return Item("fused_attention", "unknown", unknown, _SUPPLY, None, 1.0)
    fused = sum(number(facts, "fused_us") or 0.0 for _, facts in seen)
    unfused = sum(number(facts, "unfused_us") or 0.0 for _, facts in seen)
    pairs = sum(int(number(facts, "unfused_count") or 0) for _, facts in seen)
    share = ratio_of(fused, fused + unfused)
    length = max((number(facts, "sequence_length") or 0 for _, facts in seen), default=0)
    short = 0 < length < limit("long_sequence")
    status: Status = "fail" if pairs else "pass"
    recoverable = mean(_recoverable(entry, facts) for entry, facts in seen) if pairs else None
    return Item(
        "fused_attention",
        status,
        _summary(share, pairs, int(length), short),
        evidence.advice(_ADVICE, _ADVICE_TORCH),
        share,
        1.0,
        _evidence(seen),
        recoverable,
    )


def _count(facts: Mapping[str, Any]) -> float:
    return (number(facts, "fused_count") or 0) + (number(facts, "unfused_count") or 0)


def _summary(share: float | None, pairs: int, length: int, short: bool) -> Text:
    at, at_zh = (f" at sequence length {length}", f"，序列长度 {length}") if length else ("", "")
    if pairs == 0:
        return Text(f"Attention runs in fused kernels{at}.", f"注意力由融合算子执行{at_zh}。")
    less = ("; short enough for the harm to be limited", "；序列较短，影响有限") if short else ("", "")
    known = f"{share:.0%}" if share is not None else "?"
    return Text(
        f"{pairs} attentions run as MatMul and Softmax, {known} of attention time is fused{at}{less[0]}.",
        f"有 {pairs} 处注意力以 MatMul + Softmax 执行，融合占注意力时间的 {known}{at_zh}{less[1]}。",
    )


def _evidence(seen: list[tuple[Json, Mapping[str, Any]]]) -> list[Json]:
    entry, facts = max(seen, key=lambda pair: number(pair[1], "unfused_us") or 0.0)
    rank = entry.get("rank")
    found: list[Json] = [{"kind": "attention", "rank": rank, **row} for row in rows(facts, "kinds")[:6]]
    return found + [{"kind": "unfused", "rank": rank, **row} for row in rows(facts, "unfused")[:6]]


def _recoverable(entry: Json, facts: Mapping[str, Any]) -> float | None:
    """Estimate by the literature: the fused kernel takes 1 / fused_speedup of the unfused sequence."""
    unfused = number(facts, "unfused_us")
    return None if unfused is None else unfused * (1 - 1 / limit("fused_speedup")) / step_count(entry)
