"""Every gap of the device has the cause that the trace shows for it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from analysis.checklist import Evidence
from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.findings import findings
from analysis.free_time import free_time
from analysis.rank import read_rank
from analysis.readers.data_queue import nearest_empty_ratio, read_device_queue, read_pipeline
from analysis.readers.trace_events import read_events
from analysis.report import capture_report
from analysis.schema import KERNEL_COLUMNS, polars_schema
from analysis.synthetic import GptSpec, write_rank


@pytest.mark.parametrize("mode", ["torch", "pynative", "graph"])
def test_each_gap_of_a_synthetic_trace_gets_its_cause(tmp_path: Path, mode) -> None:
    truth = write_rank(tmp_path, GptSpec(layers=3, mode=mode, free_ratio=0.4, seed=4), export=("text", "trace"), run={})
    result = read_rank(find_dumps(tmp_path)[0])
    known = {(gap.start_ns, gap.duration_ns): gap.cause for gap in truth.gaps}
    found = {(row[1], row[2]): row[3] for row in result.frames["gaps"].iter_rows()}
    assert {gap: found.get(gap) for gap in known} == known
    assert {found[gap] for gap in set(found) - set(known)} <= {"launch_gap"}  # shorter than any the truth lists
    assert set(known.values()) > {"gc", "data_wait", "memory_alloc", "host_op", "launch_gap"}

    idle = {row["cause"]: row["us"] for row in result.entry["free_time"]["by_cause"]}
    for cause in set(known.values()) - {"launch_gap"}:
        expected = sum(gap.duration_ns for gap in truth.gaps if gap.cause == cause) / 2000
        assert idle[cause] == pytest.approx(expected, abs=0.001)
    assert sum(idle.values()) == pytest.approx(sum(step.free_ns for step in truth.steps) / 2000, abs=0.01)
    longest = max(truth.gaps, key=lambda gap: gap.duration_ns)
    assert result.entry["free_time"]["gaps"][0]["duration_us"] == longest.duration_ns / 1000
    waits = [step["data_wait_us"] for step in result.entry["steps"]]
    assert waits == [gap.duration_ns / 1000 for gap in truth.gaps if gap.cause == "data_wait"]


def kernels(*spans, step="1"):
    rows = [{"name": f"k{n}", "step": step, "kind": "compute", "start_ns": a * 1000, "duration_ns": (b - a) * 1000}
            for n, (a, b) in enumerate(spans)]  # fmt: skip
    return pl.DataFrame([dict.fromkeys(KERNEL_COLUMNS) | row for row in rows], schema=polars_schema(KERNEL_COLUMNS))


def span(name, begin, end, cat=None, tid=1, pid=1):
    event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{begin:.3f}", "dur": end - begin}
    return event if cat is None else {**event, "cat": cat}


def launch(number, host, device):
    link = {"name": f"HostToDevice{number}", "cat": "HostToDevice", "id": str(number), "pid": 1, "tid": 1}
    return [{**link, "ph": "s", "ts": f"{host:.3f}"}, {**link, "ph": "f", "ts": f"{device:.3f}", "bp": "e"}]


def causes(tmp_path, frame, *events, judged=("1",)):
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(list(events)), encoding="utf-8")
    found = free_time(frame, read_events(path, "trace_view.json", []), set(judged))
    assert found is not None
    return [(row[1] // 1000, row[2] // 1000, row[3]) for row in found.gaps.iter_rows()], found.report


STEP = span("ProfilerStep#1", 0, 1000, "cpu_op")


def test_edges_of_the_step_are_gaps_and_what_is_outside_is_not(tmp_path):
    gaps, report = causes(tmp_path, kernels((-50, 100), (110, 990), (1200, 1300)), STEP)
    assert gaps == [(100, 10, "launch_gap"), (990, 10, "launch_gap")]
    assert report["by_cause"] == [{"cause": "launch_gap", "us": 20.0, "share": 1.0}]
    assert report["gaps"][0] == {
        "step": "1", "start_us": 100.0, "duration_us": 10.0, "cause": "launch_gap", "before": "k0", "after": "k1",
        "host_event": None,
    }  # fmt: skip


def test_gap_that_begins_while_the_host_waits_is_synchronisation(tmp_path):
    wait = span("AscendCL@aclrtSynchronizeStream", 300, 505)
    assert causes(tmp_path, kernels((0, 500), (600, 1000)), STEP, wait)[0] == [(500, 100, "sync")]


def test_collection_inside_a_host_operator_is_the_collection(tmp_path):
    events = [span("aten::add", 480, 620, "cpu_op"), span("GC", 520, 580, "GC")]
    gaps, report = causes(tmp_path, kernels((0, 500), (600, 1000)), STEP, *events)
    assert gaps == [(500, 100, "gc")]
    assert report["gaps"][0]["host_event"] == "GC"


def test_innermost_operator_is_named(tmp_path):
    events = [span("aten::outer", 400, 700, "cpu_op"), span("aten::inner", 490, 610, "cpu_op")]
    _, report = causes(tmp_path, kernels((0, 500), (600, 1000)), STEP, *events)
    assert [(gap["cause"], gap["host_event"]) for gap in report["gaps"]] == [("host_op", "aten::inner")]


def test_gap_before_a_kernel_that_was_launched_long_ago_is_not_blamed_on_the_host(tmp_path):
    events = [span("aten::add", 480, 620, "cpu_op"), *launch(1, 200, 600)]
    assert causes(tmp_path, kernels((0, 500), (600, 1000)), STEP, *events)[0] == [(500, 100, "device_start")]


@pytest.mark.parametrize(("end", "cause"), [(490, "device_start"), (500, "device_start"), (560, "launch_gap")])
def test_a_kernel_counts_as_launched_when_the_call_that_launches_it_ends(end, cause, tmp_path):
    events = [span("Node@launch", 195, end), span("Node@launch", 20, 900, tid=2), *launch(1, 200, 600)]
    assert causes(tmp_path, kernels((0, 500), (600, 1000)), STEP, *events)[0] == [(500, 100, cause)]


def test_a_short_gap_before_a_kernel_that_was_launched_is_a_launch_gap(tmp_path):
    events = [span("Node@launch", 195, 300), *launch(1, 200, 540)]
    assert causes(tmp_path, kernels((0, 500), (540, 1000)), STEP, *events)[0] == [(500, 40, "launch_gap")]


def test_data_is_waited_for_on_the_thread_of_the_steps_only(tmp_path):
    frame = kernels((100, 1000))
    load = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    assert causes(tmp_path, frame, STEP, span(load, 5, 95, "cpu_op"))[0] == [(0, 100, "data_wait")]
    assert causes(tmp_path, frame, STEP, span(load, 5, 95, "cpu_op", tid=9))[0] == [(0, 100, "launch_gap")]


def test_host_memory_is_no_device_memory(tmp_path):
    frame = kernels((0, 500), (540, 1000))
    assert causes(tmp_path, frame, STEP, span("AscendCL@aclrtMallocHost", 500, 540))[0] == [(500, 40, "launch_gap")]
    assert causes(tmp_path, frame, STEP, span("AscendCL@aclrtMalloc", 500, 540))[0] == [(500, 40, "memory_alloc")]


def test_long_gap_without_a_sign_of_the_host_is_unknown(tmp_path):
    gaps, _ = causes(tmp_path, kernels((0, 500), (510, 600), (700, 1000)), span("x", 0, 1))
    assert gaps == [(500, 10, "launch_gap"), (600, 100, "unknown")]  # steps from the kernels themselves


def test_steps_that_are_not_judged_are_left_out(tmp_path):
    frame = pl.concat([kernels((0, 400), (500, 1000)), kernels((1000, 1500), (1530, 2000), step="2")])
    gaps, _ = causes(tmp_path, frame, STEP, span("ProfilerStep#2", 1000, 2000, "cpu_op"), judged=("2",))
    assert gaps == [(1500, 30, "launch_gap")]


def test_a_broken_trace_is_a_warning_and_free_time_unknown(tmp_path):
    truth = write_rank(tmp_path, GptSpec(layers=2), export=("text", "trace"), run={})
    trace = next(truth.folder.rglob("trace_view.json"))
    trace.write_text(trace.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    result = read_rank(find_dumps(tmp_path)[0])
    assert result.entry["free_time"] is None
    assert len([warning for warning in result.source["warnings"] if "trace_view.json" in warning]) == 1


def entry(causes, step_us=1_000_000.0):
    step = {"step": "1", "step_time_us": step_us, "computing_us": 700_000.0, "free_us": 300_000.0,
            "communication_not_overlapped_us": 0.0}  # fmt: skip
    return {"rank": 0, "steps": [step], "kernels": {}, "flops": {}, "facts": {"steps": 1, "free_causes": causes}}


def test_findings_name_what_the_trace_blames():
    found = {row["id"]: row for row in findings(Evidence([entry({"gc": 1500.0, "sync": 12_000.0, "data_wait": 20_000.0,
                                                                 "memory_alloc": 11_000.0})]))}  # fmt: skip
    wanted = {"garbage_collection": 1500.0, "synchronize": 12_000.0, "data_wait": 20_000.0, "memory_alloc": 11_000.0}
    assert {name: found[name]["recoverable_us"] for name in wanted} == wanted
    few = findings(Evidence([entry({"gc": 900.0, "sync": 9_000.0, "data_wait": 9_000.0, "memory_alloc": 9_000.0})]))
    assert not wanted.keys() & {row["id"] for row in few}


def test_waiting_for_data_at_the_start_of_most_steps_is_an_input_verdict(tmp_path):
    # The loader takes 60 of 100 ms in which the device idles 64: more than half of the free time.
    write_rank(tmp_path, GptSpec(layers=2, mode="graph", free_ratio=0.64, seed=2), export=("text", "trace"), run={})
    result = read_rank(find_dumps(tmp_path)[0])
    told = {**result.entry, "steps": [dict(step) for step in result.entry["steps"]]}
    for step in told["steps"]:
        step["data_wait_us"] = 0.6 * step["step_time_us"]
    report = capture_report([(told, result.source)], config=None, run={}, series=[])
    assert report["bottleneck"]["verdict"] == "input"
    assert report["bottleneck"]["losses"][0]["kind"] == "input"


def test_an_empty_device_queue_is_an_input_verdict(tmp_path):
    # kind 1 rows are samples of the queue: sizes 0, 0, 0 and 4 of capacity 64
    rows = ["0 1 1 4 10", "1 64 1 0 10", "1 64 2 0 20", "0 0 2 3 20", "1 64 3 4 30", "1 64 4 0 40"]
    path = tmp_path / "device_queue_profiling_0.txt"
    path.write_text("\n".join(rows), encoding="utf-8")
    ratio = read_device_queue(path, path.name, [])
    assert ratio == 0.75
    told = entry({})
    told["facts"]["queue_empty_ratio"] = ratio
    report = capture_report([(told, {})], config=None, run={}, series=[])
    assert report["bottleneck"]["verdict"] == "input"


def test_queue_of_the_operator_nearest_to_the_device_counts(tmp_path):
    path = tmp_path / "minddata_pipeline_raw_0.csv"
    header = "op_id,op_type,num_workers,output_queue_size,output_queue_average_size,output_queue_length"
    path.write_text(f'{header}\n0,Batch,4,,,\n1,Map,1,"[0, 2, 0, 0]",0.5,64\n2,Reader,4,"[0, 0]",0,64\n', "utf-8")
    assert nearest_empty_ratio(read_pipeline(path, path.name, [])) == 0.75
    path.write_text(f"{header}\n0,Batch,4,,,\n", encoding="utf-8")
    with pytest.raises(BadDump):
        read_pipeline(path, path.name, [])


@pytest.mark.real
def test_free_time_of_a_real_trace_adds_up_to_what_the_profiler_says(dumps: Path) -> None:
    for rank in (0, 1):
        result = read_rank(find_dumps(dumps / f"msinsight-torch-ddp2/text/level1/rank{rank}_ascend_pt")[0])
        idle = result.entry["free_time"]
        assert sum(row["us"] for row in idle["by_cause"]) == pytest.approx(
            result.entry["steps"][0]["free_us"], rel=1e-3
        )
        assert sum(row["share"] for row in idle["by_cause"]) == pytest.approx(1.0, abs=1e-5)
        assert "unknown" not in {row["cause"] for row in idle["by_cause"]}
