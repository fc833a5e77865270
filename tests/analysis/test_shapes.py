"""Shapes from text, and operations counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.shapes import attention_heads, is_batched, kernel_flops, parse_shapes, with_flops
from analysis.synthetic import Mla, Moe, write_rank
from tests.analysis.layer_truth import read_kernels, small


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("128,64;64,64", [(128, 64), (64, 64)]),
        ('"""128,64;64,64"""', [(128, 64), (64, 64)]),
        ("512,16;;8", [(512, 16), (), (8,)]),
        ("[[2, 3], [4]]", [(2, 3), (4,)]),
        ("N/A", []),
        ("", []),
        (None, []),
        ("a,b", []),
        ("2097152,2147483647", [(2097152, 2147483647)]),
        ("2097152,-2147483648", []),  # 2 to the 52nd
        ("8;" + "9" * 5000, []),
    ],
)
def test_shapes_are_read_in_every_form(text: str | None, shapes: list[tuple[int, ...]]) -> None:
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("4,5;5,6", "4,6"),
        ("5,4;5,6", "4,6"),
        ("4,5;6,5", "4,6"),
        ("5,4;6,5", "4,6"),
        ("4,5;5,6;6", "4,6"),
        ("2,2,5;5,6", "2,2,6"),
        ("2,2,5;5,6", "4,6"),
    ],
)
def test_a_product_costs_the_same_whichever_side_is_transposed(inputs: str, outputs: str) -> None:
    assert kernel_flops("MatMulV2", inputs, outputs) == 2 * 4 * 6 * 5


def test_a_square_product_is_counted_once() -> None:
    assert kernel_flops("MatMul", "8,8;8,8", "8,8") == 2 * 8 * 8 * 8


def test_batches_multiply_a_product() -> None:
    assert kernel_flops("BatchMatMul", "2,3,4,5;2,3,5,6", "2,3,4,6") == 2 * 2 * 3 * 4 * 6 * 5
    assert kernel_flops("BatchMatMulV3", "3,4,5;3,6,5", "3,4,6") == 2 * 3 * 4 * 6 * 5


def test_tokens_of_a_grouped_product_meet_one_weight_each() -> None:
    assert kernel_flops("GroupedMatmul", "100,16;4,16,32;4", "100,32") == 2 * 100 * 16 * 32


def test_weight_gradient_of_a_grouped_product() -> None:
    assert kernel_flops("GroupedMatmul", "16,100;100,32;4", "4,16,32") == 2 * 100 * 16 * 32


def test_causal_attention_counts_half_the_scores() -> None:
    inputs = "4096,1,2048;4096,1,1024;4096,1,1024;;;;2048,2048;;"
    outputs = "1,16,4096,8;1,16,4096,8;;4096,1,2048"
    assert kernel_flops("FlashAttentionScore", inputs, outputs) == 2 * 16 * 4096 * 4096 * (128 + 128) // 2


@pytest.mark.parametrize(
    ("query", "key"),
    [("2,4,64,16", "2,2,64,16"), ("2,64,4,16", "2,64,2,16"), ("2,64,64", "2,64,32"), ("64,2,64", "64,2,32")],
)
def test_unmasked_attention_costs_the_same_in_every_layout(query: str, key: str) -> None:
    outputs = f"2,4,64,8;2,4,64,8;;{query}"
    assert kernel_flops("FlashAttentionScore", f"{query};{key};{key}", outputs) == 2 * 2 * 4 * 64 * 64 * (16 + 16)


def test_a_mask_in_full_is_computed_in_full() -> None:
    inputs, outputs = "1,4,64,16;1,4,64,16;1,4,64,16;;;;1,1,64,64", "1,4,64,8;1,4,64,8;;1,4,64,16"
    assert kernel_flops("FlashAttentionScore", inputs, outputs) == 2 * 4 * 64 * 64 * (16 + 16)


def test_attention_of_latent_heads_has_two_widths() -> None:
    inputs, outputs = "1,4,64,24;1,4,64,24;1,4,64,16", "1,4,64,8;1,4,64,8;;1,4,64,16"
    assert kernel_flops("FlashAttentionScore", inputs, outputs) == 2 * 4 * 64 * 64 * (24 + 16)


def test_packed_attention_is_split_evenly() -> None:
    inputs, outputs = "64,4,16;64,2,16;64,2,16;;2;2", "64,4,8;64,4,8;;64,4,16"
    assert kernel_flops("FlashAttentionScore", inputs, outputs) == 2 * (2 * 4 * 32 * 32 * (16 + 16))


def test_backward_attention_costs_two_and_a_half_times_forward() -> None:
    inputs = "4096,1,2048;4096,1,1024;4096,1,1024;4096,1,2048;2048,2048;1,16,4096,8;1,16,4096,8;;4096,1,2048"
    forward = 2 * 16 * 4096 * 4096 * (128 + 128) // 2
    assert kernel_flops("FlashAttentionScoreGrad", inputs, "4096,1,2048;4096,1,1024;4096,1,1024") == forward * 5 // 2


CONV = 2 * 32 * 13 * 13 * 384 * 192 * 3 * 3


@pytest.mark.parametrize(
    ("type", "inputs", "outputs", "formats", "output_format"),
    [
        ("Conv2D", "32,192,13,13;384,192,3,3", "32,384,13,13", "NCHW;NCHW", "NCHW"),
        ("Conv2D", "32,24,13,13,8;216,24,16,8;384", "32,48,13,13,8", "NC1HWC0;FRACTAL_Z;NCHW", "NC1HWC0"),
        ("Conv2DBackpropInput", "4;216,24,16,8;32,48,13,13,8", "32,24,13,13,8", "NCHW;FRACTAL_Z;NC1HWC0", "NC1HWC0"),
        ("Conv2DBackpropFilter", "32,24,13,13,8;4;32,48,13,13,8", "216,24,16,8", "NC1HWC0;NCHW;NC1HWC0", "FRACTAL_Z"),
    ],
)
def test_convolution_and_both_gradients_cost_one_product(
    type: str, inputs: str, outputs: str, formats: str, output_format: str
) -> None:
    assert kernel_flops(type, inputs, outputs, formats, output_format) == CONV


@pytest.mark.parametrize("inputs", [None, "N/A", "4,5", "4,5;7,6", "-1,5;5,6"])
def test_unknown_shapes_have_no_flops(inputs: str | None) -> None:
    assert kernel_flops("MatMul", inputs, "4,6") is None


def test_rows_keep_their_order_and_vector_kernels_have_none() -> None:
    kernels = pl.DataFrame(
        {
            "type": ["Add", "MatMul", None, "MatMul"],
            "input_shapes": ["4,6;4,6", "4,5;5,6", "4,5;5,6", None],
            "output_shapes": ["4,6", "4,6", "4,6", None],
            "input_formats": ["ND;ND", "ND;ND", "ND;ND", None],
            "output_formats": ["ND", "ND", "ND", None],
        }
    )
    assert with_flops(kernels)["flops"].to_list() == [None, 240, None, None]


@pytest.mark.parametrize("name", ["dense", "moe", "mla", "unfused", "full mask", "graph"])
def test_operations_of_synthetic_steps_are_those_they_were_made_of(name: str, tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "dense": {"kv_heads": 2},
        "moe": {"moe": Moe(8, 2, 128, 256)},
        "mla": {"mla": Mla(96, 64, 32, 16, 32)},
        "unfused": {"fused_attention": False},
        "full mask": {"mask": "full", "mask_rebuilt": True},
        "graph": {"mode": "graph", "tp": 2},
    }
    truth = write_rank(tmp_path / "dump", small(**cases[name]))
    assert with_flops(read_kernels(truth.folder))["flops"].sum() == truth.flops


@pytest.mark.parametrize(
    ("inputs", "outputs", "heads"),
    [
        ("2,16,64,128;2,4,64,128;2,4,64,128", "2,16,64,8;2,16,64,8;;2,16,64,128", (16, 2048)),  # BNSD
        ("2,64,16,128;2,64,4,128;2,64,4,128", "2,16,64,8;2,16,64,8;;2,64,16,128", (16, 2048)),  # BSND
        ("4096,1,2048;4096,1,1024;4096,1,1024", "1,16,4096,8;1,16,4096,8;;4096,1,2048", (16, 2048)),  # SBH
        ("4096,1,2048;4096,1,1024;4096,1,1024", "4096,1,2048", (None, 2048)),  # without statistics
        ("512,16,128;512,4,128;512,4,128;2048,2048;4;4", "512,16,8;512,16,8;;512,16,128", (16, 2048)),  # TND
        ("512,512;512,512", "512,512", None),
    ],
)
def test_heads_of_an_attention_kernel(inputs, outputs, heads):
    assert attention_heads(parse_shapes(inputs), parse_shapes(outputs)) == heads


def test_a_product_stored_in_blocks_counts_as_the_plain_one():
    """(128, 64) x (64, 32): 2 x 128 x 64 x 32; FRACTAL_NZ holds the result as [2, 8, 16, 16]."""
    flops = kernel_flops("MatMulV2", "128,64;64,32", "2,8,16,16", "ND;ND", "FRACTAL_NZ")
    assert flops == 2 * 128 * 64 * 32
    assert kernel_flops("MatMulV2", "4,8,16,16;2,4,16,16", "2,8,16,16", "NZ;NZ", "NZ") == flops


@pytest.mark.parametrize(
    ("op_type", "inputs", "batched"),
    [
        ("MatMulV3", "2,4096,128;2,128,4096", True),
        ("MatMulV3", "4096,128;128,4096", False),
        ("MatMul", "48,512,16,16;48,192,16,16", False),  # [8192, 768] and [3072, 768] in fractals
        ("BatchMatMul", "64,12,8,8,16,16;64,12,4,8,16,16", True),
        ("BatchMatMul", "2,4,16,16;2,4,16,16", True),  # four heads of 16 positions and 16 channels
        ("BatchMatMul", "", True),
        ("MatMul", "", False),
    ],
)
def test_fractals_are_no_stack_of_matrices(op_type, inputs, batched):
    assert is_batched(op_type, parse_shapes(inputs)) is batched
