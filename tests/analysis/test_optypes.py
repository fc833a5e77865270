"""Operator types in all their spellings, and the class each belongs to."""

from __future__ import annotations

import polars as pl
import pytest

from analysis.optypes import TABLE, normalise, op_class, with_class


@pytest.mark.parametrize(
    ("text", "cls"),
    [
        ("Cast", "cast"),
        ("CastV2", "cast"),
        ("aclnnCast_CastAiCore_Cast", "cast"),
        ("Default/network-GPT/Cast-op3", "cast"),
        ("MatMulV3", "matmul"),
        ("aclnnMatmul_MatMulV3Common_MatMulV3", "matmul"),
        ("BatchMatMulV2", "matmul"),
        ("GroupedMatmul", "grouped_matmul"),
        ("FlashAttentionScore", "attention"),
        ("FlashAttentionScoreGrad", "attention_grad"),
        ("SoftmaxV2", "softmax"),
        ("RmsNorm", "norm"),
        ("LayerNormBetaGammaBackpropV2", "norm_grad"),
        ("SwiGlu", "activation"),
        ("GeLUGrad", "activation_grad"),
        ("ConcatD", "movement"),
        ("StridedSliceGrad", "movement"),
        ("TransData", "movement"),
        ("ViewCopy", "movement"),
        ("MemSet", "movement"),
        ("AddExt", "elementwise"),
        ("Pows", "elementwise"),
        ("ReduceSumD", "reduction"),
        ("DropOutDoMaskV3", "random"),
        ("EmbeddingDenseGradV2", "embedding"),
        ("MoeTokenPermute", "moe"),
        ("ApplyAdamWV2", "optimizer"),
        ("NLLLossGrad", "loss"),
        ("hcom_allReduce_", "communication"),
        ("FusionOp_MatMul_GeLU", "matmul"),
        ("MaxPoolWithArgmaxV1", "other"),
        ("SomethingNobodyKnows", "other"),
    ],
)
def test_a_type_has_the_same_class_in_every_spelling(text: str, cls: str) -> None:
    assert op_class(text) == cls


def test_no_type_is_listed_under_two_classes() -> None:
    names = [name for listed in TABLE.values() for name in listed.split()]
    assert len(names) == len(set(names))


def test_every_listed_name_is_in_its_normal_form() -> None:
    assert [name for listed in TABLE.values() for name in listed.split() if normalise(name) != name] == []


def test_unknown_type_has_no_class_and_communication_rows_are_communication() -> None:
    kernels = pl.DataFrame({"type": [None, "Add", "hcom_x"], "kind": ["compute", "compute", "communication"]})
    assert with_class(kernels)["class"].to_list() == [None, "elementwise", "communication"]
