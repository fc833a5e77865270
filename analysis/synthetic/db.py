"""Profiler databases: torch_npu's pair or MindSpore's. Times are nanoseconds, texts are numbers into STRING_IDS."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from analysis.synthetic.communication import TRANSPORTS
from analysis.synthetic.forms import Form
from analysis.synthetic.model import Slot
from analysis.synthetic.spec import GptSpec
from analysis.synthetic.text import CUBE_CORES, block_count, counters, tensor_texts
from analysis.synthetic.truth import CommTruth, Truth

NO_ID = 4294967295
NO_TYPE = 65535
PYTHON_STRINGS = 1 << 28
"""torch_npu numbers the strings it adds from here, CANN from 0."""

_ENUMS = {
    "ENUM_HCCL_LINK_TYPE": {0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 65535: "INVALID_TYPE"},
    "ENUM_HCCL_TRANSPORT_TYPE": {0: "SDMA", 1: "RDMA", 2: "LOCAL", 65535: "INVALID_TYPE"},
    "ENUM_HCCL_DATA_TYPE": {3: "FP16", 4: "FP32", 11: "BFP16", 65535: "INVALID_TYPE"},
    "ENUM_API_TYPE": {5000: "runtime", 5500: "hccl", 10000: "node", 20000: "acl", 50001: "op"},
    "ENUM_MODULE": {3: "HCCL", 7: "RUNTIME", 33: "APP"},
}
_TABLES = {
    "SESSION_TIME_INFO": "startTimeNs INTEGER,endTimeNs INTEGER",
    "NPU_INFO": "id INTEGER,name TEXT",
    "HOST_INFO": "hostUid TEXT,hostName TEXT",
    "META_DATA": "name TEXT,value TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "STRING_IDS": "id INTEGER PRIMARY KEY,value TEXT",
    "TASK": "startNs INTEGER,endNs INTEGER,deviceId INTEGER,connectionId INTEGER,globalTaskId INTEGER,"
    "globalPid INTEGER,taskType INTEGER,contextId INTEGER,streamId INTEGER,taskId INTEGER,modelId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER,globalTaskId INTEGER PRIMARY KEY,blockDim INTEGER,mixBlockDim INTEGER,"
    "taskType INTEGER,opType INTEGER,inputFormats INTEGER,inputDataTypes INTEGER,inputShapes INTEGER,"
    "outputFormats INTEGER,outputDataTypes INTEGER,outputShapes INTEGER,attrInfo INTEGER",
    "COMMUNICATION_OP": "opName INTEGER,startNs INTEGER,endNs INTEGER,connectionId INTEGER,groupName INTEGER,"
    "opId INTEGER PRIMARY KEY,relay INTEGER,retry INTEGER,dataType INTEGER,algType INTEGER,count NUMERIC,"
    "opType INTEGER",
    "COMMUNICATION_TASK_INFO": "name INTEGER,globalTaskId INTEGER,taskType INTEGER,planeId INTEGER,groupName INTEGER,"
    "notifyId INTEGER,rdmaType INTEGER,srcRank INTEGER,dstRank INTEGER,transportType INTEGER,size INTEGER,"
    "dataType INTEGER,linkType INTEGER,opId INTEGER",
    "CANN_API": "startNs INTEGER,endNs INTEGER,type INTEGER,globalTid INTEGER,connectionId INTEGER PRIMARY KEY,"
    "name INTEGER",
    "TASK_PMU_INFO": "globalTaskId INTEGER,name INTEGER,value NUMERIC",
}
_TORCH_TABLES = {
    "STEP_TIME": "id INTEGER, startNs INTEGER, endNs INTEGER",
    "MEMORY_RECORD": "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER, "
    "totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
}
_STEP_TRACE = (
    "deviceId INTEGER, step TEXT, computing NUMERIC, communication_not_overlapped NUMERIC, overlapped NUMERIC, "
    "communication NUMERIC, free NUMERIC, stage NUMERIC, bubble NUMERIC, "
    "communication_not_overlapped_and_exclude_receive NUMERIC, preparing NUMERIC"
)
_COMM_TIME = (
    "hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC, elapse_time NUMERIC, transit_time NUMERIC, "
    "wait_time NUMERIC, synchronization_time NUMERIC, idle_time NUMERIC, step TEXT, type TEXT"
)
_COMM_BANDWIDTH = (
    "hccl_op_name TEXT, group_name TEXT, transport_type TEXT, transit_size NUMERIC, transit_time NUMERIC, "
    "bandwidth NUMERIC, large_packet_ratio NUMERIC, package_size NUMERIC, count NUMERIC, total_duration NUMERIC, "
    "step TEXT, type TEXT"
)


class Strings:
    """Texts by number, as STRING_IDS keeps them."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))

    def rows(self) -> Iterable[tuple[int, str]]:
        return ((number, text) for text, number in self.ids.items())


def write_databases(
    output: Path,
    spec: GptSpec,
    form: Form,
    device: int,
    slots: Sequence[Slot],
    truth: Truth,
    communicators: Mapping[str, str],
) -> None:
    """The main database and the one of analysed communication, named as the framework names them; with the counters
    that a table of that form holds."""
    torch = spec.mode == "torch"
    main = f"ascend_{'pytorch' if torch else 'mindspore'}_profiler_{truth.rank}.db"
    _write_main(output / main, spec, form, device, slots, truth, communicators)
    if torch:
        _write_analysis(output / "analysis.db", device, truth, communicators)
    elif truth.communication:
        _write_analysis(output / "communication_analyzer.db", None, truth, communicators)


def _create(path: Path, tables: Mapping[str, str]) -> sqlite3.Connection:
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    for name, columns in tables.items():
        base.execute(f"CREATE TABLE {name} ({columns})")
    return base


def _insert(base: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    rows = list(rows)
    if rows:
        base.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)


def _write_main(
    path: Path,
    spec: GptSpec,
    form: Form,
    device: int,
    slots: Sequence[Slot],
    truth: Truth,
    communicators: Mapping[str, str],
) -> None:
    strings = Strings()
    enums = dict.fromkeys(_ENUMS, "id INTEGER PRIMARY KEY,name TEXT")
    torch = spec.mode == "torch"
    with closing(_create(path, {**_TABLES, **enums, **(_TORCH_TABLES if torch else {})})) as base:
        _insert_identity(base, device, truth)
        _insert_kernels(base, spec, device, slots, truth, strings)
        _insert_counters(base, spec, form, slots, truth, strings)
        _insert_communication(base, truth, communicators, strings)
        if torch:
            _insert_framework(base, device, truth)
            _insert(base, "STRING_IDS", [(PYTHON_STRINGS + 1, "PTA")])
        _insert(base, "STRING_IDS", strings.rows())
        base.commit()


def _insert_identity(base: sqlite3.Connection, device: int, truth: Truth) -> None:
    end = truth.steps[-1].start_ns + truth.steps[-1].step_ns
    _insert(base, "SESSION_TIME_INFO", [(truth.steps[0].start_ns - 1_000_000, end + 1_000_000)])
    _insert(base, "NPU_INFO", [(device, "Ascend910B3")])
    _insert(base, "HOST_INFO", [("3538958389648580163", "host01")])
    _insert(base, "META_DATA", [(f"SCHEMA_VERSION_{part}", value) for part, value in (("MAJOR", "1"), ("MINOR", "2"))])
    _insert(base, "RANK_DEVICE_MAP", [(truth.rank, device)])
    for table, values in _ENUMS.items():
        _insert(base, table, values.items())


def _insert_kernels(
    base: sqlite3.Connection, spec: GptSpec, device: int, slots: Sequence[Slot], truth: Truth, strings: Strings
) -> None:
    stream = 2 if spec.mode == "torch" else 3
    tasks, infos, calls = [], [], []
    repeated = list(slots) * len(truth.steps)
    begins = {step.step: step.start_ns for step in truth.steps}
    for number, (kernel, slot) in enumerate(zip(truth.kernels, repeated, strict=True)):
        if kernel.is_communication:
            continue
        end = kernel.start_ns + kernel.duration_ns
        kind = strings(kernel.core)
        tasks.append((kernel.start_ns, end, device, number, number, 4242, kind, NO_ID, stream, number % 65_535, NO_ID))
        infos.append(_compute_info(number, kernel.name, slot, kind, strings))
        start = max(kernel.start_ns - 60_000, begins.get(kernel.step, 0))  # no step launches before it begins
        calls.append((start, start + 9_200, 10000, 4242, number, strings("launch")))
    _insert(base, "TASK", tasks)
    _insert(base, "COMPUTE_TASK_INFO", infos)
    _insert(base, "CANN_API", calls)


def _insert_counters(
    base: sqlite3.Connection, spec: GptSpec, form: Form, slots: Sequence[Slot], truth: Truth, strings: Strings
) -> None:
    """One row for each kernel and counter; times in ns. The table has no use of the matrix unit as a whole."""
    cells = {id(slot.op): counters(spec, form, slot.op) for slot in slots if slot.op.comm is None}
    rows: list[tuple[int, int, float]] = []
    for number, (kernel, slot) in enumerate(zip(truth.kernels, list(slots) * len(truth.steps), strict=True)):
        if kernel.is_communication or not cells[id(slot.op)]:
            continue
        told = {name: float(value) for name, value in cells[id(slot.op)].items() if not name.startswith("cube_")}
        time = kernel.duration_ns * 97 // 100
        own = "aic" if slot.op.core in {"AI_CORE", "MIX_AIC"} else "aiv"
        told |= {f"{core}_total_time": float(time if core == own else 0) for core in ("aic", "aiv")}
        rows += [(number, strings(name), value) for name, value in told.items()]
    _insert(base, "TASK_PMU_INFO", rows)


def _compute_info(number: int, name: str, slot: Slot, kind: int, strings: Strings) -> tuple[int, ...]:
    texts = tensor_texts(slot.op)
    blocks = block_count(slot.op)
    return (
        strings(_device_name(name)),
        number,
        blocks,
        CUBE_CORES if slot.op.core.startswith("MIX") else 0,
        kind,
        strings(slot.op.type),
        strings(texts["Input Formats"]),
        strings(texts["Input Data Types"]),
        strings(texts["Input Shapes"]),
        strings(texts["Output Formats"]),
        strings(texts["Output Data Types"]),
        strings(texts["Output Shapes"]),
        strings("N/A"),
    )


def _device_name(name: str) -> str:
    """CANN does not know the launch event that MindSpore puts before a kernel's name in its CSV."""
    return name.rsplit("/", 1)[-1] if "::" in name else name


def _insert_communication(
    base: sqlite3.Connection, truth: Truth, communicators: Mapping[str, str], strings: Strings
) -> None:
    ops, tasks, device_tasks = [], [], []
    for number, op in enumerate(truth.communication):
        group, name = strings(communicators[op.group]), strings(op.name)
        end, task = op.start_ns + op.elapse_ns, 10_000_000 + number
        kind = strings(op.op)
        ops.append((name, op.start_ns, end, task, group, number, 0, 0, 11, strings("N/A"), op.size_bytes // 2, kind))
        memcpy = strings("Memcpy")
        link = (0, op.size_bytes, 11, 1)
        tasks.append((name, task, memcpy, 0, group, NO_ID, NO_TYPE, truth.rank, NO_ID, *link, number))
        start = end - op.transit_ns
        device_tasks.append((start, end, truth.rank % 8, task, task, 4242, strings("SDMA_SQE"), NO_ID, 5, 0, NO_ID))
    _insert(base, "COMMUNICATION_OP", ops)
    _insert(base, "COMMUNICATION_TASK_INFO", tasks)
    _insert(base, "TASK", device_tasks)


def _insert_framework(base: sqlite3.Connection, device: int, truth: Truth) -> None:
    steps = [(int(step.step or 0), step.start_ns, step.start_ns + step.step_ns) for step in truth.steps]
    _insert(base, "STEP_TIME", steps)
    peak, reserved = truth.peak_allocated_bytes, truth.peak_reserved_bytes
    rows = [
        (PYTHON_STRINGS + 1, step.start_ns + step.step_ns * part // 4, peak * part // 2, reserved, peak, 1, device)
        for step in truth.steps
        for part in (1, 2)
    ]
    _insert(base, "MEMORY_RECORD", rows)


def _write_analysis(path: Path, device: int | None, truth: Truth, communicators: Mapping[str, str]) -> None:
    """Step totals in microseconds (torch_npu only) and what communication.json holds, in milliseconds."""
    tables = {"CommAnalyzerTime": _COMM_TIME, "CommAnalyzerBandwidth": _COMM_BANDWIDTH}
    if device is not None:
        tables["StepTraceTime"] = _STEP_TRACE
    with closing(_create(path, tables)) as base:
        _insert(base, "CommAnalyzerTime", [_time_row(op, communicators) for op in truth.communication])
        _insert(base, "CommAnalyzerBandwidth", _bandwidth_rows(truth.communication, communicators))
        if device is not None:
            _insert(base, "StepTraceTime", [(device, step.step, *_step_us(step)) for step in truth.steps])
        base.commit()


def _step_us(step: Any) -> list[float]:
    values = [
        step.computing_ns,
        step.communication_not_overlapped_ns,
        step.overlapped_ns,
        step.communication_ns,
        step.free_ns,
        step.step_ns,
        step.bubble_ns,
        step.communication_not_overlapped_ns - step.bubble_ns,
        step.preparing_ns,
    ]
    return [value / 1000 for value in values]


def _time_row(op: CommTruth, communicators: Mapping[str, str]) -> tuple[Any, ...]:
    wait = op.wait_ns / 1e6
    times = (op.start_ns / 1000, op.elapse_ns / 1e6, op.transit_ns / 1e6, wait, wait, 0)
    return (op.name, communicators[op.group], *times, f"step{op.step or 0}", "p2p" if op.p2p else "collective")


def _bandwidth_rows(ops: Sequence[CommTruth], communicators: Mapping[str, str]) -> list[tuple[Any, ...]]:
    rows = []
    for op in ops:
        size, time = op.size_bytes / 1e6, op.transit_ns / 1e6
        end = (f"step{op.step or 0}", "p2p" if op.p2p else "collective")
        for kind in TRANSPORTS:
            if kind in {"HCCS", "SDMA"} and size:
                numbers = (size, time, round(size / time, 4), float(size > 16), size, 1, time)
                rows.append((op.name, communicators[op.group], kind, *numbers, *end))
    return rows
