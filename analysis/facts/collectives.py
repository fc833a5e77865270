"""Communication kernels by operation, and how many of them lie inside layers."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, us
from analysis.spans import islands, with_end

_UNDER_PRODUCTS = 0.5
_MAX_GROUPS = 64


def facts(compute: Kernels, talk: pl.DataFrame) -> dict[str, Any]:
    """`in_layers` counts those attributed to a layer, null where kernels are not attributed."""
    attributed = compute.attributed or talk["part"].null_count() < talk.height
    grouped = (
        talk.group_by("op")
        .agg(
            count=pl.len(),
            total=pl.col("duration_ns").sum(),
            in_layers=(pl.col("part") == "layer").fill_null(False).sum(),
        )
        .sort("total", "op", descending=[True, False], nulls_last=True)
    )
    rows = [
        {
            "op": row["op"],
            "count": row["count"],
            "total_us": us(row["total"]),
            "in_layers": row["in_layers"] if attributed else None,
        }
        for row in grouped.iter_rows(named=True)
    ]
    return {"ops": rows, "groups": _groups(talk, attributed=attributed), "types_known": talk.height > 0}


def _groups(talk: pl.DataFrame, *, attributed: bool) -> list[dict[str, Any]]:
    """Collectives by communicator, known by the three digits that HCCL puts behind an operation's name."""
    named = talk.with_columns(group=pl.col("name").str.extract(r"__(\d+)_")).filter(pl.col("group").is_not_null())
    inside = (pl.col("part") == "layer").fill_null(False).sum()
    sums = named.group_by("group").agg(count=pl.len(), in_layers=inside).sort("group").head(_MAX_GROUPS)
    return [{**row, "in_layers": row["in_layers"] if attributed else None} for row in sums.iter_rows(named=True)]


def overlapped(compute: Kernels, talk: pl.DataFrame) -> list[dict[str, Any]]:
    """Communication kernels that run under matrix products for most of their time: name and that share."""
    products = with_end(compute.where(pl.col("class").is_in(["matmul", "grouped_matmul"])))
    timed = with_end(talk.filter(pl.col("name").is_not_null() & (pl.col("duration_ns") > 0)))
    if products.is_empty() or timed.is_empty():
        return []
    covered = islands(products).within(timed["start_ns"].to_numpy(), timed["end_ns"].to_numpy())
    shares = timed.select("name", ratio=pl.Series(covered) / pl.col("duration_ns"))
    busy = shares.filter(pl.col("ratio") >= _UNDER_PRODUCTS).sort("ratio", "name", descending=[True, False]).head(50)
    return [{"name": row["name"], "matmul_ratio": round(row["ratio"], 4)} for row in busy.iter_rows(named=True)]
