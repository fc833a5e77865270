"""Item 7: performance is compared without warm-up and compile; MFU is recorded with its denominator."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.checklist.evidence import Evidence, Item, Text
from analysis.chinese import chinese
from analysis.entries import Json, judged_steps, number, rows

_ADVICE = Text(
    "Profile a window after warm-up (20 steps, judge the last 10), and send the run's configuration (YAML, or a "
    "Megatron job's script or log) with the chip named so that MFU is recorded with formula, peak, dtype and source.",
    "请在预热之后采集（建议 20 步，评估后 10 步），并附上运行配置（YAML，或 Megatron 作业的启动脚本或日志）与芯片型号，"
    "使 MFU 连同公式、峰值、数据类型与来源一并记录。",
)


def check(evidence: Evidence) -> Item:
    """Value: the MFU. Passes when steps remain after warm-up and MFU is known. Ranks run the same steps: counted are
    those of the rank with most of them."""
    counts = [(len(judged_steps(entry)), len(rows(entry, "steps"))) for entry in evidence.ranks]
    judged, total = max(counts, default=(0, 0))
    logged = [step for step in evidence.series if number(step, "step_time_ms") is not None]
    if not total and not logged:
        unknown = Text("No steps were found.", "未找到任何训练步。")
        supply = Text("Profile with a schedule, or send the training log.", "请使用 schedule 采集，或上传训练日志。")
        return Item("warmup_mfu", "unknown", unknown, supply)
    flops = next((entry["flops"] for entry in evidence.ranks if number(entry, "flops", "mfu") is not None), None)
    found: list[Json] = [
        {"kind": "steps", "profiled": total, "judged": judged, "warmup": total - judged, "logged": len(logged)}
    ]
    missing = _missing(evidence) if flops is None else []
    found += [{"kind": "missing", "text": text} for text in missing]
    if flops is not None:
        keys = ("mfu", "formula", "peak_tflops", "peak_dtype", "peak_source", "step_time_source")
        found.append({"kind": "mfu", **{key: flops.get(key) for key in keys}})
    mfu = number(flops, "mfu") if flops else None
    good = mfu is not None and (judged > 0 or len(logged) > 1)
    return Item(
        "warmup_mfu",
        "pass" if good else "fail",
        _summary(judged, total, len(logged), mfu, missing),
        _ADVICE,
        mfu,
        None,
        found,
    )


def _summary(judged: int, total: int, logged: int, mfu: float | None, missing: Sequence[str]) -> Text:
    steps = f"{judged} of {total} profiled steps are judged" if total else f"{logged} logged steps"
    steps_zh = f"{total} 个采集步中评估 {judged} 个" if total else f"日志含 {logged} 步"
    if mfu is not None:
        return Text(f"{steps}; MFU is {mfu:.1%}.", f"{steps_zh}；MFU 为 {mfu:.1%}。")
    why = f": {missing[0]}" if missing else ""
    why_zh = f"：{chinese(missing[0]) or missing[0]}" if missing else ""
    return Text(f"{steps}; MFU is not recorded{why}.", f"{steps_zh}；未记录 MFU{why_zh}。")


def _missing(evidence: Evidence) -> list[str]:
    """What MFU lacks, in sentences that `analysis/chinese.py` knows."""
    flops = [entry.get("flops") or {} for entry in evidence.ranks]
    config = evidence.config
    missing = sorted({str(row["error"]) for row in flops if row.get("error")})
    if config is None:
        missing.append("no model config (attach the run's YAML, or a Megatron job's script or log)")
    elif config.missing_sizes:
        missing.append("config lacks " + ", ".join(config.missing_sizes))
    elif not missing and all(row.get("devices") is None for row in flops):
        missing.append("number of devices is unknown (say the data parallel size in the configuration)")
    if all(row.get("peak_tflops") is None for row in flops):
        missing.append("peak of the chip is unknown (name the SoC, such as Ascend910B3)")
    return missing
