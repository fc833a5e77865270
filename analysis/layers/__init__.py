"""Places every kernel in its transformer layer: part, layer, block, pass and micro-batch, and what served to tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import polars as pl

from analysis.layers import summary
from analysis.layers.blocks import BLOCKS
from analysis.layers.chunks import UNKNOWN, Pipeline
from analysis.layers.layout import PARTS, PASSES, Layout
from analysis.layers.scope import apply_scopes
from analysis.layers.structure import by_structure
from analysis.layers.trace import apply_trace
from analysis.layers.track import Ints

ATTRIBUTIONS = ("structure", "scope", "scope_map", "neighbours", "trace")

DISPUTED = (
    "backward follows the links of the saved graph, and order and shapes say another layer for part of it: gradients "
    "of a primitive that several layers share all link to one of them, so where layers are alike trust order and shapes"
)

__all__ = ["ATTRIBUTIONS", "Pipeline", "attribute"]


def attribute(
    kernels: pl.DataFrame,
    scope_map: Mapping[str, Any] | list[Any] | None = None,
    judged_steps: Collection[str] | None = None,
    trace: pl.DataFrame | None = None,
    pipeline: Pipeline = UNKNOWN,
    unnamed_steps: int | None = None,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """`kernels` with part, layer, block, pass, micro_batch, attribution (null: unattributed); the report's `layers`.

    `scope_map` is what the agent derived from MindSpore's saved graph, `trace` what `read_trace_layers` gives,
    `pipeline` what is known of the rank's stage. Times in the report are the mean of a step over `judged_steps`, or
    over all steps; kernels that name no step cover `unnamed_steps` of them, without it as many as their order repeats.
    Layers count from 0 within the rank's stage, or as the scope names number them.
    """
    layout = by_structure(kernels, pipeline)
    attribution = np.where(layout.part >= 0, ATTRIBUTIONS.index("structure"), -1)
    traced = apply_trace(kernels, trace, layout, attribution)
    scoped = apply_scopes(kernels, scope_map, layout, attribution)
    placed = _with_columns(kernels, layout, attribution)
    if not layout.layers:
        return placed, _nothing(layout)
    method = "scope" if scoped else "trace" if traced else "structure"
    layout.steps = unnamed_steps or layout.steps
    return placed, _report(placed, layout, method, judged_steps)


def _with_columns(kernels: pl.DataFrame, layout: Layout, attribution: Ints) -> pl.DataFrame:
    return kernels.with_columns(
        _named("part", layout.part, PARTS),
        _number("layer", layout.layer),
        _named("block", layout.block, BLOCKS),
        _named("pass", layout.pass_, PASSES),
        _number("micro_batch", layout.micro_batch),
        _named("within", layout.within, BLOCKS),
        _named("attribution", attribution, ATTRIBUTIONS),
    )


def _named(name: str, codes: Ints, names: tuple[str, ...]) -> pl.Series:
    index = pl.Series(np.where(codes < 0, len(names), codes))
    return pl.Series(name, [*names, None], dtype=pl.Categorical).gather(index)


def _number(name: str, values: Ints) -> pl.Series:
    series = pl.Series(name, values, dtype=pl.Int64)
    return series.set(series < 0, None)


def _nothing(layout: Layout) -> dict[str, Any]:
    names = ("method", "layer_count", "micro_batches", "chunks", "doubt", "attributed_ratio")
    return {**dict.fromkeys(names), "reason": layout.reason, "parts": []}


def _report(placed: pl.DataFrame, layout: Layout, method: str, judged_steps: Collection[str] | None) -> dict[str, Any]:
    chosen = summary.judged(placed, judged_steps)
    named = chosen["step"].drop_nulls().n_unique() if chosen["step"].null_count() < chosen.height else 0
    steps = max(1, named or layout.steps)
    disputed = _disputed(placed, layout, judged_steps, steps)
    return {
        "method": method,
        "layer_count": layout.layers,
        "micro_batches": layout.micro_batches or None,
        "chunks": layout.chunks,
        "doubt": layout.doubt or (DISPUTED if disputed["disputed_us"] else None),
        "attributed_ratio": summary.attributed_ratio(chosen),
        "reason": None,
        **disputed,
        "parts": summary.parts(chosen, steps),
    }


def _disputed(placed: pl.DataFrame, layout: Layout, judged_steps: Collection[str] | None, steps: int) -> dict[str, Any]:
    """Time on which scope map and structure disagree, and what each of them makes of the layers' backward time."""
    if layout.disputed is None or layout.structural is None:
        return {"disputed_us": None, "disputed": []}
    columns = {"disputed": pl.Series(layout.disputed), "structural": pl.Series(layout.structural)}
    rows = summary.judged(placed.with_columns(**columns), judged_steps)
    rows = rows.filter((pl.col("part") == "layer") & (pl.col("pass") == "backward") & (pl.col("kind") == "compute"))
    total = float(rows.filter("disputed")["duration_ns"].sum() or 0) / 1000 / steps
    if not total:
        return {"disputed_us": 0.0, "disputed": []}
    sums = [dict(rows.group_by(column).agg(pl.col("duration_ns").sum()).rows()) for column in ("layer", "structural")]
    layers = sorted({layer for by_layer in sums for layer in by_layer})
    linked, structural = ([round(by.get(layer, 0) / 1000 / steps, 3) for layer in layers] for by in sums)
    return {
        "disputed_us": total,
        "disputed": [
            {"layer": layer, "scope_map_us": a, "structure_us": b}
            for layer, a, b in zip(layers, linked, structural, strict=True)
        ],
    }
