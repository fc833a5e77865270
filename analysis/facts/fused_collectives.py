"""Matrix products that wait for a collective, or are waited for by one, where one operator could do both in pieces."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, us
from analysis.spans import islands, with_end
from analysis.thresholds import limit

_BEHIND = {"allReduce": "MatmulAllReduce", "reduceScatter": "MatmulReduceScatter"}
_BEFORE = {"allGather": "AllGatherMatmul"}
_PRODUCTS = ["matmul", "grouped_matmul"]


def facts(compute: Kernels, talk: pl.DataFrame) -> list[dict[str, Any]]:
    """Per fused operator `count` pairs in layers, the time of their products, what of the collectives no kernel hides,
    and `saved_us`, an estimate."""
    inside = talk.filter((pl.col("part") == "layer") & pl.col("name").is_not_null() & (pl.col("duration_ns") > 0))
    kinds = compute.kinds.select("kind", product=pl.col("class").is_in(_PRODUCTS).fill_null(False))
    busy = with_end(compute.rows.select("kind", "start_ns", "duration_ns")).join(kinds, on="kind", how="left")
    if inside.is_empty() or not busy["product"].any():
        return []
    timed = _exposed(with_end(inside), busy)
    pairs = pl.concat([_pairs(timed, busy, _BEHIND, "end_ns"), _pairs(timed, busy, _BEFORE, "start_ns")])
    shorter = pl.min_horizontal("product_ns", "exposed_ns")
    sums = pairs.group_by("fused").agg(
        pl.len().alias("count"),
        pl.col("product_ns", "exposed_ns").sum(),
        saved_ns=shorter.sum() * (1 - 1 / limit("collective_pieces")),
    )
    return [
        {
            "fused": row["fused"],
            "count": row["count"],
            "products_us": us(row["product_ns"]),
            "exposed_us": us(row["exposed_ns"]),
            "saved_us": us(row["saved_ns"]),
        }
        for row in sums.sort("saved_ns", "fused", descending=[True, False]).iter_rows(named=True)
    ]


def _exposed(timed: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Collectives with the time in which no kernel computes beside them."""
    hidden = islands(busy).within(timed["start_ns"].to_numpy(), timed["end_ns"].to_numpy())
    return timed.with_columns(exposed_ns=pl.col("duration_ns") - pl.Series(hidden))


def _pairs(timed: pl.DataFrame, busy: pl.DataFrame, fused: dict[str, str], edge: str) -> pl.DataFrame:
    """Collectives of these operations whose neighbour is a product: the last kernel to end before they begin, or the
    first to begin after they end."""
    behind = edge == "end_ns"
    own = timed.filter(pl.col("op").is_in([*fused])).select(
        "op", "exposed_ns", at=pl.col("start_ns" if behind else "end_ns")
    )
    kernels = busy.select("product", at=pl.col(edge), product_ns=pl.col("duration_ns")).sort("at")
    near = own.sort("at").join_asof(kernels, on="at", strategy="backward" if behind else "forward")
    found = near.filter(pl.col("product").fill_null(False) & (pl.col("exposed_ns") > 0))
    return found.select(pl.col("op").replace_strict(fused).alias("fused"), "product_ns", "exposed_ns")
