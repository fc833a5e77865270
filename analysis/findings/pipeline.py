"""Which operation of MindSpore's data pipeline keeps the device waiting."""

from __future__ import annotations

from analysis.checklist.evidence import Text
from analysis.entries import Json, number
from analysis.findings.view import Finding, View, ms
from analysis.thresholds import limit


def data_pipeline(view: View) -> Finding | None:
    """The queue that feeds the device runs empty, or the device waits long for each batch; the operation that is behind
    it, where the queues tell."""
    found = [entry for entry in view.ranks if _starves(entry)]
    if not found:
        return None
    worst = max(found, key=lambda entry: (_empty(entry), _wait(entry)))
    slow, stage = _slow(worst), _stage(worst)
    en, zh = _told(worst)
    if slow.get("op"):
        name, workers = f"{slow['op']} (operation {slow['op_id']})", slow.get("workers")
        en += f"; {name} with {workers or '?'} workers is what it waits for"
        zh += f"；瓶颈是 {name}，工作线程数 {workers or '?'}"
        advice = Text(
            f"Give {slow['op']} more workers (num_parallel_workers), or do its work once, ahead of training.",
            f"增加 {slow['op']} 的并行线程数（num_parallel_workers），或提前离线处理并缓存。",
        )
    elif stage.get("operation"):
        name = f"{stage['operation']} ({stage.get('stage') or '?'})"
        en += f"; {name} takes the host longest, {ms(stage['mean_us'])} each time"
        zh += f"；主机侧 {name} 耗时最长，每次 {ms(stage['mean_us'])}"
        advice = Text(
            f"Speed up {stage['operation']}: more workers (num_parallel_workers), less work a sample, or caching.",
            f"优化 {stage['operation']}：增加并行线程数（num_parallel_workers）、减少单样本处理量或使用缓存。",
        )
    else:
        advice = Text(
            "Record the data pipeline (data_process=True) to see which operation is slow, and add workers there.",
            "采集数据处理信息（data_process=True）以定位慢算子，并在该处增加并行线程。",
        )
    evidence = [
        {
            "rank": entry.get("rank"),
            **_slow(entry),
            "queue_empty_ratio": number(entry, "facts", "queue_empty_ratio"),
            "get_next_us": number(entry, "facts", "get_next_us"),
        }
        for entry in found
    ]
    return Finding("data_pipeline", Text(f"{en}.", f"{zh}。"), advice, evidence, severity="high")


def _starves(entry: Json) -> bool:
    return _empty(entry) >= limit("input_queue_empty") or _wait(entry) >= limit("data_loading_us")


def _told(entry: Json) -> tuple[str, str]:
    """What was seen, in English and Chinese."""
    if _empty(entry) >= limit("input_queue_empty"):
        share = f"{_empty(entry):.0%}"
        return f"The queue of input data was empty in {share} of its samples", f"输入数据队列有 {share} 的采样为空"
    wait = ms(_wait(entry))
    return f"The device waits {wait} for each batch of input data", f"设备取每个 batch 的输入数据需等待 {wait}"


def _wait(entry: Json) -> float:
    return number(entry, "facts", "get_next_us") or 0.0


def _stage(entry: Json) -> Json:
    """The stage of the dataset's operations that takes the host longest, empty where none is known."""
    found = (entry.get("facts") or {}).get("slow_stage")
    return found if isinstance(found, dict) else {}


def _slow(entry: Json) -> Json:
    """The slow operation of the rank's pipeline, empty where none is known."""
    found = (entry.get("facts") or {}).get("slow_operation")
    return found if isinstance(found, dict) else {}


def _empty(entry: Json) -> float:
    return number(entry, "facts", "queue_empty_ratio") or 0.0
