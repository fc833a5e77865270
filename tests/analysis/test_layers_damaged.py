"""Whatever is missing from a dump, attribution answers, and what it says holds together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.layers import attribute
from analysis.synthetic import Moe, write_rank
from tests.analysis.layer_truth import read_kernels, small

SPECS: dict[str, dict[str, Any]] = {
    "pipeline": {"pp": 2, "micro_batches": 2, "dp": 2},
    "recompute": {"recompute": True, "mode": "graph"},
    "unfused": {"fused_attention": False, "mode": "graph"},
    "experts": {"moe": Moe(8, 2, 128), "ep": 2, "dp": 2},
}


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    folder: Path = tmp_path_factory.mktemp("damaged")
    return {name: read_kernels(write_rank(folder / name, small(**changes)).folder) for name, changes in SPECS.items()}


def damage(frame: pl.DataFrame, how: str, draw: st.DataObject) -> pl.DataFrame:
    size = max(1, frame.height)
    if how == "cut":
        begin = draw.draw(st.integers(0, size - 1))
        return frame.sort("start_ns").slice(begin, draw.draw(st.integers(1, size)))
    if how == "thin":
        return frame.sample(fraction=draw.draw(st.floats(0, 1)), seed=draw.draw(st.integers(0, 99)))
    if how == "twice":
        return pl.concat([frame, frame.head(draw.draw(st.integers(0, size)))])
    if how == "untyped":
        every = draw.draw(st.integers(1, 5))
        return frame.with_columns(type=pl.when(pl.int_range(pl.len()) % every > 0).then(pl.col("type")))
    if how == "streams":
        count = draw.draw(st.integers(1, 4))
        return frame.with_columns(stream_id=(pl.int_range(pl.len()) % count).cast(pl.Int64))
    empty = {"shapeless": "input_shapes", "stepless": "step", "timeless": "start_ns"}[how]
    return frame.with_columns(pl.lit(None, frame.schema[empty]).alias(empty))


HOW = ("cut", "thin", "twice", "untyped", "streams", "shapeless", "stepless", "timeless")


@pytest.mark.parametrize(
    ("name", "kept"), [("pipeline", [(0.4375, 2)]), ("pipeline", [(0.375, 2)]), ("experts", [(0.65625, 1), (0.75, 1)])]
)
def test_weight_gradients_of_layers_that_lack_kernels_are_placed_or_left(frames, name, kept):
    frame = frames[name]
    for share, seed in kept:
        frame = frame.sample(fraction=share, seed=seed)
    check(frame)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(SPECS)), how=st.lists(st.sampled_from(HOW), min_size=1, max_size=3), draw=st.data())
def test_places_hold_together(frames: dict[str, pl.DataFrame], name: str, how: list[str], draw: st.DataObject) -> None:
    frame = frames[name]
    for one in how:
        frame = damage(frame, one, draw)
    check(frame)


def check(frame: pl.DataFrame) -> None:
    """Every kernel keeps its row, and a place is told whole or not at all."""
    placed, report = attribute(frame)
    assert placed.select(frame.columns).equals(frame)
    assert (placed["part"] == "layer").fill_null(False).equals(placed["layer"].is_not_null())
    known = placed["part"].is_not_null()
    for column in ("block", "pass", "attribution", "within"):
        assert placed[column].is_not_null().equals(known)
    if report["method"] is None:
        assert report["reason"] and report["parts"] == []
    else:
        assert 0 <= (report["attributed_ratio"] or 0) <= 1
