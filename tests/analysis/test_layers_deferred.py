"""Gradients of weights that run apart from their layer's backward pass."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from analysis.chinese import chinese
from analysis.layers import attribute
from analysis.layers.deferred import UNTOLD
from analysis.synthetic import write_rank
from tests.analysis.layer_truth import misplaced, place, read_kernels, small

ZERO_BUBBLE = small(defer_wgrad=True, pp=2, micro_batches=4)


def test_they_count_for_their_layer_and_micro_batch(tmp_path: Path) -> None:
    """A layer has four projections: per micro-batch four input gradients at once, four of weights later."""
    joined, report, truth = place(tmp_path, ZERO_BUBBLE, rank=1, steps=1)
    assert misplaced(joined).rows() == []
    products = joined.filter((pl.col("type") == "MatMulV3") & (pl.col("pass") == "backward"))
    counts = products.filter(pl.col("part") == "layer").group_by("layer", "micro_batch").len()
    assert set(counts["len"]) == {8}
    assert counts.height == 2 * 4
    wanted = truth.by("layer", "pass_", "micro_batch")[3, "backward", 2]
    part = next(p for p in report["parts"] if (p["layer"], p["pass"], p["micro_batch"]) == (1, "backward", 2))
    assert part["total_us"] == pytest.approx(wanted / 1000, abs=0.001)
    assert report["doubt"] is None


def test_a_stretch_that_does_not_read_as_layers_is_left_unattributed(tmp_path: Path) -> None:
    truth = write_rank(tmp_path, ZERO_BUBBLE, rank=1, steps=1)
    kernels = read_kernels(truth.folder).sort("start_ns")
    late = [k.start_ns for k in truth.kernels if k.type == "MatMulV3" and k.pass_ == "backward" and k.layer is not None]
    lost = next(start for start, after in zip(late, late[1:], strict=False) if _is_late(truth, start, after))
    placed, report = attribute(kernels.filter(pl.col("start_ns") != lost))
    assert report["doubt"] == UNTOLD
    assert chinese(f"layers: {UNTOLD}") is not None
    untold = placed.filter((pl.col("kind") == "compute") & pl.col("part").is_null())
    assert set(untold["type"]) == {"MatMulV3", "Add"}
    # seven products of the stretch with the missing one; all others are where they belong
    assert (untold["type"] == "MatMulV3").sum() == 7
    assert report["attributed_ratio"] < 1


def _is_late(truth, start: int, after: int) -> bool:
    """Whether the kernel at `start` is a weight's gradient with another right behind its sum."""
    between = [k for k in truth.kernels if start < k.start_ns < after]
    return [k.type for k in between] == ["Add"]


def test_frozen_weights_leave_nothing_to_find(tmp_path: Path) -> None:
    """As with adapters: backward makes gradients of inputs alone, and nobody makes those of weights later."""
    truth = write_rank(tmp_path, small(defer_wgrad=True), steps=1)
    shapes = {k.start_ns for k in truth.kernels if k.part == "layer" and k.pass_ == "backward"}
    grads = [k for k in truth.kernels if k.start_ns in shapes]
    last = max(k.start_ns for k in grads if k.type == "FlashAttentionScoreGrad")
    embedding = next(k.start_ns for k in truth.kernels if k.type == "EmbeddingDenseGradV2" and k.start_ns > last)
    late = [k.start_ns for k in grads if k.start_ns > embedding]
    kernels = read_kernels(truth.folder).filter(~pl.col("start_ns").is_in(late))
    placed, report = attribute(kernels)
    assert (report["layer_count"], report["doubt"], report["attributed_ratio"]) == (4, None, 1.0)
    wanted = {k.start_ns: k.block for k in grads if k.start_ns < embedding}
    found = dict(
        placed.filter(pl.col("start_ns").is_in(list(wanted))).select("start_ns", pl.col("block").cast(str)).rows()
    )
    assert found == wanted
