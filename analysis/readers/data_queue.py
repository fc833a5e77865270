"""MindSpore's data pipeline: how often the queue that feeds the device was found empty, and which operation is slow."""

from __future__ import annotations

import csv
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
_DEPTH, _TIMES = "1", "0"
"""Kind of the rows that tell how full the queue was, and of those that tell times."""
_MAX_STAGES = 20
TIMES = {"pipeline_us": "pipeline", "push_us": "push_queue", "batch_us": "batch"}
"""Times of a batch, in the order of their numbers in device_queue_profiling, and their names in the summary."""


def read_device_queue(path: Path, name: str, warnings: list[str]) -> float:
    """device_queue_profiling_N.txt, or dataset_iterator_profiling_N.txt where data is not sunk: share of the samples
    (kind, capacity, batch, size, time) whose size is 0."""
    sizes = [row[3] for row in _cells(path, name) if len(row) == 5 and row[0] == _DEPTH and row[3].isdigit()]
    return _empty_share(sizes, name)


def _cells(path: Path, name: str) -> list[list[str]]:
    with plain(path, name) as file:
        if file.stat().st_size > _MAX_BYTES:
            raise BadDump(name, "is larger than any such file: not read")
        return [line.split() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]


def _empty_share(sizes: Sequence[str], name: str) -> float:
    if not sizes:
        raise BadDump(name, "has no samples of the queue")
    return round(sum(int(size) == 0 for size in sizes) / len(sizes), 6)


def read_batch_times(path: Path, name: str, warnings: list[str]) -> Json:
    """Of the same files the mean times of the host for one batch, without the first: `batch_us` in all, `pipeline_us`
    to make it, `push_us` to send it to the device. Rows are (kind, what, batch, ms, time)."""
    times: dict[str, list[int]] = {what: [] for what in TIMES}
    for row in _cells(path, name):
        if len(row) == 5 and row[0] == _TIMES and all(cell.isdigit() and len(cell) < 16 for cell in row[1:4]):
            what, batch, ms = (int(cell) for cell in row[1:4])
            if batch > 1 and what < len(times):
                [*times.values()][what].append(ms)
    if not any(times.values()):
        raise BadDump(name, "has no samples of batches")
    return {what: 1000 * round(sum(all_) / len(all_), 3) if all_ else None for what, all_ in times.items()}


def read_get_next(path: Path, name: str, warnings: list[str]) -> Json:
    """minddata_aicpu_N.txt: what the device's GetNext found. `queue_empty_ratio` is the share of its calls with an
    empty queue, `get_next_us` their mean time. Rows are (operator, start, end, size), times us."""
    rows = [row for row in _cells(path, name) if len(row) == 4 and row[0].startswith("GetNext")]
    found = _empty_share([row[3] for row in rows if row[3].isdigit()], name)
    spans = [(scaled(row[1], 1_000), scaled(row[2], 1_000)) for row in rows]
    waits = [end - start for start, end in spans if start is not None and end is not None and end >= start]
    return {"queue_empty_ratio": found, "get_next_us": round(sum(waits) / len(waits) / 1000, 3) if waits else None}


def read_stages(path: Path, name: str, warnings: list[str]) -> list[Json]:
    """dataset.csv: stages of the dataset's operations with `count`, `mean_us` and `total_us`, longest first."""
    found: list[Json] = []
    for row in table(path, name):
        count, mean = scaled(row.get("Occurrences"), 1), scaled(row.get("Avg. time (us)"), 1_000)
        if count is not None and mean is not None and count > 0 <= mean:
            told = {key: row.get(key.title()) or None for key in ("operation", "stage")}
            info = row.get("Custom Info") or None
            found.append(
                {**told, "info": info, "count": count, "mean_us": mean / 1000, "total_us": count * mean / 1000}
            )
    if not found:
        raise BadDump(name, "has no stages of a dataset")
    return sorted(found, key=lambda row: row["total_us"], reverse=True)[:_MAX_STAGES]


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


def read_summary(path: Path, name: str, warnings: list[str]) -> Json:
    """minddata_pipeline_summary_N.json or .csv, what MindSpore worked out of the sampled queues: `operations` as
    `read_pipeline` gives them, with `cpu_ratio` (of the host's processors), and the times of `read_batch_times`."""
    told = _summary(path, name)
    ids = told.get("op_ids", [])
    operations = [
        {
            "op_id": number,
            "op": str(_at(told, "op_names", place) or "").removesuffix("Op") or None,
            "workers": scaled(_at(told, "num_workers", place), 1),
            "children": [each for each in _at(told, "children_ids", place) or [] if type(each) is int],
            "usage_ratio": _percent(_at(told, "queue_utilization_pct", place)),
            "empty_ratio": _percent(_at(told, "queue_empty_freq_pct", place)),
            "cpu_ratio": _percent(_at(told, "avg_cpu_pct", place)),
        }
        for place, number in enumerate(ids)
        if type(number) is int and number >= 0
    ]
    if not operations:
        raise BadDump(name, "has no operations of a data pipeline")
    times = {key: scaled(_at(told, f"per_{what}_time", 0), 1_000) for key, what in TIMES.items()}
    return {"operations": operations, **{key: ms if ms is not None and ms >= 0 else None for key, ms in times.items()}}


def _summary(path: Path, name: str) -> dict[str, list[Any]]:
    """Key -> values: of the JSON, or of the CSV, which has a key and its values on each line."""
    if not name.removesuffix(".gz").endswith(".csv"):
        told = read_json(path, name, most=_MAX_BYTES)
        return {key: value for key, value in told.items() if isinstance(value, list)} if isinstance(told, dict) else {}
    with plain(path, name) as file:
        if file.stat().st_size > _MAX_BYTES:
            raise BadDump(name, "is larger than any such file: not read")
        lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    try:
        rows = [row for row in csv.reader(lines) if row]
    except csv.Error as error:
        raise BadDump(name, f"cannot be split into cells ({error})") from error
    return {row[0]: [cell if (value := _json(cell)) is None else value for cell in row[1:]] for row in rows}


def _at(told: Mapping[str, list[Any]], key: str, place: int) -> Any:
    values = told.get(key) or []
    value = values[place] if place < len(values) else None
    return value if key != "children_ids" or isinstance(value, list) else []


def _percent(value: Any) -> float | None:
    """A share of percent; null for -1, which stands for nothing sampled."""
    known = type(value) in (int, float) and 0 <= value <= 100
    return round(value / 100, 6) if known else None


def with_cpu(operations: list[Json], summary: Sequence[Json]) -> list[Json]:
    """`operations` with the load that the summary tells of each; its own where there are no others."""
    loads = {row["op_id"]: row["cpu_ratio"] for row in summary}
    found = operations or [*summary]
    return [{**row, "cpu_ratio": loads.get(row["op_id"])} for row in found]


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
