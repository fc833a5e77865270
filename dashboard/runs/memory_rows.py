"""The memory curve of one rank from its Parquet file, thinned so that a chart stays small and no peak is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.runs.frames import frames_path

POINTS = 1_000
COMPONENTS = ("PTA", "MindSpore", "PTA+GE", "MindSpore+GE", "GE")
"""Allocators that own training memory, most telling first; APP is the whole process."""


def memory_curve(frames: str) -> dict[str, Any] | None:
    """{"component", "points": (ms since the first record, allocated bytes, reserved bytes)} of one dump's frames.

    Of each of at most 1 000 equal spans of time it keeps the largest values. None where no memory was recorded.
    """
    if not frames:
        return None
    import polars as pl

    from analysis.store import scan

    try:
        memory = scan(frames_path(frames), "memory").filter(pl.col("time_ns").is_not_null()).collect()
    except FileNotFoundError:
        return None
    component = _chosen([str(name) for name in memory["component"].unique().drop_nulls()])
    if component is not None:
        memory = memory.filter(pl.col("component") == component)
    if memory.is_empty():
        return None
    first, last = (int(str(value)) for value in (memory["time_ns"].min(), memory["time_ns"].max()))
    span = max(1, -(-(last - first + 1) // POINTS))
    offset = pl.col("time_ns") - first
    rows = (
        memory.group_by(offset // span)
        .agg(offset.min().alias("at"), pl.col("allocated_bytes").max(), pl.col("reserved_bytes").max())
        .sort("at")
        .select("at", "allocated_bytes", "reserved_bytes")
        .rows()
    )
    return {"component": component, "points": [(at / 1e6, allocated, reserved) for at, allocated, reserved in rows]}


def _chosen(known: Sequence[str]) -> str | None:
    return next((name for name in COMPONENTS if name in known), known[0] if known else None)
