"""Dumps that can be read and cannot be true: what is left out, what becomes unknown, and that it is said."""

from __future__ import annotations

import json

import polars as pl
import pytest

from analysis.chinese import chinese
from analysis.cli import build_report
from analysis.dump import find_dumps
from analysis.soundness import foreign, once
from tests.analysis.small_dumps import HEADER_2025, KERNELS, OUTPUT, kernel, table, whole_dump, write_dump
from tests.dumps import write_dump as write_synthetic
from tests.dumps import write_job

METADATA = {"distributed_args": {"world_size": 8, "rank": 0}}
QUIET = (KERNELS[0], KERNELS[1], KERNELS[3])
STEP = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble\n1,100,0,0,0,30,130,0\n"


def warnings_of(report):
    source = report["source"]
    assert all(chinese(text) for text in source["warnings"]), source["warnings"]
    return source["warnings"]


def test_rows_that_all_stand_twice_count_once(tmp_path):
    twice = [row for row in KERNELS for _ in range(2)]
    report = build_report(whole_dump(tmp_path, kernel_details_csv=table(HEADER_2025, twice)))
    assert report["ranks"][0]["kernels"] == build_report(whole_dump(tmp_path / "once"))["ranks"][0]["kernels"]
    (said,) = warnings_of(report)
    assert said == (
        "ASCEND_PROFILER_OUTPUT/kernel_details.csv: every row stands in it more than once; 4 copies are left out"
    )


def test_kernels_that_repeat_at_another_time_are_no_copies(tmp_path):
    twice = [*KERNELS, *(row.replace("17642468770", "17642468780") for row in KERNELS)]
    report = build_report(whole_dump(tmp_path, kernel_details_csv=table(HEADER_2025, twice)))
    assert report["ranks"][0]["kernels"]["count"] == 8


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ([(1, "a"), (1, "a"), (2, "b"), (2, "b"), (2, "b")], 2),
        ([(1, "a"), (1, "a"), (2, "b"), (2, "c")], 4),  # two at once are no copies
        ([(1, "a"), (1, "a")], 2),  # too few to tell
        ([(None, "a")] * 4, 4),  # without a start equal rows may be different launches
    ],
)
def test_copies_are_left_out_where_every_row_has_one(rows, left):
    table, warnings = pl.DataFrame(rows, schema={"start_ns": pl.Int64, "name": pl.String}, orient="row"), []
    assert once(table, "communication.json", warnings).height == left
    assert bool(warnings) == (left < len(rows))


def test_kernels_that_all_start_at_once_ran_nobody_knows_when(tmp_path):
    rows = [kernel(f"add{n}", "Add", "1764246877000000.000", "10.000") for n in range(5)]
    root = write_dump(tmp_path, {f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, rows)})
    report = build_report(root)
    (entry,) = report["ranks"]
    assert entry["kernels"]["compute_us"] == 50.0  # sums stand
    assert all(step["computing_us"] is None and step["step_time_us"] is None for step in entry["steps"])
    assert "kernel_details.csv: all 5 kernels start at the same time" in warnings_of(report)[0]


def parallel(tmp_path, **more):
    root = whole_dump(tmp_path, kernel_details_csv=table(HEADER_2025, QUIET), step_trace_time_csv=STEP, **more)
    return build_report(root)


def test_communication_that_was_not_recorded_is_unknown_not_free(tmp_path):
    report = parallel(tmp_path, profiler_metadata_json=METADATA)
    (step,) = report["ranks"][0]["steps"]
    assert (step["step_time_us"], step["computing_us"]) == (130.0, 100.0)
    names = ("communication_us", "communication_not_overlapped_us", "overlapped_us", "free_us", "device_ratio")
    assert [step[name] for name in names] == [None] * 5
    assert report["bottleneck"]["verdict"] is None
    (said,) = [text for text in warnings_of(report) if "communication" in text]
    assert said.startswith("no file holds a communication operation although rank 0 is one of 8")


def test_a_rank_alone_communicates_with_nobody(tmp_path):
    (step,) = parallel(tmp_path)["ranks"][0]["steps"]
    assert (step["communication_us"], step["free_us"]) == (0.0, 30.0)


def test_ranks_that_profiled_other_steps_are_named(tmp_path):
    for truth in write_job(tmp_path, steps=2, tp=4, mode="torch"):
        if truth.rank == 2:
            for path in truth.folder.rglob("step_trace_time.csv"):
                path.write_text(path.read_text().replace("\n10,", "\n12,").replace(",10,", ",12,"))
    (said,) = [text for text in warnings_of(build_report(tmp_path)) if "different steps" in text]
    assert said == "ranks profiled different steps: 10-11 (2) on most, but rank 2: 11-12 (2)"


def test_ranks_of_the_same_steps_are_not(tmp_path):
    write_job(tmp_path, steps=2, tp=2, mode="torch")
    assert not [text for text in warnings_of(build_report(tmp_path)) if "different steps" in text]


def test_a_linked_rank_beside_real_ones_is_named(tmp_path):
    job, away = tmp_path / "job", tmp_path / "away"
    write_synthetic(job, rank=0, steps=1, tp=2)
    elsewhere = write_synthetic(away, rank=1, steps=1, tp=2)
    (job / "rank_1_ascend_ms").symlink_to(elsewhere.folder, target_is_directory=True)
    (job / "latest").symlink_to(job / "rank_0_ascend_ms", target_is_directory=True)  # read under its own name
    (dump,) = find_dumps(job)
    said = "rank_1_ascend_ms is a link to a folder, and links are not followed: what it holds is left out"
    assert dump.warnings == (said,)
    assert said in warnings_of(build_report(job))


@pytest.mark.parametrize(
    "text",
    [
        "no file holds a communication operation although this rank is one of 2: "
        "communication and free time are unknown; profile with activity NPU at Level1"
    ],
)
def test_a_rank_without_a_number_reads_well_in_chinese(text):
    assert chinese(text).startswith("本 rank 属于 2 个 rank 的作业")


def torch_dumps(folder):
    return [truth.folder for truth in write_job(folder, mode="torch", export=("text", "trace"), dp=2)]


def swapped(one, other, label):
    a, b = (dump / label for dump in (one, other))
    text = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(text)


def test_a_trace_of_another_rank_is_left_out_and_named(tmp_path):
    dumps = torch_dumps(tmp_path)
    own = build_report(dumps[0])
    swapped(*dumps, f"{OUTPUT}/trace_view.json")
    report = build_report(dumps[0])
    (said,) = set(warnings_of(report)) - set(warnings_of(own))
    assert said.startswith(f"{OUTPUT}/trace_view.json: none of ")
    assert said.endswith(
        f" leads to a kernel of {OUTPUT}/kernel_details.csv: it is of another rank or time, and is left out"
    )
    assert own["ranks"][0]["free_time"] is not None
    assert report["ranks"][0]["free_time"] is None
    assert report["ranks"][0]["kernels"] == own["ranks"][0]["kernels"]


@pytest.mark.parametrize("foreign", [False, True])
def test_a_trace_whose_times_a_tool_has_rounded_is_told_from_one_of_another_rank(tmp_path, foreign):
    dumps = torch_dumps(tmp_path)
    if foreign:
        swapped(*dumps, f"{OUTPUT}/trace_view.json")
    trace = dumps[0] / OUTPUT / "trace_view.json"
    events = json.loads(trace.read_text())
    trace.write_text(json.dumps([{**event, "ts": float(event["ts"])} if "ts" in event else event for event in events]))
    report = build_report(dumps[0])
    assert (report["ranks"][0]["free_time"] is None) is foreign
    assert any("another rank" in text for text in warnings_of(report)) is foreign


def test_a_trace_of_which_few_kernels_are_left_is_the_ranks_own(tmp_path):
    dump = torch_dumps(tmp_path)[0]
    kernels = dump / OUTPUT / "kernel_details.csv"
    kernels.write_text("".join(kernels.read_text().splitlines(keepends=True)[:21]))
    report = build_report(dump)
    assert report["ranks"][0]["free_time"] is not None


def test_files_of_different_devices_are_said_to_be(tmp_path):
    header, row, _ = STEP.split("\n")
    trace = f"{header.replace('Step,', 'Step,Device_id,')}\n{row.replace('1,', '1,3,', 1)}\n"
    report = build_report(whole_dump(tmp_path, step_trace_time_csv=trace))
    assert (
        f"{OUTPUT}/step_trace_time.csv is of device 3, {OUTPUT}/kernel_details.csv of device 0: "
        "one of them is of another rank" in warnings_of(report)
    )


def test_a_negative_step_is_no_step(tmp_path):
    outside = [row.replace("1,", "-1,", 1) for row in KERNELS[:1]]
    rows = table(HEADER_2025, [*outside, *KERNELS])
    trace = STEP + "-1,7,0,0,0,0,7,0\n"
    report = build_report(whole_dump(tmp_path, kernel_details_csv=rows, step_trace_time_csv=trace))
    assert [step["step"] for step in report["ranks"][0]["steps"]] == ["1"]
    said = warnings_of(report)
    assert f"{OUTPUT}/kernel_details.csv: step ids below 0 are no steps; in 1 rows the step is left unknown" in said
    assert f"{OUTPUT}/step_trace_time.csv: step ids below 0 are no steps; 1 such rows are left out" in said


def test_a_step_trace_of_a_negative_step_alone_is_of_one_step_without_a_name(tmp_path):
    report = build_report(whole_dump(tmp_path, step_trace_time_csv=STEP.replace("\n1,", "\n-1,")))
    (step,) = report["ranks"][0]["steps"]
    assert (step["step"], step["computing_us"]) == (None, 100)


@pytest.mark.parametrize(("kernels", "launches"), [(61, 0), (40, 12)])
def test_launches_of_whole_graphs_tell_nothing_of_whose_trace_it_is(kernels, launches):
    """None of twelve leads to a kernel: beside 61 kernels they may be of graphs, beside 40 they should be theirs."""
    starts = pl.DataFrame({"start_ns": [1_000 * at + 3 for at in range(kernels)]})
    ends = [{"cat": "async_npu", "ph": "f", "start_ns": 1_000 * at + 407} for at in range(12)]
    assert foreign(pl.DataFrame(ends), starts) == launches
