"""Other exports of the synthetic writer: databases, msprof exports and the MindSpore 1.x folder."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.synthetic import Truth
from analysis.synthetic.msprof import TITLES
from tests.dumps import OUTPUT, write_dump


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as base:
        return base.execute(query).fetchall()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def compute(truth: Truth) -> list[Any]:
    return [kernel for kernel in truth.kernels if not kernel.is_communication]


def test_a_torch_database_holds_every_kernel(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, mode="torch", dp=2, export=("db",), rank=1)
    base = truth.folder / OUTPUT / "ascend_pytorch_profiler_1.db"
    found = rows(
        base,
        "SELECT n.value, t.value, startNs, endNs - startNs FROM COMPUTE_TASK_INFO c JOIN TASK USING (globalTaskId) "
        "JOIN STRING_IDS n ON n.id = c.name JOIN STRING_IDS t ON t.id = c.opType ORDER BY startNs",
    )
    assert found == [(k.name, k.type, k.start_ns, k.duration_ns) for k in compute(truth)]
    steps = rows(base, "SELECT id, endNs - startNs FROM STEP_TIME")
    assert steps == [(int(step.step or 0), step.step_ns) for step in truth.steps]
    assert rows(base, "SELECT * FROM RANK_DEVICE_MAP") == [(1, 1)]


def test_a_torch_analysis_database_adds_up(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, mode="torch", dp=2, export=("db",))
    base = truth.folder / OUTPUT / "analysis.db"
    query = "SELECT computing + communication_not_overlapped + free, stage FROM StepTraceTime"
    for (parts, stage), step in zip(rows(base, query), truth.steps, strict=True):
        assert parts == pytest.approx(step.step_ns / 1000)
        assert stage == step.step_ns / 1000
    ((elapsed,),) = rows(base, "SELECT sum(elapse_time) FROM CommAnalyzerTime")
    assert elapsed == pytest.approx(sum(op.elapse_ns for op in truth.communication) / 1e6)


def test_a_mindspore_database_knows_device_names_and_no_steps(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, export=("db",), tp=2)
    base = truth.folder / OUTPUT / "ascend_mindspore_profiler_0.db"
    names = {name for (name,) in rows(base, "SELECT value FROM STRING_IDS")}
    assert "aclnnMatmul_MatMulV3Common_MatMulV3" in names
    assert not any("KernelLaunch" in name for name in names)
    tables = {name for (name,) in rows(base, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert "STEP_TIME" not in tables
    assert (truth.folder / OUTPUT / "communication_analyzer.db").exists()


def test_text_and_database_of_one_job_agree(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, mode="torch", dp=2, export=("text", "db"))
    base = truth.folder / OUTPUT / "ascend_pytorch_profiler_0.db"
    query = "SELECT sum(endNs - startNs) FROM TASK JOIN COMPUTE_TASK_INFO USING (globalTaskId)"
    ((in_base,),) = rows(base, query)
    in_text = sum(
        round(float(row["Duration(us)"]) * 1000)
        for row in read(truth.folder / OUTPUT / "kernel_details.csv")
        if row["Accelerator Core"] != "COMMUNICATION"
    )
    assert in_base == in_text == truth.compute_ns


def test_an_msprof_export_holds_every_kernel(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, export=("msprof",), dp=2)
    assert not (truth.folder / OUTPUT).exists()
    (summary,) = truth.folder.glob("PROF_*/mindstudio_profiler_output/op_summary_*.csv")
    found = read(summary)
    assert set(TITLES.values()) <= set(found[0])
    durations = [round(float(row["Task Duration(us)"]) * 1000) for row in found]
    assert durations == [k.duration_ns for k in truth.kernels]


def test_the_exported_chip_makes_the_peak_of_the_spec(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, export=("msprof",), peak_tflops=294.9)
    (info,) = truth.folder.glob("PROF_*/device_0/info.json.0")
    chip = json.loads(info.read_text())["DeviceInfo"][0]
    # 20 cores x 1800 MHz x 8192 operations a cycle = 294.912 TFLOPS
    assert (chip["ai_core_num"], chip["aic_frequency"]) == (20, "1800")


def test_a_legacy_folder_averages_kernels_over_steps(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, export=("legacy",), steps=3, dp=2)
    detail = read(truth.folder / "profiler/aicore_intermediate_0_detail.csv")
    total = sum(float(row["execution_time"]) * int(row["execution_frequency"]) for row in detail)
    assert total == pytest.approx(truth.compute_ns / 3 / 1e6)
    layers = [row for row in detail if "/1-LLamaDecodeLayer/" in row["full_kernel_name"]]
    assert layers and all(row["execution_frequency"] == "1" for row in layers)


def test_legacy_step_times_are_ticks_of_ten_nanoseconds(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, export=("legacy",), steps=2)
    steps = read(truth.folder / "profiler/step_trace_raw_0_detail_time.csv")
    assert [int(row["total"]) * 10 for row in steps[:-1]] == [step.step_ns for step in truth.steps]
    assert steps[-1]["step_num"] == "-"


def test_a_cpu_folder_holds_every_execution(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, export=("cpu",), steps=2)
    folder = truth.folder / "FRAMEWORK"
    lines = (folder / "cpu_op_execute_timestamp_0.txt").read_text().splitlines()
    executions = [item.split(",") for line in lines for item in line.split(";")[2].split()]
    assert sorted(int(start) for start, _, _ in executions) == sorted(k.start_ns for k in truth.kernels)
    detail = read(folder / "cpu_op_detail_info_0.csv")
    assert sum(float(row["op_total_time(ms)"]) for row in detail) == pytest.approx(truth.compute_ns / 1e6)
    assert sum(float(row["total_proportion"]) for row in detail) == pytest.approx(1, abs=1e-4)
    assert {row["op_occurrences"] for row in detail} == {"2"}


@pytest.mark.real
@pytest.mark.parametrize("name", ["cpu_op_detail_info_0", "cpu_op_type_info_0"])
def test_cpu_headers_are_the_real_ones(tmp_path: Path, dumps: Path, name: str) -> None:
    truth = write_dump(tmp_path, export=("cpu",))
    (real,) = dumps.glob(f"mindspore-cpu-graph-irlinked/*/FRAMEWORK/{name}.csv")
    assert header(truth.folder / f"FRAMEWORK/{name}.csv") == header(real)


@pytest.mark.parametrize("mode", ["torch", "pynative", "graph"])
def test_a_trace_explains_every_gap_of_the_device(tmp_path: Path, mode: str) -> None:
    truth = write_dump(tmp_path, mode=mode, export=("text", "trace"), step_us=60_000, free_ratio=0.4, dp=2)
    idle = sum(step.free_ns for step in truth.steps)
    explained = sum(gap.duration_ns for gap in truth.gaps)
    assert 0.98 * idle < explained <= idle  # the rest are gaps under 2 us
    events = json.loads((truth.folder / OUTPUT / "trace_view.json").read_text())
    free = [event for event in events if event.get("name") == "Free"]
    assert [round(float(event["dur"]) * 1000) for event in free] == [gap.duration_ns for gap in truth.gaps]
    steps = [event["name"] for event in events if "ProfilerStep#" in event["name"]]
    assert [name.rsplit("#", 1)[1] for name in steps] == ["10", "11"]


def test_causes_of_gaps_are_seen_on_the_host(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, mode="torch", export=("text", "trace"), step_us=100_000, free_ratio=0.6, layers=8)
    events = json.loads((truth.folder / OUTPUT / "trace_view.json").read_text())
    for cause, name in {
        "sync": "AscendCL@aclrtSynchronizeStreamWithTimeout",
        "gc": "GC",
        "memory_alloc": "AscendCL@aclrtMallocPhysical",
        "host_op": "aten::item",
    }.items():
        shown = sum(round(event["dur"] * 1000) for event in events if event["name"] == name)
        assert shown == sum(gap.duration_ns for gap in truth.gaps if gap.cause == cause) > 0


def header(path: Path) -> bytes:
    with path.open("rb") as lines:
        return lines.readline().rstrip(b"\r\n")


@pytest.mark.real
def test_database_tables_have_the_real_columns(tmp_path: Path, dumps: Path) -> None:
    truth = write_dump(tmp_path, mode="torch", dp=2, export=("db",))
    real = dumps / "msinsight-torch-ddp2/db/level1/rank1_ascend_pt" / OUTPUT / "ascend_pytorch_profiler_1.db"
    ours = truth.folder / OUTPUT / "ascend_pytorch_profiler_0.db"
    tables = {name for (name,) in rows(ours, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in sorted(tables):
        query = f"SELECT name FROM pragma_table_info('{table}')"
        assert rows(ours, query) == rows(real, query), table


@pytest.mark.real
@pytest.mark.parametrize("name", ["op_summary", "op_statistic", "api_statistic"])
def test_msprof_headers_are_the_real_ones(tmp_path: Path, dumps: Path, name: str) -> None:
    truth = write_dump(tmp_path, export=("msprof",))
    (ours,) = truth.folder.glob(f"PROF_*/mindstudio_profiler_output/{name}_*.csv")
    pattern = f"mindspore-ascend-synthetic/fake-graph-O0-sched-Level1/*/PROF_*/mindstudio_profiler_output/{name}_*.csv"
    (real,) = dumps.glob(pattern)
    until = b",aicore_time(us)"  # the counters after it follow the profiler's metric setting
    assert header(ours).split(until)[0] == header(real).split(until)[0]


@pytest.mark.real
@pytest.mark.parametrize("name", ["aicore_intermediate_1_detail", "aicore_intermediate_1_type", "framework_raw_1"])
def test_legacy_headers_are_the_real_ones(tmp_path: Path, dumps: Path, name: str) -> None:
    truth = write_dump(tmp_path, export=("legacy",), rank=1, dp=2)
    real = dumps / "mindinsight-ms1x-run1/normal_run/profiler" / f"{name}.csv"
    assert header(truth.folder / f"profiler/{name}.csv") == header(real)
