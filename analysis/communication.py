"""Communication operations to the report's rows: by group and operation, and one by one for the vote over late
arrivers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from analysis.breakdown import ratio

MAX_COLLECTIVES = 300
MAX_LINKS = 512
P2P = re.compile(r"send|recv|receive", re.IGNORECASE)


def kind_of(name: str) -> str:
    """`p2p` for sends and receives whatever their spelling, else `collective`. The profiler's own sorting misses
    `hcom_send`."""
    return "p2p" if P2P.search(name) else "collective"


def by_operation(table: pl.DataFrame) -> list[dict[str, Any]]:
    """One row per (group, operation). Bandwidth is size over transit time: the tool's own total leaves it out."""
    link = pl.col("link").sort_by("size_bytes", descending=True, nulls_last=True).drop_nulls().first()
    grouped = table.group_by("group", "type", "op").agg(
        link,
        pl.len().alias("count"),
        *(pl.col(f"{name}_ns").sum() for name in ("elapse", "transit", "wait")),
        pl.col("size_bytes").sum(),
    )
    rows = grouped.sort(["elapse_ns", "group", "op"], descending=[True, False, False]).iter_rows(named=True)
    return [
        {
            "group": row["group"],
            "type": row["type"],
            "op": row["op"],
            "count": row["count"],
            "elapse_us": row["elapse_ns"] / 1000,
            "transit_us": row["transit_ns"] / 1000,
            "wait_us": row["wait_ns"] / 1000,
            "size_bytes": row["size_bytes"],
            "bandwidth_gbps": ratio(row["size_bytes"] or None, row["transit_ns"]),
            "link": row["link"],
        }
        for row in rows
    ]


def collectives(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Single collectives in time order, as evidence for who arrives late. Ranks of a group share the name of an
    operation."""
    rows = table.filter(pl.col("type") == "collective").sort("start_ns").head(MAX_COLLECTIVES)
    return [
        {
            "step": row["step"],
            "group": row["group"],
            "name": row["name"],
            "op": row["op"],
            "elapse_us": _us(row["elapse_ns"]),
            "transit_us": _us(row["transit_ns"]),
            "wait_us": _us(row["wait_ns"]),
            "size_bytes": row["size_bytes"],
        }
        for row in rows.iter_rows(named=True)
    ]


def _us(value: int | None) -> float | None:
    return None if value is None else value / 1000


def groups(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Communication group id -> {name, ranks} as profiler_metadata.json tells; empty where it does not."""
    found = {}
    told = metadata.get("parallel_group_info")
    for key, value in (told if isinstance(told, dict) else {}).items():
        ranks = value.get("global_ranks") if isinstance(value, dict) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            found[str(key)] = {"name": str(value.get("group_name", "")), "ranks": ranks}
    return found
