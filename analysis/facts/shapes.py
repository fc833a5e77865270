"""Matrix products and operators by shape."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import totals
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
