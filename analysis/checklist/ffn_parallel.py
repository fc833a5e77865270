"""Item 4: the FFN split matches the parallel config, and the collectives are those that config needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.checklist import volumes
from analysis.checklist.evidence import Evidence, Item, Status, Text, facts_of
from analysis.entries import Json, number, rows

if TYPE_CHECKING:
    from analysis.config import ModelConfig

_ADVICE = Text(
    "Split the up and gate matrices by columns and the down matrix by rows over the tensor-parallel "
    "ranks, so that one collective "
    "per block is enough; turn on sequence parallel with TP, and check the strategy of each MatMul.",
    "在张量并行各卡间对 up/gate 矩阵按列切分、对 down 矩阵按行切分，使每个模块只需一次集合通信；"
    "与张量并行一起开启序列并行，"
    "并检查各 MatMul 的切分策略。",
)
_ADVICE_TORCH = Text(
    "Split the up and gate matrices by columns and the down matrix by rows over the tensor-parallel ranks "
    "(ColumnParallelLinear, then RowParallelLinear), so that one collective per block is enough; turn on "
    "--sequence-parallel with TP.",
    "在张量并行各卡间对 up/gate 矩阵按列切分、对 down 矩阵按行切分（先 ColumnParallelLinear，后 RowParallelLinear），"
    "使每个模块只需一次集合通信；与张量并行一起开启 --sequence-parallel。",
)
_SUPPLY = Text(
    "Attach the run's configuration (YAML, or a Megatron job's script or log) with hidden size, FFN size and parallel "
    "split, and profile at Level1 for the shapes.",
    "请附上含 hidden、FFN 尺寸与并行切分的运行配置（YAML，或 Megatron 作业的启动脚本或日志），并以 Level1 采集形状。",
)
_SPLIT = Text(
    "Give the log of the job, which prints its split, or a script that sets the variables of its parallel sizes.",
    "请附上打印了并行切分的作业日志，或给出并行尺寸变量取值的启动脚本。",
)
_OTHER_BLOCKS = ("qkv", "position", "attention_core", "attention_out", "norm_attention", "moe_router")
_OTHER_PARTS = ("embedding", "final_norm", "head_loss", "optimizer", "gradient_sync")


def check(evidence: Evidence) -> Item:
    """Value: share of FFN matmul time whose shapes are hidden x (FFN / TP)."""
    config = evidence.config
    if config is None or config.hidden is None or not _widths(config):
        what = Text("The FFN sizes of this run are not known.", "本次运行的 FFN 尺寸未知。")
        return Item("ffn_parallel", "unknown", what, _SUPPLY, None, 1.0)
    if config.tp is None or config.cp is None:
        what = Text("The parallel split of this run is not known.", "本次运行的并行切分未知。")
        return Item("ffn_parallel", "unknown", what, _SPLIT, None, 1.0)
    judged = [
        (row, verdict)
        for entry in evidence.ranks
        for row in rows(entry, "facts", "matmuls")
        if (verdict := judge_matmul(row, config)) is not None
    ]
    faults = [
        fault for _, facts in facts_of(evidence.ranks, "collectives") for fault in collective_faults(facts, config)
    ]
    groups = evidence.source.get("groups")
    faults += next((odd for entry in evidence.ranks if (odd := volumes.faults(entry, config, groups))), [])
    if not judged:
        what = Text("No matrix product of the FFN's size was seen.", "未发现与 FFN 尺寸对应的矩阵乘。")
        return Item("ffn_parallel", "unknown", what, _SUPPLY, None, 1.0)
    right = sum(number(row, "total_us") or 0.0 for row, verdict in judged if verdict == "split as configured")
    total = sum(number(row, "total_us") or 0.0 for row, _ in judged)
    share = right / total if total else None
    wrong = [(row, verdict) for row, verdict in judged if verdict != "split as configured"]
    shown = (wrong or judged)[:6]
    found: list[Json] = [{"kind": "matmul", "text": verdict, **row} for row, verdict in shown]
    found += [{"kind": "fault", "text": fault} for fault in sorted(set(faults))]
    found += [
        {"kind": "collective", **row}
        for _, facts in facts_of(evidence.ranks[:1], "collectives")
        for row in rows(facts, "ops")[:6]
    ]
    found += _volumes(evidence, config)
    status: Status = "fail" if wrong or faults else "pass"
    advice = evidence.advice(_ADVICE, _ADVICE_TORCH)
    return Item("ffn_parallel", status, _summary(config, share, len(set(faults))), advice, share, 1.0, found)


def _volumes(evidence: Evidence, config: ModelConfig) -> list[Json]:
    """Bytes a step by dimension on the first rank that tells them, beside what the split needs."""
    groups = evidence.source.get("groups")
    for entry in evidence.ranks:
        have = volumes.measured(entry, config, groups)
        need = volumes.needed(config, have, entry.get("rank")) if have is not None else None
        if have is not None and need is not None:
            return [
                {
                    "kind": "volume",
                    "of": kind,
                    "bytes": round(size),
                    "least_bytes": round(low),
                    "most_bytes": round(high),
                }
                for kind, (low, high) in need.items()
                if (size := have.get(kind, volumes.EMPTY).total) or high
            ]
    return []


def _summary(config: ModelConfig, share: float | None, faults: int) -> Text:
    known = f"{share:.0%}" if share is not None else "?"
    more = (f"; communication does not fit in {faults} way(s)", f"；{faults} 项通信与配置不符") if faults else ("", "")
    return Text(
        f"{known} of FFN matrix time is split as TP {config.tp} asks{more[0]}.",
        f"{known} 的 FFN 矩阵乘时间与 TP {config.tp} 的切分一致{more[1]}。",
    )


def _widths(config: ModelConfig) -> set[int]:
    """FFN widths of the model before any split."""
    return {width for width in (config.ffn, config.moe_ffn, config.shared_ffn) if width}


def judge_matmul(row: Json, config: ModelConfig) -> str | None:
    """How one matmul {"m", "n", "k"} splits the FFN; None when it is not one of the FFN's.

    Forward, data gradient and weight gradient all have the sizes {tokens, hidden, width}, in different places.
    """
    sizes = [int(row[key]) for key in ("m", "n", "k") if number(row, key) is not None]
    hidden, tp = config.hidden, config.tp
    if (
        len(sizes) != 3
        or hidden is None
        or not tp
        or row.get("block") in _OTHER_BLOCKS
        or row.get("part") in _OTHER_PARTS
    ):
        return None
    tokens = _tokens(config)
    widths = _widths(config)
    if any(_has(sizes, hidden, part * width // tp, tokens) for width in widths for part in (1, 2) if width % tp == 0):
        return "split as configured"
    if tp > 1 and any(_has(sizes, hidden, part * width, tokens) for width in widths for part in (1, 2)):
        return f"not split over TP {tp}"
    if (
        tp > 1
        and hidden % tp == 0
        and any(_has(sizes, hidden // tp, part * w, tokens) for w in widths for part in (1, 2))
    ):
        return "split along hidden instead of the FFN width"
    return None


def _tokens(config: ModelConfig) -> set[int]:
    """Numbers of tokens a matmul of one micro-batch can see: whole sequence, or its part under CP."""
    if config.seq_length is None:
        return set()
    sequence = config.seq_length // (config.cp or 1)
    return {sequence * (config.micro_batch or 1), sequence}


def _has(sizes: list[int], hidden: int, width: int, tokens: set[int]) -> bool:
    """Whether `sizes` holds hidden and width, and, when the third is known, tokens."""
    rest = list(sizes)
    for size in (hidden, width):
        if size not in rest:
            return False
        rest.remove(size)
    return rest[0] in tokens if tokens and rest[0] in (hidden, width) else True


def collective_faults(facts: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """Collectives that the parallel config needs and are not there, or that nothing in it explains."""
    counts = {str(row.get("op")): int(number(row, "count") or 0) for row in rows(facts, "ops")}
    inside = {str(row.get("op")): int(number(row, "in_layers") or 0) for row in rows(facts, "ops")}
    if not facts.get("types_known"):
        return []
    tp, ep, cp = config.tp or 0, config.ep or 0, config.cp or 0  # 0: not known, and nothing follows from it
    faults = []
    reduces = counts.get("allReduce", 0) + min(counts.get("allGather", 0), counts.get("reduceScatter", 0))
    if tp > 1 and not reduces:
        faults.append(f"TP is {tp} but there is no allReduce, and no allGather with reduceScatter")
    if ep > 1 and not counts.get("allToAll", 0):
        faults.append(f"EP is {ep} but there is no allToAll")
    if tp == ep == cp == 1 and inside.get("allReduce", 0) + inside.get("allToAll", 0):
        faults.append("allReduce or allToAll inside layers although TP, CP and EP are 1")
    return faults
