"""Layers from a trace_view.json that holds the modules of the model: kernel -> launch on the host -> module around it.

torch_npu writes a range `nn.Module: Class_N` per call of a module (with_stack or with_modules), a flow `async_npu` from
the host operation to the kernel, and a flow `fwdbwd` from a forward operation to its backward one. A kernel launched
within a layer's range belongs to that layer; one launched within a backward operation belongs to the layer of the
forward operation. A layer's range on the thread of backward operations is its recomputation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from analysis.layers.layout import BLOCK_CODE, PART_CODE, PASSES, Layout
from analysis.layers.track import Ints
from analysis.readers.trace_events import read_events

TRACE = 4
LAYER_CLASS = r"(?i)(layer|block)$"


def read_trace_layers(path: Path, name: str, layer_class: str = LAYER_CLASS) -> pl.DataFrame:
    """start_ns of every kernel launched in a layer, with `layer` and `pass`. Empty where the trace holds no modules.

    The layer class is, of the modules whose class name matches `layer_class` and that hold attention, the one with most
    instances; instances are numbered from 0 in the order of their own numbers. Raises BadDump for a broken file.
    """
    return trace_layers(read_events(path, name, []), layer_class)


def trace_layers(events: pl.DataFrame, layer_class: str = LAYER_CLASS) -> pl.DataFrame:
    """What `read_trace_layers` gives, of events that were read already."""
    layers = _layer_ranges(events, layer_class)
    if layers.is_empty():
        return pl.DataFrame(schema={"start_ns": pl.Int64, "layer": pl.Int64, "pass": pl.String})
    launches = _joined_flow(events, "async_npu")
    backward = _backward_operations(events, layers)
    forward = _within(launches, layers, "from_ns")
    again = pl.col("tid").is_in(backward["tid"].unique().to_list())
    forward = forward.with_columns(pl.when(again).then(pl.lit("recompute")).otherwise(pl.lit("forward")).alias("pass"))
    reverse = _within(launches.join(forward.select("start_ns"), on="start_ns", how="anti"), backward, "from_ns")
    found = [forward, reverse.with_columns(pl.lit("backward").alias("pass"))]
    return pl.concat([rows.select("start_ns", "layer", "pass") for rows in found]).unique("start_ns").sort("start_ns")


def apply_trace(kernels: pl.DataFrame, trace: pl.DataFrame | None, layout: Layout, attribution: Ints) -> bool:
    """Write the layers a trace tells over what structure found; whether it told any."""
    if trace is None or trace.is_empty():
        return False
    found = (
        kernels.lazy().select("start_ns").join(trace.lazy(), on="start_ns", how="left", maintain_order="left").collect()
    )
    layer = found["layer"].fill_null(-1).to_numpy()
    codes = {name: code for code, name in enumerate(PASSES)}
    pass_ = found["pass"].replace_strict(codes, default=-1, return_dtype=pl.Int64).to_numpy()
    rows = (layer >= 0) & (kernels["kind"] == "compute").to_numpy()
    new = rows & (layout.part != PART_CODE["layer"])
    layout.block[new] = layout.within[new] = BLOCK_CODE["other"]
    layout.part[rows] = PART_CODE["layer"]
    layout.layer[rows], layout.pass_[rows] = layer[rows], pass_[rows]
    layout.micro_batch[rows] = np.maximum(layout.micro_batch[rows], 0)
    attribution[rows] = TRACE
    layout.layers = max(layout.layers, int(layer.max(initial=-1)) + 1)
    return bool(rows.any())


def _layer_ranges(events: pl.DataFrame, layer_class: str) -> pl.DataFrame:
    """tid, start_ns, end_ns and layer of each call of a layer."""
    modules = events.filter((pl.col("cat") == "python_function") & (pl.col("class") != "")).with_columns(
        end_ns=pl.col("start_ns") + pl.col("duration_ns")
    )
    candidates = modules.filter(pl.col("class").str.contains(layer_class))
    attention = modules.filter(pl.col("class").str.contains("(?i)attention|attn")).with_columns(from_ns="start_ns")
    if layer_class == LAYER_CLASS:
        holding = [name for name in candidates["class"].unique() if _holds(candidates, name, attention)]
        candidates = candidates.filter(pl.col("class").is_in(holding))
    if candidates.is_empty():
        return candidates
    counts = candidates.group_by("class").agg(pl.col("number").n_unique(), pl.col("duration_ns").max())
    chosen = counts.sort(["number", "duration_ns"], descending=True)["class"][0]
    return (
        candidates.filter(pl.col("class") == chosen)
        .with_columns(layer=pl.col("number").rank("dense").cast(pl.Int64) - 1)
        .select("tid", "start_ns", "end_ns", "layer")
        .sort("start_ns")
    )


def _holds(candidates: pl.DataFrame, name: str, attention: pl.DataFrame) -> bool:
    ranges = candidates.filter(pl.col("class") == name).with_columns(layer=pl.lit(0, pl.Int64)).sort("start_ns")
    return not _within(attention, ranges.select("tid", "start_ns", "end_ns", "layer"), "from_ns").is_empty()


def _joined_flow(events: pl.DataFrame, category: str) -> pl.DataFrame:
    """One row per flow: from_ns and tid where it starts, start_ns and to_tid where it ends."""
    flows = events.filter(pl.col("cat") == category)
    begins = flows.filter(pl.col("ph") == "s").select("id", "tid", from_ns="start_ns")
    ends = flows.filter(pl.col("ph") == "f").select("id", "start_ns", to_tid="tid")
    return begins.join(ends, on="id").unique(["id", "start_ns"])


def _backward_operations(events: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """tid, start_ns, end_ns and layer of each backward operation whose forward one was called within a layer."""
    linked = _within(_joined_flow(events, "fwdbwd"), layers, "from_ns").select("start_ns", "layer", tid="to_tid")
    operations = events.filter((pl.col("cat") == "cpu_op") & (pl.col("ph") == "X"))
    longest = operations.group_by("tid", "start_ns").agg(pl.col("duration_ns").max())
    return (
        linked.join(longest, on=["tid", "start_ns"])
        .with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
        .select("tid", "start_ns", "end_ns", "layer")
        .sort("start_ns")
    )


def _within(points: pl.DataFrame, ranges: pl.DataFrame, at: str) -> pl.DataFrame:
    """`points` that lie in a range of their thread, with its layer. Ranges of one thread do not overlap."""
    right = ranges.select("tid", "layer", "end_ns", range_ns="start_ns").sort("range_ns")
    joined = points.sort(at).join_asof(
        right, left_on=at, right_on="range_ns", by="tid", strategy="backward", check_sortedness=False
    )
    return joined.filter(pl.col("end_ns").is_not_null() & (pl.col(at) < pl.col("end_ns"))).drop("end_ns", "range_ns")
