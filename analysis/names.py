"""What profiler files are called: the one place that knows which label holds what."""

from __future__ import annotations

import re
from collections.abc import Iterable

KNOWN_FOLDERS = (
    "ASCEND_PROFILER_OUTPUT",
    "FRAMEWORK",
    "profiler",
    "mindstudio_profiler_output",
    "cluster_analysis_output",
)
"""Folders that lie directly in a dump's folder and hold deliverables."""

TEXT = re.compile(
    r"(kernel_details|step_trace_time|op_statistic|communication|operator_details|memory_record)\.(csv|json)"
)
DATABASE = re.compile(r"(ascend_(pytorch|mindspore)_profiler(_\d+)?|msprof(_\w+)?|analysis|communication_analyzer)\.db")
KERNEL_DATABASE = re.compile(r"(ascend_(pytorch|mindspore)_profiler(_\d+)?|msprof(_\w+)?)\.db")
MSPROF = re.compile(
    r"(op_summary|op_statistic|task_time|step_trace|ai_core_utilization|msprof|hccl)(_(slice_)?\d\w*)?\.(csv|json)"
)
MINDSPORE_CPU = re.compile(
    r"cpu_(op_detail_info|op_type_info|op_execute_timestamp|framework|ms_memory_record)_\d+\.(csv|txt)"
)
LEGACY = re.compile(
    r"(aicore_intermediate_(?P<a>\d+)_(detail|type)\.csv|framework_raw_(?P<b>\d+)\.csv|step_trace_raw_(?P<c>\d+)_detail_time\.csv"
    r"|hccl_raw_(?P<d>\d+)\.csv|minddata_pipeline_raw_(?P<e>\d+)\.csv|flops(_summary|_scope)?_(?P<f>\d+)\.(txt|json)"
    r"|(ascend_)?timeline_(display|summary)_(?P<g>\d+)\.json|output_timeline_data_(?P<h>\d+)\.txt"
    r"|output_op_compute_time(_detail)?_(?P<i>\d+)\.txt"
    r"|parallel_strategy_(?P<k>\d+)\.json|scope_map_(?P<l>\d+)\.json|minddata_cpu_utilization_(?P<m>\d+)\.json"
    r"|ascend_marey_timeline_(?P<p>\d+)\.json|device_queue_profiling_(?P<q>\d+)\.txt"
    r"|dataset_iterator_profiling_(?P<r>\d+)\.txt|minddata_aicpu_(?P<s>\d+)\.txt"
    r"|minddata_pipeline_summary_(?P<t>\d+)\.(csv|json)"
    r"|ascend_cluster_analyse_[\w-]+_(?P<n>\d+)\.csv|dynamic_shape_info_(?P<o>\d+)\.json)"
)
CLUSTER = re.compile(r"(cluster_(step_trace_time\.csv|communication(_matrix)?\.json|analysis\.db))")
"""What msprof-analyze writes about a whole job."""
INFO = re.compile(r"profiler_info(_(?P<rank>\d+))?\.json")
OTHER = re.compile(
    r"(profiler_metadata\.json|stepscope_run\.json|stepscope_steps\.jsonl|\.complete\.json|scope_map\.json|ir_scope_map\.json"
    r"|info\.json(\.\d+)?|communication_group\.json|[\w.-]+\.(csv|json|db|txt))"
)
RAW = re.compile(
    r"(.+\.slice_\d+(\.done)?|(mindspore|torch)\.op_range|start_info(\.\d+)?|end_info(\.\d+)?|sample\.json|host_start\.log.*)"
)
RANK_FOLDER = re.compile(r"(?:^|[_/-])rank_?(\d+)(?=$|[_./-])", re.IGNORECASE)


def base_name(label: str) -> str:
    """The file's own name in a label, without folders and without `.gz`."""
    return label.rsplit("/", 1)[-1].removesuffix(".gz")


def is_dump_file(label: str) -> bool:
    """Whether this path inside a dump's folder is one a reader may want."""
    name = base_name(label)
    if INFO.fullmatch(name) or name.startswith("stepscope_") or name == ".complete.json":
        return "/" not in label
    folder = label.rpartition("/")[0]
    in_known_place = (
        not folder or folder.split("/")[-1] in (*KNOWN_FOLDERS, "timeline", "analyze") or name.startswith("info.json")
    )
    return in_known_place and bool(OTHER.fullmatch(name))


def looks_like_dump(labels: Iterable[str]) -> bool:
    """Whether a folder with these files is itself a dump, told by names a profiler writes."""
    return any(kind_of(base_name(label)) for label in labels)


def kind_of(name: str) -> str | None:
    """Which format a file name belongs to; null for names that say nothing."""
    if TEXT.fullmatch(name):
        return "text"
    if DATABASE.fullmatch(name):
        return "db"
    if MINDSPORE_CPU.fullmatch(name):
        return "mindspore_cpu"
    if LEGACY.fullmatch(name):
        return "mindspore_legacy"
    if MSPROF.fullmatch(name):
        return "msprof"
    if (
        name
        in (
            "trace_view.json",
            "profiler_metadata.json",
            "communication_group.json",
        )
        or CLUSTER.fullmatch(name)
        or INFO.fullmatch(name)
    ):
        return "other"
    return None


def legacy_rank(name: str) -> int | None:
    """Rank in the name of a legacy file, such as 2 in `hccl_raw_2.csv`."""
    match = LEGACY.fullmatch(name)
    found = [value for value in match.groupdict().values() if value is not None] if match else []
    return int(found[0]) if found else None


def own_rank(name: str) -> int | None:
    """Rank whose file alone this is: a legacy file's, or the number in a kernel database's name."""
    match = re.fullmatch(r"ascend_(?:pytorch|mindspore)_profiler_(\d{1,8})\.db", name)
    return int(match.group(1)) if match else legacy_rank(name)
