"""The report's `layers` object from placed kernels."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import polars as pl

PART_KEYS = ["part", "layer", "pass", "micro_batch"]
_ORDER = (
    *("embedding", "layer", "final_norm", "head_loss", "pipeline_transfers", "gradient_sync", "embedding_gradients"),
    *("optimizer", "other"),
)


def attributed_ratio(kernels: pl.DataFrame) -> float | None:
    """Share of compute time that has a part; null without compute."""
    columns = kernels.lazy().filter(pl.col("kind") == "compute").select("duration_ns", "part")
    compute = columns.collect()  # two columns: a filtered copy of all of a large dump would double its memory
    total = int(compute["duration_ns"].sum() or 0)
    placed = int(compute.filter(pl.col("part").is_not_null())["duration_ns"].sum() or 0)
    return placed / total if total else None


def parts(kernels: pl.DataFrame, steps: int) -> list[dict[str, Any]]:
    """Time and kernels of each part and block, as the mean of a step over `steps` steps. Communication counts."""
    placed = kernels.lazy().filter(pl.col("part").is_not_null())
    sums = placed.group_by([*PART_KEYS, "block"]).agg(total=pl.col("duration_ns").sum(), count=pl.len()).collect()
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in sums.sort("total", "block", descending=[True, False]).iter_rows(named=True):
        block = {"block": row["block"], "total_us": _us(row["total"], steps), "kernel_count": _per(row["count"], steps)}
        found.setdefault(tuple(row[key] for key in PART_KEYS), []).append(block)
    totals = sums.group_by(PART_KEYS).agg(pl.col("total").sum(), pl.col("count").sum())
    rows = [
        {
            **{key: row[key] for key in PART_KEYS},
            "total_us": _us(row["total"], steps),
            "kernel_count": _per(row["count"], steps),
            "blocks": found[tuple(row[key] for key in PART_KEYS)],
        }
        for row in totals.iter_rows(named=True)
    ]
    return sorted(rows, key=_place)


def _place(row: dict[str, Any]) -> tuple[int, int, str, int]:
    micro_batch = -1 if row["micro_batch"] is None else row["micro_batch"]
    return _ORDER.index(row["part"]), -1 if row["layer"] is None else row["layer"], row["pass"], micro_batch


def _us(ns: int, steps: int) -> float:
    return round(ns / 1000 / steps, 3)


def _per(count: int, steps: int) -> float | int:
    return count // steps if count % steps == 0 else round(count / steps, 2)


def judged(kernels: pl.DataFrame, steps: Collection[str] | None) -> pl.DataFrame:
    """Kernels of the steps that are judged; all of them where none are named."""
    return kernels if steps is None else kernels.filter(pl.col("step").is_in(list(steps)))
