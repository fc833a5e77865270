"""Work that gives the same result in every layer: rotary tables and their like, computed again each time."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, total_ns, totals, us
from analysis.facts.recovery import Marks
from analysis.optypes import normalise
from analysis.thresholds import limit

# In a transformer layer these never see activations: positions go in, tables come out.
_SOURCES = frozenset({"cos", "sin", "range", "arange", "linspace", "tril", "triu", "eye", "onehotpositions"})
_FOLLOWERS = ("elementwise", "cast", "movement")


def facts(compute: Kernels, marks: Marks) -> dict[str, Any]:
    """Constant kernels beyond the first of their type and shape in a step, with what is only done to their result."""
    types = compute.kinds["type"].unique().drop_nulls()
    sources = [op_type for op_type in types if normalise(op_type) in _SOURCES]
    model = pl.col("part").is_null() | (pl.col("part") != "optimizer")
    started = compute.where(pl.col("type").is_in(sources), pl.col("output_shapes").is_not_null(), model)
    chain = pl.concat([started, _followers(compute, started)]).sort("row")
    keys = ["step", "type", "input_shapes"]
    repeated = chain.filter(pl.len().over(keys) >= limit("constant_repeats"))
    again = repeated.filter(pl.int_range(pl.len()).over(keys) > 0)
    if again.height:
        marks.add("constant_work", again["row"])
    return {
        "count": again.height,
        "total_us": us(total_ns(again)),
        "exposed_us": marks.exposed_us(again["row"]),
        "by_type": totals(again, ["type", "output_shapes", "part", "block"], 20),
    }


def _followers(compute: Kernels, started: pl.DataFrame) -> pl.DataFrame:
    """Simple kernels whose only operand and whose output have a table's shape: scaled and cast copies of it."""
    tables = started.filter(
        pl.col("type").is_in([t for t in started["type"].unique() if normalise(t) in ("cos", "sin")])
    )
    shapes = tables["output_shapes"].unique().to_list()
    same = pl.col("input_shapes").str.strip_chars(";") == pl.col("output_shapes")
    simple = pl.col("class").is_in(_FOLLOWERS) & ~pl.col("type").is_in(started["type"].unique().to_list())
    return compute.where(pl.col("output_shapes").is_in(shapes) & same & simple)
