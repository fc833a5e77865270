"""What communication no compute hides, by what it is for."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, us
from analysis.spans import islands, joined, with_end
from analysis.words import combined


def facts(compute: Kernels, talk: pl.DataFrame) -> list[dict[str, Any]]:
    """Per part of the model and operation the time in which such collectives run, and that in which no kernel computes
    beside them. Overlapping collectives of one kind count once. Empty where kernels are not placed."""
    timed = with_end(talk.filter(pl.col("name").is_not_null() & pl.col("part").is_not_null()))
    if timed.is_empty():
        return []
    busy = islands(with_end(compute.rows.select("start_ns", "duration_ns")))
    starts, ends = timed["start_ns"].to_numpy(), timed["end_ns"].to_numpy()
    codes, rows = combined([timed["part"], timed["op"]])
    kinds = timed.select("part", "op")[rows].rows()
    found = []
    for code, (part, op) in enumerate(kinds):
        own = joined(starts[codes == code], ends[codes == code])
        exposed = own.total - int(busy.within(own.starts, own.ends).sum())
        found.append({"part": part, "op": op, "total_us": us(own.total), "exposed_us": us(exposed)})
    return sorted(found, key=lambda row: (-row["exposed_us"], str(row["part"]), str(row["op"])))
