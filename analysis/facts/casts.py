"""Cast kernels: between which dtypes, where in the model, and how much of them is not hidden under other work."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, total_ns, totals, us
from analysis.facts.recovery import Marks

_NEEDED_BLOCKS = ("norm_attention", "norm_ffn")
_NORMS = ["norm", "norm_grad"]
_NEEDED_PARTS = ("final_norm", "head_loss", "optimizer", "gradient_sync")


def facts(compute: Kernels, marks: Marks) -> dict[str, Any]:
    """`removable_us`: exposed casts that norms, loss, gradients and optimizer do not need; null without layers."""
    casts = compute.where(pl.col("class") == "cast").with_columns(
        pl.col("input_dtypes").str.split(";").list.first().alias("from"),
        pl.col("output_dtypes").str.split(";").list.first().alias("to"),
        block=pl.coalesce("within", "block"),  # the block it serves; its own is "movement" for all
    )
    exposed = marks.exposed_us(casts["row"])
    total = us(total_ns(casts))
    found: dict[str, Any] = {
        "count": casts.height,
        "total_us": total,
        "exposed_us": exposed,
        "hidden_us": round(total - exposed, 3),
        "removable_us": None,
        "by_dtype": totals(casts, ["from", "to"], 20),
        "by_block": [],
        "by_layer": [],
    }
    if not compute.attributed:
        marks.add("dtype_cast", casts["row"])
    else:
        removable = removable_casts(casts.with_columns(beside_norm=_beside_norm(compute, casts["row"])))
        marks.add("dtype_cast", removable["row"])
        found["removable_us"] = marks.exposed_us(removable["row"])
        found["by_block"] = totals(casts.filter(pl.col("part").is_not_null()), ["part", "block", "pass"], 20)
        found["by_layer"] = totals(casts.filter(pl.col("layer").is_not_null()), ["layer"], 50)
    return found


def _beside_norm(compute: Kernels, rows: pl.Series) -> pl.Series:
    """Whether the kernel just before or after a cast is a norm: that is where another dtype is wanted."""
    norms = compute.kinds.filter(pl.col("class").is_in(_NORMS))["kind"].to_list()
    kinds = compute.rows["kind"]
    last = compute.rows.height - 1
    before = kinds.gather(pl.select((rows.cast(pl.Int64) - 1).clip(0, last)).to_series())
    after = kinds.gather(pl.select((rows.cast(pl.Int64) + 1).clip(0, last)).to_series())
    return before.is_in(norms) | after.is_in(norms)


def removable_casts(casts: pl.DataFrame) -> pl.DataFrame:
    """Casts in places that do not need another dtype."""
    needed = pl.col("block").is_in(_NEEDED_BLOCKS) | pl.col("part").is_in(_NEEDED_PARTS) | pl.col("beside_norm")
    return casts.filter(pl.col("part").is_not_null() & ~needed.fill_null(False))
