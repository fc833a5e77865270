"""What MindSpore leaves of its data pipeline besides the sampled queues: summaries, times of batches, the device's
GetNext, stages of the dataset's operations."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Operation = tuple[str, int, Sequence[int] | None]
QUEUE = 64


def write_summary(
    folder: Path, rank: int, operations: Sequence[Operation], cpu: Sequence[float], batch_ms: Sequence[float]
) -> None:
    """minddata_pipeline_summary_N.json and .csv of a chain (kind, workers, samples of the output queue of 64), the
    first next to the device; `cpu` in percent, `batch_ms`: pipeline, push, batch. -1 stands for unknown."""
    fill = [sum(sizes) / len(sizes) if sizes else -1 for _, _, sizes in operations]
    told: dict[str, list[Any]] = {
        "op_ids": [*range(len(operations))],
        "op_names": [kind for kind, _, _ in operations],
        "pipeline_ops": [f"{kind}(id={number})" for number, (kind, _, _) in enumerate(operations)],
        "num_workers": [workers for _, workers, _ in operations],
        "queue_average_size": [round(mean, 2) for mean in fill],
        "queue_utilization_pct": [round(100 * mean / QUEUE, 2) if mean >= 0 else -1 for mean in fill],
        "queue_empty_freq_pct": [
            round(100 * list(sizes).count(0) / len(sizes), 2) if sizes else -1 for _, _, sizes in operations
        ],
        "children_ids": [[number + 1] if number + 1 < len(operations) else [] for number in range(len(operations))],
        "parent_id": [number - 1 for number in range(len(operations))],
        "avg_cpu_pct": [*cpu],
        **{f"per_{what}_time": [ms] for what, ms in zip(("pipeline", "push_queue", "batch"), batch_ms, strict=True)},
    }
    (folder / f"minddata_pipeline_summary_{rank}.json").write_text(json.dumps(told), encoding="utf-8")
    with (folder / f"minddata_pipeline_summary_{rank}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([key, *values] for key, values in told.items())


def write_batches(path: Path, batches: Sequence[tuple[int, int, int]]) -> None:
    """device_queue_profiling_N.txt or dataset_iterator_profiling_N.txt: pipeline ms, push ms, queue size a batch."""
    lines, now = [], 10_000
    for number, (pipeline, push, size) in enumerate(batches, 1):
        now += pipeline + push
        times = ((1, push), (2, pipeline + push), (0, pipeline))
        lines += [f"0 {what} {number} {ms} {now}" for what, ms in times]
        lines.append(f"1 {QUEUE} {number} {size} {now}")
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def write_get_next(path: Path, waits: Sequence[tuple[int, int]]) -> None:
    """minddata_aicpu_N.txt of calls (us, size of the queue), and an operator beside them that is none of GetNext."""
    lines, now = ["node_name start_time end_time queue_size"], 2_298_200_409
    for us, size in waits:
        lines += [f"InitData {now} {now + 5} 0", f"GetNext_dequeue_wait {now} {now + us} {size}"]
        now += 10_000 + us
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def write_stages(path: Path, stages: Sequence[tuple[str, str, int, float]]) -> None:
    """dataset.csv of stages (operation, stage, occurrences, mean us)."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Operation", "Stage", "Occurrences", "Avg. time (us)", "Custom Info"])
        rows.writerows([*stage, ""] for stage in stages)
