"""MindSpore 2.1-2.2's Chrome traces under PROF_*/device_N/timeline, one set of files per iteration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

from analysis.errors import BadDump
from analysis.readers.communication import scaled
from analysis.readers.kernel_details import kernels_of
from analysis.readers.text import read_json

DEVICE_TASKS = ("AI_CORE", "AI_CPU", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV")


def read_tasks(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """task_time_D_M_N.json: device tasks of iteration N, with `KERNEL_COLUMNS`. Times are us since the host started."""
    place = _place(name)
    rows = [_task(event, place) for event in _events(path, name) if str(_argument(event, "Task Type")) in DEVICE_TASKS]
    kept = [row for row in rows if row["duration_ns"] is not None]
    if not kept:
        raise BadDump(name, "holds no device task")
    return kernels_of(kept).sort("start_ns")


def read_talk(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """hccl_D_M_N.json: whole communication operations of iteration N as kernels of kind communication."""
    events = _events(path, name)
    whole = {
        str(event.get("tid"))
        for event in events
        if event.get("ph") == "M" and _argument(event, "name") == "Communication Kernel"
    }
    rows = [_task(event, _place(name)) for event in events if event.get("ph") == "X" and str(event.get("tid")) in whole]
    if not rows:
        raise BadDump(name, "holds no communication")
    return kernels_of([{**row, "core": "HCCL", "kind": "communication"} for row in rows])


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


def _place(name: str) -> dict[str, Any]:
    """The device and the iteration that the file's name tells."""
    match = re.search(r"_(\d{1,9})_\d+_(\d+)\.json", name)
    return {"step": match.group(2), "device_id": int(match.group(1))} if match else {"step": None, "device_id": None}


def _task(event: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
    title, core = event.get("name"), _argument(event, "Task Type")
    named = title if isinstance(title, str) else None
    return {
        **place,
        "name": named,
        "type": named.rsplit("/", 1)[-1].partition("-op")[0] if named else None,
        "core": core if isinstance(core, str) else None,
        "kind": "compute",
        "start_ns": scaled(event.get("ts"), 1_000),
        "duration_ns": scaled(event.get("dur"), 1_000),
        "stream_id": scaled(_argument(event, "Stream Id"), 1),
        "task_id": scaled(_argument(event, "Task Id"), 1),
    }
