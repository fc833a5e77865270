"""Synthetic dumps whose kernels' places are known, and how far an attribution is from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from analysis.dump import find_dumps
from analysis.layers import attribute
from analysis.optypes import with_class
from analysis.synthetic import GptSpec, Truth, write_rank
from analysis.tables import read_tables
from analysis.words import as_categories, as_text

SMALL = GptSpec(
    layers=4, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=512, vocab=1000, seq=256, mode="torch", free_ratio=0.05
)
PLACE = ["part", "layer", "pass", "micro_batch", "block"]


def small(**changes: Any) -> GptSpec:
    return replace(SMALL, **changes)


def read_kernels(folder: Path) -> pl.DataFrame:
    kernels = read_tables(find_dumps(folder)[0], []).kernels
    assert kernels is not None
    return as_text(with_class(kernels))


def place(folder: Path, spec: GptSpec, rank: int = 0, **options: Any) -> tuple[pl.DataFrame, dict[str, Any], Truth]:
    """Attribution of a synthetic rank, beside the truth as columns `true_*`; layers count from 0 in the stage."""
    truth = write_rank(folder / "dump", spec, rank=rank, **options)
    categories, report = attribute(as_categories(read_kernels(truth.folder)))
    placed = as_text(categories)
    rows = [
        (k.start_ns, k.type, k.part, k.layer, k.pass_, k.micro_batch, k.block, k.duration_ns) for k in truth.kernels
    ]
    names = ["start_ns", "type", *(f"true_{name}" for name in PLACE), "true_ns"]
    known = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)
    local = {layer: place for place, layer in enumerate(truth.layers)}
    known = known.with_columns(
        pl.col("true_layer").cast(pl.Int64).replace_strict(local, default=None, return_dtype=pl.Int64)
    )
    joined = placed.join(known, on=["start_ns", "type"], how="left")
    assert joined.height == placed.height == len(rows)
    return joined, report, truth


def misplaced(joined: pl.DataFrame) -> pl.DataFrame:
    """Kernels whose place differs from the truth. Outside the layers only part and block are compared."""
    in_layer = pl.col("true_part") == "layer"
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"true_{name}")) for name in ("part", "layer", "block"))
    deep = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"true_{name}")) for name in ("pass", "micro_batch"))
    shown = ["type", *PLACE, *(f"true_{name}" for name in PLACE)]
    return joined.filter(~same | (in_layer & ~deep)).select(shown)
