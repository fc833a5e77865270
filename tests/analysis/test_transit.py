"""Bytes do not move in no time: a transit time of 0 is unknown, and so is what follows from it."""

from __future__ import annotations

import json
import sqlite3

import pytest

from analysis.cli import build_report
from analysis.communication import by_operation
from analysis.readers.communication import link_rows, read_communication
from analysis.readers.profiler_db import read_communication as read_database
from tests.dumps import write_dump


def operation(elapse, transit, **links):
    times = {"Start Timestamp(us)": 1000.0, "Elapse Time(ms)": elapse, "Transit Time(ms)": transit, "Wait Time(ms)": 0}
    sizes = {name: {"Transit Size(MB)": size, "Transit Time(ms)": busy} for name, (size, busy) in links.items()}
    return {"Communication Time Info": times, "Communication Bandwidth Info": sizes}


def read(tmp_path, kind, operations):
    path = tmp_path / "communication.json"
    path.write_text(json.dumps({"step1": {kind: {f"{name}@7": told for name, told in operations.items()}}}))
    return read_communication(path, path.name, [])


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (operation(2.0, 0.5, HCCS=(8.0, 9.0)), 500_000),  # what the operation tells stands
        (operation(2.0, 0, HCCS=(8.0, 0.4)), 400_000),  # one peer: the link was busy as long as the transfer
        (operation(2.0, 0, HCCS=(8.0, 2.1)), None),  # longer than the operation: several links side by side
        (operation(2.0, 0, HCCS=(8.0, 0)), None),
        (operation(2.0, 0, HCCS=(0, 0)), 0),  # nothing moved
    ],
)
def test_a_transfer_takes_the_time_of_its_link_where_it_tells_none(tmp_path, told, expected):
    assert read(tmp_path, "p2p", {"hcom_send__1_0_1": told})["transit_ns"].to_list() == [expected]


def test_a_collective_does_not_since_its_link_sums_over_peers(tmp_path):
    found = read(tmp_path, "collective", {"hcom_allReduce__1_0_1": operation(20.0, 0, HCCS=(146.8, 7.7))})
    assert found["transit_ns"].to_list() == [None]


def test_bandwidth_is_of_the_operations_that_tell_both(tmp_path):
    """20 MB in 1 ms; 100 MB of which no time is told; 0 bytes in 0 ms."""
    operations = {
        "hcom_allReduce__1_0_1": operation(2.0, 1.0, HCCS=(20.0, 1.0)),
        "hcom_allReduce__1_1_1": operation(9.0, 0, HCCS=(100.0, 8.0)),
        "hcom_allReduce__1_2_1": operation(9.0, 0),
    }
    (row,) = by_operation(read(tmp_path, "collective", operations))
    assert (row["size_bytes"], row["transit_us"], row["bandwidth_gbps"]) == (120_000_000, None, 20.0)
    (known,) = by_operation(read(tmp_path, "collective", {k: v for k, v in operations.items() if "_1_1_1" not in k}))
    assert (known["transit_us"], known["bandwidth_gbps"]) == (1000.0, 20.0)


def test_links_without_a_time_have_no_bandwidth():
    (row,) = link_rows({("1", "g", "allreduce", 0, 1, "HCCS"): (8_000_000, 0)}, {})
    assert (row["size_bytes"], row["transit_us"], row["bandwidth_gbps"]) == (8_000_000, None, None)


def test_a_database_tells_the_same(tmp_path):
    path = tmp_path / "analysis.db"
    with sqlite3.connect(path) as db:
        db.execute(
            "create table CommAnalyzerTime (hccl_op_name, group_name, start_timestamp, elapse_time, step, type, "
            "transit_time, wait_time)"
        )
        db.execute(
            "create table CommAnalyzerBandwidth (hccl_op_name, group_name, transport_type, transit_size, transit_time, "
            "step)"
        )
        for name in ("hcom_send__1_0_1", "hcom_allReduce__1_1_1"):
            db.execute("insert into CommAnalyzerTime values (?, 'g', 1000.0, 2.0, 'step1', '', 0, 0)", (name,))
            for _packets in (1, 2):  # a row for each packet size repeats the sums
                db.execute("insert into CommAnalyzerBandwidth values (?, 'g', 'HCCS', 8.0, 0.4, 'step1')", (name,))
    db.close()
    found = read_database(path, path.name, [])
    assert dict(zip(found["op"], found["transit_ns"], strict=True)) == {"hcom_send": 400_000, "hcom_allReduce": None}


def test_known_times_stay(tmp_path):
    truth = write_dump(tmp_path, steps=1, tp=2)
    rows = build_report(truth.folder)["ranks"][0]["communication"]
    moved = sum(op.transit_ns for op in truth.communication)
    assert sum(row["transit_us"] for row in rows) == pytest.approx(moved / 1000, abs=0.01)


@pytest.mark.real
@pytest.mark.parametrize("path", ["msinsight-gpt3-2023/test_rank_0", "msinsight-llm-pp2dp2"])
def test_no_real_operation_moves_bytes_in_no_time(dumps, path):
    for entry in build_report(dumps / path)["ranks"]:
        rows = [*entry["communication"], *entry["collectives"], *entry["links"]]
        assert rows and not any(row["size_bytes"] and row["transit_us"] == 0 for row in rows)
        assert not any(row["transit_us"] and row["transit_us"] > row["elapse_us"] for row in entry["communication"])
