"""Files that hold the rows of several devices: each device is a rank of the capture, none is lost without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report, main
from analysis.devices import split
from analysis.dump import find_dumps
from analysis.rank import RankResult, read_rank, read_ranks
from tests.analysis.device_dumps import ROWS, text_of_two_devices, timeline_of, write_database
from tests.analysis.small_dumps import OUTPUT, write_dump


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


def digest(tmp_path: Path, root: Path, **sent: int | bool) -> dict[str, Any]:
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
    assert result["others"] == [{"device": 7 - device, "rank": 17 - sent["rank"]}]
    assert not [text for text in result["source"]["warnings"] if "device" in text]


def test_a_device_whose_rank_the_map_lacks_is_warned_of(tmp_path: Path):
    result = digest(tmp_path, write_database(tmp_path, RANK_DEVICE_MAP=[(8, 3)]), rank=8)
    assert result["others"] == []
    assert "holds devices [3, 4]; only device 3 is reported, not [4]" in result["source"]["warnings"]


@pytest.mark.parametrize(
    ("sent", "own", "other"),
    [
        ({"rank": 0, "device": 3}, (3, 0), (4, 1)),
        ({"rank": 0}, (3, 0), (4, 1)),
        ({"rank": 5}, (4, 5), (3, 4)),
        ({"rank": 1, "device": 4}, (4, 1), (3, 0)),
    ],
)
def test_devices_are_numbered_in_order_where_no_file_tells_ranks(
    sent: dict[str, int], own: tuple[int, int], other: tuple[int, int], tmp_path: Path
):
    result = digest(tmp_path, write_database(tmp_path, RANK_DEVICE_MAP=[]), **sent)
    assert (result["entry"]["device_id"], result["entry"]["rank"]) == own
    assert [(row["device"], row["rank"]) for row in result["others"]] == [other]
    order = f"they are numbered in order: device {own[0]} is rank {own[1]}"
    assert f"no file tells the ranks of devices [3, 4]; {order}" in result["source"]["warnings"]


@pytest.mark.parametrize("sent", [{"rank": 1, "device": 3}, {"rank": 0, "device": 4}, {"rank": 0, "device": 7}])
def test_devices_are_not_numbered_against_the_rank_that_is_known(sent: dict[str, int], tmp_path: Path):
    result = digest(tmp_path, write_database(tmp_path, RANK_DEVICE_MAP=[]), **sent)
    assert result["others"] == []
    assert any(text.startswith("holds devices [3, 4]; only device") for text in result["source"]["warnings"])


def test_a_rank_beyond_the_job_is_no_rank(tmp_path: Path):
    result = digest(tmp_path, write_database(tmp_path, RANK_DEVICE_MAP=[(0, 3), (9, 4)]), rank=0, world_size=8)
    assert result["others"] == []
    assert "holds devices [3, 4]; only device 3 is reported, not [4]" in result["source"]["warnings"]


def test_the_very_device_is_read_that_is_asked_for(tmp_path: Path):
    root = write_database(tmp_path, RANK_DEVICE_MAP=[])
    (root / "stepscope_run.json").write_text(json.dumps({"rank": 0, "device_id": 3, "world_size": 2}))
    result = digest(tmp_path, root, rank=1, device=4, exact=True)
    assert (result["entry"]["device_id"], result["entry"]["rank"]) == (4, 1)
    assert result["entry"]["kernels"]["compute_us"] == 0.06


def test_each_folder_of_a_device_is_a_rank(tmp_path: Path):
    root = write_dump(tmp_path, {**timeline_of(0, [10, 20], 500), **timeline_of(1, [40], 700)})
    first = digest(tmp_path, root, rank=0)
    assert first["others"] == [{"device": 1, "rank": 1}]
    second = digest(tmp_path, root, rank=1, device=1, exact=True)
    found = [
        (
            result["entry"]["rank"],
            result["entry"]["kernels"]["compute_us"],
            result["entry"]["steps"][0]["step_time_us"],
            result["source"]["device_info"]["DeviceInfo"][0]["ai_core_num"],
        )
        for result in (first, second)
    ]
    assert found == [(0, 30.0, 500.0, 20), (1, 40.0, 700.0, 21)]
    (dump,) = find_dumps(root)
    assert [(each.device, each.rank) for each in split(dump, alone=True)] == [(0, 0), (1, 1)]
    assert [(each.device, each.rank) for each in split(dump)] == [(0, None), (1, None)]


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
