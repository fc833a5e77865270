"""Which operation of MindSpore's data pipeline keeps the device waiting."""

from __future__ import annotations

from analysis.checklist.evidence import Text
from analysis.entries import Json, number
from analysis.findings.view import Finding, View
from analysis.thresholds import limit


def data_pipeline(view: View) -> Finding | None:
    """The queue that feeds the device runs empty; the operation that is behind it, where the queues tell."""
    found = [entry for entry in view.ranks if _empty(entry) >= limit("input_queue_empty")]
    if not found:
        return None
    worst = max(found, key=_empty)
    slow = _slow(worst)
    share = f"{_empty(worst):.0%}"
    en, zh = f"The queue of input data was empty in {share} of its samples", f"输入数据队列有 {share} 的采样为空"
    if slow.get("op"):
        name, workers = f"{slow['op']} (operation {slow['op_id']})", slow.get("workers")
        en += f"; {name} with {workers or '?'} workers is what it waits for"
        zh += f"；瓶颈是 {name}，工作线程数 {workers or '?'}"
        advice = Text(
            f"Give {slow['op']} more workers (num_parallel_workers), or do its work once, ahead of training.",
            f"增加 {slow['op']} 的并行线程数（num_parallel_workers），或提前离线处理并缓存。",
        )
    else:
        advice = Text(
            "Record the data pipeline (data_process=True) to see which operation is slow, and add workers there.",
            "采集数据处理信息（data_process=True）以定位慢算子，并在该处增加并行线程。",
        )
    evidence = [{"rank": entry.get("rank"), **_slow(entry),
                 "queue_empty_ratio": _empty(entry)} for entry in found]  # fmt: skip
    return Finding("data_pipeline", Text(f"{en}.", f"{zh}。"), advice, evidence, severity="high")


def _slow(entry: Json) -> Json:
    """The slow operation of the rank's pipeline, empty where none is known."""
    found = (entry.get("facts") or {}).get("slow_operation")
    return found if isinstance(found, dict) else {}


def _empty(entry: Json) -> float:
    return number(entry, "facts", "queue_empty_ratio") or 0.0
