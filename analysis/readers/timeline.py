"""Chrome traces: the profiler's own step ranges in trace_view.json, and MindSpore 2.1-2.2's PROF_*/device_N/timeline
files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

from analysis.errors import BadDump
from analysis.readers.communication import scaled
from analysis.readers.kernel_details import columns_only
from analysis.readers.text import first_line, plain, read_json

MAX_TRACE_BYTES = 8 << 30
DEVICE_TASKS = ("AI_CORE", "AI_CPU", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV")
COLUMNS = "{name: 'VARCHAR', ph: 'VARCHAR', dur: 'VARCHAR'}"


def read_profiler_steps(path: Path, name: str, warnings: list[str]) -> dict[str, float]:
    """Step -> length in us of the `ProfilerStep#N` ranges of trace_view.json, streamed. BadDump where there are
    none."""
    import duckdb

    with plain(path, name) as file:
        size = file.stat().st_size
        if not 0 < size <= MAX_TRACE_BYTES:
            raise BadDump(name, "is empty (zero bytes)" if not size else f"is {size >> 30} GiB: not read")
        try:
            with duckdb.connect(
                config={"threads": 2, "memory_limit": "400MB", "autoinstall_known_extensions": False}
            ) as base:
                query = f"select name, dur from read_json(?, format='array', columns={COLUMNS}) where ph = 'X'"
                found = base.execute(f"{query} and name like ?", [str(file), "%ProfilerStep#%"]).fetchall()
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise BadDump(name, f"is not a trace that can be read, or was cut ({first_line(error)})") from error
    steps = {str(title).rpartition("#")[2]: scaled(length, 1_000) for title, length in found}
    known = {step: length / 1000 for step, length in steps.items() if length}
    if not known:
        raise BadDump(name, "has no ProfilerStep ranges")
    return known


def read_tasks(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """task_time_D_M_N.json: device tasks of iteration N, with `KERNEL_COLUMNS`. Times are us since the host started."""
    step = _iteration(name)
    rows = [_task(event, step) for event in _events(path, name) if _argument(event, "Task Type") in DEVICE_TASKS]
    kept = [row for row in rows if row["duration_ns"] is not None]
    if not kept:
        raise BadDump(name, "holds no device task")
    return columns_only(pl.DataFrame(kept).sort("start_ns"))


def read_talk(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """hccl_D_M_N.json: whole communication operations of iteration N as kernels of kind communication."""
    events = _events(path, name)
    whole = {
        event.get("tid")
        for event in events
        if event.get("ph") == "M" and _argument(event, "name") == "Communication Kernel"
    }
    rows = [_task(event, _iteration(name)) for event in events if event.get("ph") == "X" and event.get("tid") in whole]
    if not rows:
        raise BadDump(name, "holds no communication")
    return columns_only(pl.DataFrame([{**row, "core": "HCCL", "kind": "communication"} for row in rows]))


def read_iterations(path: Path, name: str, warnings: list[str]) -> dict[str, float]:
    """step_trace_D_M_N.json: iteration -> length in us. Every file repeats all iterations."""
    found = {}
    for event in _events(path, name):
        match = re.fullmatch(r"Iteration (\d+)", str(event.get("name")))
        length = scaled(event.get("dur"), 1_000)
        if match and length:
            found[match.group(1)] = length / 1000
    if not found:
        raise BadDump(name, "holds no iteration")
    return found


def _events(path: Path, name: str) -> list[dict[str, Any]]:
    data = read_json(path, name, exact=True)
    if isinstance(data, dict):
        data = data.get("traceEvents")
    if not isinstance(data, list):
        raise BadDump(name, "is not a list of trace events")
    return [event for event in data if isinstance(event, dict)]


def _argument(event: dict[str, Any], name: str) -> Any:
    arguments = event.get("args")
    return arguments.get(name) if isinstance(arguments, dict) else None


def _iteration(name: str) -> str | None:
    match = re.search(r"_\d+_\d+_(\d+)\.json", name)
    return match.group(1) if match else None


def _task(event: dict[str, Any], step: str | None) -> dict[str, Any]:
    title = str(event.get("name"))
    return {
        "step": step,
        "name": title,
        "type": title.rsplit("/", 1)[-1].partition("-op")[0],
        "core": _argument(event, "Task Type"),
        "kind": "compute",
        "start_ns": scaled(event.get("ts"), 1_000),
        "duration_ns": scaled(event.get("dur"), 1_000),
        "stream_id": scaled(_argument(event, "Stream Id"), 1),
        "task_id": scaled(_argument(event, "Task Id"), 1),
    }
