"""Files that hold the rows of several devices: each device is a rank of the capture, none is lost without a word."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report, main
from analysis.devices import split
from analysis.dump import find_dumps
from analysis.rank import RankResult, read_rank, read_ranks
from tests.analysis.small_dumps import HEADER_2025, OUTPUT, kernel, table, write_dump

TABLES = {
    "TASK": "startNs, endNs, deviceId, connectionId, globalTaskId, streamId, taskId, modelId",
    "COMPUTE_TASK_INFO": "name, globalTaskId, opType, taskType",
    "COMMUNICATION_OP": "opName, startNs, endNs, connectionId, groupName, opId, opType",
    "COMMUNICATION_TASK_INFO": "globalTaskId, opId",
    "MEMORY_RECORD": "component, timestamp, totalAllocated, totalReserved, deviceId",
    "RANK_DEVICE_MAP": "rankId, deviceId",
    "STRING_IDS": "id, value",
}
ROWS: dict[str, list[tuple[Any, ...]]] = {
    # Device 3: one MatMul of 80 ns and an all-reduce of 100 ns. Device 4: two MatMuls of 50 and 10 ns.
    "TASK": [
        *[(100, 180, 3, 1, 11, 2, 5, 9), (900, 950, 4, 2, 12, 2, 6, 9), (950, 960, 4, 3, 13, 2, 6, 9)],
        *[(200, 290, 3, 4, 14, 3, 7, 9), (940, 990, 4, 5, 15, 3, 7, 9)],
    ],
    "COMPUTE_TASK_INFO": [(0, 11, 1, 2), (0, 12, 1, 2), (0, 13, 1, 2)],
    "COMMUNICATION_OP": [(3, 200, 300, 4, 5, 1, 4), (3, 940, 1000, 5, 5, 2, 4)],
    "COMMUNICATION_TASK_INFO": [(14, 1), (15, 2)],
    "MEMORY_RECORD": [(6, 10, 1000, 2000, 3), (6, 20, 5000, 6000, 4)],
    "RANK_DEVICE_MAP": [(8, 3), (9, 4)],
    "STRING_IDS": [
        *[(0, "aclnnMatmul"), (1, "MatMulV3"), (2, "AI_CORE"), (3, "hcom_allReduce__77_0_1"), (4, "hcom_allReduce_")],
        *[(5, "77"), (6, "PTA")],
    ],
}


def write_database(folder: Path, name: str = f"{OUTPUT}/ascend_pytorch_profiler.db", **rows: Any) -> Path:
    root = write_dump(folder, {name: b""})
    with closing(sqlite3.connect(root / name)) as base:
        for title, columns in TABLES.items():
            base.execute(f"create table {title} ({columns})")
            for row in rows.get(title, ROWS[title]):
                base.execute(f"insert into {title} values ({', '.join('?' * len(row))})", row)
        base.commit()
    return root


def ranks(root: Path) -> dict[Any, RankResult]:
    return {result.entry["device_id"]: result for result in read_ranks(find_dumps(root)[0])}


def test_each_device_of_a_database_is_the_rank_it_maps_to(tmp_path: Path):
    report = build_report(write_database(tmp_path))
    found = {entry["rank"]: entry for entry in report["ranks"]}
    assert {rank: entry["device_id"] for rank, entry in found.items()} == {8: 3, 9: 4}
    assert {rank: entry["kernels"]["compute_us"] for rank, entry in found.items()} == {8: 0.08, 9: 0.06}
    assert {rank: entry["kernels"]["communication_us"] for rank, entry in found.items()} == {8: 0.1, 9: 0.06}
    assert {rank: [row["elapse_us"] for row in entry["communication"]] for rank, entry in found.items()} == {
        8: [0.1],
        9: [0.06],
    }
    assert {rank: entry["memory"]["peak_allocated_bytes"] for rank, entry in found.items()} == {8: 1000, 9: 5000}
    assert not [text for text in report["source"]["warnings"] if "device" in text]


def test_devices_that_no_rank_is_told_of_stay_apart_without_one(tmp_path: Path):
    report = build_report(write_database(tmp_path, RANK_DEVICE_MAP=[]))
    assert sorted((entry["device_id"], entry["rank"]) for entry in report["ranks"]) == [(3, None), (4, None)]
    assert all(f"(device {entry['device_id']})" in entry["label"] for entry in report["ranks"])


def test_an_operation_whose_tasks_are_not_told_follows_its_launch(tmp_path: Path):
    found = ranks(write_database(tmp_path, COMMUNICATION_TASK_INFO=[]))
    assert {device: result.entry["kernels"]["communication_us"] for device, result in found.items()} == {
        3: 0.1,
        4: 0.06,
    }


STEPS = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing\n"
    "0,1,10,0,0,0,5,15,0,0,1\n1,1,30,0,0,0,70,100,0,0,1\n"
)
STATISTIC = "Device_id,OP Type,Core Type,Count,Total Time(us)\n0,Cast,AI_VECTOR_CORE,1,10\n1,Cast,AI_VECTOR_CORE,2,30\n"
MEMORY = (
    "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type\nPTA,1,1,4,NPU:0\nPTA,2,2,8,NPU:1\n"
)


def on(device: int, row: str) -> str:
    """The row on that device: the second cell of `HEADER_2025`."""
    step, _, rest = row.split(",", 2)
    return f"{step},{device},{rest}"


def text_of_two_devices(folder: Path) -> Path:
    rows = [
        on(0, kernel("a", "Cast", "100", "10")),
        on(1, kernel("b", "Cast", "100", "20")),
        on(1, kernel("c", "Cast", "190", "10")),
    ]
    files: dict[str, str | bytes | dict[str, object]] = {
        f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, rows),
        f"{OUTPUT}/step_trace_time.csv": STEPS,
        f"{OUTPUT}/op_statistic.csv": STATISTIC,
        f"{OUTPUT}/memory_record.csv": MEMORY,
    }
    return write_dump(folder, files)


def test_each_device_of_text_files_has_its_own_rows(tmp_path: Path):
    found = ranks(text_of_two_devices(tmp_path))
    assert {device: result.entry["kernels"]["compute_us"] for device, result in found.items()} == {0: 10.0, 1: 30.0}
    assert {device: result.entry["steps"][0]["step_time_us"] for device, result in found.items()} == {0: 15.0, 1: 100.0}
    peaks = {device: result.entry["memory"]["peak_reserved_bytes"] for device, result in found.items()}
    assert peaks == {0: 4 << 20, 1: 8 << 20}


def test_steps_and_statistics_alone_tell_their_devices_too(tmp_path: Path):
    root = text_of_two_devices(tmp_path)
    (root / OUTPUT / "kernel_details.csv").unlink()
    found = ranks(root)
    assert {device: result.entry["steps"][0]["free_us"] for device, result in found.items()} == {0: 5.0, 1: 70.0}
    assert {device: result.entry["op_types"][0]["count"] for device, result in found.items()} == {0: 1, 1: 2}


def digest(tmp_path: Path, root: Path, **sent: int) -> dict[str, Any]:
    """What the server stores of an upload of these files."""
    files = {str(path.relative_to(root)): str(path) for path in root.rglob("*") if path.is_file()}
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"folder": root.name, "files": files, **sent}))
    out = tmp_path / "out"
    assert main(["digest", "--files", str(order), "--out", str(out)]) == 0
    result: dict[str, Any] = json.loads((out / "entry.json").read_text())
    return result


@pytest.mark.parametrize(("sent", "device"), [({"rank": 8}, 3), ({"rank": 9}, 4), ({"rank": 9, "device": 3}, 4)])
def test_an_upload_is_digested_as_the_rank_it_was_sent_as(sent: dict[str, int], device: int, tmp_path: Path):
    result = digest(tmp_path, write_database(tmp_path), **sent)
    assert (result["entry"]["device_id"], result["entry"]["rank"]) == (device, sent["rank"])
    told = [text for text in result["source"]["warnings"] if "only device" in text]
    assert told == [f"holds devices [3, 4]; only device {device} is reported, not [{7 - device}]"]


def test_an_upload_may_name_its_device_where_ranks_are_not_told(tmp_path: Path):
    root = write_database(tmp_path, RANK_DEVICE_MAP=[])
    result = digest(tmp_path, root, rank=0, device=3)
    assert (result["entry"]["device_id"], result["entry"]["rank"]) == (3, None)


def test_one_device_is_one_rank_as_before(tmp_path: Path):
    root = write_database(tmp_path, TASK=ROWS["TASK"][:1], COMMUNICATION_OP=[], RANK_DEVICE_MAP=[(8, 3)])
    (result,) = read_ranks(find_dumps(root)[0])
    assert (result.entry["rank"], result.entry["device_id"], result.other_devices) == (8, 3, ())
    assert result.entry["label"] == root.name
    assert read_rank(find_dumps(root)[0]).entry == result.entry


def test_devices_are_told_before_a_dump_is_read(tmp_path: Path):
    (database,) = find_dumps(write_database(tmp_path / "db"))
    assert [(dump.device, dump.rank) for dump in split(database)] == [(3, 8), (4, 9)]
    assert [read_rank(dump).entry["kernels"]["compute_us"] for dump in split(database)] == [0.08, 0.06]
    (text,) = find_dumps(text_of_two_devices(tmp_path / "text"))
    assert [(dump.device, dump.rank) for dump in split(text)] == [(0, None), (1, None)]
    text.files[f"{OUTPUT}/step_trace_time.csv"].unlink()
    assert len(split(find_dumps(tmp_path / "text")[0])) == 2


def test_a_dump_of_one_device_is_not_split(tmp_path: Path):
    (dump,) = find_dumps(write_database(tmp_path, TASK=ROWS["TASK"][:1]))
    assert split(dump) == [dump]
