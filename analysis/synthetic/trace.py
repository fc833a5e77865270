"""trace_view.json with a host that explains every gap on the device: each idle stretch has one known cause."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.synthetic.spec import GptSpec
from analysis.synthetic.text import microseconds
from analysis.synthetic.truth import GapTruth, KernelTruth, StepTruth, Truth

Event = dict[str, Any]

PYTHON, CANN, HARDWARE, OVERLAP, HCCL = 4242, 424_200, 424_210, 424_230, 424_220
THREAD = 4242
SHORTEST_GAP_NS = 2_000
LONG_GAP_NS = 50_000
"""Shorter gaps are the launch path's own; only longer ones are blamed on anything else."""

_CAUSES = {"sync": 0.10, "host_op": 0.30, "gc": 0.02, "memory_alloc": 0.08, "launch_gap": 0.50}
_CALLS = {"sync": "AscendCL@aclrtSynchronizeStreamWithTimeout", "memory_alloc": "AscendCL@aclrtMallocPhysical"}


def find_gaps(spec: GptSpec, truth: Truth) -> list[GapTruth]:
    """Idle stretches of the device inside steps, each with the cause that the trace will show for it."""
    rng = np.random.default_rng([spec.seed, truth.rank, 3])
    causes, weights = list(_CAUSES), list(_CAUSES.values())
    gaps = []
    for step in truth.steps:
        kernels = [k for k in truth.kernels if step.start_ns <= k.start_ns < step.start_ns + step.step_ns]
        for number, (start, end) in enumerate(_idle(step, kernels)):
            cause = "launch_gap"
            if number == 0 and start == step.start_ns and end - start >= LONG_GAP_NS:
                cause = "data_wait"
            elif end - start >= LONG_GAP_NS:
                cause = str(rng.choice(causes, p=weights))
            gaps.append(GapTruth(step.step, start, end - start, cause))
    return gaps


def _idle(step: StepTruth, kernels: Sequence[KernelTruth]) -> Iterator[tuple[int, int]]:
    clock = step.start_ns
    for kernel in sorted(kernels, key=lambda k: k.start_ns):
        if kernel.start_ns - clock >= SHORTEST_GAP_NS:
            yield clock, kernel.start_ns
        clock = max(clock, kernel.start_ns + kernel.duration_ns)
    end = step.start_ns + step.step_ns
    if end - clock >= SHORTEST_GAP_NS:
        yield clock, end


def write_trace(path: Path, spec: GptSpec, truth: Truth, gaps: Sequence[GapTruth]) -> None:
    """Steps, host calls, device kernels, their links and the overlap analysis. MindSpore writes durations as text."""
    events = [*_names(spec), *_steps(spec, truth), *_host(spec, gaps), *_device(spec, truth), *_overlap(truth, gaps)]
    if spec.mode != "torch":
        events = [{**event, "dur": str(event["dur"])} if "dur" in event else event for event in events]
    path.write_text(json.dumps(events), encoding="utf-8")


def _names(spec: GptSpec) -> Iterator[Event]:
    framework = "Python" if spec.mode == "torch" else "MindSpore"
    for pid, name in (
        (PYTHON, framework),
        (CANN, "CANN"),
        (HARDWARE, "Ascend Hardware"),
        (HCCL, "HCCL"),
        (OVERLAP, "Overlap Analysis"),
    ):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for tid, name in enumerate(("Computing", "Communication", "Communication(Not Overlapped)", "Free")):
        yield {"ph": "M", "name": "thread_name", "pid": OVERLAP, "tid": tid, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "pid": HARDWARE, "tid": _stream(spec), "args": {"name": "Stream 2"}}
    yield {"ph": "M", "name": "thread_name", "pid": HCCL, "tid": 0, "args": {"name": "Group 0 Communication"}}


def _stream(spec: GptSpec) -> int:
    return 2 if spec.mode == "torch" else 3


def _span(name: str, pid: int, tid: int, start: int, end: int, **more: Any) -> Event:
    times = {"ts": microseconds(start), "dur": (end - start) / 1000}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, **more}


def _steps(spec: GptSpec, truth: Truth) -> Iterator[Event]:
    prefix = "" if spec.mode == "torch" else "Python::ProfilerStep::"
    for step in truth.steps:
        if step.step is not None:
            name = f"{prefix}ProfilerStep#{step.step}"
            yield _span(name, PYTHON, THREAD, step.start_ns, step.start_ns + step.step_ns, cat="cpu_op", args={})


def _host(spec: GptSpec, gaps: Sequence[GapTruth]) -> Iterator[Event]:
    """What the host does in each gap, over its whole length but the launch that ends it."""
    torch = spec.mode == "torch"
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__" if torch else "Dataset::Pipeline::GetNext"
    host_op = "aten::item" if torch else "PynativeFramework::PyNativeOpTask::Item"
    for gap in gaps:
        start, end = gap.start_ns, gap.start_ns + gap.duration_ns
        if gap.cause in _CALLS:
            yield _span(_CALLS[gap.cause], CANN, THREAD, start, end, args={"Thread Id": THREAD, "level": "acl"})
        elif gap.cause == "gc":
            yield _span("GC", PYTHON, THREAD, start, end, cat="GC", args={})
        elif gap.cause == "data_wait":
            yield _span(loader, PYTHON, THREAD, start, end, cat="cpu_op", args={})
        elif gap.cause == "host_op":
            yield _span(host_op, PYTHON, THREAD, start, end, cat="cpu_op", args={})


def _device(spec: GptSpec, truth: Truth) -> Iterator[Event]:
    for number, kernel in enumerate(truth.kernels):
        start, end = kernel.start_ns, kernel.start_ns + kernel.duration_ns
        name = kernel.name.rsplit("/", 1)[-1]
        if kernel.is_communication:
            yield _span(name, HCCL, 0, start, end, args={"connection_id": number})
            continue
        args = {"Model Id": 4294967295, "Task Type": kernel.core, "Physic Stream Id": _stream(spec), "Task Id": number}
        args["connection_id"] = number
        if spec.mode == "graph" or spec.mode == "pynative":
            args["mindspore_op"] = kernel.name.rsplit("/", 1)[0]
        yield _span(name, HARDWARE, _stream(spec), start, end, args=args)
        if spec.mode == "graph" and spec.sink:
            continue  # the graph was launched whole
        launched = start - 1_500
        args = {"Thread Id": THREAD, "level": "node", "connection_id": number}
        yield _span("Node@launch", CANN, THREAD, launched - 1_000, launched, args=args)
        link = {"name": f"HostToDevice{number}", "cat": "HostToDevice", "id": str(number)}
        yield {**link, "ph": "s", "pid": CANN, "tid": THREAD, "ts": microseconds(launched - 1_000)}
        yield {**link, "ph": "f", "pid": HARDWARE, "tid": _stream(spec), "ts": microseconds(start), "bp": "e"}


def _overlap(truth: Truth, gaps: Sequence[GapTruth]) -> Iterator[Event]:
    for kernel in truth.kernels:
        tid = int(kernel.is_communication)
        name = "Communication" if tid else "Computing"
        yield _span(name, OVERLAP, tid, kernel.start_ns, kernel.start_ns + kernel.duration_ns)
    for gap in gaps:
        yield _span("Free", OVERLAP, 3, gap.start_ns, gap.start_ns + gap.duration_ns)
