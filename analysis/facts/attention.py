"""How attention is computed: by fused kernels or by batched products around a softmax; at which sequence length."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from analysis.facts.prepared import Kernels, total_ns, totals, us
from analysis.facts.recovery import Marks
from analysis.shapes import (
    attention_dims,
    attention_heads,
    is_batched,
    kernel_flops,
    mode_decides,
    parse_shapes,
    unfold_nz,
)

_NEAR = 10  # kernels between the products and their softmax: scale, mask, casts, dropout
_MAX_HEADS = 6
_SOFTMAX = ("softmax", "softmax_grad")
_FUSED = ("attention", "attention_grad")


def facts(compute: Kernels, marks: Marks) -> dict[str, Any]:
    """`fused_*` counts FlashAttention and its like, `unfused_*` sequences of batched product, softmax, batched product.

    Counts are of forward passes where there are any, else of backward ones. Times are of both.
    """
    fused = compute.where(pl.col("class").is_in(_FUSED))
    found, rows = unfused_sequences(compute)
    if rows.len():
        marks.add("fused_attention", rows)
    forward = found.filter(pl.col("class") == "softmax")
    fused_forward = fused.filter(pl.col("class") == "attention")
    unfused_kernels = compute.rows[rows.to_numpy()] if rows.len() else compute.rows.clear()
    shapes = totals(found, ["type", "input_shapes", "part", "pass"], 6)
    return {
        "kinds": totals(fused, ["type", "class"], 10) + totals(found, ["type", "class"], 10),
        "fused_count": fused_forward.height or fused.height,
        "fused_us": us(total_ns(fused)),
        "unfused_count": forward.height or found.height,
        "unfused_us": us(total_ns(unfused_kernels)),
        "unfused": [{**row, "kernels": _kernels(found, row)} for row in shapes],
        "sequence_length": _sequence_length(fused, found),
        "heads": _heads(fused),
        "assumed_flops": _assumed_flops(compute),
    }


def unfused_sequences(compute: Kernels) -> tuple[pl.DataFrame, pl.Series]:
    """(softmax kernels between two batched products on one stream, row numbers of all kernels of those sequences)."""
    words = compute.kinds.select("kind", "type", "class", "input_shapes", "output_shapes", "part", "pass")
    softmax = words.filter(pl.col("class").is_in(_SOFTMAX))
    if softmax.is_empty():
        return compute.where(pl.lit(False)).with_columns(before=pl.lit(0), after=pl.lit(0)), pl.Series(
            [], dtype=pl.Int64
        )
    products = words.filter(pl.col("class") == "matmul").iter_rows(named=True)
    batched = [row["kind"] for row in products if is_batched(row["type"], parse_shapes(row["input_shapes"]))]
    place = pl.when(pl.col("kind").is_in(batched)).then(pl.col("row").cast(pl.Int64))
    flagged = compute.rows.with_columns(
        before=place.forward_fill().over("stream_id"), after=place.backward_fill().over("stream_id")
    )
    near = (pl.col("row") - pl.col("before") <= _NEAR) & (pl.col("after") - pl.col("row") <= _NEAR)
    found = flagged.filter(pl.col("kind").is_in(softmax["kind"].to_list()) & near).join(softmax, on="kind", how="left")
    ends = np.zeros(compute.rows.height + 1, dtype=np.int64)
    np.add.at(ends, found["before"].to_numpy(), 1)
    np.add.at(ends, found["after"].to_numpy() + 1, -1)
    return found, pl.Series(np.flatnonzero(np.cumsum(ends[:-1]) > 0))


def _kernels(found: pl.DataFrame, row: dict[str, Any]) -> int:
    """Kernels in the longest such sequence."""
    same = found.filter(pl.col("type").eq_missing(row["type"]) & pl.col("input_shapes").eq_missing(row["input_shapes"]))
    return int(same.select((pl.col("after") - pl.col("before") + 1).max()).item() or 0)


def _sequence_length(fused: pl.DataFrame, unfused: pl.DataFrame) -> int | None:
    """Number of queries of the attention that takes most time; of unfused ones the rows of the softmax."""
    times: dict[int, int] = {}
    for frame, length in ((fused, _queries), (unfused, _rows)):
        grouped = frame.group_by("input_shapes", "output_shapes").agg(pl.col("duration_ns").sum())
        for row in grouped.iter_rows(named=True):
            size = length(row["input_shapes"], row["output_shapes"])
            if size:
                times[size] = times.get(size, 0) + row["duration_ns"]
    return max(times, key=lambda size: times[size]) if times else None


def _heads(fused: pl.DataFrame) -> list[dict[str, Any]]:
    """Heads and their width together, of the fused kernels of a rank, most time first."""
    times: dict[tuple[int | None, int], int] = {}
    grouped = fused.group_by("input_shapes", "output_shapes").agg(pl.col("duration_ns").sum())
    for row in grouped.iter_rows(named=True):
        found = attention_heads(parse_shapes(row["input_shapes"]), parse_shapes(row["output_shapes"]))
        if found:
            times[found] = times.get(found, 0) + row["duration_ns"]
    ordered = sorted(times, key=lambda key: (-times[key], str(key)))
    return [{"count": count, "width": width} for count, width in ordered[:_MAX_HEADS]]


def _assumed_flops(compute: Kernels) -> int:
    """Operations that were counted as half because a mask of 2048 x 2048 was taken for a compressed one, though it may
    be the whole mask of 2048 tokens."""
    total = 0
    for row in compute.kinds.filter(pl.col("class").is_in(_FUSED)).iter_rows(named=True):
        if mode_decides(parse_shapes(row["input_shapes"]), parse_shapes(row["output_shapes"])):
            total += row["count"] * (kernel_flops(row["type"], row["input_shapes"], row["output_shapes"]) or 0)
    return total


def _queries(inputs: str | None, outputs: str | None) -> int | None:
    dims = attention_dims(parse_shapes(inputs), parse_shapes(outputs))
    return dims[2] if dims else None


def _rows(inputs: str | None, outputs: str | None) -> int | None:
    shapes = [shape for shape in parse_shapes(outputs) + parse_shapes(inputs) if len(shape) >= 2]
    if not shapes:
        return None
    blocks = len(shapes[0]) > 4 and shapes[0][-2:] == (16, 16)  # FRACTAL_NZ, whose rows are cut into blocks of 16
    return unfold_nz(shapes[0])[-2] if blocks else shapes[0][-2]
