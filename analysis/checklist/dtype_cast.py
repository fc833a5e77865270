"""Item 1: dtype is uniform; Cast stays below 5 % of device compute."""

from __future__ import annotations

from analysis.checklist.evidence import Evidence, Item, Text, facts_of
from analysis.entries import Json, mean, number, rank_name, ratio_of_sums, rows, step_count
from analysis.thresholds import limit

_ADVICE = Text(
    "Keep one compute dtype through a layer: set compute_dtype, layernorm_compute_type and "
    "softmax_compute_type so that "
    "tensors are not converted at every block boundary; use fused kernels that take BF16 in and keep FP32 inside.",
    "让一层内的计算数据类型保持一致：统一 compute_dtype、layernorm_compute_type、softmax_compute_type，"
    "避免在每个模块边界转换；优先使用输入为 BF16、内部以 FP32 计算的融合算子。",
)
_ADVICE_TORCH = Text(
    "Keep one compute dtype through a layer: run the whole model in BF16 (--bf16 of MindSpeed and Megatron) instead of "
    "autocast around single modules, look for .float() and .to(torch.float32) in the blocks named here, and use fused "
    "kernels that take BF16 in and keep FP32 inside: npu_rms_norm, npu_rotary_mul, npu_fusion_attention.",
    "让一层内的计算数据类型保持一致：整个模型使用 BF16（MindSpeed、Megatron 的 --bf16），不要对单个模块使用 autocast；"
    "检查下列模块中的 .float() 与 .to(torch.float32)；优先使用输入为 BF16、内部以 FP32 计算的融合算子："
    "npu_rms_norm、npu_rotary_mul、npu_fusion_attention。",
)
_SUPPLY = Text(
    "Profile with profiler_level=Level1 so that kernel_details.csv carries operator types.",
    "请以 profiler_level=Level1 采集，使 kernel_details.csv 含有算子类型。",
)


def check(evidence: Evidence) -> Item:
    """Cast time / compute time over all ranks against the limit."""
    known = [entry for entry in evidence.ranks if number(entry, "kernels", "cast_ratio") is not None]
    ratio = ratio_of_sums((number(e, "kernels", "cast_us"), number(e, "kernels", "compute_us")) for e in known)
    if ratio is None:
        unknown = Text(
            "Operator types are not in this dump, so the Cast share is unknown.", "该数据不含算子类型，Cast 占比未知。"
        )
        return Item("dtype_cast", "unknown", unknown, _SUPPLY, threshold=limit("cast_ratio"))
    passed = ratio < limit("cast_ratio")
    return Item(
        "dtype_cast",
        "pass" if passed else "fail",
        Text(f"Cast takes {ratio:.1%} of device compute.", f"Cast 占设备计算时间的 {ratio:.1%}。"),
        evidence.advice(_ADVICE, _ADVICE_TORCH),
        ratio,
        limit("cast_ratio"),
        _evidence(known),
        _recoverable(known),
    )


def _evidence(ranks: list[Json]) -> list[Json]:
    worst = max(ranks, key=lambda entry: number(entry, "kernels", "cast_ratio") or 0.0)
    found: list[Json] = [
        {
            "kind": "rank",
            "rank": worst.get("rank"),
            "cast_us": number(worst, "kernels", "cast_us"),
            "cast_ratio": number(worst, "kernels", "cast_ratio"),
            "text": f"highest on {rank_name(worst)}",
        }
    ]
    for _, casts in facts_of([worst], "casts"):
        if number(casts, "exposed_us") is not None:
            found.append({"kind": "exposure", "exposed_us": casts["exposed_us"], "hidden_us": casts.get("hidden_us")})
        found += [{"kind": "dtype_pair", **row} for row in rows(casts, "by_dtype")[:5]]
        found += [{"kind": "block", **row} for row in rows(casts, "by_block")[:8]]
    return found


def _recoverable(ranks: list[Json]) -> float | None:
    """Per step, mean over ranks: exposed Cast that norms and loss do not need; without layers, Cast over the limit."""
    return mean(_recoverable_of(entry) for entry in ranks)


def _recoverable_of(entry: Json) -> float | None:
    removable = number(entry, "facts", "casts", "removable_us")
    if removable is not None:
        return removable / step_count(entry)
    cast, compute = number(entry, "kernels", "cast_us"), number(entry, "kernels", "compute_us")
    if cast is None or compute is None:
        return None
    return max(0.0, cast - limit("cast_ratio") * compute) / step_count(entry)
