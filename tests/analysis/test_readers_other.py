"""Readers of databases, MindSpore CPU, MindSpore legacy and old msprof timelines."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.rank import read_rank
from analysis.readers import legacy, mindspore_cpu, profiler_db, timeline
from analysis.readers.trace_events import profiler_steps, read_events
from tests.analysis.small_dumps import HEADER_2025, kernel, table, whole_dump

STRINGS = {
    0: "aclnnMatmul",
    1: "MatMulV3",
    2: "AI_CORE",
    3: "4,8;8,2",
    4: "hcom_allReduce__1_0_1",
    5: "hcom_allReduce_",
    6: "77",
}


def database(path: Path, *statements: str, rows: dict[str, list[tuple[Any, ...]]] | None = None) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        for table, values in (rows or {}).items():
            connection.executemany(f"insert into {table} values ({', '.join('?' * len(values[0]))})", values)
        connection.commit()
    return path


TASK = "create table TASK (startNs, endNs, deviceId, connectionId, globalTaskId, streamId, taskId, modelId)"
COMPUTE = "create table COMPUTE_TASK_INFO (name, globalTaskId, blockDim, taskType, opType, inputShapes)"
TALK = "create table COMMUNICATION_OP (opName, startNs, endNs, connectionId, groupName, opType, waitNs)"
TEXTS = "create table STRING_IDS (id, value)"
STEPS = "create table STEP_TIME (id, startNs, endNs)"
LAUNCHES = "create table CANN_API (startNs, endNs, connectionId)"


def profiler_database(path: Path, **more: list[tuple[Any, ...]]) -> Path:
    rows = {
        "TASK": [(100, 180, 0, 1, 11, 2, 5, 9), (900, 950, 0, 2, 12, 2, 6, 9), (5, 6, 0, 7, 99, 0, 0, 0)],
        "COMPUTE_TASK_INFO": [(0, 11, 24, 2, 1, 3), (0, 12, 24, 2, 1, 3)],
        "COMMUNICATION_OP": [(4, 150, 250, 3, 6, 5, 40)],
        "STRING_IDS": list(STRINGS.items()),
        **more,
    }
    tables = {"TASK": TASK, "COMPUTE_TASK_INFO": COMPUTE, "COMMUNICATION_OP": TALK, "STRING_IDS": TEXTS}
    extra = {"STEP_TIME": STEPS, "CANN_API": LAUNCHES}
    return database(path, *tables.values(), *(extra[name] for name in more if name in extra), rows=rows)


def test_kernels_of_a_database_are_tasks_joined_with_their_texts(tmp_path: Path):
    found = profiler_db.read_kernels(profiler_database(tmp_path / "db"), "db", []).rows(named=True)
    assert [(row["name"], row["kind"], row["start_ns"], row["duration_ns"]) for row in found] == [
        ("aclnnMatmul", "compute", 100, 80),
        ("hcom_allReduce__1_0_1", "communication", 150, 100),
        ("aclnnMatmul", "compute", 900, 50),
    ]
    assert (found[0]["type"], found[0]["core"], found[0]["input_shapes"], found[0]["block_num"]) == (
        "MatMulV3",
        "AI_CORE",
        "4,8;8,2",
        24,
    )
    assert found[0]["input_dtypes"] is None and found[0]["step"] is None


def test_counters_of_a_database_stand_under_their_titles_of_text(tmp_path: Path):
    path = profiler_database(
        tmp_path / "db", STRING_IDS=[*STRINGS.items(), (7, "aic_mac_ratio"), (8, "aic_total_time")]
    )
    counters = [(11, 7, 0.25), (12, 7, 0.75), (11, 8, 1500), (12, 8, float("inf")), (99, 7, 1.0)]
    database(path, "create table TASK_PMU_INFO (globalTaskId, name, value)", rows={"TASK_PMU_INFO": counters})
    found = profiler_db.read_kernels(path, "db", []).select("start_ns", "aic_mac_ratio", "aicore_time(us)").rows()
    assert found == [(100, 0.25, 1.5), (150, None, None), (900, 0.75, None)]


def test_a_kernel_belongs_to_the_step_whose_window_launched_it(tmp_path: Path):
    path = profiler_database(
        tmp_path / "db", STEP_TIME=[(7, 0, 800), (8, 800, 2000)], CANN_API=[(10, 20, 1), (700, 710, 2), (120, 130, 3)]
    )
    found = profiler_db.read_kernels(path, "db", [])
    assert sorted(found.select("start_ns", "step").rows()) == [(100, "7"), (150, "7"), (900, "7")]
    assert profiler_db.read_step_windows(path, "db", []) == {"7": 0.8, "8": 1.2}


def test_step_trace_of_a_database_is_in_microseconds(tmp_path: Path):
    create = (
        "create table StepTraceTime (step, computing, communication_not_overlapped, overlapped, communication, "
        "free, stage, bubble, preparing)"
    )
    path = database(
        tmp_path / "db", create, rows={"StepTraceTime": [("50", 8903.431, 98.5, 4, 102.5, 25.25, 1, 0, 18.5)]}
    )
    frame = profiler_db.read_steps(path, "analysis.db", [])
    step = frame.row(0, named=True)
    assert (step["step"], step["computing_ns"], step["communication_not_overlapped_ns"], step["free_ns"]) == (
        "50",
        8_903_431,
        98_500,
        25_250,
    )
    assert step["device_id"] is None


def test_analysed_communication_takes_the_link_that_carried_most(tmp_path: Path):
    times = (
        "create table CommAnalyzerTime "
        "(hccl_op_name, group_name, start_timestamp, elapse_time, transit_time, wait_time, step)"
    )
    sizes = "create table CommAnalyzerBandwidth (hccl_op_name, group_name, transport_type, transit_size, step)"
    op = ("hcom_allReduce__1_0_1", "77")
    rows = {
        "CommAnalyzerTime": [(*op, 10.5, 5, 2, 1, "step3"), ("Total Op Info", "77", 0, 9, 9, 9, "step3")],
        "CommAnalyzerBandwidth": [(*op, "SDMA", 8, "step3"), (*op, "HCCS", 8, "step3"), (*op, "RDMA", 1, "step3")],
    }
    found = profiler_db.read_communication(database(tmp_path / "db", times, sizes, rows=rows), "db", []).rows(
        named=True
    )
    assert len(found) == 1
    assert (found[0]["step"], found[0]["start_ns"], found[0]["elapse_ns"], found[0]["size_bytes"]) == (
        "3",
        10_500,
        5_000_000,
        8_000_000,
    )
    assert found[0]["link"] == "HCCS"


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_database_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / "db").write_bytes(content)
    with pytest.raises(BadDump, match="analysis.db: (is not an SQLite database|is empty|database cannot be read)"):
        profiler_db.read_kernels(tmp_path / "db", "analysis.db", [])


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path):
    endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select x as startNs from n"
    path = database(tmp_path / "db", f"create view TASK as {endless}", f"create view COMPUTE_TASK_INFO as {endless}")
    with pytest.raises(BadDump, match="holds no kernels: table TASK is missing"):
        profiler_db.read_kernels(path, "db", [])


def test_cpu_operators_are_kernels_with_exact_times(tmp_path: Path):
    (tmp_path / "f").write_text(
        "Default/net/MatMul-op3;HostCpuOps;1795967127047813349,0.002053,0 1795967127060276688,0.001322,1 \n"
        "Default/net/Cast-op1;HostCpuOps;1795967127047813000,0.000349,0 1795967127060276000,0.000688,0 \n"
    )
    found = mindspore_cpu.read_kernels(tmp_path / "f", "f", [])
    assert found["start_ns"].to_list()[:2] == [1795967127047813000, 1795967127047813349]
    assert found["duration_ns"].to_list() == [349, 2053, 688, 1322]
    assert found["type"].to_list() == ["Cast", "MatMul", "Cast", "MatMul"]
    assert found["stream_id"].to_list() == [0, 0, 0, 1]
    assert mindspore_cpu.with_steps(found, None)["step"].to_list() == ["1", "1", "2", "2"]
    assert mindspore_cpu.with_steps(found, (30, 31))["step"].to_list() == ["30", "30", "31", "31"]
    assert mindspore_cpu.with_steps(found, (30, 33))["step"].to_list() == [None] * 4


def test_cpu_runs_that_cannot_be_read_are_counted(tmp_path: Path):
    (tmp_path / "f").write_text("A-op1;HostCpuOps;12,0.5,0 x,y,z \nonly a name\n")
    warnings: list[str] = []
    assert mindspore_cpu.read_kernels(tmp_path / "f", "f", warnings).height == 1
    assert warnings == ["f: 2 of 2 runs of operators cannot be read"]


def test_cpu_shapes_are_taken_only_where_a_short_name_is_one_operator(tmp_path: Path):
    (tmp_path / "t").write_text("Default/a/Add-op1;C;1,1,0 \nDefault/b/Add-op1;C;2,1,0 \nDefault/Mul-op2;C;3,1,0 \n")
    (tmp_path / "s").write_text("Add;Add-op1;9;input_1:[4, 8];\nMul;Mul-op2;9;input_1:[4, 32];input_2:NoShape;\n")
    kernels = mindspore_cpu.read_kernels(tmp_path / "t", "t", [])
    assert mindspore_cpu.with_shapes(kernels, tmp_path / "s", "s")["input_shapes"].to_list() == [None, None, "4,32;"]


def test_legacy_averages_are_one_step_of_kernels_with_types_and_shapes(tmp_path: Path):
    (tmp_path / "a").write_text(
        "full_kernel_name,execution_time,execution_frequency\nDefault/Cast-op6,0.0015,3\nDefault/AllReduce-op9,1,3\n"
    )
    info = json.dumps(
        {
            "input_0": {"format": "ND", "data_type": "NUMBER_TYPE_FLOAT32", "shape": "32,3"},
            "output_0": {"shape": [32, 3]},
        }
    )
    quoted = info.replace('"', '""')
    (tmp_path / "f").write_text(
        f'task_id,full_kernel_name,kernel_type,subgraph,op_info\n1,Default/Cast-op6,Cast,Default,"{quoted}"\n'
    )
    kernels = legacy.with_operators(legacy.read_averages(tmp_path / "a", "a", []), tmp_path / "f", "f")
    row = kernels.row(0, named=True)
    assert (row["name"], row["type"], row["duration_ns"], row["start_ns"]) == ("Default/Cast-op6", "Cast", 1500, None)
    assert (row["input_shapes"], row["input_dtypes"], row["output_shapes"]) == ("32,3", "FLOAT32", "32,3")
    assert kernels["kind"].to_list() == ["compute", "communication"]


def test_legacy_steps_are_ticks_of_10_ns_and_averages_left_out(tmp_path: Path):
    (tmp_path / "s").write_text("step_num,total,iteration_interval,stream_1\n1,28427118,0,1\n2,100,7,1\n-,50,3,1\n")
    frame, lengths = legacy.read_steps(tmp_path / "s", "s", [])
    assert lengths == {"1": 284271.18, "2": 1.0}
    assert frame["preparing_ns"].to_list() == [0, 70]
    assert frame["computing_ns"].to_list() == [None, None]


def test_legacy_communication_is_inside_a_cell(tmp_path: Path):
    cost = {
        "stream_41_0_AllReduce-op4582": [
            "1",
            0.5,
            0.25,
            {"1-0": {"SDMA": [0.4, 4.096, 1]}, "0-0": {"SDMA": [0.1, 2.0, 1]}},
        ]
    }
    cell = json.dumps(cost).replace('"', '""')
    (tmp_path / "h").write_text(f'step_num,communication_operator_cost\n1,"{cell}"\n-,"{cell}"\n')
    rows = legacy.read_communication(tmp_path / "h", "h", []).rows(named=True)
    assert len(rows) == 1
    assert (rows[0]["op"], rows[0]["type"], rows[0]["transit_ns"], rows[0]["wait_ns"]) == (
        "AllReduce",
        "collective",
        500_000,
        250_000,
    )
    assert (rows[0]["size_bytes"], rows[0]["link"]) == (6_096, "SDMA")


def trace(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(events))
    return path


def test_profiler_steps_come_from_both_frameworks_spellings(tmp_path: Path):
    events = [
        {
            "ph": "X",
            "name": "ProfilerStep#50",
            "ts": "1736408883686740.710",
            "dur": 155985.8,
            "args": {"a": {"b": [1]}},
        },
        {"ph": "X", "name": "Python::PythonObserved::ProfilerStep#51", "ts": "1.5", "dur": "1276.500"},
        {"ph": "M", "name": "process_name"},
        {"ph": "X", "name": "aten::add", "ts": "2", "dur": 3},
    ]
    found = read_events(trace(tmp_path / "t", events), "trace_view.json", [])
    assert profiler_steps(found) == {"50": 155985.8, "51": 1276.5}


def test_a_trace_cut_in_the_middle_is_bad(tmp_path: Path):
    path = trace(tmp_path / "t", [{"ph": "X", "name": "ProfilerStep#1", "ts": "1", "dur": "2"}] * 50)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadDump, match="trace_view.json"):
        read_events(path, "trace_view.json", [])


def test_tasks_of_an_old_timeline_know_their_iteration(tmp_path: Path):
    task = {
        "ph": "X",
        "name": "Default/net/Cast-op239",
        "ts": 56635864664.91,
        "dur": 23.1,
        "args": {"Task Type": "AI_CORE", "Stream Id": 2},
    }
    event = {**task, "args": {"Task Type": "EVENT_RECORD"}}
    found = timeline.read_tasks(
        trace(tmp_path / "t", [task, event]), "device_0/timeline/task_time_0_2_3.json", []
    ).rows(named=True)
    assert len(found) == 1
    assert (found[0]["step"], found[0]["type"], found[0]["start_ns"], found[0]["duration_ns"]) == (
        "3",
        "Cast",
        56635864664910,
        23100,
    )


def test_collectives_among_kernels_serve_where_no_file_analyses_them(tmp_path):
    """Level0: no communication.json. When and how long is known, what they moved is not; other names are no collectives
    that tell their group."""
    rows = [
        kernel("aclnnAdd_Add", "N/A", "100", "10", core="AI_CORE"),
        kernel("hcom_allReduce__868_0_1", "N/A", "110.5", "60", core="HCCL"),
        kernel("hcom_allReduce__868_1_1", "N/A", "200", "40", core="HCCL"),
        kernel("hcom_batchSendRecv__12_0_1", "N/A", "300", "5.25", core="HCCL"),
        kernel("hcom_unnamed", "N/A", "400", "1", core="HCCL"),
    ]
    root = whole_dump(tmp_path, kernel_details_csv=table(HEADER_2025, rows))
    result = read_rank(find_dumps(root)[0])
    told = [
        (row["group"], row["type"], row["op"], row["count"], row["elapse_us"]) for row in result.entry["communication"]
    ]
    assert told == [
        ("868", "collective", "hcom_allReduce", 2, 100.0),
        ("12", "p2p", "hcom_batchSendRecv", 1, 5.25),
    ]
    unknown = ("transit_us", "wait_us", "size_bytes", "bandwidth_gbps", "link")
    assert {row[key] for row in result.entry["communication"] for key in unknown} == {None}
    assert [row["name"] for row in result.entry["collectives"]] == [
        "hcom_allReduce__868_0_1",
        "hcom_allReduce__868_1_1",
    ]
    (gap,) = [row for row in result.source["missing"] if row["file"].startswith("communication.json")]
    assert gap["file"] == "communication.json: transit times and sizes"


def test_a_rank_that_never_communicates_has_no_collectives_among_its_kernels(tmp_path):
    rows = [kernel("aclnnAdd_Add", "Add", "100", "10")]
    result = read_rank(find_dumps(whole_dump(tmp_path, kernel_details_csv=table(HEADER_2025, rows)))[0])
    assert result.entry["communication"] == []
    assert "communication.json" in [row["file"] for row in result.source["missing"]]


def test_links_of_old_files_whose_sizes_are_no_numbers_are_unknown(tmp_path):
    unknown, known = {"SDMA": [0.4, "x", 1]}, {"RDMA": [0.4, 2.0, 1]}
    cost = {
        "a_AllReduce-op1": ["1", 0.5, 0.25, {"1-0": unknown}],
        "a_AllReduce-op2": ["1", 0.5, 0.25, {"1-0": unknown, "0-1": known}],
    }
    cell = json.dumps(cost).replace('"', '""')
    (tmp_path / "h").write_text(f'step_num,communication_operator_cost\n1,"{cell}"\n')
    rows = legacy.read_communication(tmp_path / "h", "h", [])
    assert rows.select("size_bytes", "link").rows() == [(None, None), (2_000, "RDMA")]


def test_what_the_first_hundred_tasks_do_not_tell_a_later_one_may(tmp_path):
    task = {"ph": "X", "name": "Default/Add-op1", "dur": 1.0, "args": {"Task Type": "AI_CORE"}}
    events = [{**task, "ts": number} for number in range(120)]
    events.append({**task, "ts": 500, "args": {"Task Type": "AI_CORE", "Stream Id": 3}})
    kernels = timeline.read_tasks(trace(tmp_path / "t", events), "task_time_0_1_2.json", [])
    assert kernels["stream_id"].to_list() == [None] * 120 + [3]
    lines = [f"Add-op{n},,{n}.0,0.5" for n in range(120)] + ["Mul-op1,7,500.0,0.5"]
    (tmp_path / "o").write_text("\n".join(["op_name, stream_id, start_time(ms), duration(ms)", *lines]))
    assert legacy.read_timeline(tmp_path / "o", "o", [])["stream_id"].to_list() == [None] * 120 + [7]


@pytest.mark.parametrize("odd", [[], {}, ["Communication Kernel"], 7, None])
def test_events_whose_thread_or_name_is_no_text_are_read_all_the_same(tmp_path, odd):
    events = [
        {"ph": "M", "tid": 5, "args": {"name": "Communication Kernel"}},
        {"ph": "X", "tid": odd, "name": "a", "ts": 1, "dur": 2, "args": {"Task Type": odd}},
        {"ph": "X", "tid": 5, "name": odd, "ts": 1, "dur": 2},
    ]
    kernels = timeline.read_talk(trace(tmp_path / "t", events), "hccl_0_1_2.json", [])
    assert kernels.select("name", "duration_ns", "kind").rows() == [(None, 2_000, "communication")]


COUNTERS = {1: ("aic_total_time", (30_000.0, 0.0)), 2: ("aic_mac_ratio", (0.5, 0.0)), 3: ("aiv_vec_ratio", (0.0, 0.75)),
            4: ("unread", (9.0, 9.0))}  # fmt: skip
IN_BLOCKS = [(task, name, values[at]) for name, (_, values) in COUNTERS.items() for at, task in enumerate((10, 20))]
BY_TASK = sorted(IN_BLOCKS)
PMU_TABLE = "create table TASK_PMU_INFO (globalTaskId integer, name integer, value numeric)"


def counted(path: Path, table: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """(task's name, time, mac, vec) of the two tasks of a database with these counters."""
    database(
        path, TASK, COMPUTE, "create table STRING_IDS (id, value)", table,
        rows={
            "STRING_IDS": [*((name, text) for name, (text, _) in COUNTERS.items()), (50, "first"), (51, "second")],
            "TASK": [(100, 140, 0, 1, 10, 2, 1, 0), (200, 240, 0, 2, 20, 2, 2, 0)],
            "COMPUTE_TASK_INFO": [(50, 10, 20, 50, 50, 50), (51, 20, 20, 50, 50, 50)],
            "TASK_PMU_INFO": rows,
        },
    )  # fmt: skip
    kernels = profiler_db.read_kernels(path, "x.db", [])
    titles = [title for title in ("aicore_time(us)", "aic_mac_ratio", "aiv_vec_ratio") if title in kernels.columns]
    return kernels.select("name", *titles).rows()


TOLD = [("first", 30.0, 0.5, 0.0), ("second", 0.0, 0.0, 0.75)]


@pytest.mark.parametrize(
    ("table", "rows", "told"),
    [
        (PMU_TABLE, IN_BLOCKS, TOLD),
        (PMU_TABLE, BY_TASK, TOLD),
        (PMU_TABLE, IN_BLOCKS[::-1], TOLD),
        (PMU_TABLE.replace(")", ", primary key (globalTaskId, name)) without rowid"), IN_BLOCKS, TOLD),
        # the second task has no time: not 0
        (PMU_TABLE, [row for row in IN_BLOCKS if row[:2] != (20, 1)], [TOLD[0], ("second", None, 0.0, 0.75)]),
        (PMU_TABLE, [*IN_BLOCKS[:3], (20, 2, None), *IN_BLOCKS[4:]], [TOLD[0], ("second", 0.0, None, 0.75)]),
        (PMU_TABLE, [*IN_BLOCKS[:3], (20, None, 0.0), *IN_BLOCKS[4:]], [TOLD[0], ("second", 0.0, None, 0.75)]),
        (PMU_TABLE, [*IN_BLOCKS[:3], ("x", 2, 0.0), *IN_BLOCKS[4:]], [TOLD[0], ("second", 0.0, None, 0.75)]),
        (PMU_TABLE, [*IN_BLOCKS[:3], (20, 2, 1e30), *IN_BLOCKS[4:]], [TOLD[0], ("second", 0.0, None, 0.75)]),
        # tasks in another order in one of the blocks
        (PMU_TABLE, [*IN_BLOCKS[:2], *IN_BLOCKS[3:1:-1], *IN_BLOCKS[4:]], TOLD),
        # two profiles one behind the other, as of two devices
        (PMU_TABLE, [row for task in (10, 20) for row in IN_BLOCKS if row[0] == task], TOLD),
        (PMU_TABLE, [row for task in (10, 20) for row in IN_BLOCKS if row[0] == task and row[1] == 2],
         [("first", 0.5), ("second", 0.0)]),
    ],
)  # fmt: skip
def test_counters_are_those_of_their_task_however_their_rows_lie(tmp_path, table, rows, told):
    assert counted(tmp_path / "x.db", table, rows) == told


def test_calls_of_the_host_whose_times_cannot_be_are_left_out(tmp_path):
    calls = [(0, 5, 1), (10, float("inf"), 1), (20, 10, 1), (None, 9, 1), (0, 10**18, 1), (0, 7, 2)]
    path = database(
        tmp_path / "x.db",
        "create table STRING_IDS (id, value)",
        "create table CANN_API (startNs, endNs, name)",
        rows={"STRING_IDS": [(1, "aclrtSynchronizeStream"), (2, "other")], "CANN_API": calls},
    )
    assert profiler_db.read_calls(path, "x.db") == [("aclrtSynchronizeStream", 1, 5)]
