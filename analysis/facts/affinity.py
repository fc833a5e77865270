"""Sequences of small kernels for which the device has one fused operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from analysis.facts.prepared import Kernels, us
from analysis.optypes import normalise

_SQUARE, _ADD = ("square", "pow", "pows", "powtensorscalar"), ("add", "adds")
PATTERNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "RmsNorm": (_SQUARE, ("reducemean", "mean"), _ADD, ("rsqrt",), ("mul",), ("mul",)),
    "SwiGlu": (("swish", "silu"), ("mul",)),
    "RotaryPositionEmbedding": (("neg",), ("concat",), ("mul",), ("mul",), ("add",)),
    "Gelu": (_SQUARE, ("mul", "muls"), ("add",), ("mul", "muls"), ("tanh",), _ADD, ("mul", "muls"), ("mul", "muls")),
}
"""Fused operator -> normalised types of what it replaces, in order; casts and copies between do not count."""


def facts(compute: Kernels) -> list[dict[str, Any]]:
    """Per fused operator that would serve: `count` sequences on one stream, and their `total_us`."""
    passing = pl.col("class").is_in(["cast", "movement"])
    # a concatenation moves data, but is part of the rotation written out
    named = compute.kinds.with_columns(
        name=pl.Series([normalise(str(kind)) for kind in compute.kinds["type"]], dtype=pl.String)
    )
    kept = named.filter(~passing | pl.col("name").is_in(["concat", "concatd"])).select("kind", "name")
    rows = compute.rows.join(kept, on="kind", how="inner", maintain_order="left")
    names = rows["name"].str.replace("^concatd$", "concat").to_numpy()
    stream, time = rows["stream_id"].fill_null(-1).to_numpy(), rows["duration_ns"].to_numpy()
    sums = np.concatenate(([0], np.cumsum(time)))
    found = []
    for fused, pattern in PATTERNS.items():
        length = len(pattern)
        if len(names) < length:
            continue
        last = len(names) - length + 1
        hits = stream[:last] == stream[length - 1 :]
        for place, wanted in enumerate(pattern):
            hits = hits & np.isin(names[place : place + last], wanted)
        at = np.flatnonzero(hits)
        if len(at):
            total = int((sums[at + length] - sums[at]).sum())
            found.append({"fused": fused, "count": len(at), "total_us": us(total)})
    return sorted(found, key=lambda row: -row["total_us"])
