"""Item 5: the mask comes from the framework, has the right shape and dtype, and is not rebuilt in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.checklist.evidence import Evidence, Item, Status, Text, facts_of
from analysis.entries import Json, mean, number, rows, step_count
from analysis.thresholds import limit

_ADVICE = Text(
    "Build the mask once outside the layers, or use the compressed 2048 x 2048 mask "
    "(use_attn_mask_compression); keep it bool or "
    "uint8 and broadcastable: [1,1,S,S] or [B,1,S,S].",
    "在层外只构造一次掩码，或使用 2048 x 2048 压缩掩码（use_attn_mask_compression）；数据类型用 bool 或 uint8，"
    "形状为可广播的 [1,1,S,S] 或 [B,1,S,S]。",
)
_ADVICE_TORCH = Text(
    "Build the mask once outside the layers, or give npu_fusion_attention the compressed 2048 x 2048 mask "
    "(sparse_mode 2 for causal attention); keep it bool or uint8 and broadcastable: [S,S], [1,1,S,S] or [B,1,S,S].",
    "在层外只构造一次掩码，或为 npu_fusion_attention 使用 2048 x 2048 压缩掩码（因果注意力取 sparse_mode 2）；"
    "数据类型用 bool 或 uint8，形状为可广播的 [S,S]、[1,1,S,S] 或 [B,1,S,S]。",
)
_SUPPLY = Text(
    "Profile at Level1 so that the shapes and dtypes of attention operands are recorded.",
    "请以 Level1 采集，使注意力算子的操作数形状与数据类型被记录。",
)
_DTYPES = {"BOOL", "UINT8"}


def check(evidence: Evidence) -> Item:
    """Fails on a mask of wrong shape or dtype, and on mask-building kernels repeated in each layer."""
    seen = [(entry, facts) for entry, facts in facts_of(evidence.ranks, "mask") if rows(facts, "operands")]
    rebuilt = [(entry, facts) for entry, facts in facts_of(evidence.ranks, "mask") if facts.get("rebuilt")]
    if not seen and not rebuilt:
        unknown = Text("No mask operand is visible in this dump.", "该数据中看不到掩码操作数。")
        return Item("attention_mask", "unknown", unknown, _SUPPLY)
    faults = sorted(
        {fault for _, facts in seen for row in rows(facts, "operands") for fault in operand_faults(row, facts)}
    )
    found: list[Json] = [{"kind": "operand", **row} for row in rows(seen[0][1], "operands")[:5]] if seen else []
    found += [{"kind": "fault", "text": fault} for fault in faults]
    if rebuilt:
        found += [{"kind": "builder", **row} for row in rows(rebuilt[0][1], "builders")[:6]]
    recoverable = mean((number(facts, "builders_us") or 0.0) / step_count(entry) for entry, facts in rebuilt)
    status: Status = "fail" if faults or rebuilt else "pass"
    advice = evidence.advice(_ADVICE, _ADVICE_TORCH)
    return Item(
        "attention_mask", status, _summary(faults, bool(rebuilt)), advice, evidence=found, recoverable_us=recoverable
    )


def operand_faults(operand: Json, facts: Mapping[str, Any]) -> list[str]:
    """What is wrong with one mask operand: {"shape": [...], "dtype": ...} for attention of `sequence_length` tokens."""
    faults = []
    shape, dtype = operand.get("shape") or [], operand.get("dtype")
    if dtype is not None and str(dtype).upper().removeprefix("DT_") not in _DTYPES:
        faults.append(f"mask dtype is {dtype}, not bool or uint8")
    length = number(facts, "sequence_length")
    if not _shape_fits(shape, int(length) if length else None):
        faults.append("mask shape is " + " x ".join(str(size) for size in shape))
    return faults


def _shape_fits(shape: list[int], length: int | None) -> bool:
    compressed = int(limit("compressed_mask"))
    if len(shape) not in (2, 3, 4) or any(size != 1 for size in shape[1:-2]):
        return False
    if shape[-2:] == [compressed, compressed]:
        return True
    return length is None or (shape[-1] == length and length % max(1, shape[-2]) == 0)


def _summary(faults: list[str], rebuilt: bool) -> Text:
    if not faults and not rebuilt:
        return Text(
            "The mask has a framework shape and dtype and is built once.", "掩码形状与数据类型符合要求，且只构造一次。"
        )
    said = faults + (["the mask is rebuilt in every layer"] if rebuilt else [])
    zh = (["掩码的形状或数据类型不符合要求"] if faults else []) + (["掩码在每一层重复构造"] if rebuilt else [])
    text = "; ".join(said)
    return Text(text[0].upper() + text[1:] + ".", "；".join(zh) + "。")
