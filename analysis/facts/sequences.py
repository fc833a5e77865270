"""Short sequences of simple kernels that come back often while the host cannot keep up: candidates for fusion."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, us
from analysis.thresholds import limit

_SIMPLE = (
    "elementwise",
    "cast",
    "movement",
    "activation",
    "activation_grad",
    "reduction",
    "norm",
    "norm_grad",
    "position",
)
_LENGTHS = (2, 3, 4, 5)
_HOST_BOUND = 0.4  # device time below this share of the sequence's wall time


def facts(compute: Kernels) -> list[dict[str, Any]]:
    """Host-bound sequences: types, count, device time and wall time. Longer ones first, parts of those not repeated."""
    simple = compute.kinds.filter(pl.col("class").is_in(_SIMPLE)).select("kind", "type")
    coded = simple.select("type").unique().sort("type").with_row_index("code")
    coded = coded.with_columns(pl.col("code").cast(pl.Int64) + 1)
    codes = simple.join(coded, on="type", how="left").select("kind", "code")
    frame = compute.rows.join(codes, on="kind", how="left", maintain_order="left")
    names = dict(coded.select("code", "type").iter_rows())
    found: list[dict[str, Any]] = []
    for length in reversed(_LENGTHS):
        rows = _of_length(frame, length, len(names) + 1, names)
        for row in rows:
            if not any(_inside(row["types"], longer["types"]) for longer in found):
                found.append(row)
    return sorted(found, key=lambda row: -row["wall_us"])[:10]


def _of_length(frame: pl.DataFrame, length: int, base: int, names: dict[int, str]) -> list[dict[str, Any]]:
    steps = range(length)
    same_stream = pl.col("stream_id").shift(-(length - 1)).eq_missing(pl.col("stream_id"))
    last_end = (pl.col("start_ns") + pl.col("duration_ns")).shift(-(length - 1))
    key = sum((pl.col("code").shift(-step) * base**step for step in steps), pl.lit(0, pl.Int64))
    device = sum((pl.col("duration_ns").shift(-step) for step in steps), pl.lit(0, pl.Int64))
    windows = frame.select(
        key=key,
        same=same_stream,
        device=device,
        wall=last_end - pl.col("start_ns"),
        **{f"c{s}": pl.col("code").shift(-s) for s in steps},
    ).filter(pl.col("same") & pl.col("key").is_not_null())
    grouped = windows.group_by("key").agg(
        pl.len().alias("count"), pl.col("device", "wall").sum(), *(pl.col(f"c{step}").first() for step in steps)
    )
    kept = grouped.filter(
        (pl.col("count") > limit("fusible_count")) & (pl.col("device") < _HOST_BOUND * pl.col("wall"))
    )
    return [
        {
            "types": [names[row[f"c{step}"]] for step in steps],
            "count": row["count"],
            "device_us": us(row["device"]),
            "wall_us": us(row["wall"]),
        }
        for row in kept.sort("wall", descending=True).head(10).iter_rows(named=True)
    ]


def _inside(short: list[str], long: list[str]) -> bool:
    """Whether `short` is a part of `long`, or of `long` said over and over: one loop has many beginnings."""
    twice = long + long
    return any(twice[at : at + len(short)] == short for at in range(len(long)))
