"""Free time by cause from a database, which holds the host's calls with their times."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from analysis.cli import build_report
from tests.analysis.device_dumps import ROWS, write_database
from tests.analysis.small_dumps import OUTPUT
from tests.conftest import SHARED

NAME = f"{OUTPUT}/ascend_pytorch_profiler_0.db"
US = 1000
OPERATOR, ACL, NODE = 50001, 20000, 10000
TABLES = {
    "PYTORCH_API": "startNs text, endNs text, globalTid, connectionId, name, type",
    "CANN_API": "startNs, endNs, type, globalTid, connectionId, name",
    "ENUM_API_TYPE": "id, name",
    "STEP_TIME": "id, startNs, endNs",
}
KINDS = [(OPERATOR, "op"), (ACL, "acl"), (NODE, "node")]
STRINGS = [
    (20, "aten::add"),
    (21, "aclrtSynchronizeStream"),
    (22, "aclrtMallocPhysical"),
    (23, "launch"),
    (24, "aten::to"),
]
ADD = (str(480 * US), str(720 * US), 5, None, 20, OPERATOR)
SYNC = (490 * US, 640 * US, ACL, 5, 90, 21)
MALLOC = (550 * US, 690 * US, ACL, 5, 91, 22)
LATE, EARLY = ((at * US, (at + 10) * US, NODE, 5, 2, 23) for at in (690, 300))


def host_database(folder: Path, operators: list[tuple], calls: list[tuple]) -> Path:
    """Two kernels of one step of 1 ms, from 0 to 500 us and from 700 us to its end; the second has connection 2."""
    task = [(0, 500 * US, 0, 1, 11, 2, 5, 9), (700 * US, 1000 * US, 0, 2, 12, 2, 6, 9)]
    none = dict.fromkeys(("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO", "MEMORY_RECORD", "RANK_DEVICE_MAP"), ())
    kernels = [(0, 11, 1, 2), (0, 12, 1, 2)]
    strings = [*ROWS["STRING_IDS"], *STRINGS]
    root = write_database(folder, NAME, TASK=task, COMPUTE_TASK_INFO=kernels, STRING_IDS=strings, **none)
    rows = {"PYTORCH_API": operators, "CANN_API": calls, "ENUM_API_TYPE": KINDS, "STEP_TIME": [(7, 0, 1000 * US)]}
    with closing(sqlite3.connect(root / NAME)) as base:
        for table, columns in TABLES.items():
            base.execute(f"create table {table} ({columns})")
            for row in rows[table]:
                base.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)
        base.commit()
    return root


@pytest.mark.parametrize(
    ("operators", "calls", "cause", "event"),
    [
        ([ADD], [LATE], "host_op", "aten::add"),
        ([ADD], [LATE, SYNC], "sync", "AscendCL@aclrtSynchronizeStream"),
        ([ADD], [LATE, MALLOC], "memory_alloc", "AscendCL@aclrtMallocPhysical"),
        ([ADD], [EARLY], "device_start", None),
        ([], [LATE], "launch_gap", None),
    ],
)
def test_the_gap_between_two_kernels_has_the_cause_that_the_host_gives(tmp_path, operators, calls, cause, event):
    report = build_report(host_database(tmp_path, operators, calls))
    assert "trace_view.json" not in [row["file"] for row in report["source"]["missing"]]
    idle = report["ranks"][0]["free_time"]
    assert idle["by_cause"] == [{"cause": cause, "us": 200.0, "share": 1.0}]
    (gap,) = idle["gaps"]
    assert (gap["step"], gap["start_us"], gap["duration_us"], gap["host_event"]) == ("7", 500.0, 200.0, event)


@pytest.mark.parametrize("table", ["PYTORCH_API", "CANN_API", "ENUM_API_TYPE", "STEP_TIME"])
def test_without_one_of_the_tables_causes_are_unknown_and_nothing_is_warned_of(tmp_path, table):
    root = host_database(tmp_path, [ADD], [LATE])
    with closing(sqlite3.connect(root / NAME)) as base:
        base.execute(f"drop table {table}")
        base.commit()
    report = build_report(root)
    assert report["ranks"][0]["free_time"] is None
    assert not [text for text in report["source"]["warnings"] if "host" in text]


@pytest.mark.real
@pytest.mark.parametrize("rank", [0, 1])
def test_a_database_of_a_real_job_tells_the_causes_that_its_traces_tell(rank):
    shares = []
    for form in ("text", "db"):
        dump = SHARED / f"dumps/msinsight-torch-ddp2/{form}/level1/rank{rank}_ascend_pt"
        idle = build_report(dump)["ranks"][0]["free_time"]
        shares.append({row["cause"]: row["share"] for row in idle["by_cause"]})
    text, database = shares
    assert text.keys() == database.keys()
    assert database == pytest.approx(text, abs=0.03)  # two profiles of the same training
