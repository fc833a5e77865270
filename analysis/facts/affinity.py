"""Sequences of small kernels for which the device has one fused operator."""

from __future__ import annotations

from collections.abc import Iterator
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
    named = compute.kinds.with_columns(
        name=pl.Series([normalise(str(kind)) for kind in compute.kinds["type"]], dtype=pl.String)
    )
    # a concatenation moves data, but is part of the rotation written out
    kept = named.filter(~passing | pl.col("name").is_in(["concat", "concatd"])).select("kind", "name")
    chosen = np.zeros(compute.kinds.height, dtype=np.bool_)
    chosen[kept["kind"].to_numpy()] = True
    rows = compute.rows.filter(chosen[compute.rows["kind"].to_numpy()])
    names = np.full(compute.kinds.height, "", dtype=object)
    names[kept["kind"].to_numpy()] = kept["name"].str.replace("^concatd$", "concat").to_numpy()
    return sorted(_found(rows, names), key=lambda row: -row["total_us"])


def _found(rows: pl.DataFrame, names: Any) -> Iterator[dict[str, Any]]:
    """Hits of each pattern; `names` by kind: types are compared once per kind, not per kernel."""
    kind, stream = rows["kind"].to_numpy(), rows["stream_id"].fill_null(-1).to_numpy()
    sums = np.concatenate(([0], np.cumsum(rows["duration_ns"].to_numpy())))
    for fused, pattern in PATTERNS.items():
        length, last = len(pattern), len(kind) - len(pattern) + 1
        if last < 1:
            continue
        hits = stream[:last] == stream[length - 1 :]
        for place, wanted in enumerate(pattern):
            hits &= np.isin(names, wanted)[kind[place : place + last]]
        at = np.flatnonzero(hits)
        if len(at):
            total = int((sums[at + length] - sums[at]).sum())
            yield {"fused": fused, "count": len(at), "total_us": us(total)}
