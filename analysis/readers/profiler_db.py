"""Profiler databases (torch_npu, MindSpore, msprof): read-only, straight into our tables. Columns differ by version
and are probed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from analysis.communication import kind_of
from analysis.errors import BadDump
from analysis.readers.communication import (
    LINKS,
    Link,
    add_link,
    known_transit,
    link_name,
    link_rows,
    scaled,
    table_of,
)
from analysis.readers.counters_db import PMU, read_counters
from analysis.readers.kernel_details import MAX_DURATION_NS, columns_only, possible
from analysis.readers.memory import module_peaks
from analysis.readers.sqlite_file import columns, database, rows
from analysis.schema import COMMUNICATION_COLUMNS, MEMORY_COLUMNS, STEP_COLUMNS, polars_schema

NO_ID = 4294967295

TASK_TEXTS = {
    "name": "name",
    "type": "opType",
    "core": "taskType",
    "input_shapes": "inputShapes",
    "input_dtypes": "inputDataTypes",
    "input_formats": "inputFormats",
    "output_shapes": "outputShapes",
    "output_dtypes": "outputDataTypes",
    "output_formats": "outputFormats",
    "op_state": "opState",
    "hf32": "hf32Eligible",
}
TASK_NUMBERS = {
    "block_num": ("blockDim", "blockNum"),
    "mix_block_num": ("mixBlockDim", "mixBlockNum"),
    "wait_ns": ("waitNs",),
}


NEEDED = {"TASK": ("globalTaskId", "startNs", "endNs"), "COMPUTE_TASK_INFO": ("globalTaskId",)}
"""Columns without which there are no kernels."""


def _strings(connection: sqlite3.Connection) -> pl.DataFrame:
    if not columns(connection, "STRING_IDS"):
        return pl.DataFrame(schema={"id": pl.Int64, "value": pl.String})
    found = connection.execute("select cast(id as integer), cast(value as text) from STRING_IDS").fetchall()
    frame = pl.DataFrame(found, schema={"id": pl.Int64, "value": pl.String}, orient="row").unique("id", keep="first")
    bare = pl.col("value").str.strip_chars(' \t"')
    return frame.select("id", value=pl.when(~bare.is_in(["", "N/A"])).then(bare))


def _text(frame: pl.DataFrame, column: str, strings: pl.DataFrame) -> pl.Series:
    """The texts behind a column of ids."""
    return (
        frame.select(pl.col(column).alias("id"))
        .join(strings, on="id", how="left", maintain_order="left")["value"]
        .alias(column)
    )


def read_kernels(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Compute tasks and communication operations with `KERNEL_COLUMNS`, in order of start. BadDump where the file has
    no tasks."""
    with database(path, name) as connection:
        for table, needed in NEEDED.items():
            known = columns(connection, table)
            if lacking := [column for column in needed if column not in known]:
                what = f"table {table} has no {', '.join(lacking)}" if known else f"table {table} is missing"
                raise BadDump(name, f"holds no kernels: {what}")
        _warn_of_journals(path, name, warnings)
        if not columns(connection, "STRING_IDS"):
            warnings.append(f"{name}: table STRING_IDS is missing: names, types and shapes of kernels are unknown")
        strings = _strings(connection)
        kernels = pl.concat([_compute(connection, strings), _talk(connection, strings)], how="diagonal_relaxed")
        kernels = _with_steps(connection, kernels)
    kernels = kernels.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    times = possible(kernels)
    negative = kernels.filter(pl.col("duration_ns") < 0).height
    odd = times["duration_ns"].null_count() - kernels["duration_ns"].null_count() - negative
    if odd > 0:
        warnings.append(f"{name}: {odd} kernels are longer than a day; they have no duration")
    if negative:
        warnings.append(f"{name}: {negative} kernels end before they start; they have no duration")
    kernels = times
    return columns_only(kernels.sort("start_ns"), [title for title, _ in PMU.values() if title in kernels.columns])


def _warn_of_journals(path: Path, name: str, warnings: list[str]) -> None:
    for end in ("-wal", "-journal"):
        journal = path.with_name(path.name + end)
        if journal.is_file() and journal.stat().st_size:
            warnings.append(f"{name}: {journal.name} lies beside it: what a tool wrote there last is not read")


def _compute(connection: sqlite3.Connection, strings: pl.DataFrame) -> pl.DataFrame:
    info = columns(connection, "COMPUTE_TASK_INFO")
    numbers = {
        ours: next((title for title in titles if title in info), titles[0]) for ours, titles in TASK_NUMBERS.items()
    }
    tasks = rows(
        connection,
        "TASK",
        ["globalTaskId", "startNs", "endNs", "deviceId", "connectionId", "streamId", "taskId", "modelId"],
    )
    details = rows(
        connection, "COMPUTE_TASK_INFO", ["globalTaskId", *dict.fromkeys(TASK_TEXTS.values()), *numbers.values()]
    )
    joined = tasks.join(details.unique("globalTaskId"), on="globalTaskId", how="inner")
    texts = [_text(joined, title, strings).alias(ours) for ours, title in TASK_TEXTS.items()]
    plain_columns = {
        "start_ns": "startNs",
        "end_ns": "endNs",
        "device_id": "deviceId",
        "stream_id": "streamId",
        "task_id": "taskId",
        "model_id": "modelId",
        "connection": "connectionId",
        **numbers,
    }
    kept = joined.select("globalTaskId", *(pl.col(title).alias(ours) for ours, title in plain_columns.items()))
    counters = read_counters(connection, strings)
    counted = kept.join(counters, on="globalTaskId", how="left", maintain_order="left") if counters.height else kept
    return counted.drop("globalTaskId").with_columns(*texts, kind=pl.lit("compute"))


def _talk(connection: sqlite3.Connection, strings: pl.DataFrame) -> pl.DataFrame:
    if not columns(connection, "COMMUNICATION_OP"):
        return pl.DataFrame()
    wanted = ["opName", "opType", "startNs", "endNs", "connectionId", "opId", "waitNs"]
    found = _with_device(connection, rows(connection, "COMMUNICATION_OP", wanted))
    return found.select(
        start_ns="startNs",
        end_ns="endNs",
        connection="connectionId",
        wait_ns="waitNs",
        device_id="device_id",
        core=pl.lit("COMMUNICATION"),
        kind=pl.lit("communication"),
    ).with_columns(_text(found, "opName", strings).alias("name"), _text(found, "opType", strings).alias("type"))


def _with_device(connection: sqlite3.Connection, operations: pl.DataFrame) -> pl.DataFrame:
    """Rows of COMMUNICATION_OP with `device_id`: that of their tasks, where tasks are of several devices."""
    devices = _devices(connection)
    if len(devices) < 2:
        return operations.with_columns(device_id=pl.lit(devices[0] if devices else None, pl.Int64))
    found = operations
    tasks = rows(connection, "TASK", ["globalTaskId", "connectionId", "deviceId"])
    if columns(connection, "COMMUNICATION_TASK_INFO"):
        parts = rows(connection, "COMMUNICATION_TASK_INFO", ["opId", "globalTaskId"]).drop_nulls()
        by_task = parts.join(tasks.drop_nulls("globalTaskId"), on="globalTaskId")
        found = _joined(found, by_task, "opId", "by_task")
    found = _joined(found, tasks, "connectionId", "by_launch")
    known = [column for column in ("by_task", "by_launch") if column in found.columns]
    return found.with_columns(device_id=pl.coalesce(known)).drop(known)


def _joined(operations: pl.DataFrame, tasks: pl.DataFrame, key: str, column: str) -> pl.DataFrame:
    """With the device under `column` wherever all tasks of that `key` are of one device."""
    known = tasks.select(key, "deviceId").drop_nulls().unique()
    single = known.unique(key, keep="none").select(key, pl.col("deviceId").alias(column))
    return operations.join(single, on=key, how="left", maintain_order="left")


def _devices(connection: sqlite3.Connection) -> list[int]:
    if "deviceId" not in columns(connection, "TASK"):
        return []
    return rows(connection, "TASK", ["deviceId"], "group by deviceId")["deviceId"].drop_nulls().to_list()


def _with_steps(connection: sqlite3.Connection, kernels: pl.DataFrame) -> pl.DataFrame:
    """The step in whose window the host launched the kernel; the kernel's own start where the launch is not told."""
    steps = read_step_times(connection)
    if steps.is_empty():
        return kernels.with_columns(step=pl.lit(None, pl.String))
    if steps.height == 1:
        return kernels.with_columns(step=pl.lit(steps["step"][0]))
    launches = rows(connection, "CANN_API", ["connectionId", "startNs"]) if columns(connection, "CANN_API") else None
    if launches is not None:
        first = launches.group_by("connectionId").agg(launch=pl.col("startNs").min())
        kernels = kernels.join(first, left_on="connection", right_on="connectionId", how="left")
    else:
        kernels = kernels.with_columns(launch=pl.lit(None, pl.Int64))
    kernels = kernels.with_columns(launch=pl.coalesce("launch", "start_ns")).sort("launch")
    windows = steps.select("step", launch=pl.col("start_ns")).sort("launch")
    return kernels.join_asof(windows, on="launch", strategy="backward")


def read_step_times(connection: sqlite3.Connection) -> pl.DataFrame:
    """`step`, `start_ns`, `end_ns` of table STEP_TIME: the profiler's steps on the host's clock."""
    if not columns(connection, "STEP_TIME"):
        return pl.DataFrame(schema={"step": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64})
    found = rows(connection, "STEP_TIME", ["id", "startNs", "endNs"]).sort("startNs")
    return found.select(step=pl.col("id").cast(pl.String), start_ns="startNs", end_ns="endNs")


def read_step_windows(path: Path, name: str, warnings: list[str]) -> dict[str, float]:
    """Step -> length in us, from STEP_TIME. BadDump where the file has none."""
    with database(path, name) as connection:
        steps = read_step_times(connection)
    if steps.is_empty():
        raise BadDump(name, "has no step times")
    known = steps.drop_nulls().filter(pl.col("end_ns") > pl.col("start_ns"))
    return {row["step"]: (row["end_ns"] - row["start_ns"]) / 1000 for row in known.iter_rows(named=True)}


def read_steps(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Table StepTraceTime of analysis.db with `STEP_COLUMNS`, then `device_id`. Times there are us."""
    with database(path, name) as connection:
        titles = columns(connection, "StepTraceTime")
        if "computing" not in titles:
            raise BadDump(name, "has no step trace: table StepTraceTime is missing")
        chosen = ["deviceId", *(column.removesuffix("_ns") for column in STEP_COLUMNS)]
        listed = ", ".join(f'"{column}"' if column in titles else "null" for column in chosen)
        found = connection.execute(f'select {listed} from "StepTraceTime" limit 100000').fetchall()
    table = [[_label(row[1]), *(scaled(value, 1000) for value in row[2:]), scaled(row[0], 1)] for row in found]
    if not table:
        raise BadDump(name, "has a step trace without rows")
    return pl.DataFrame(table, schema={**polars_schema(STEP_COLUMNS), "device_id": pl.Int64()}, orient="row")


def _label(value: object) -> str | None:
    return str(value) if value not in (None, "") else None


def read_communication(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Communication operations with `COMMUNICATION_COLUMNS`: analysed ones where the file has them, else bare
    operations."""
    with database(path, name) as connection:
        if columns(connection, "CommAnalyzerTime"):
            return _analysed(connection)
        if columns(connection, "COMMUNICATION_OP"):
            return _operations(connection)
    raise BadDump(name, "has no communication")


def _analysed(connection: sqlite3.Connection) -> pl.DataFrame:
    titles = columns(connection, "CommAnalyzerTime")
    chosen = ["step", "group_name", "hccl_op_name", "start_timestamp", "elapse_time", "transit_time", "wait_time"]
    listed = ", ".join(f'"{column}"' if column in titles else "null" for column in chosen)
    has_sizes = bool(columns(connection, "CommAnalyzerBandwidth"))
    sizes = largest_links(connection, "CommAnalyzerBandwidth", "transport_type") if has_sizes else {}
    found = connection.execute(f'select {listed} from "CommAnalyzerTime"')
    return table_of(row for told in found if (row := operation_row(told, sizes)))


def operation_row(told: Sequence[Any], sizes: Mapping[tuple[Any, ...], Carried]) -> list[Any] | None:
    """A row of `COMMUNICATION_COLUMNS` of (step, group, operation, start in us, elapse, transit and wait in ms)."""
    step, group, op, start, elapse, transit, wait = told
    if not isinstance(op, str) or op.partition("@")[0] == "Total Op Info":
        return None
    size, link, busy = sizes.get((step, group, op), (None, None, None))
    bare = op.split("@")[0]
    kind = kind_of(bare)
    names = [
        str(step or "").removeprefix("step") or None,
        _label(group),
        kind,
        bare.split("__")[0].rstrip("_"),
    ]
    elapse, transit, wait = (scaled(value, 1_000_000) for value in (elapse, transit, wait))
    moved = known_transit(transit, size, busy if kind == "p2p" else None, elapse)
    return [*names, bare, scaled(start, 1_000), elapse, moved, wait, size, link]


Carried = tuple[int, str | None, int | None]
"""Bytes, link, and for how many ns it was busy with them."""


def largest_links(
    connection: sqlite3.Connection, table: str, link_column: str, where: str = ""
) -> dict[tuple[Any, ...], Carried]:
    """(step, group, operation) -> the link that carried most. A link has one row per packet size."""
    best: dict[tuple[Any, ...], Carried] = {}
    busy = "max(transit_time)" if "transit_time" in columns(connection, table) else "null"
    chosen = f'step, group_name, hccl_op_name, "{link_column}", max(transit_size), {busy}'
    query = f'select {chosen} from "{table}" {where} group by 1, 2, 3, 4'
    found = connection.execute(query).fetchall()
    found.sort(key=lambda row: LINKS.index(row[3]) if row[3] in LINKS else len(LINKS))
    for step, group, op, link, size, time in found:
        size_bytes = scaled(size, 1_000_000)
        if size_bytes is not None and size_bytes > best.get((step, group, op), (-1, None, None))[0]:
            best[step, group, op] = (size_bytes, link_name(link) if size_bytes else None, scaled(time, 1_000_000))
    return best


def _operations(connection: sqlite3.Connection) -> pl.DataFrame:
    strings = _strings(connection)
    wanted = ["opName", "groupName", "startNs", "endNs", "waitNs", "opId", "connectionId"]
    found = _with_device(connection, rows(connection, "COMMUNICATION_OP", wanted))
    texts = found.with_columns(
        _text(found, "opName", strings).alias("name"), _text(found, "groupName", strings).alias("group")
    )
    steps = read_step_times(connection)
    step = steps["step"][0] if steps.height == 1 else None
    op = pl.col("name").str.replace(r"__.*$", "").str.strip_chars_end("_")
    frame = texts.select(
        "group",
        "name",
        step=pl.lit(step, pl.String),
        type=pl.when(pl.col("name").str.contains(r"(?i)send|recv|receive"))
        .then(pl.lit("p2p"))
        .otherwise(pl.lit("collective")),
        op=op,
        start_ns="startNs",
        elapse_ns=pl.col("endNs") - pl.col("startNs"),
        transit_ns=pl.lit(None, pl.Int64),
        wait_ns="waitNs",
        size_bytes=pl.lit(None, pl.Int64),
        link=pl.lit(None, pl.String),
        device_id="device_id",
    )
    return frame.select(*COMMUNICATION_COLUMNS, "device_id")


def read_links(path: Path, name: str, groups: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Links of table CommAnalyzerMatrix, its totals only; ranks as `communication.read_links` tells them."""
    with database(path, name) as connection:
        if not columns(connection, "CommAnalyzerMatrix"):
            raise BadDump(name, "has no communication matrix")
        return matrix_links(connection, "CommAnalyzerMatrix", groups)


def matrix_links(
    connection: sqlite3.Connection, table: str, groups: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Links of a table of the form of CommAnalyzerMatrix."""
    query = (
        "select step, group_name, hccl_op_name, src_rank, dst_rank, transport_type, transit_size, transit_time "
        f"from \"{table}\" where hccl_op_name like '%-total%' and src_rank <> dst_rank"
    )
    links: dict[tuple[Any, ...], Link] = {}
    for step, group, op, source, target, link, size, transit in connection.execute(query):
        src, dst = scaled(source, 1), scaled(target, 1)
        if src is not None and dst is not None:
            key = (
                str(step or "").removeprefix("step"),
                _label(group) or "",
                str(op).split("-total")[0],
                src,
                dst,
                link_name(link),
            )
            add_link(links, key, scaled(size, 1_000_000), scaled(transit, 1_000_000))
    return link_rows(links, groups)


def read_memory(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """MEMORY_RECORD, or where there is none NPU_MEM (the whole device), with `MEMORY_COLUMNS`, then `device_id`."""
    with database(path, name) as connection:
        if columns(connection, "MEMORY_RECORD"):
            wanted = ["component", "timestamp", "totalAllocated", "totalReserved", "deviceId"]
            found = rows(connection, "MEMORY_RECORD", wanted)
            texts = _text(found, "component", _strings(connection))
            sizes = {"allocated_bytes": "totalAllocated", "reserved_bytes": "totalReserved", "device_id": "deviceId"}
            frame = found.select(time_ns="timestamp", **{ours: pl.col(title) for ours, title in sizes.items()})
            return frame.with_columns(texts).sort("time_ns").select(*MEMORY_COLUMNS, "device_id")
        if columns(connection, "NPU_MEM"):
            found = rows(connection, "NPU_MEM", ["timestampNs", "hbm", "deviceId"])
            unknown = pl.lit(None, pl.Int64)
            curve = {"time_ns": pl.col("timestampNs"), "reserved_bytes": pl.col("hbm"), "device_id": pl.col("deviceId")}
            frame = found.select(component=pl.lit("APP"), allocated_bytes=unknown, **curve)
            return frame.sort("time_ns").select(*MEMORY_COLUMNS, "device_id")
    raise BadDump(name, "has no memory record")


def read_modules(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Table NPU_MODULE_MEM as `memory.read_modules` gives npu_module_mem.csv; names are those of ENUM_MODULE."""
    with database(path, name) as connection:
        if not columns(connection, "NPU_MODULE_MEM"):
            raise BadDump(name, "has no memory record")
        found = rows(connection, "NPU_MODULE_MEM", ["moduleId", "totalReserved", "deviceId"])
        known = connection.execute("select id, name from ENUM_MODULE") if columns(connection, "ENUM_MODULE") else ()
        titles = {number: str(title) for number, title in known if isinstance(number, int)}
    module = pl.col("moduleId")
    component = module.replace_strict(titles, default=module.cast(pl.String), return_dtype=pl.String)
    named = found.select(component=component, bytes="totalReserved", device_id="deviceId")
    return module_peaks(named)


def read_devices(path: Path, name: str) -> tuple[list[int], dict[int, int]]:
    """Devices that ran kernels, and device -> rank where the file tells it."""
    with database(path, name) as connection:
        held = _devices(connection)
        if len(held) > 1 and columns(connection, "COMPUTE_TASK_INFO"):
            ran = "where globalTaskId in (select globalTaskId from COMPUTE_TASK_INFO) group by deviceId"
            held = rows(connection, "TASK", ["deviceId"], ran)["deviceId"].drop_nulls().to_list()
        return held, {device: rank for rank, device in _rank_devices(connection)}


def _rank_devices(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    """Pairs of rank and device that are both told."""
    if not columns(connection, "RANK_DEVICE_MAP"):
        return []
    pairs = connection.execute("select rankId, deviceId from RANK_DEVICE_MAP").fetchall()
    return [pair for pair in pairs if all(isinstance(value, int) and 0 <= value < NO_ID for value in pair)]


def read_calls(path: Path, name: str) -> list[tuple[str, int, int]]:
    """Calls of the acl level that the host made: name, how many, ns in all. BadDump where the file has none."""
    with database(path, name) as connection:
        if not columns(connection, "CANN_API") or not columns(connection, "STRING_IDS"):
            raise BadDump(name, "has no calls of the host")
        named = connection.execute(
            "select cast(id as integer), value from STRING_IDS where value glob 'acl*' and id is not null"
        )
        names = {number: str(value) for number, value in named}
        listed = ", ".join(map(str, names))
        told = f"name in ({listed}) and endNs - startNs between 0 and {MAX_DURATION_NS}"
        query = f"select name, count(*), sum(endNs - startNs) from CANN_API where {told} group by name"
        found = connection.execute(query).fetchall()
    return [(names[number], count, int(ns)) for number, count, ns in found]


def read_facts(path: Path, name: str, warnings: list[str]) -> dict[str, Any]:
    """What the database knows of itself: rank, device, host, chip; `ranks` is device -> rank."""
    facts: dict[str, Any] = {}
    with database(path, name) as connection:
        known = _rank_devices(connection)
        facts["ranks"] = {device: rank for rank, device in known}
        if len(known) == 1:
            facts["rank"], facts["device_id"] = known[0]
        hosts = (
            connection.execute("select hostName from HOST_INFO").fetchall() if columns(connection, "HOST_INFO") else []
        )
        facts["host"] = hosts[0][0] if hosts and isinstance(hosts[0][0], str) else None
        chips = (
            connection.execute("select distinct name from NPU_INFO").fetchall()
            if columns(connection, "NPU_INFO")
            else []
        )
        facts["soc"] = chips[0][0] if len(chips) == 1 and isinstance(chips[0][0], str) else None
    return facts
