"""MindSpore's data pipeline: what its files tell of an input that comes too late, and of which operation is slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report
from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.rank import read_rank
from analysis.readers.data_queue import (
    nearest_empty_ratio,
    read_batch_times,
    read_device_queue,
    read_get_next,
    read_stages,
    read_summary,
    slow_operation,
)
from analysis.synthetic import data_pipeline as write
from analysis.synthetic.legacy_files import write_pipeline
from tests.conftest import SHARED

CHAIN = [("Batch", 2, None), ("Map", 4, [0, 0, 2, 0]), ("Map", 8, [0, 1, 0, 3]), ("TFReader", 4, [60, 64, 62, 64])]
# What MindSpore 2.10's own writer made of a pipeline of a slow Map, run on a processor.
SUMMARY = """op_ids,0,1,2
op_names,Batch,Map,Generator
pipeline_ops,Batch(id=0),Map(id=1),Generator(id=2)
num_workers,2,1,1
queue_average_size,0.0,0.0,16.0
queue_utilization_pct,0.0,0.0,100.0
queue_empty_freq_pct,100.0,100.0,0.0
children_ids,[1],[2],[]
parent_id,-1,0,1
avg_cpu_pct,0.0,0.25,0.0
per_pipeline_time,45.677
per_push_queue_time,0.0
per_batch_time,45.803
avg_cpu_pct_per_worker,0.0,0.25,0.0
queue_analysis_details,"Map(id=1)'s input queue usage=100.0% is greater than output queue usage=0.0%. Indicates, so"
bottleneck_warning,Batch(id=0)
"""
ITERATOR = """0 1 1 0 26553889
0 2 1 37 26553889
0 0 1 37 26553889
1 16 1 0 26553889
0 1 2 0 26553930
0 2 2 41 26553930
0 0 2 40 26553930
1 16 2 4 26553930
0 1 3 2 26553971
0 2 3 44 26553971
0 0 3 42 26553971
1 16 3 0 26553971
"""
STEPS = "Step,Computing,Communication(Not Overlapped),Free\n1,10,0,5\n"


def written(folder: Path, **files: str) -> Path:
    output = folder / "host_1_20260101120000123_ascend_ms" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    (output / "step_trace_time.csv").write_text(STEPS)
    for name, text in files.items():
        (output / name.replace("_csv", ".csv").replace("_txt", ".txt")).write_text(text)
    return output


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_rank(find_dumps(folder)[0]).entry
    return found


def test_a_summary_that_mindspore_wrote_names_the_slow_operation_and_its_load(tmp_path: Path):
    path = tmp_path / "minddata_pipeline_summary_0.csv"
    path.write_text(SUMMARY)
    found = read_summary(path, path.name, [])
    assert (found["pipeline_us"], found["push_us"], found["batch_us"]) == (45_677, 0, 45_803)
    assert [(row["op_id"], row["op"], row["workers"], row["children"]) for row in found["operations"]] == [
        (0, "Batch", 2, [1]),
        (1, "Map", 1, [2]),
        (2, "Generator", 1, []),
    ]
    assert [row["empty_ratio"] for row in found["operations"]] == [1.0, 1.0, 0.0]
    assert [row["cpu_ratio"] for row in found["operations"]] == [0.0, 0.0025, 0.0]
    slow = slow_operation(found["operations"])
    assert slow is not None and (slow["op_id"], slow["op"]) == (1, "Map")


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_summary_says_of_queues_what_the_samples_say(form: str, tmp_path: Path):
    write.write_summary(tmp_path, 0, CHAIN, [-1, 12.5, 80, 5], [7.5, -1, 8])
    name = f"minddata_pipeline_summary_0.{form}"
    found = read_summary(tmp_path / name, name, [])
    assert [row["empty_ratio"] for row in found["operations"]] == [None, 0.75, 0.5, 0.0]
    assert [row["usage_ratio"] for row in found["operations"]] == pytest.approx(
        [None, 0.5 / 64, 1 / 64, 62.5 / 64], abs=1e-4
    )
    assert [row["cpu_ratio"] for row in found["operations"]] == [None, 0.125, 0.8, 0.05]
    assert (found["pipeline_us"], found["push_us"], found["batch_us"]) == (7_500, None, 8_000)
    assert nearest_empty_ratio(found["operations"]) == 0.75


def test_times_of_batches_leave_out_the_first(tmp_path: Path):
    path = tmp_path / "dataset_iterator_profiling_0.txt"
    path.write_text(ITERATOR)
    assert read_batch_times(path, path.name, []) == {"pipeline_us": 41_000, "push_us": 1_000, "batch_us": 42_500}
    assert read_device_queue(path, path.name, []) == pytest.approx(2 / 3, abs=1e-6)


def test_what_getnext_found_is_told_by_the_device(tmp_path: Path):
    path = tmp_path / "minddata_aicpu_0.txt"
    write.write_get_next(path, [(500, 0), (100, 3), (300, 0), (100, 8)])
    assert read_get_next(path, path.name, []) == {"queue_empty_ratio": 0.5, "get_next_us": 250.0}


def test_stages_of_the_dataset_are_summed_longest_first(tmp_path: Path):
    path = tmp_path / "dataset.csv"
    write.write_stages(path, [("Map", "Process", 10, 20.5), ("Batch", "Pull", 2, 500.0), ("Zip", "Pull", 0, 1.0)])
    assert read_stages(path, path.name, []) == [
        {"operation": "Batch", "stage": "Pull", "info": None, "count": 2, "mean_us": 500.0, "total_us": 1000.0},
        {"operation": "Map", "stage": "Process", "info": None, "count": 10, "mean_us": 20.5, "total_us": 205.0},
    ]


def test_the_devices_own_queue_counts_more_than_the_hosts(tmp_path: Path):
    output = written(tmp_path)
    write.write_batches(output / "device_queue_profiling_0.txt", [(10, 1, 0), (20, 2, 0), (30, 4, 9)])
    assert told(tmp_path)["data_pipeline"]["queue_empty_ratio"] == pytest.approx(2 / 3, abs=1e-6)
    write.write_get_next(output / "minddata_aicpu_0.txt", [(100, 5), (300, 0), (200, 2), (200, 2)])
    data = told(tmp_path)["data_pipeline"]
    assert (data["queue_empty_ratio"], data["get_next_us"]) == (0.25, 200.0)
    assert (data["pipeline_us"], data["push_us"], data["batch_us"]) == (25_000, 3_000, 28_000)


def test_the_load_of_operations_joins_their_sampled_queues(tmp_path: Path):
    output = written(tmp_path)
    write_pipeline(output, 0, CHAIN)
    write.write_summary(output, 0, CHAIN, [-1, 12.5, 80, 5], [7.5, -1, 8])
    data = told(tmp_path)["data_pipeline"]
    assert [row["cpu_ratio"] for row in data["operations"]] == [None, 0.125, 0.8, 0.05]
    assert data["operations"][3]["usage_ratio"] == pytest.approx(62.5 / 64, abs=1e-6)
    assert data["batch_us"] == 8_000 and data["slow_operation"]["op_id"] == 2


def test_a_summary_alone_makes_the_verdict(tmp_path: Path):
    written(tmp_path, minddata_pipeline_summary_0_csv=SUMMARY)
    report = build_report(tmp_path)
    assert report["bottleneck"]["verdict"] == "input"
    (finding,) = [row for row in report["findings"] if row["id"] == "data_pipeline"]
    assert "empty in 100% of its samples; Map (operation 1) with 1 workers" in finding["summary"]


def test_waiting_long_for_each_batch_is_told_with_the_stage_that_takes_longest(tmp_path: Path):
    output = written(tmp_path)
    write.write_get_next(output / "minddata_aicpu_0.txt", [(12_000, 1), (10_000, 2)])
    write.write_stages(output / "dataset.csv", [("MapOp", "Process", 10, 900.0), ("BatchOp", "Pull", 1, 500.0)])
    (finding,) = [row for row in build_report(tmp_path)["findings"] if row["id"] == "data_pipeline"]
    assert "waits 11 ms for each batch" in finding["summary"] and "MapOp (Process) takes the host" in finding["summary"]
    assert "11 ms" in finding["summary_zh"] and "MapOp" in finding["advice_zh"]
    assert finding["evidence"][0]["get_next_us"] == 11_000.0
    write.write_get_next(output / "minddata_aicpu_0.txt", [(9_000, 1), (10_000, 2)])
    assert "data_pipeline" not in [row["id"] for row in build_report(tmp_path)["findings"]]


@pytest.mark.parametrize(
    ("name", "text", "reader"),
    [
        ("minddata_aicpu_0.txt", "node_name start_time end_time queue_size\nInitData 1 2 3\n", read_get_next),
        ("dataset.csv", "Operation,Stage,Occurrences,Avg. time (us),Custom Info\n", read_stages),
        ("dataset.csv", "Operation,Stage\na,b\n", read_stages),
        ("minddata_pipeline_summary_0.csv", "op_ids\n", read_summary),
        ("minddata_pipeline_summary_0.json", "[1]", read_summary),
        ("minddata_pipeline_summary_0.json", '{"op_ids": 3}', read_summary),
        ("dataset_iterator_profiling_0.txt", "0 1 1 0 5\nx y\n", read_batch_times),
    ],
)
def test_a_file_that_tells_nothing_is_quietly_passed_over(name: str, text: str, reader: Any, tmp_path: Path):
    output = written(tmp_path)
    (output / name).write_text(text)
    with pytest.raises(BadDump, match=f"^{name}: has no"):
        reader(output / name, name, [])
    result = read_rank(find_dumps(tmp_path)[0])
    assert result.entry["data_pipeline"] is None
    assert not [text for text in result.source["warnings"] if name in text]


def test_odd_values_of_a_summary_are_unknown(tmp_path: Path):
    path = tmp_path / "minddata_pipeline_summary_0.json"
    path.write_text(
        '{"op_ids": [0, "x", 1], "op_names": [null], "num_workers": ["2"], "children_ids": [5, "a"],'
        ' "queue_utilization_pct": [250, true], "queue_empty_freq_pct": [-1], "per_batch_time": ["soon"]}'
    )
    found = read_summary(path, path.name, [])
    assert found["operations"] == [
        {"op_id": 0, "op": None, "workers": 2, "children": []}
        | dict.fromkeys(("usage_ratio", "empty_ratio", "cpu_ratio")),
        {"op_id": 1, "op": None, "workers": None, "children": []}
        | dict.fromkeys(("usage_ratio", "empty_ratio", "cpu_ratio")),
    ]
    assert found["batch_us"] is None


@pytest.mark.real
def test_a_real_queue_tells_the_times_of_its_batches():
    """By hand: four lines of the first batch alone, so no time is known; the one sample found the queue empty."""
    data = told(SHARED / "dumps" / "mindinsight-ms2x-profiler")["data_pipeline"]
    assert data["queue_empty_ratio"] == 1.0
    assert [data[key] for key in ("pipeline_us", "push_us", "batch_us", "get_next_us")] == [None] * 4
