"""Findings about the host: synchronisation, compilation, memory calls, garbage collection, data loading."""

from __future__ import annotations

from analysis.checklist.evidence import Text
from analysis.entries import Json, number, rows
from analysis.findings.view import Finding, View, ms
from analysis.thresholds import limit

_MIN_COMPILES = 20


def _calls(view: View, kind: str) -> tuple[float, float, list[Json]]:
    """(calls a step, us a step, rows) of one kind of host call, means over ranks."""
    found = [{"rank": e.get("rank"), **row} for e, api in view.facts("api") for row in api if row.get("kind") == kind]
    count = view.per_step(lambda entry: _of(entry, kind, "count")) or 0.0
    return count, view.per_step(lambda entry: _of(entry, kind, "total_us")) or 0.0, found


def _of(entry: Json, kind: str, key: str) -> float | None:
    api = rows(entry, "facts", "api")
    return sum(number(row, key) or 0.0 for row in api if row.get("kind") == kind) if api else None


def _free_excess(view: View) -> float:
    free = view.step_mean("free_us") or 0.0
    return max(0.0, free - limit("free_ratio") * (view.step_us or 0.0))


def synchronize(view: View) -> Finding | None:
    """Host waits for the device after every other launch, and the device then waits for the host."""
    count, us, found = _calls(view, "synchronize")
    launches = view.per_step(lambda entry: number(entry, "kernels", "compute_count")) or 0.0
    idle = _cause(view, "sync")
    often = bool(launches) and count / launches >= 0.5 and _free_excess(view) > 0
    if not often and view.share(idle) < limit("sync_ratio"):
        return None
    text = Text(f"The host synchronises {count:.0f} times a step.", f"主机每步同步 {count:.0f} 次。")
    if idle:
        text = Text(
            f"The device idles {ms(idle)} a step after the host waited for it.",
            f"主机等待设备后，设备每步空闲 {ms(idle)}。",
        )
    return Finding(
        "synchronize",
        text,
        Text(
            "Remove .asnumpy(), .item(), print of tensors and blocking launches from the step.",
            "去除训练步中的 .asnumpy()、.item()、打印张量以及阻塞式下发。",
        ),
        found or [{"free_us": idle}],
        idle or min(us, _free_excess(view)),
    )


def op_compile(view: View) -> Finding | None:
    """Operators compiled during the step."""
    count, us, found = _calls(view, "compile")
    if count < _MIN_COMPILES:
        return None
    return Finding(
        "op_compile",
        Text(f"{count:.0f} operators are compiled in each step.", f"每步编译 {count:.0f} 个算子。"),
        Text(
            "Fix the shapes, or switch online compilation off (jit_compile False) so that binary kernels are used.",
            "固定形状，或关闭在线编译（jit_compile 为 False）以使用二进制算子。",
        ),
        found,
        min(us, _free_excess(view)) or None,
        severity="high",
    )


def memory_alloc(view: View) -> Finding | None:
    """Device memory allocated and released in the step."""
    count, us, found = _calls(view, "memory")
    idle = _cause(view, "memory_alloc")
    if max(us, idle) <= limit("memory_ops_us"):
        return None
    return Finding(
        "memory_alloc",
        Text(
            f"Device memory is allocated or released {count:.0f} times a step, {ms(us)}.",
            f"每步申请或释放设备内存 {count:.0f} 次，耗时 {ms(us)}。",
        )
        if count
        else Text(
            f"Allocating device memory leaves the device idle for {ms(idle)} a step.",
            f"申请设备内存使设备每步空闲 {ms(idle)}。",
        ),
        Text(
            "Enlarge the memory pool (mempool_block_size) or use expandable segments so that blocks are reused.",
            "增大内存池（mempool_block_size）或使用可扩展内存段，使内存块得到复用。",
        ),
        found or [{"free_us": idle}],
        idle or min(us, view.step_mean("free_us") or us),
    )


def _cause(view: View, cause: str) -> float:
    """Free time of one cause per step, where a trace told."""
    return view.per_step(lambda entry: number(entry, "facts", "free_causes", cause)) or 0.0


def garbage_collection(view: View) -> Finding | None:
    """Python's collector stalls launches."""
    us = _cause(view, "gc")
    if us < limit("gc_us"):
        return None
    return Finding(
        "garbage_collection",
        Text(f"Garbage collection leaves the device idle for {ms(us)} a step.", f"垃圾回收使设备每步空闲 {ms(us)}。"),
        Text(
            "Call gc.freeze() after set-up, or collect at fixed steps.", "初始化后调用 gc.freeze()，或改为固定步回收。"
        ),
        [{"free_us": us}],
        us,
    )


def conjectured_gc(view: View) -> Finding | None:
    """Very long gaps in which the host does nothing that a trace shows: likely Python's collector, not recorded."""
    found = [
        {"rank": entry.get("rank"), **gap}
        for entry in view.ranks
        for gap in rows(entry, "free_time", "gaps")
        if gap.get("cause") in ("unknown", "launch_gap")
        and (number(gap, "duration_us") or 0.0) > limit("silent_gap_us")
    ]
    if not found:
        return None
    longest = max(float(gap["duration_us"]) for gap in found)
    return Finding(
        "conjectured_gc",
        Text(
            f"{len(found)} gaps of up to {ms(longest)} in which the host does nothing that is recorded; likely garbage "
            "collection.",
            f"有 {len(found)} 处长达 {ms(longest)} 的空隙，其间主机没有任何记录，可能是垃圾回收。",
        ),
        Text(
            "Record garbage collection (gc_detect_threshold of the profiler) to be sure; call gc.freeze() after "
            "set-up, or collect at fixed steps.",
            "可用采集选项 gc_detect_threshold 记录垃圾回收以确认；初始化后调用 gc.freeze()，或改为固定步回收。",
        ),
        found,
        severity="medium",
    )


def data_wait(view: View) -> Finding | None:
    """The device waits for input."""
    us = max(_cause(view, "data_wait"), view.step_mean("data_wait_us") or 0.0)
    if us < limit("data_loading_us"):
        return None
    return Finding(
        "data_wait",
        Text(f"The device waits {ms(us)} a step for data.", f"设备每步等待数据 {ms(us)}。"),
        Text(
            "More loader workers, a longer prefetch queue, and tokenising ahead of training.",
            "增加数据加载进程与预取长度，并提前完成分词。",
        ),
        [{"free_us": us}],
        us,
    )
