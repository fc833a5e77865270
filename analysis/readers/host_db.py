"""What the host did, from a torch_npu database: operators, calls of the runtime, launches and steps, with times."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl

from analysis.errors import BadDump
from analysis.readers.sqlite_file import columns, database, rows
from analysis.readers.trace_events import sound

CALL = ["startNs", "endNs", "globalTid", "name"]
NEEDED = {
    "PYTORCH_API": [*CALL, "type"],
    "CANN_API": [*CALL, "type", "connectionId"],
    "TASK": ["startNs", "connectionId"],
    "STRING_IDS": ["id", "value"],
    "ENUM_API_TYPE": ["id", "name"],
    "STEP_TIME": ["id", "startNs", "endNs"],
}


def read_events(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """The events that `trace_events.read_events` gives, under the names they have there, without modules and
    collections of garbage. BadDump where the file lacks any of it: of host operators alone nothing follows."""
    with database(path, name) as connection:
        if any(not set(wanted) <= set(columns(connection, table)) for table, wanted in NEEDED.items()):
            raise BadDump(name, "has no calls of the host")
        kinds = dict(connection.execute("select name, cast(id as integer) from ENUM_API_TYPE").fetchall())
        operators = _calls(connection, "PYTORCH_API", "true", kinds.get("op"), "")
        runtime = _calls(connection, "CANN_API", "value glob 'aclrt*'", kinds.get("acl"), "AscendCL@")
        launches = _calls(connection, "CANN_API", "value = 'launch'", kinds.get("node"), "Node@")
        tasks = rows(connection, "TASK", ["startNs", "connectionId"])
        steps = rows(connection, "STEP_TIME", ["id", "startNs", "endNs"])
    operators = operators.with_columns(cat=pl.lit("cpu_op"))
    ranges = [operators, runtime, launches, _steps(steps, operators)]
    found = [
        *(each.with_columns(ph=pl.lit("X"), id=pl.lit(None, pl.Int64)) for each in ranges),
        *_flows(launches, tasks),
    ]
    absent = (pl.lit(None, pl.String).alias("class"), pl.lit(None, pl.Int64).alias("number"))
    return sound(pl.concat(found, how="diagonal").lazy().with_columns(absent), name, warnings)


def _calls(connection: sqlite3.Connection, table: str, named: str, kind: int | None, prefix: str) -> pl.DataFrame:
    """Calls of one kind whose name fulfils the condition: name, tid, start_ns, duration_ns, and id where it is told."""
    texts = connection.execute(
        f"select cast(id as integer), ? || cast(value as text) from STRING_IDS where {named}", [prefix]
    )
    names = pl.DataFrame(texts.fetchall(), schema={"name": pl.Int64, "text": pl.String}, orient="row").unique("name")
    found = rows(connection, table, [*CALL, "connectionId"], f"where type = {kind if kind is not None else -1}")
    told = found.join(names, on="name", maintain_order="left")
    return told.select(
        name="text",
        tid=pl.col("globalTid").cast(pl.String),
        id="connectionId",
        start_ns="startNs",
        duration_ns=pl.col("endNs") - pl.col("startNs"),
    )


def _steps(steps: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """The profiler's steps, on the thread that calls most operators."""
    busiest = operators["tid"].value_counts(sort=True)["tid"].first() if operators.height else None
    return steps.select(
        name=pl.format("ProfilerStep#{}", "id"),
        tid=pl.lit(busiest, pl.String),
        start_ns="startNs",
        duration_ns=pl.col("endNs") - pl.col("startNs"),
    )


def _flows(launches: pl.DataFrame, tasks: pl.DataFrame) -> list[pl.DataFrame]:
    """From each launch to the start of its tasks on the device."""
    begins = launches.select("id", "tid", "start_ns", ph=pl.lit("s"), cat=pl.lit("HostToDevice"))
    ends = tasks.select(id="connectionId", start_ns="startNs", ph=pl.lit("f"), cat=pl.lit("HostToDevice"))
    return [begins, ends.join(launches.select("id").unique(), on="id", how="semi")]
