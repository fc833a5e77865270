"""Matrix products and operators by shape."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, totals
from analysis.shapes import matmul_dims, parse_shapes

_MAX_ROWS = 50
_MAX_PLACES = 120
_MIN_EXPERTS = 3
_MAX_TEXT = 300


def matmuls(kinds: pl.DataFrame) -> list[dict[str, Any]]:
    """Matrix products by shape and place, longest first, with m, n, k (null where shapes make none) and batch."""
    products = kinds.filter(pl.col("class").is_in(["matmul", "grouped_matmul"]) & pl.col("input_shapes").is_not_null())
    rows = totals(products, ["type", "input_shapes", "output_shapes", "part", "block", "pass"], _MAX_ROWS)
    return [{**_short(row), **_dims(row)} for row in rows]


def _dims(row: dict[str, Any]) -> dict[str, int | None]:
    ins, outs = parse_shapes(row["input_shapes"]), parse_shapes(row["output_shapes"])
    dims = matmul_dims(ins, outs) if ins and outs else None
    batch, m, n, k = dims or (None, None, None, None)
    return {"batch": batch, "m": m, "n": n, "k": k}


def expert_load(kinds: pl.DataFrame) -> dict[str, Any] | None:
    """Tokens of the busiest expert against the mean, where a grouped product lists one tensor per expert."""
    grouped = kinds.filter((pl.col("class") == "grouped_matmul") & pl.col("input_shapes").is_not_null())
    loads: list[list[int]] = []
    for row in totals(grouped, ["input_shapes"], _MAX_ROWS):
        tensors = [shape for shape in parse_shapes(str(row["input_shapes"])) if len(shape) == 2]
        tokens = [shape[0] for shape in tensors[: len(tensors) // 2]]
        if len(tokens) >= _MIN_EXPERTS and len({shape[1] for shape in tensors[: len(tokens)]}) == 1:
            loads.append(tokens)
    ratios = [max(tokens) * len(tokens) / sum(tokens) for tokens in loads if sum(tokens)]
    return {"ratio": round(max(ratios), 4), "experts": len(loads[0])} if ratios else None


def expert_tokens(compute: Kernels) -> dict[str, Any] | None:
    """Tokens that this rank's experts got in forward over the judged steps, in all and by layer.

    Of the grouped products of a layer the largest weight counts: every token passes it once.
    """
    forward = (pl.col("class") == "grouped_matmul") & (pl.col("pass") == "forward") & (pl.col("part") == "layer")
    kinds = compute.kinds.filter(forward & pl.col("input_shapes").is_not_null()).select("kind", "input_shapes")
    sized = [(kind, *_grouped_size(str(shapes))) for kind, shapes in kinds.iter_rows()]
    largest = max((weight for *_, weight in sized), default=0)
    rows_of = {kind: tokens for kind, tokens, weight in sized if weight == largest and tokens}
    if not largest or not rows_of:
        return None
    known = pl.DataFrame(
        {"kind": list(rows_of), "tokens": list(rows_of.values())}, schema={"kind": pl.UInt32, "tokens": pl.Int64}
    )
    by_layer = compute.rows.join(known, on="kind").group_by("layer").agg(pl.col("tokens").sum()).sort("layer")
    return {"total": int(by_layer["tokens"].sum()), "layers": by_layer.to_dicts()[:_MAX_PLACES]}


def _grouped_size(shapes: str) -> tuple[int, int]:
    """(tokens, size of one expert's weight) of a grouped product: one tensor of tokens and one of weights, or a list of
    each; (0, 0) where the shapes say neither."""
    tensors = parse_shapes(shapes)
    flat = [shape for shape in tensors if len(shape) == 2]
    stacked = next((shape for shape in tensors if len(shape) == 3), None)
    if stacked is not None and flat and flat[0][1] in stacked[1:]:
        return flat[0][0], stacked[1] * stacked[2]
    half = len(flat) // 2
    if half and len({shape[1] for shape in flat[:half]}) == 1 and flat[half][0] == flat[0][1]:
        return sum(shape[0] for shape in flat[:half]), flat[half][0] * flat[half][1]
    return 0, 0


def op_shapes(kinds: pl.DataFrame) -> list[dict[str, Any]]:
    """Operators by type and input shape, longest first."""
    return [_short(row) for row in totals(kinds, ["type", "input_shapes"], _MAX_ROWS)]


def places(kinds: pl.DataFrame) -> list[dict[str, Any]]:
    """Compute time by class and by the block it serves, longest first; a Cast counts where it stands."""
    placed = kinds.filter(pl.col("part").is_not_null()).with_columns(block=pl.coalesce("within", "block"))
    return totals(placed, ["class", "part", "block"], _MAX_PLACES)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """The row with shape lists of hundreds of tensors cut."""
    return {key: value[:_MAX_TEXT] if isinstance(value, str) else value for key, value in row.items()}
