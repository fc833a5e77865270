"""Kernels to totals: counts, shares of compute, operator types."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.breakdown import ratio

MAX_TYPES = 500


def totals(kernels: pl.DataFrame) -> dict[str, Any]:
    """The report's `kernels`. Shares are of the summed durations of compute kernels; null where types are not told."""
    compute = _compute(kernels)
    compute_us = _sum_us(compute["duration_ns"])
    talk_us = _sum_us(
        kernels.lazy().filter(pl.col("kind").ne_missing("compute")).select("duration_ns").collect().to_series()
    )
    shares = _class_sums(compute)
    cast_us, movement_us = shares if shares else (None, None)
    return {
        "count": kernels.height,
        "compute_count": compute.height,
        "communication_count": kernels.height - compute.height,
        "compute_us": compute_us,
        "communication_us": talk_us,
        "cast_us": cast_us,
        "cast_ratio": ratio(cast_us, compute_us),
        "movement_us": movement_us,
        "movement_ratio": ratio(movement_us, compute_us),
    }


def _sum_us(durations: pl.Series) -> float | None:
    """0 where there is no kernel, unknown where there are some and none says how long it took."""
    return None if len(durations) and durations.null_count() == len(durations) else int(durations.sum()) / 1000


def _compute(kernels: pl.DataFrame) -> pl.DataFrame:
    """Compute kernels, with only the columns that sums need: a filtered copy of all would double the memory."""
    columns = [column for column in ("type", "class", "duration_ns") if column in kernels.columns]
    return kernels.lazy().filter(pl.col("kind") == "compute").select(columns).collect()


def _class_sums(compute: pl.DataFrame) -> tuple[float, float] | None:
    """(Cast, Cast and other movement) in us. Unknown when more than 1 % of compute time has no type."""
    total, untyped = compute.select(
        pl.col("duration_ns").sum(), untyped=pl.col("duration_ns").filter(pl.col("type").is_null()).sum()
    ).row(0)
    if not total or untyped > 0.01 * total or compute["type"].null_count() == compute.height:
        return None
    sums = dict(compute.group_by("class").agg(pl.col("duration_ns").sum()).iter_rows())
    cast, moved = sums.get("cast", 0), sums.get("movement", 0)
    return cast / 1000, (cast + moved) / 1000


def op_types(kernels: pl.DataFrame) -> list[dict[str, Any]]:
    """Operator types by total time. `share` is of all compute time; null for communication. Kernels without a type
    are not listed, nor are types of which no duration is known."""
    compute_ns = int(_compute(kernels)["duration_ns"].sum())
    grouped = (
        kernels.lazy()
        .filter(pl.col("type").is_not_null())
        .group_by("type", "core", "kind")
        .agg(count=pl.len(), total=pl.col("duration_ns").sum(), known=pl.col("duration_ns").count())
        .filter(pl.col("known") > 0)
        .sort(["total", "type"], descending=[True, False])
        .head(MAX_TYPES)
        .collect()
    )
    return [
        {
            "type": row["type"],
            "core": row["core"],
            "count": row["count"],
            "total_us": row["total"] / 1000,
            "share": ratio(row["total"], compute_ns) if row["kind"] == "compute" else None,
        }
        for row in grouped.iter_rows(named=True)
    ]
