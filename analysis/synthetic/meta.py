"""profiler_info_N.json, profiler_metadata.json and the agent's own stepscope_run.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.synthetic.communication import communicator
from analysis.synthetic.spec import GptSpec

ENVIRONMENT = {
    "ASCEND_GLOBAL_LOG_LEVEL": "3",
    "HCCL_RDMA_TC": "",
    "HCCL_RDMA_SL": "",
    "ACLNN_CACHE_LIMIT": "",
    "HOST_CACHE_CAPACITY": "",
    "ASCEND_ENHANCE_ENABLE": "",
    "ASCEND_LAUNCH_BLOCKING": "",
    "HCCL_ALGO": "",
}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4), encoding="utf-8")


def mindspore_info(
    spec: GptSpec, rank: int, device: int, level: int, active: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    parameters = {
        "is_set_schedule": True,
        "output_path": "/home/user/output",
        "profiler_level": f"Level{level}",
        "activities": ["CPU", "NPU"],
        "aic_metrics": "PipeUtilization" if level else "None",
        "with_stack": False,
        "profile_memory": True,
        "data_process": False,
        "parallel_strategy": False,
        "start_profile": True,
        "l2_cache": False,
        "record_shapes": False,
        "export_type": ["text"],
        "mstx": False,
        "schedule": {"wait": 0, "active": active, "warmup": 1, "repeat": 1, "skip_first": 8},
    }
    return {
        "profiler_parameters": parameters,
        "ms_profiler_info": {"rank_id": str(rank), "device_id": str(device)},
        "cann_profiler_info": {},
        "analysis_cost_time": {},
        "ms_version": versions.get("framework", "2.7.1"),
        "cann_version": versions.get("cann", "8.2.RC1"),
        "jit_level": spec.jit_level if spec.mode == "graph" else "",
    }


def torch_info(
    rank: int, level: int, active: int, start_ns: int, end_ns: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    common = {
        "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"],
        "schedule": {"wait": 0, "active": active, "warmup": 1, "repeat": 1, "skip_first": 8},
        "record_shapes": True,
        "profile_memory": True,
        "with_stack": False,
        "with_flops": False,
        "with_modules": False,
    }
    experimental = {
        "_profiler_level": f"Level{level}",
        "_aic_metrics": "ACL_AICORE_PIPE_UTILIZATION" if level else "ACL_AICORE_NONE",
        "_l2_cache": False,
        "_msprof_tx": False,
        "_data_simplification": True,
        "_export_type": ["text"],
        "_gc_detect_threshold": None,
    }
    return {
        "config": {"common_config": common, "experimental_config": experimental},
        "start_info": {"syscnt_enable": True, "freq": 100, "start_cnt": 1, "start_monotonic": start_ns % 10**15},
        "end_info": {"collectionTimeEnd": end_ns, "MonotonicTimeEnd": end_ns % 10**15},
        "torch_npu_version": versions.get("framework", "2.7.1"),
        "cann_version": versions.get("cann", "8.2.RC1"),
        "rank_id": str(rank),
    }


def metadata(spec: GptSpec, rank: int, groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    parallel_groups = {
        communicator(kind, ranks): {
            "group_name": {"world": "default_group"}.get(kind, kind),
            "group_rank": list(ranks).index(rank),
            "global_ranks": list(ranks),
        }
        for kind, ranks in groups.items()
    }
    if spec.mode != "torch":
        return {"parallel_group_info": parallel_groups}
    arguments = {
        "tensor_model_parallel_size": spec.tp,
        "pipeline_model_parallel_size": spec.pp,
        "data_parallel_size": spec.dp,
        "context_parallel_size": spec.cp,
        "expert_model_parallel_size": spec.ep,
        "sequence_parallel": spec.sequence_parallel,
        "rank": rank,
        "world_size": spec.world_size,
    }
    return {"distributed_args": arguments, "ENV_VARIABLES": ENVIRONMENT, "parallel_group_info": parallel_groups}


def run_metadata(
    spec: GptSpec,
    rank: int,
    device: int,
    window: tuple[int, int],
    versions: Mapping[str, str],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """stepscope_run.json as the training callback writes it beside a dump."""
    return {
        "schema": 1,
        "framework": "torch_npu" if spec.mode == "torch" else "mindspore",
        "framework_version": versions.get("framework", "2.7.1"),
        "cann_version": versions.get("cann", "8.2.RC1"),
        "mode": "pynative" if spec.mode != "graph" else "graph",
        "jit_level": spec.jit_level if spec.mode == "graph" else "",
        "sink": spec.sink and spec.mode == "graph",
        "device_target": "Ascend",
        "rank": rank,
        "world_size": spec.world_size,
        "device_id": device,
        "parallel": {"dp": spec.dp, "tp": spec.tp, "pp": spec.pp, "cp": spec.cp, "ep": spec.ep},
        "window": {"first_step": window[0], "last_step": window[1]},
        "environment": ENVIRONMENT,
        **extra,
    }
