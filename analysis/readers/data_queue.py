"""MindSpore's data pipeline: how often the queue that feeds the device was found empty."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.errors import BadDump
from analysis.readers.legacy import table
from analysis.readers.text import plain

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


def read_pipeline(path: Path, name: str, warnings: list[str]) -> float:
    """minddata_pipeline_raw_N.csv: share of empty samples in the queue of the operator nearest to the device."""
    for row in table(path, name):
        try:
            sizes = json.loads(row.get("output_queue_size") or "null")
        except ValueError:
            continue
        if isinstance(sizes, list) and sizes and all(isinstance(size, int) for size in sizes):
            return float(round(sum(size == 0 for size in sizes) / len(sizes), 6))
    raise BadDump(name, "has no samples of a queue")
