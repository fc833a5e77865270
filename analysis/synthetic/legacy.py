"""MindSpore 1.x to 2.2: the `profiler/` folder with averaged kernels, framework_raw, step_trace_raw and hccl_raw.

Times are milliseconds, those of step_trace_raw ticks of 10 ns. Kernels are averages over the steps.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.synthetic.model import Slot
from analysis.synthetic.ops import Op
from analysis.synthetic.truth import CommTruth, KernelTruth, Truth

TICK_NS = 10
_TYPES = {"FLOAT": "FLOAT32", "DT_BF16": "BFLOAT16"}


def write_legacy(folder: Path, device: int, slots: Sequence[Slot], truth: Truth) -> None:
    """The files of one device. A kernel that runs once a step has execution_frequency 1."""
    folder.mkdir(parents=True, exist_ok=True)
    compute = [kernel for kernel in truth.kernels if not kernel.is_communication]
    detail = _averages([(scope_of(kernel.name), kernel) for kernel in compute], len(truth.steps))
    types = _averages([(kernel.type, kernel) for kernel in compute], len(truth.steps))
    _write_detail(folder / f"aicore_intermediate_{device}_detail.csv", detail)
    _write_types(folder / f"aicore_intermediate_{device}_type.csv", types)
    _write_framework(folder / f"framework_raw_{device}.csv", slots, truth)
    _write_step_trace(folder / f"step_trace_raw_{device}_detail_time.csv", truth)
    if truth.communication:
        _write_hccl(folder / f"hccl_raw_{device}.csv", truth)


def scope_of(name: str) -> str:
    """The full kernel name of those days: the scope alone, without launch event and device kernel."""
    path = name.rsplit("::", 1)[-1].split("/")
    ends = [i for i, part in enumerate(path) if "-op" in part]
    return "/".join(path[: ends[0] + 1]) if ends else path[-1]


def _averages(named: Sequence[tuple[str, KernelTruth]], steps: int) -> dict[str, tuple[float, int]]:
    """Mean ms of one execution and executions per step."""
    durations: dict[str, list[int]] = defaultdict(list)
    for name, kernel in named:
        durations[name].append(kernel.duration_ns)
    return {name: (sum(ns) / len(ns) / 1e6, len(ns) // steps) for name, ns in durations.items()}


def _write(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows(rows)


def _write_detail(path: Path, detail: dict[str, tuple[float, int]]) -> None:
    rows = [(name, repr(mean), count) for name, (mean, count) in detail.items()]
    _write(path, [("full_kernel_name", "execution_time", "execution_frequency"), *rows])


def _write_types(path: Path, types: dict[str, tuple[float, int]]) -> None:
    whole = sum(mean * count for mean, count in types.values())
    rows = [
        (name, f"{mean * count:.6f}", count, f"{100 * mean * count / whole:.2f}")
        for name, (mean, count) in sorted(types.items(), key=lambda item: -item[1][0] * item[1][1])
    ]
    _write(path, [("kernel_type", "total_time", "execution_frequency", "percent"), *rows])


def _write_framework(path: Path, slots: Sequence[Slot], truth: Truth) -> None:
    rows = []
    for number, (slot, kernel) in enumerate(zip(slots, truth.kernels, strict=False)):
        full = scope_of(kernel.name)
        short = full.rsplit("/", 1)[-1]
        kind = short.split("-op")[0]
        info = json.dumps(_op_info(slot.op))
        rows.append((number + 1, 3, 20, full, short, short, kind, full.split("/")[0], info, 0))
    head = "task_id,stream_id,block_dim,full_kernel_name,op_name,kernel_name,kernel_type,subgraph,op_info,graph_id"
    _write(path, [head.split(","), *rows])


def _op_info(op: Op) -> dict[str, Any]:
    info = {}
    for side, tensors in (("input", op.inputs), ("output", op.outputs)):
        for i, (shape, dtype) in enumerate(tensors):
            kind = _TYPES.get(dtype, dtype)
            info[f"{side}_{i}"] = {"format": "DEFAULT", "data_type": kind, "shape": list(shape or ())}
    return info


def _write_step_trace(path: Path, truth: Truth) -> None:
    """From the end of the step before to its own end; forward and backward begin and end where kernels do."""
    rows = []
    for number, step in enumerate(truth.steps, 1):
        own = [k for k in truth.kernels if k.step == step.step] if step.step else truth.kernels
        first = min(k.start_ns for k in own if k.pass_ == "forward")
        last = max(k.start_ns + k.duration_ns for k in own if k.pass_ == "backward")
        begin, end = step.start_ns, step.start_ns + step.step_ns
        rows.append([number, *[ns // TICK_NS for ns in _points(begin, end, first, last)]])
    means = [sum(column) // len(rows) for column in list(zip(*rows, strict=True))[1:]]
    head = [
        "step_num",
        "start_point",
        "end_point",
        "total",
        "fp_point",
        "bp_point",
        "iteration_interval",
        "fp_and_bp",
        "tail",
    ]
    _write(path, [head, *rows, ["-", *means]])


def _points(begin: int, end: int, first: int, last: int) -> list[int]:
    return [begin, end, end - begin, first, last, first - begin, last - first, end - last]


def _write_hccl(path: Path, truth: Truth) -> None:
    rows: list[list[Any]] = []
    for number, step in enumerate(truth.steps, 1):
        ops = [op for op in truth.communication if op.step == step.step]
        rows.append([number, *_hccl_row(ops, number)])
    mean = [sum(row[i] for row in rows) / len(rows) for i in (1, 2)]
    head = ["step_num", "communication_cost", "wait_cost", "link_info", "communication_operator_cost"]
    _write(path, [head, *rows, ["-", *mean, rows[-1][3], rows[-1][4]]])


def _hccl_row(ops: Sequence[CommTruth], number: int) -> list[Any]:
    cost, wait = sum(op.transit_ns for op in ops) / 1e6, sum(op.wait_ns for op in ops) / 1e6
    size = sum(op.size_bytes for op in ops) / 1024
    link = {"0-1": {"SDMA": [cost, size, size / cost * 1000 if cost else 0]}}
    each = {
        f"stream_41_{i}_{op.op.removeprefix('hcom_').strip('_').capitalize()}-op{i}": [
            str(number),
            op.transit_ns / 1e6,
            op.wait_ns / 1e6,
            link,
        ]
        for i, op in enumerate(ops)
    }
    return [cost, wait, json.dumps(link), json.dumps(each)]
