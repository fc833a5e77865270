"""Timelines, FLOPs, data pipeline and pipeline steps of MindSpore up to 2.4, and memory of modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report
from analysis.dump import find_dumps
from analysis.rank import read_rank, read_ranks
from analysis.readers.data_queue import read_pipeline, read_profile, slow_operation
from analysis.synthetic import GptSpec, Truth, write_rank
from analysis.synthetic import legacy_files as write
from tests.conftest import SHARED

DUMPS = SHARED / "dumps"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return write_rank(tmp_path_factory.mktemp("job"), GptSpec(layers=2, dp=2, mode="graph"), export=("legacy",))


def profiler(truth: Truth) -> Path:
    return next(truth.folder.rglob("step_trace_raw_*")).parent


def entry(folder: Path, index: int = 0) -> dict[str, Any]:
    return read_rank(find_dumps(folder)[index]).entry


def test_a_display_timeline_has_every_run_of_every_operator(truth: Truth, tmp_path: Path):
    compute = [kernel for kernel in truth.kernels if not kernel.is_communication]
    write.write_display(tmp_path / "ascend_timeline_display_0.json", compute)
    found = read_rank(find_dumps(tmp_path)[0])
    assert found.entry["kernels"]["count"] == len(compute)
    assert found.entry["kernels"]["compute_us"] == pytest.approx(truth.compute_ns / 1000, abs=0.01)
    assert set(found.frames["kernels"]["input_shapes"].cast(str)) == {"4,8"}
    first = min(kernel.start_ns for kernel in compute)
    assert sorted(found.frames["kernels"]["start_ns"]) == sorted(kernel.start_ns - first for kernel in compute)


def test_a_marey_timeline_is_one_run_per_operator_of_each_device_with_its_scope(truth: Truth, tmp_path: Path):
    once = list(
        {write.scope_of(k.name).rsplit("/", 1)[-1]: k for k in truth.kernels if not k.is_communication}.values()
    )
    write.write_marey(tmp_path, 1, {0: once, 1: once[:-3]})
    results = {result.entry["device_id"]: result for result in read_ranks(find_dumps(tmp_path)[0])}
    assert {device: result.entry["kernels"]["count"] for device, result in results.items()} == {
        0: len(once),
        1: len(once) - 3,
    }
    assert results[0].entry["kernels"]["compute_us"] == pytest.approx(sum(k.duration_ns for k in once) / 1000, abs=0.1)
    assert set(results[0].frames["kernels"]["name"].cast(str)) == {write.scope_of(kernel.name) for kernel in once}
    assert results[0].entry["steps"] == []
    assert any("one run per operator" in text for text in results[0].source["warnings"])


def test_flops_the_counters_told_serve_where_no_shape_is_known(truth: Truth, tmp_path: Path):
    (tmp_path / "step_trace_raw_0_detail_time.csv").write_bytes(
        next(profiler(truth).glob("step_trace_raw*")).read_bytes()
    )
    write.write_flops_summary(tmp_path / "flops_summary_0.json", 123_456_000_000, 10**9)
    assert entry(tmp_path)["flops"]["measured_flops"] == 123_456_000_000
    by_shapes = entry(profiler(truth))["flops"]["measured_flops"]
    write.write_flops_summary(profiler(truth) / "flops_summary_0.json", 1_000_000, 10**9)
    assert by_shapes and entry(profiler(truth))["flops"]["measured_flops"] == by_shapes


def test_pipeline_steps_tell_what_step_time_went_to(truth: Truth, tmp_path: Path):
    (tmp_path / "step_trace_raw_0_detail_time.csv").write_bytes(
        next(profiler(truth).glob("step_trace_raw*")).read_bytes()
    )
    write.write_pipeline_steps(tmp_path, truth)
    steps = entry(tmp_path)["steps"]
    assert len(steps) == len(truth.steps)
    for step, told in zip(steps, truth.steps, strict=True):
        assert step["computing_us"] == pytest.approx(told.computing_ns / 1000, abs=0.01)
        assert step["communication_not_overlapped_us"] == pytest.approx(
            told.communication_not_overlapped_ns / 1000, abs=0.01
        )
        assert step["bubble_us"] == pytest.approx(told.bubble_ns / 1000, abs=0.01)
        assert step["free_us"] == pytest.approx(told.free_ns / 1000, abs=0.02)  # ticks of 10 ns


CHAIN = [("Batch", 2, None), ("Map", 4, [0, 0, 2, 0]), ("Map", 8, [0, 1, 0, 3]), ("TFReader", 4, [60, 64, 62, 64])]


@pytest.mark.parametrize(
    ("file", "reader"), [("minddata_pipeline_raw_0.csv", read_pipeline), ("pipeline_profiling_0.json", read_profile)]
)
def test_the_slow_operation_is_the_last_one_that_starves_with_a_full_queue_before_it(
    file: str, reader: Any, tmp_path: Path
):
    write.write_pipeline(tmp_path, 0, CHAIN)
    found = reader(tmp_path / file, file, [])
    assert [(row["op_id"], row["op"], row["workers"], row["children"]) for row in found] == [
        (0, "Batch", 2, [1]),
        (1, "Map", 4, [2]),
        (2, "Map", 8, [3]),
        (3, "TFReader", 4, []),
    ]
    assert [row["empty_ratio"] for row in found] == [None, 0.75, 0.5, 0.0]
    assert found[3]["usage_ratio"] == pytest.approx(62.5 / 64, abs=1e-6)
    slow = slow_operation(found)
    assert slow is not None and slow["op_id"] == 2


def test_queues_that_are_full_have_no_slow_operation():
    full = [{"op_id": 0, "usage_ratio": None, "children": [1]}, {"op_id": 1, "usage_ratio": 0.9, "children": []}]
    assert slow_operation(full) is None


def test_an_empty_input_queue_is_the_verdict_and_the_slow_operation_the_advice(truth: Truth, tmp_path: Path):
    for path in profiler(truth).glob("*_0*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    write.write_pipeline(tmp_path, 0, CHAIN)
    write.write_pipeline_steps(tmp_path, truth)
    report = build_report(tmp_path)
    assert report["bottleneck"]["verdict"] == "input"
    (finding,) = [row for row in report["findings"] if row["id"] == "data_pipeline"]
    assert "empty in 75% of its samples; Map (operation 2) with 8 workers" in finding["summary"]
    assert "num_parallel_workers" in finding["advice"] and "Map" in finding["advice_zh"]


def test_memory_of_modules_is_the_most_each_reserved(tmp_path: Path):
    (tmp_path / "ASCEND_PROFILER_OUTPUT").mkdir()
    write.write_modules(
        tmp_path / "ASCEND_PROFILER_OUTPUT" / "npu_module_mem.csv",
        2,
        {"HCCL": [1.0, 8.5], "SLOG": [0.0, 0.0], "APP": [100.0]},
    )
    (tmp_path / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv").write_text(
        "Step,Computing,Communication(Not Overlapped),Free\n1,10,0,5\n"
    )
    assert entry(tmp_path)["memory"]["modules"] == [
        {"component": "APP", "peak_reserved_bytes": 100 << 20},
        {"component": "HCCL", "peak_reserved_bytes": 8_912_896},
    ]


@pytest.mark.real
def test_pipeline_steps_of_a_real_job_fill_its_step_trace():
    found = entry(DUMPS / "mindinsight-ms1x-pp2-4ranks")
    step = found["steps"][1]
    assert (step["computing_us"], step["communication_not_overlapped_us"], step["bubble_us"]) == (
        14580.6,
        165836.3,
        56169.5,
    )
    assert step["free_us"] == pytest.approx(181012.69 - 14580.6 - 165836.3)
    assert found["flops"]["measured_flops"] == 107_146_763_000


@pytest.mark.real
def test_a_real_pipeline_has_its_four_operations_and_no_slow_one():
    found = entry(DUMPS / "mindinsight-ms1x-run1")["data_pipeline"]
    assert [row["op"] for row in found["operations"]] == ["Batch", "Shuffle", "TFReader", "TFReader"]
    assert found["operations"][1]["usage_ratio"] == 0.3125 and found["slow_operation"] is None


@pytest.mark.real
def test_a_real_marey_timeline_has_scopes_and_two_devices_and_a_real_display_one_operator():
    results = read_ranks(find_dumps(DUMPS / "mindinsight-marey")[0])
    assert len(results) == 8 or len(results) >= 2
    names = results[0].frames["kernels"]["name"].cast(str)
    assert names.str.contains("_backbone-PipelineCell").any()
    (display,) = find_dumps(DUMPS / "mindinsight-ms2x-profiler")
    kernels = read_rank(display).frames["kernels"]
    assert kernels.select("name", "duration_ns", "input_dtypes").rows() == [
        ("Default/AssignAdd-op142", 3100, "UINT8;UINT8")
    ]


@pytest.mark.real
@pytest.mark.parametrize("rank", [0, 1])
def test_modules_of_text_and_database_agree(rank: int):
    forms = [entry(DUMPS / f"msinsight-torch-ddp2/{form}/level1/rank{rank}_ascend_pt") for form in ("text", "db")]
    text, base = (
        {row["component"]: row["peak_reserved_bytes"] for row in found["memory"]["modules"]} for found in forms
    )
    assert text and text.keys() == base.keys()
    for component, size in text.items():
        assert base[component] == pytest.approx(size, rel=0.005)


@pytest.mark.real
def test_the_name_of_an_old_pipeline_summary_tells_stages_and_ranks():
    """ascend_cluster_analyse_pipeline-parallel_2_4_N.csv: two stages, four ranks. The second stage computes 123 ms, the
    first 14.6: the stages are uneven, no rank is slow."""
    report = build_report(DUMPS / "mindinsight-ms1x-pp2-4ranks")
    assert (report["source"]["parallel"]["pp"], report["source"]["world_size"]) == (2, 4)
    assert [row["ranks"] for row in report["cluster"]["stages"]] == [2, 2]
    assert report["cluster"]["slow_ranks"] == []
    named = {row["id"] for row in report["findings"]}
    assert "stage_imbalance" in named and "compute_spread" not in named
