"""MindSpore's data pipeline: how often the queue that feeds the device was found empty, and which operation is slow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.errors import BadDump
from analysis.readers.communication import scaled
from analysis.readers.legacy import table
from analysis.readers.text import plain, read_json
from analysis.thresholds import limit

Json = dict[str, Any]

_MAX_BYTES = 64 << 20
_DEPTH = "1"
"""Kind of the rows that tell how full the queue was; those of kind 0 tell times."""


def read_device_queue(path: Path, name: str, warnings: list[str]) -> float:
    """device_queue_profiling_N.txt: share of the samples (kind, capacity, batch, size, time) whose size is 0."""
    with plain(path, name) as file:
        if file.stat().st_size > _MAX_BYTES:
            raise BadDump(name, "is larger than any such file: not read")
        lines = [line.split() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    sizes = [row[3] for row in lines if len(row) == 5 and row[0] == _DEPTH and row[3].isdigit()]
    if not sizes:
        raise BadDump(name, "has no samples of the queue")
    return round(sum(int(size) == 0 for size in sizes) / len(sizes), 6)


def read_pipeline(path: Path, name: str, warnings: list[str]) -> list[Json]:
    """Operations of minddata_pipeline_raw_N.csv, the one nearest to the device first.

    Each with `op_id`, `op`, `workers`, `children` (ids of those it takes from) and, of its output queue, `usage_ratio`
    (mean fill of its length) and `empty_ratio` (share of the samples that found it empty); null where not sampled.
    """
    found = [_operation(row, *(_json(row.get(title)) for title in QUEUE)) for row in table(path, name)]
    return _operations(found, name)


QUEUE = ("output_queue_size", "output_queue_length", "children_id")


def read_profile(path: Path, name: str, warnings: list[str]) -> list[Json]:
    """pipeline_profiling_N.json, the sampled queues as the data engine wrote them: what `read_pipeline` gives."""
    told = read_json(path, name, most=_MAX_BYTES)
    rows = told.get("op_info") if isinstance(told, dict) else None
    found = []
    for row in rows if isinstance(rows, list) else ():
        metrics = row.get("metrics") if isinstance(row, dict) else None
        queue = metrics.get("output_queue") if isinstance(metrics, dict) else None
        told_queue = queue if isinstance(queue, dict) else {}
        if isinstance(row, dict):
            found.append(_operation(row, told_queue.get("size"), told_queue.get("length"), row.get("children")))
    return _operations(found, name)


def _operation(row: Mapping[str, Any], sizes: Any, length: Any, children: Any) -> Json | None:
    number = scaled(row.get("op_id"), 1)
    if number is None:
        return None
    known = (
        sizes if isinstance(sizes, list) and sizes and all(type(size) is int and size >= 0 for size in sizes) else []
    )
    room = length if type(length) is int and length > 0 else None
    return {
        "op_id": number,
        "op": str(row.get("op_type") or "").removesuffix("Op") or None,
        "workers": scaled(row.get("num_workers"), 1),
        "children": [child for child in children if type(child) is int] if isinstance(children, list) else [],
        "usage_ratio": round(min(1.0, sum(known) / len(known) / room), 6) if known and room else None,
        "empty_ratio": round(sum(size == 0 for size in known) / len(known), 6) if known else None,
    }


def _operations(found: list[Json | None], name: str) -> list[Json]:
    known = sorted((row for row in found if row), key=lambda row: row["op_id"])
    if not any(row["empty_ratio"] is not None for row in known):
        raise BadDump(name, "has no samples of a queue")
    return known


def _json(cell: str | None) -> Any:
    try:
        return json.loads(cell) if cell else None
    except (ValueError, RecursionError):
        return None


def nearest_empty_ratio(operations: Sequence[Json]) -> float | None:
    """How often the queue nearest to the device was found empty."""
    return next((row["empty_ratio"] for row in operations if row["empty_ratio"] is not None), None)


def slow_operation(operations: Sequence[Json]) -> Json | None:
    """The operation that the others wait for: its output queue is starved, those it takes from are not.

    Of several the one farthest from the device: those behind it starve because of it. None where no queue is starved.
    """
    by_id = {row["op_id"]: row for row in operations}
    starved = {
        number
        for number, row in by_id.items()
        if row["usage_ratio"] is not None and row["usage_ratio"] < limit("queue_starved")
    }
    first = [row for row in operations if row["op_id"] in starved and not starved & set(row["children"])]
    return max(first, key=lambda row: int(row["op_id"]), default=None)
