"""Every file a reader knows, as a valid one of a synthetic job, with its reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from analysis.readers import (
    cluster,
    communication,
    data_queue,
    legacy,
    legacy_timeline,
    memory,
    mindspore_cpu,
    profiler_db,
    run_files,
    step_trace,
    timeline,
    trace_events,
)
from analysis.readers.kernel_details import read_kernels
from analysis.readers.op_statistic import read_op_statistic
from analysis.synthetic import GptSpec, data_pipeline, write_capture, write_rank
from analysis.synthetic import legacy_files as write
from analysis.synthetic.cluster import write_cluster, write_cluster_database

Reader = Callable[[Path, str, list[str]], Any]
READERS: dict[str, Reader] = {
    "kernel_details.csv": read_kernels,
    "op_summary_20260101.csv": read_kernels,
    "task_time_20260101.csv": read_kernels,
    "step_trace_time.csv": step_trace.read_steps,
    "op_statistic.csv": read_op_statistic,
    "communication.json": communication.read_communication,
    "communication_matrix.json": lambda path, name, _: communication.read_links(path, name, {}),
    "memory_record.csv": memory.read_memory,
    "operator_memory.csv": memory.read_operator_memory,
    "npu_module_mem.csv": memory.read_modules,
    "trace_view.json": trace_events.read_events,
    "stepscope_steps.jsonl": run_files.read_step_records,
    "ascend_pytorch_profiler_0.db": profiler_db.read_kernels,
    "ascend_pytorch_profiler_0.db as memory": profiler_db.read_memory,
    "ascend_pytorch_profiler_0.db as steps": profiler_db.read_step_windows,
    "ascend_pytorch_profiler_0.db as communication": profiler_db.read_communication,
    "ascend_pytorch_profiler_0.db as facts": profiler_db.read_facts,
    "analysis.db": profiler_db.read_steps,
    "analysis.db as communication": profiler_db.read_communication,
    "cpu_op_execute_timestamp_0.txt": mindspore_cpu.read_kernels,
    "cpu_ms_memory_record_0.txt": mindspore_cpu.read_memory,
    "aicore_intermediate_0_detail.csv": legacy.read_averages,
    "step_trace_raw_0_detail_time.csv": legacy.read_steps,
    "hccl_raw_0.csv": legacy.read_communication,
    "output_timeline_data_0.txt": legacy.read_timeline,
    "timeline_display_0.json": legacy_timeline.read_display,
    "ascend_marey_timeline_0.json": legacy_timeline.read_marey,
    "flops_summary_0.json": legacy_timeline.read_flops_summary,
    "minddata_pipeline_raw_0.csv": data_queue.read_pipeline,
    "pipeline_profiling_0.json": data_queue.read_profile,
    "device_queue_profiling_0.txt": data_queue.read_device_queue,
    "device_queue_profiling_0.txt as times": data_queue.read_batch_times,
    "dataset_iterator_profiling_0.txt": data_queue.read_device_queue,
    "minddata_aicpu_0.txt": data_queue.read_get_next,
    "minddata_pipeline_summary_0.csv": data_queue.read_summary,
    "minddata_pipeline_summary_0.json": data_queue.read_summary,
    "dataset.csv": data_queue.read_stages,
    "task_time_0_2_1.json": timeline.read_tasks,
    "hccl_0_2_1.json": timeline.read_talk,
    "step_trace_0_2_1.json": timeline.read_iterations,
    "cluster_step_trace_time.csv": step_trace.read_cluster_steps(0),
    "cluster_communication.json": cluster.read_communication(0),
    "cluster_communication_matrix.json": cluster.read_links(0),
    "cluster_analysis.db": cluster.read_database_steps(0),
    "cluster_analysis.db as communication": cluster.read_database_communication(0),
    "cluster_analysis.db as links": cluster.read_database_links(0),
}
"""File, where it has several tables with the one meant, and its reader."""


def file_of(name: str) -> str:
    return name.partition(" as ")[0]


@cache
def valid_files() -> dict[str, bytes]:
    """File name -> bytes of a valid one."""
    folder = Path(mkdtemp(prefix="stepscope-formats-"))
    spec = GptSpec(layers=1, dp=2, mode="torch")
    for export in ("text", "db", "msprof", "legacy", "cpu"):
        write_rank(folder / export, spec, export=("text", "trace") if export == "text" else (export,), run={})
    truths = write_capture(folder / "job", spec, run={})
    write_cluster(folder, truths, {"dp": [[0, 1]], "world": [[0, 1]]})
    write_cluster_database(folder, truths, {"dp": [[0, 1]], "world": [[0, 1]]})
    compute = [kernel for kernel in truths[0].kernels if not kernel.is_communication][:40]
    write.write_display(folder / "timeline_display_0.json", compute)
    write.write_marey(folder, 0, {0: compute})
    write.write_flops_summary(folder / "flops_summary_0.json", 10**12, 10**9)
    write.write_pipeline(folder, 0, [("Batch", 2, None), ("Map", 4, [0, 2])])
    chain: list[data_pipeline.Operation] = [("Batch", 2, None), ("Map", 4, [0, 2])]
    data_pipeline.write_summary(folder, 0, chain, [-1, 12.5], [7.5, 0.5, 8])
    for name in ("device_queue", "dataset_iterator"):
        data_pipeline.write_batches(folder / f"{name}_profiling_0.txt", [(10, 1, 0), (20, 2, 4)])
    data_pipeline.write_get_next(folder / "minddata_aicpu_0.txt", [(100, 0), (200, 3)])
    data_pipeline.write_stages(folder / "dataset.csv", [("Map", "Process", 3, 20.5), ("Batch", "Pull", 1, 5.0)])
    write.write_modules(folder / "npu_module_mem.csv", 0, {"HCCL": [1.0, 2.0]})
    _write_by_hand(folder)
    found = {path.name: path for path in sorted(folder.rglob("*")) if path.is_file()}
    for stem in ("op_summary", "task_time"):
        found[f"{stem}_20260101.csv"] = next(
            path for name, path in found.items() if name.startswith(f"{stem}_") and name.endswith(".csv")
        )
    return {file_of(name): found[file_of(name)].read_bytes() for name in READERS}


def _write_by_hand(folder: Path) -> None:
    task = {"ph": "X", "name": "Default/Cast-op1", "ts": 5.5, "dur": 2.5, "tid": 7, "args": {"Task Type": "AI_CORE"}}
    whole = {"ph": "M", "name": "thread_name", "tid": 7, "args": {"name": "Communication Kernel"}}
    iteration = {"ph": "X", "name": "Iteration 1", "ts": 1, "dur": 20.5, "tid": 1}
    hand: dict[str, str] = {
        "task_time_0_2_1.json": json.dumps([task, task]),
        "hccl_0_2_1.json": json.dumps([whole, {**task, "name": "hcom_allReduce_"}]),
        "step_trace_0_2_1.json": json.dumps([iteration]),
        "output_timeline_data_0.txt": "op_name, stream_id, start_time(ms), duration(ms)\n"
        "Default/Cast-op1, 7, 1.5, 2.25\n",
        "operator_memory.csv": "Name,Size(KB),Allocation Time(us),Allocation Total Allocated(MB),"
        "Allocation Total Reserved(MB),Device Type\naten::add,1,10.5\t,1.5,2.5,NPU:0\n",
        "stepscope_steps.jsonl": '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25, "step_time_ms": 10}\n',
        "cpu_ms_memory_record_0.txt": "Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)\n"
        "1,2,3,4\n",
    }
    for name, content in hand.items():
        if not list(folder.rglob(name)):
            (folder / name).write_text(content)


def read(name: str, path: Path, warnings: list[str]) -> Any:
    """What the reader of that file makes of `path`."""
    return partial(READERS[name], path, file_of(name))(warnings)
