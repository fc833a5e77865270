"""Peaks of the memory curve."""

from __future__ import annotations

from typing import Any

import polars as pl

FRAMEWORK_COMPONENTS = ("PTA", "MindSpore", "PTA+GE", "MindSpore+GE", "GE")
"""Components that own training memory, most telling first; APP is the whole process and only has a reserved size."""


MAX_MODULES = 12


def modules(table: pl.DataFrame | None) -> list[dict[str, Any]]:
    """What else of the device's memory software held (HCCL, RUNTIME, ...), most first."""
    rows = [] if table is None else table.head(MAX_MODULES).iter_rows(named=True)
    return [{"component": row["component"], "peak_reserved_bytes": row["bytes"]} for row in rows]


def peaks(memory: pl.DataFrame | None) -> dict[str, int | None]:
    """Peak bytes of the framework's allocator (allocated) and of what it holds of the device (reserved)."""
    if memory is None or memory.is_empty():
        return {"peak_allocated_bytes": None, "peak_reserved_bytes": None}
    components: set[Any] = set(memory["component"].unique())
    chosen = [name for name in FRAMEWORK_COMPONENTS if name in components]
    rows = memory.filter(pl.col("component").is_in(chosen)) if chosen else memory
    allocated = rows["allocated_bytes"].max()
    reserved = rows["reserved_bytes"].max()
    return {
        "peak_allocated_bytes": int(str(allocated)) if allocated is not None else None,
        "peak_reserved_bytes": int(str(reserved)) if reserved is not None else None,
    }
