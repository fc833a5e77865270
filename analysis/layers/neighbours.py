"""Kernels that nothing explained, between two kernels of one place on their stream, belong to that place."""

from __future__ import annotations

import numpy as np
import polars as pl

from analysis.layers.layout import COLUMNS, Layout
from analysis.layers.track import Ints


def fill_between(kernels: pl.DataFrame, layout: Layout, attribution: Ints, code: int) -> None:
    """Place unattributed compute kernels whose nearest placed neighbours on both sides agree; write `code` for them."""
    compute = (kernels["kind"] == "compute").to_numpy()
    if not (compute & (layout.part < 0)).any():
        return
    stream = kernels["stream_id"].fill_null(-1).to_numpy()
    step = kernels["step"].fill_null("").cast(pl.Categorical).to_physical().to_numpy()
    order = np.lexsort((kernels["start_ns"].fill_null(0).to_numpy(), step, stream))
    order = order[compute[order]]
    placed = layout.part[order] >= 0
    index = np.arange(len(order))
    left = np.maximum.accumulate(np.where(placed, index, -1))
    right = np.minimum.accumulate(np.where(placed, index, len(order))[::-1])[::-1]
    open_ = np.flatnonzero(~placed & (left >= 0) & (right < len(order)))
    a, b, rows = order[left[open_]], order[right[open_]], order[open_]
    agree = (stream[a] == stream[b]) & (step[a] == step[b])
    for name in ("part", "layer", "pass_", "micro_batch"):
        agree &= getattr(layout, name)[a] == getattr(layout, name)[b]
    for name in COLUMNS:
        getattr(layout, name)[rows[agree]] = getattr(layout, name)[a[agree]]
    attribution[rows[agree]] = code
