"""Small dumps whose files hold the rows of several devices, in every form that can."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

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


def timeline_of(device: int, kernel_us: list[int], step_us: int) -> dict[str, str]:
    """Files of one device in the form of MindSpore 2.1-2.2: one iteration, kernels one after the other."""
    task = {"ph": "X", "args": {"Task Type": "AI_CORE", "Stream Id": 1}}
    starts = [100 * place for place in range(len(kernel_us))]
    tasks = [
        {**task, "name": f"Default/Cast-op{place}", "ts": starts[place], "dur": kernel_us[place]}
        for place in range(len(kernel_us))
    ]
    folder = f"PROF_000001_20230818142704322_ABC/device_{device}/timeline"
    length = [{"ph": "X", "name": "Iteration 1", "ts": 0, "dur": step_us}]
    return {
        f"{folder}/task_time_{device}_2_1.json": json.dumps(tasks),
        f"{folder}/step_trace_{device}_2_1.json": json.dumps(length),
        f"PROF_000001_20230818142704322_ABC/device_{device}/info.json.{device}": json.dumps(
            {"DeviceInfo": [{"ai_core_num": 20 + device, "aic_frequency": "1800"}]}
        ),
    }
