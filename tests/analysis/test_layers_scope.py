"""MindSpore's scope names, the scope map laid over them, and neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.layers import attribute
from analysis.layers.scope_names import read_scope, scope_path
from analysis.synthetic import Moe
from tests.analysis.layer_truth import misplaced, place, read_kernels, small

NETWORK = "Default/network-WithLossCell/_backbone-GPT"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (f"{NETWORK}/layers-CellList/1-DecoderLayer/wq-Dense/MatMul-op0",) * 2,
        (
            f"Kernel::KernelLaunch::{NETWORK}/norm-RMSNorm/RmsNorm-op3/aclnnRmsNorm_RmsNorm",
            f"{NETWORK}/norm-RMSNorm/RmsNorm-op3",
        ),
        ("Kernel::KernelLaunch::Default/a-A/Add-op1/Default/a-A/Add-op1", "Default/a-A/Add-op1"),
        (
            "Gradients/recompute_Default/a-A/Grad_MatMul/MatMul-op1",
            "Gradients/recompute_Default/a-A/Grad_MatMul/MatMul-op1",
        ),
        ("PynativeFramework::PyNativeLaunchTask::MatMul/aclnnMatmul", None),
        ("aclnnMatmul_MatMulV3Common_MatMulV3", None),
    ],
)
def test_scope_is_cut_out_of_a_kernel_name(name: str, path: str | None) -> None:
    assert scope_path(name) == path


@pytest.mark.parametrize(
    ("path", "layer", "part", "block"),
    [
        (f"{NETWORK}/layers-CellList/11-DecoderLayer/attention-Attention/wq-Dense/MatMul-op0", 11, "layer", "qkv"),
        (f"{NETWORK}/layers-CellList/1-L/attention-A/softmax-Softmax/Softmax-op0", 1, "layer", "attention_core"),
        (f"{NETWORK}/layers-CellList/1-L/feed_forward-FF/w2-Dense/MatMul-op0", 1, "layer", "ffn_down"),
        (f"{NETWORK}/layers-CellList/1-L/attention_norm-LayerNorm/LayerNorm-op0", 1, "layer", "norm_attention"),
        ("Default/network/bert/bert_encoder/layers/7/output/dense/MatMul-op5", 7, "layer", None),
        ("Default/network-WithLossCell/_loss_fn-LMLoss/Log-op0", None, "head_loss", None),
        (f"{NETWORK}/tok_embeddings-Embedding/Gather-op0", None, "embedding", None),
        (f"{NETWORK}/lm_head-Dense/MatMul-op0", None, "head_loss", None),
        (f"{NETWORK}/norm_out-LayerNorm/LayerNorm-op0", None, "final_norm", None),
        ("Default/optimizer-AdamWeightDecay/AdamWeightDecay-op17", None, "optimizer", None),
        (f"{NETWORK}/Add-op3", None, None, None),
    ],
)
def test_scope_names_layer_part_and_block(path: str, layer: int | None, part: str | None, block: str | None) -> None:
    scope = read_scope(path)
    assert scope is not None
    assert (scope.layer, scope.part, scope.block) == (layer, part, block)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "gelu", "norm": "layer"},
        {"moe": Moe(8, 2, 128)},
        {"fused_attention": False},
        {"recompute": True},
    ],
    ids=str,
)
def test_graph_mode_backward_is_right_though_its_scopes_are_wrong(changes: dict[str, Any], tmp_path: Path) -> None:
    joined, report, _ = place(tmp_path, small(mode="graph", **changes))
    assert report["method"] == "scope"
    assert misplaced(joined).rows() == []
    layers = joined.filter(pl.col("part") == "layer")
    assert set(layers.filter(pl.col("pass") == "backward")["attribution"]) == {"structure"}
    assert "scope" in set(layers.filter(pl.col("pass") == "forward")["attribution"])


def test_a_later_stage_has_the_layer_numbers_of_its_names(tmp_path: Path) -> None:
    spec = small(mode="graph", pp=2, micro_batches=2)
    joined, report, truth = place(tmp_path, spec, rank=1)
    assert truth.first_layer == 2
    assert report["layer_count"] == 2
    assert misplaced(joined.with_columns(true_layer=pl.col("true_layer") + 2)).rows() == []


def link_map(kernels: pl.DataFrame, layer: int) -> dict[str, Any]:
    """A map that links every gradient of a product to one layer."""
    names = kernels.filter(pl.col("name").str.contains("Grad_MatMul"))["name"].unique()
    model = "Default/network-MFTrainOneStepCell/network-LlamaForCausalLM/model-LlamaModel"
    module = f"{model}/layers-CellList/{layer}-LLamaDecodeLayer/attention-LLamaAttention/wq-Linear/MatMul-op0"
    entry = {"layer": layer, "pass": "backward", "module": module}
    return {"schema": 1, "kernels": {scope_path(name): entry for name in names}}


def test_a_scope_map_decides_where_it_knows_a_kernel(tmp_path: Path) -> None:
    _, _, truth = place(tmp_path, small(mode="graph"))
    kernels = read_kernels(truth.folder)
    placed, _ = attribute(kernels, link_map(kernels, 3))
    products = placed.filter(pl.col("name").str.contains("Grad_MatMul"))
    assert set(products.select("layer", "pass", "attribution").unique().rows()) == {(3, "backward", "scope_map")}


@pytest.mark.parametrize("scope_map", [{}, [], {"kernels": 3}, {"kernels": {"x": None}}, [{"name": 1}], {"schema": 9}])
def test_an_unusable_scope_map_changes_nothing(scope_map: Any, tmp_path: Path) -> None:
    joined, report, truth = place(tmp_path, small(mode="graph"))
    _, again = attribute(read_kernels(truth.folder), scope_map)
    assert again == report


def test_scopes_alone_place_forward_and_leave_backward_open(tmp_path: Path) -> None:
    """Without attention kernels there is no structure: gradients, whose scopes mislead, stay unattributed."""
    _, _, truth = place(tmp_path, small(mode="graph"))
    kernels = read_kernels(truth.folder).filter(~pl.col("type").str.contains("Attention"))
    placed, report = attribute(kernels)
    assert (report["method"], report["layer_count"]) == ("scope", 4)
    products = placed.filter(pl.col("type") == "MatMulV3")
    forward = products.filter(pl.col("name").str.contains("::Default/") & pl.col("name").str.contains("CellList"))
    assert forward["layer"].to_list() == [int(name.split("CellList/")[1][0]) for name in forward["name"]]
    gradients = products.filter(pl.col("name").str.contains("Grad_MatMul"))
    assert gradients["part"].null_count() == gradients.height
    assert 0 < report["attributed_ratio"] < 1


def test_an_operator_between_two_kernels_of_a_layer_is_of_that_layer(tmp_path: Path) -> None:
    """The residual Add carries the network's scope only."""
    _, _, truth = place(tmp_path, small(mode="graph"))
    kernels = read_kernels(truth.folder).filter(~pl.col("type").str.contains("Attention"))
    placed, _ = attribute(kernels)
    adds = placed.filter((pl.col("attribution") == "neighbours") & (pl.col("type") == "Add"))
    assert adds["layer"].unique().sort().to_list() == [0, 1, 2, 3]


def test_numbers_that_are_no_layers_are_no_layers():
    name = "Default/network-Net/layers-CellList/{}-Layer/attention-Attention/MatMul-op1"
    assert read_scope(name.format(31)).layer == 31
    assert read_scope(name.format("9" * 25)).layer is None
