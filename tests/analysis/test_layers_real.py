"""Layers of real dumps, against what was read off their kernel sequences by eye."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from stepscope_agent.scope_map import map_graphs

from analysis.layers import DISPUTED, attribute
from tests.analysis.layer_truth import read_kernels

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def llm(dumps: Path) -> tuple[pl.DataFrame, dict[str, Any]]:
    return attribute(read_kernels(dumps / "msinsight-llm-pp2dp2/rank_0_ascend_pt"))


def test_llm_stage_has_14_layers_and_2_micro_batches(llm: tuple[pl.DataFrame, dict[str, Any]]) -> None:
    placed, report = llm
    assert (report["method"], report["layer_count"], report["micro_batches"]) == ("structure", 14, 2)
    assert report["attributed_ratio"] >= 0.95
    layers = placed.filter((pl.col("part") == "layer") & (pl.col("kind") == "compute"))
    counts = layers.group_by("pass", "layer", "micro_batch").len()
    assert dict(counts.select("pass", "len").unique().rows()) == {"forward": 31, "backward": 36}
    wanted = set(product(("forward", "backward"), range(14), range(2)))
    assert set(layers.select("pass", "layer", "micro_batch").unique().rows()) == wanted


def test_llm_layer_blocks_are_those_of_the_sequence(llm: tuple[pl.DataFrame, dict[str, Any]]) -> None:
    """One projection for q, k and v, a norm on q and on k, rotary tables computed twice, SwiGLU."""
    placed, _ = llm
    first = placed.filter((pl.col("layer") == 5) & (pl.col("pass") == "forward") & (pl.col("micro_batch") == 1))
    blocks = first.sort("start_ns").select("type", "block").rows()
    angles = [("Cos", "position"), ("Mul", "position"), ("Cast", "movement"), ("Sin", "position"), ("Mul", "position")]
    turn = [*angles, ("Cast", "movement"), ("RotaryPositionEmbedding", "position"), ("TensorMove", "movement")]
    assert blocks == [
        ("RmsNorm", "norm_attention"),
        ("MatMulV3", "qkv"),
        ("Slice", "movement"),
        ("RmsNorm", "qkv"),
        ("Slice", "movement"),
        ("RmsNorm", "qkv"),
        *turn,
        *turn,
        ("Slice", "movement"),
        ("FlashAttentionScore", "attention_core"),
        ("MatMulV3", "attention_out"),
        ("Add", "residual"),
        ("RmsNorm", "norm_ffn"),
        ("MatMulV3", "ffn_up"),
        ("SwiGlu", "activation"),
        ("MatMulV3", "ffn_down"),
        ("Add", "residual"),
    ]


def test_llm_attention_time_is_all_in_layers(llm: tuple[pl.DataFrame, dict[str, Any]]) -> None:
    """op_statistic.csv: FlashAttentionScore 24 718.66 us, its gradient 63 128.66 us."""
    placed, _ = llm
    core = placed.filter(pl.col("block") == "attention_core").group_by("pass").agg(pl.col("duration_ns").sum())
    assert dict(core.rows()) == {"forward": 24_718_660, "backward": 63_128_660}


def test_llm_outside_of_layers(llm: tuple[pl.DataFrame, dict[str, Any]]) -> None:
    placed, _ = llm
    assert set(placed.filter(pl.col("type").is_in(["ApplyAdamWV2", "LpNormV2"]))["part"]) == {"optimizer"}
    assert set(placed.filter(pl.col("type") == "EmbeddingDenseGradV2")["part"]) == {"embedding"}
    assert set(placed.filter(pl.col("type") == "hcom_batchSendRecv_")["part"]) == {"pipeline_transfers"}
    assert set(placed.filter(pl.col("type") == "hcom_reduceScatter_")["part"]) == {"gradient_sync"}


def test_unfused_attention_with_dropout_on_another_stream(dumps: Path) -> None:
    placed, report = attribute(read_kernels(dumps / "mstt-advisor/compute_advice"))
    assert (report["layer_count"], report["micro_batches"]) == (2, 1)
    layers = placed.filter((pl.col("part") == "layer") & (pl.col("kind") == "compute") & (pl.col("stream_id") == 16))
    assert layers.group_by("layer", "pass").len().sort("layer").rows() == [(0, "forward", 27), (1, "forward", 27)]
    reduces = placed.filter((pl.col("block") == "communication") & (pl.col("part") == "layer"))
    assert sorted(reduces["layer"]) == [0, 0, 1, 1]


@pytest.fixture(scope="module")
def cpu(dumps: Path) -> pl.DataFrame:
    return read_kernels(dumps / "mindspore-cpu-graph-irlinked")


def backward_us(placed: pl.DataFrame) -> dict[int, float]:
    rows = placed.filter((pl.col("part") == "layer") & (pl.col("pass") == "backward"))
    return dict(rows.group_by("layer").agg(pl.col("duration_ns").sum() / 1000).rows())


def test_backward_by_the_link_of_the_saved_graph(cpu: pl.DataFrame, dumps: Path) -> None:
    """By their own scope gradients would be 5543 / 18 us, by the link 3892 / 1334 us."""
    placed, report = attribute(cpu, map_graphs(str(dumps / "mindspore-cpu-graph-irlinked")))
    assert report["method"] == "scope"
    linked = backward_us(placed.filter(pl.col("attribution") == "scope_map"))
    assert linked == {0: pytest.approx(3892, abs=2), 1: pytest.approx(1334, abs=2)}
    # the link inherits one mistake: both GeLUGrad are linked to one GeLU that carries the scope of layer 0
    gelu = cpu.filter(pl.col("name").str.ends_with("GeLUGrad-op0"))["duration_ns"].sum() / 1000
    assert report["disputed_us"] == pytest.approx(gelu / 2, abs=0.01)
    assert report["doubt"] == DISPUTED
    # both splits of a step's backward compute: the link's, and the one two layers of equal work must have
    linked, structure = ([row[f"{name}_us"] for row in report["disputed"]] for name in ("scope_map", "structure"))
    assert structure[0] == pytest.approx(structure[1], rel=0.03)
    assert linked[0] - structure[0] == pytest.approx(gelu / 2, abs=0.01)
    assert structure[1] - linked[1] == pytest.approx(gelu / 2, abs=0.01)


def test_backward_by_structure_where_no_map_is(cpu: pl.DataFrame) -> None:
    """Both layers do the same work: 33 kernels a step each, one GeLUGrad of 704 or 780 us among them."""
    placed, report = attribute(cpu)
    assert report["layer_count"] == 2
    backward = placed.filter((pl.col("part") == "layer") & (pl.col("pass") == "backward"))
    assert backward.group_by("layer").len().sort("layer").rows() == [(0, 66), (1, 66)]
    assert backward.filter(pl.col("type") == "GeLUGrad").group_by("layer").len().sort("layer").rows() == [
        (0, 2),
        (1, 2),
    ]
    assert set(backward["attribution"]) == {"structure"}
    times = backward_us(placed)
    assert times[0] == pytest.approx(times[1], rel=0.05)


def test_a_shared_primitive_is_placed_by_order_not_by_its_first_scope(cpu: pl.DataFrame) -> None:
    """The GeLU of layer 1 is called .../0-DecoderLayer/.../GeLU-op1."""
    placed, _ = attribute(cpu)
    second = placed.filter(pl.col("name").str.ends_with("/0-DecoderLayer/feed_forward-FeedForward/act-GELU/GeLU-op1"))
    assert second.select("layer", "attribution").unique().rows() == [(1, "structure")]


def test_hoisted_loss_kernels_are_not_in_the_first_layer(cpu: pl.DataFrame) -> None:
    placed, _ = attribute(cpu)
    loss = placed.filter(pl.col("name").str.contains("_loss_fn-LMLoss"))
    assert set(loss["part"]) == {"head_loss"}


@pytest.mark.parametrize(
    "folder",
    [
        "hpm-ascend910-ms1x/resnet50_32_224_224",
        "hpm-ascend910-ms1x/inceptionv3_32",
        "hpm-ascend910-ms1x/deepfm_12000",
        "msinsight-torch-ddp2/text/level1/rank0_ascend_pt",
        "msinsight-torch-ddp2/text/level0/rank0_ascend_pt",
        "torchnpu-910b-2026-blocknum",
        "generated-mindspore2.10-cpu",
    ],
)
def test_models_without_transformer_layers_say_so(dumps: Path, folder: str) -> None:
    placed, report = attribute(read_kernels(dumps / folder))
    assert report["method"] is None
    assert report["reason"].startswith("no layers found")
    assert placed["part"].null_count() == placed.height


@pytest.mark.parametrize(("folder", "layers"), [("bert_64_32", 12), ("vit128", 12)])
def test_old_releases_name_their_layers(dumps: Path, folder: str, layers: int) -> None:
    placed, report = attribute(read_kernels(dumps / "hpm-ascend910-ms1x" / folder))
    assert (report["method"], report["layer_count"]) == ("scope", layers)
    # their products are written in fractals of 16 x 16, which makes no expert of a dense layer
    assert not any(str(block).startswith("moe") for block in placed["block"].unique())


@pytest.mark.parametrize("folder", ["mindspore-cpu-pynative-loop", "mindspore-cpu-graph-loop-jit"])
def test_names_without_scopes_leave_it_to_structure(dumps: Path, folder: str) -> None:
    _, report = attribute(read_kernels(dumps / folder))
    assert (report["method"], report["layer_count"]) == ("structure", 2)
