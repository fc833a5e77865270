"""Which file or switch is not there, what that hides and how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from analysis.dump import RankDump
from analysis.tables import Tables

LEVEL1 = "profiler_level=Level1"


def missing(dump: RankDump, tables: Tables, world_size: int | None) -> list[dict[str, Any]]:
    """`file`, `hides` (metrics and checklist items) and `how` for all that could be known and is not."""
    found = [*_kernels(tables), *_steps(dump, tables), *_others(dump, tables, world_size)]
    return [{"file": file, "hides": hides, "how": how} for file, hides, how in found]


Gap = tuple[str, list[str], str]


def _bare(communication: pl.DataFrame) -> bool:
    """Whether operations tell when and how long they ran, and nothing of what they moved."""
    unknown = communication["size_bytes"].null_count() + communication["transit_ns"].null_count()
    return communication.height > 0 and unknown == 2 * communication.height


def _kernels(tables: Tables) -> Iterator[Gap]:
    kernels = tables.kernels
    if kernels is None or kernels.is_empty():
        hides = [
            "cast_ratio",
            "movement_ratio",
            "layers",
            "hfu",
            "dtype_cast",
            "fused_attention",
            "attention_mask",
            "ffn_parallel",
        ]
        yield "kernel_details.csv", hides, "record activity NPU with export_type Text or Db, and upload this file"
        return
    compute = kernels.filter(pl.col("kind") == "compute")
    if compute.height and compute["type"].null_count() == compute.height:
        hides = ["cast_ratio", "movement_ratio", "op_types", "layers", "hfu", "dtype_cast", "fused_attention"]
        yield "kernel_details.csv: operator types", hides, LEVEL1
    if compute.height and compute["input_shapes"].null_count() == compute.height:
        yield "kernel_details.csv: shapes and data types", ["hfu", "tflops", "attention_mask", "ffn_parallel"], LEVEL1
    if kernels.height and kernels["step"].null_count() == kernels.height:
        how = "profile with schedule(...) and call step() once per training step"
        yield "kernel_details.csv: step ids", ["steps of single kernels"], how


def _steps(dump: RankDump, tables: Tables) -> Iterator[Gap]:
    if tables.steps is None and tables.kernels is None:
        how = "record activities CPU and NPU with a schedule, and upload this file"
        yield "step_trace_time.csv", ["step_time", "device_ratio", "bottleneck", "graph_sink"], how
    if not dump.run_meta:
        how = "train under stepscope_agent.mindspore.StepscopeCallback, or pass --config"
        yield "stepscope_run.json", ["mode", "jit_level", "sink", "environment"], how
    if not tables.series:
        how = "train under the agent's callback, or pass the training log (--log)"
        yield "stepscope_steps.jsonl", ["unprofiled step time", "loss", "precision_regression"], how


def _others(dump: RankDump, tables: Tables, world_size: int | None) -> Iterator[Gap]:
    if tables.communication is None and world_size != 1:
        yield "communication.json", ["communication", "slow_ranks", "ffn_parallel"], LEVEL1
    elif tables.communication is not None and _bare(tables.communication):
        yield "communication.json: transit times and sizes", ["ffn_parallel"], LEVEL1
    if not tables.links and world_size != 1:
        yield "communication_matrix.json", ["slow_links"], LEVEL1
    if tables.memory is None:
        yield "memory_record.csv", ["memory"], "profile_memory=True"
    if not dump.find(r"trace_view\.json") and tables.events is None:
        yield "trace_view.json", ["free time by cause"], "profile with activity CPU; upload with --with-trace"
