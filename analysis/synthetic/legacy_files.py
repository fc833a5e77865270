"""More of what MindSpore up to 2.4 wrote for MindInsight (timelines, FLOPs of counters, data pipeline, pipeline steps),
and npu_module_mem.csv of the profilers of today."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.synthetic.legacy import scope_of
from analysis.synthetic.truth import KernelTruth, Truth


def write_display(path: Path, kernels: Sequence[KernelTruth], shape: str = "4,8") -> None:
    """timeline_display_N.json: microseconds from the first operator; the host's GetNext stands among them."""
    first = min(kernel.start_ns for kernel in kernels)
    events: list[dict[str, Any]] = [{"name": "GetNext", "ph": "X", "tid": "0", "ts": 0.0, "dur": 5.0, "pid": 9000}]
    for kernel in kernels:
        full = scope_of(kernel.name)
        operand = {"format": "DefaultFormat", "data_type": "NUMBER_TYPE_FLOAT16", "shape": shape}
        told = {"type": kernel.type, "fullname": full, "input_0": operand, "output_0": operand}
        times = {"ts": (kernel.start_ns - first) / 1000, "dur": kernel.duration_ns / 1000}
        events.append({"name": full.rsplit("/", 1)[-1], "ph": "X", "tid": "519", **times, "pid": 1, "args": told})
    path.write_text(json.dumps(events), encoding="utf-8")


def write_marey(folder: Path, rank: int, devices: Mapping[int, Sequence[KernelTruth]]) -> None:
    """ascend_marey_timeline_N.json with one run of each operator per device, and scope_map_N.json."""
    maps: dict[str, dict[str, Any]] = {}
    scopes: dict[str, str] = {}
    for device, kernels in devices.items():
        for kernel in kernels:
            scope, _, name = scope_of(kernel.name).rpartition("/")
            start = kernel.start_ns / 1000
            run = {"st": start, "ed": start + kernel.duration_ns / 1000, "dur": kernel.duration_ns / 1000}
            maps.setdefault(f"device{device}", {})[name] = run
            scopes[name] = _drawn(scope)
    (folder / f"ascend_marey_timeline_{rank}.json").write_text(json.dumps({"maps": maps}), encoding="utf-8")
    (folder / f"scope_map_{rank}.json").write_text(json.dumps({"scope_map": scopes}), encoding="utf-8")


def _drawn(scope: str) -> str:
    """A scope as the drawing of the network names it: Gradients stands inside, before the gradient's own part."""
    if not scope.startswith("Gradients/"):
        return "/" + scope.removeprefix("Default/")
    path, _, last = scope.removeprefix("Gradients/").rpartition("/")
    return f"/{path}/Gradients/{last}"


def write_flops_summary(path: Path, flops: int, step_ns: int) -> None:
    """flops_summary_N.json: millions of operations, thousands of millions per second."""
    told = {"FLOPs": flops / 1e6, "FLOPS": round(flops / step_ns, 3), "FLOPS_Utilization": 1.0}
    path.write_text(json.dumps(told), encoding="utf-8")


PIPELINE = (
    "op_id,op_type,num_workers,output_queue_size,output_queue_average_size,output_queue_length,"
    "output_queue_usage_rate,sample_interval,parent_id,children_id"
)


def write_pipeline(folder: Path, rank: int, operations: Sequence[tuple[str, int, Sequence[int] | None]]) -> None:
    """A chain of operations (kind, workers, samples of the output queue of 64), the first next to the device, as
    minddata_pipeline_raw_N.csv and pipeline_profiling_N.json."""
    rows: list[list[Any]] = [PIPELINE.split(",")]
    told = []
    for number, (kind, workers, sizes) in enumerate(operations):
        children = [number + 1] if number + 1 < len(operations) else []
        mean = sum(sizes) / len(sizes) if sizes else None
        queue = [json.dumps([*sizes]), mean, 64, (mean or 0) / 64] if sizes else ["", "", "", 0]
        parent = number - 1 if number else ""
        rows.append([number, kind, workers, *queue, 10, parent, json.dumps(children) if children else ""])
        metrics = {"output_queue": {"length": 64, "size": [*sizes]}} if sizes else None
        row = {"op_id": number, "op_type": f"{kind}Op", "num_workers": workers, "metrics": metrics}
        told.append({**row, "children": children or None})
    with (folder / f"minddata_pipeline_raw_{rank}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    profile = {"op_info": told[::-1], "sampling_interval": 10}
    (folder / f"pipeline_profiling_{rank}.json").write_text(json.dumps(profile), encoding="utf-8")


def write_pipeline_steps(folder: Path, truth: Truth) -> None:
    """ascend_cluster_analyse_pipeline-parallel_*_N.csv: milliseconds of each step, without numbers of steps."""
    head = "computation_time,communication_alone_time,stage_time,receive_alone_time,collective_communication_alone_time"
    rows = [
        [step.computing_ns / 1e6, step.communication_not_overlapped_ns / 1e6, step.stage_ns / 1e6, step.bubble_ns / 1e6,
         (step.communication_not_overlapped_ns - step.bubble_ns) / 1e6]
        for step in truth.steps
    ]  # fmt: skip
    path = folder / f"ascend_cluster_analyse_pipeline-parallel_2_4_{truth.rank}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head.split(","), *rows])


def write_modules(path: Path, device: int, modules: Mapping[str, Sequence[float]]) -> None:
    """npu_module_mem.csv: samples of MiB by component, 20 ms apart."""
    lines = ["Device_id,Component,Timestamp(us),Total Reserved(MB),Device"]
    for component, sizes in modules.items():
        lines += [
            f"{device},{component},{1764246877076535 + 20_000 * number}.790\t,{size},NPU:{device}"
            for number, size in enumerate(sizes)
        ]
    path.write_text("\r\n".join([*lines, ""]), encoding="utf-8")
