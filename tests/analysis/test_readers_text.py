from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.rank import read_rank
from analysis.readers.communication import read_communication, read_links
from analysis.readers.memory import read_memory
from analysis.readers.op_statistic import read_op_statistic
from analysis.readers.run_files import read_step_records
from analysis.readers.step_trace import read_steps
from tests.analysis.small_dumps import STEP_TRACE, whole_dump


def write(tmp_path: Path, content: str | dict[str, object]) -> Path:
    path = tmp_path / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


TITLES = (
    "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive)"
)
CELLS = "2,75174.57464453117,20.5,1,21.5,3.0004,99,7,13.5"


@pytest.mark.parametrize(
    ("header", "cells", "device", "preparing"),
    [
        (TITLES, CELLS, None, None),
        (f"{TITLES},Preparing", f"{CELLS},4.25", None, 4250),
        (f"Device_id,{TITLES},Preparing", f"6,{CELLS},4.25", 6, 4250),
    ],
    ids=["9 columns", "10 columns", "11 columns"],
)
def test_step_trace_of_every_width(header: str, cells: str, device: int | None, preparing: int | None, tmp_path: Path):
    frame = read_steps(write(tmp_path, f"{header}\r\n{cells}\r\n"), "step_trace_time.csv", [])
    step = frame.row(0, named=True)
    assert (step["step"], step["computing_ns"], step["free_ns"]) == ("2", 75_174_575, 3_000)
    assert (step["communication_not_overlapped_ns"], step["communication_ns"], step["overlapped_ns"]) == (
        20_500,
        21_500,
        1_000,
    )
    assert (step["stage_ns"], step["bubble_ns"], step["preparing_ns"]) == (99_000, 7_000, preparing)
    assert step["device_id"] == device


def test_an_empty_step_cell_is_an_unnamed_step(tmp_path: Path):
    frame = read_steps(write(tmp_path, f"{TITLES}\n{CELLS[1:]}\n"), "step_trace_time.csv", [])
    assert frame["step"].to_list() == [None]


def test_a_time_below_zero_is_unknown_and_a_repeated_step_is_said(tmp_path: Path):
    warnings: list[str] = []
    rows = f"{TITLES}\n2,-5,1,0,1,3,-4,0,1\n2,7,1,0,1,3,9,0,1\n"
    frame = read_steps(write(tmp_path, rows), "step_trace_time.csv", warnings)
    assert frame["computing_ns"].to_list() == [None, 7_000]
    assert frame["stage_ns"].to_list() == [-4_000, 9_000]
    assert [text for text in warnings if "below zero" in text or "more than once" in text] == [
        "step_trace_time.csv: 1 steps have a time below zero, taken as unknown",
        "step_trace_time.csv: 1 steps stand in it more than once",
    ]


@pytest.mark.parametrize(
    ("cells", "title"),
    [
        ("3,5,1,0,1,nan,9,0,1", "Free"),
        ("3,inf,1,0,1,3,9,0,1", "Computing"),
        ("3,5,N/A,0,1,3,9,0,1", "Communication(Not Overlapped)"),
    ],
)
def test_a_part_of_a_step_that_is_no_number_is_unknown_and_said(cells: str, title: str, tmp_path: Path):
    warnings: list[str] = []
    frame = read_steps(write(tmp_path, f"{TITLES}\n{cells}\n{CELLS}\n"), "step_trace_time.csv", warnings)
    assert frame.height == 2
    assert warnings == [f"step_trace_time.csv: line 2: {title} is no number; in 1 of 2 steps it is left unknown"]


def test_a_step_trace_without_rows_is_bad(tmp_path: Path):
    with pytest.raises(BadDump, match="has a header and no rows"):
        read_steps(write(tmp_path, STEP_TRACE.splitlines()[0]), "step_trace_time.csv", [])


def operation(start: float = 10.5, transit: float = 2.0, sizes: dict[str, float] | None = None) -> dict[str, object]:
    links = {link: {"Transit Size(MB)": size, "Transit Time(ms)": 1} for link, size in (sizes or {}).items()}
    times = {"Start Timestamp(us)": start, "Elapse Time(ms)": 5.0, "Transit Time(ms)": transit, "Wait Time(ms)": 1.5}
    return {"Communication Time Info": times, "Communication Bandwidth Info": links}


def test_operations_are_sorted_by_our_own_reading_of_the_name_and_roll_ups_left_out(tmp_path: Path):
    content: dict[str, object] = {
        "step13": {
            "p2p": {},
            "collective": {
                "hcom_send__822_0@77": operation(),
                "hcom_allReduce__9_1_1@5": operation(sizes={"HCCS": 8.0, "SDMA": 8.0, "RDMA": 0}),
                "Total Op Info": operation(),
            },
        }
    }
    rows = read_communication(write(tmp_path, content), "communication.json", []).rows(named=True)
    assert [(row["type"], row["op"], row["group"]) for row in rows] == [
        ("p2p", "hcom_send", "77"),
        ("collective", "hcom_allReduce", "5"),
    ]
    assert (rows[1]["step"], rows[1]["start_ns"], rows[1]["elapse_ns"]) == ("13", 10_500, 5_000_000)
    assert (rows[1]["transit_ns"], rows[1]["wait_ns"]) == (2_000_000, 1_500_000)
    assert (rows[1]["size_bytes"], rows[1]["link"]) == (8_000_000, "HCCS")


def test_start_times_keep_their_tenth_of_a_microsecond(tmp_path: Path):
    times = '{"Communication Time Info": {"Start Timestamp(us)": 1764246877147674.563}}'
    text = f'{{"step1": {{"collective": {{"hcom_x__1@2": {times}}}}}}}'
    assert read_communication(write(tmp_path, text), "c", [])["start_ns"].to_list() == [1764246877147674563]


def test_an_operation_that_is_no_operation_is_warned_of(tmp_path: Path):
    warnings: list[str] = []
    content: dict[str, object] = {"step1": {"collective": {"hcom_a@1": 5, "hcom_b@1": operation()}}}
    assert read_communication(write(tmp_path, content), "c.json", warnings).height == 1
    assert warnings == ["c.json: hcom_a@1: no time information"]


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "-3", "1e400", '"soon"', "true", "[]"])
def test_nonsense_numbers_are_unknown(value: str, tmp_path: Path):
    times = f'{{"Communication Time Info": {{"Elapse Time(ms)": {value}}}}}'
    text = f'{{"step1": {{"collective": {{"hcom_x__1@2": {times}}}}}}}'
    assert read_communication(write(tmp_path, text), "c", [])["elapse_ns"].to_list() == [None]


def test_links_are_totals_between_different_ranks_numbered_globally(tmp_path: Path):
    pair = {"Transport Type": "HCCS", "Transit Size(MB)": 8.0, "Transit Time(ms)": 0.4, "Bandwidth(GB/s)": 0}
    content: dict[str, object] = {
        "step1": {
            "p2p": {},
            "collective": {"allreduce-top1@7": {"0-1": pair}, "allreduce-total@7": {"0-0": pair, "0-1": pair}},
        }
    }
    rows = read_links(write(tmp_path, content), "m", {"7": {"name": "pp", "ranks": [2, 6]}})
    assert len(rows) == 1
    assert (rows[0]["src"], rows[0]["dst"], rows[0]["link"]) == (2, 6, "HCCS")
    assert (rows[0]["size_bytes"], rows[0]["transit_us"], rows[0]["bandwidth_gbps"]) == (8_000_000, 400.0, 20.0)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type", "PTA,1.5\t,0.5,2.0,NPU:0"),
        (
            "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Device Type",
            "PTA,1.5\t,0.5,2.0,0.5,NPU:0",
        ),
        (
            "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type",
            "PTA,1.5\t,0.5,2.0,0.5,2,NPU:0",
        ),
        ("Device_id,Component,Timestamp(us),Total Reserved(MB),Device", "0,PTA,1.5\t,2.0,NPU:0"),
    ],
    ids=["5 columns", "6 columns", "7 columns", "npu_module_mem"],
)
def test_memory_of_every_width_is_bytes(header: str, row: str, tmp_path: Path):
    found = read_memory(write(tmp_path, f"{header}\n{row}\n"), "memory_record.csv", []).row(0, named=True)
    allocated = 524_288 if "Allocated" in header else None
    device = 0 if "NPU:0" in row else None
    assert found.pop("device_id") == device
    assert found == {"component": "PTA", "time_ns": 1500, "allocated_bytes": allocated, "reserved_bytes": 2_097_152}


def test_memory_comes_in_order_of_time_and_empty_cells_are_unknown(tmp_path: Path):
    header = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type"
    found = read_memory(write(tmp_path, f"{header}\nPTA,9,1,1,x\nAPP,3,,1,x\n"), "m", [])
    assert found["time_ns"].to_list() == [3000, 9000]
    assert found["allocated_bytes"].to_list() == [None, 1 << 20]


@pytest.mark.parametrize("front", ["", "Device_id,", "Model Name,"])
def test_operator_statistic_with_and_without_a_column_in_front(front: str, tmp_path: Path):
    header = f"{front}OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)"
    text = f"{header}\n{'0,' if front else ''}Cast,AI_VECTOR_CORE,3,12.5,1,4,8,100\n"
    (row,) = read_op_statistic(write(tmp_path, text), "op_statistic.csv", []).to_dicts()
    assert (row.pop("device_id"), front) in [(0, "Device_id,"), (None, ""), (None, "Model Name,")]
    assert row == {"type": "Cast", "core": "AI_VECTOR_CORE", "count": 3, "total_ns": 12_500}


def test_step_records_are_completed_by_later_ones_and_bad_lines_counted(tmp_path: Path):
    lines = [
        '{"step": 2, "loss": 9.5, "step_time_ms": 100}',
        "not json",
        '{"step": 1, "loss": 10.5}',
        '{"step": 2, "lr": 0.1, "loss": null}',
        '{"loss": 3}',
        '{"step": 3, "loss": NaN, "overflow": true}',
    ]
    warnings: list[str] = []
    found = read_step_records(write(tmp_path, "\n".join(lines)), "stepscope_steps.jsonl", warnings)
    assert [(row["step"], row["loss"], row["lr"], row["step_time_ms"], row["overflow"]) for row in found] == [
        (1, 10.5, None, None, None),
        (2, 9.5, 0.1, 100, None),
        (3, None, None, None, True),
    ]
    assert warnings == ["stepscope_steps.jsonl: line 2: is not a step record, and 1 more such lines"]


CLUSTER = (
    "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive)\n"
    "2,rank,10,75.5,10,0,10,5,90,0,10\n2,rank,9,70.5,10,0,10,5,90,0,10\n"
    '2,stage,"(0, 1, 2)",75.5,10,0,10,5,90,0,10\n'
)


def test_a_cluster_table_is_one_dump_per_rank_and_stages_are_left_out(tmp_path: Path):
    path = tmp_path / "cluster_analysis_output" / "cluster_step_trace_time.csv"
    path.parent.mkdir()
    path.write_text(CLUSTER)
    dumps = find_dumps(tmp_path)
    assert [dump.rank for dump in dumps] == [9, 10]
    assert [read_rank(dump).entry["steps"][0]["computing_us"] for dump in dumps] == [70.5, 75.5]


def test_a_cluster_table_beside_the_ranks_themselves_adds_no_rank(tmp_path: Path):
    whole_dump(tmp_path)
    path = tmp_path / "cluster_analysis_output" / "cluster_step_trace_time.csv"
    path.parent.mkdir()
    path.write_text(CLUSTER)
    assert [dump.rank for dump in find_dumps(tmp_path)] == [0]
