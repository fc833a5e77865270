"""What communication no compute hides, by what it is for."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.collectives import operation
from analysis.facts.prepared import Kernels, us
from analysis.facts.recovery import covered_until
from analysis.spans import merged, with_end


def facts(compute: Kernels, talk: pl.DataFrame) -> list[dict[str, Any]]:
    """Per part of the model and operation the time in which such collectives run, and that in which no kernel computes
    beside them. Overlapping collectives of one kind count once. Empty where kernels are not placed."""
    timed = with_end(talk.filter(pl.col("name").is_not_null() & pl.col("part").is_not_null()))
    if timed.is_empty():
        return []
    names = timed.select("name").unique()
    ops = names.with_columns(op=pl.Series([operation(name) for name in names["name"]], dtype=pl.String))
    spans = timed.join(ops, on="name", how="left")
    busy = with_end(compute.rows.select("start_ns", "duration_ns"))
    islands = merged(busy) if busy.height else None
    found = []
    for (part, op), rows in spans.group_by("part", "op"):
        own = merged(rows)
        total = int((own["end_ns"] - own["start_ns"]).sum())
        hidden = 0
        if islands is not None:
            ends, starts = own["end_ns"].to_numpy(), own["start_ns"].to_numpy()
            hidden = int((covered_until(islands, ends) - covered_until(islands, starts)).sum())
        found.append({"part": part, "op": op, "total_us": us(total), "exposed_us": us(total - hidden)})
    return sorted(found, key=lambda row: (-row["exposed_us"], str(row["part"]), str(row["op"])))
