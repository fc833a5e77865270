"""Steps put together by hand from the synthetic layers: mixed layers, recompute of some layers or of the core alone."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from analysis.layers import attribute
from analysis.schema import KERNEL_COLUMNS, polars_schema
from analysis.synthetic import GptSpec, Moe
from analysis.synthetic.model import pieces
from analysis.synthetic.ops import Op, collective
from tests.analysis.layer_truth import small

Place = tuple[str, int | None, str]


class Line(NamedTuple):
    op: Op
    place: Place


def part(ops: tuple[Op, ...], name: str, layer: int | None, pass_: str) -> list[Line]:
    return [Line(op, (name, layer, pass_)) for op in ops]


def layer(spec: GptSpec, index: int, pass_: str) -> list[Line]:
    built = pieces(spec)
    return part(built.backward if pass_ == "backward" else built.forward, "layer", index, pass_)


def opening(spec: GptSpec) -> list[Line]:
    return part(pieces(spec).embedding, "embedding", None, "forward")


def head(spec: GptSpec) -> list[Line]:
    built = pieces(spec)
    forward = [Line(op, (name, None, "forward")) for name, op in built.head]
    return forward + [Line(op, (name, None, "backward")) for name, op in built.head_grad]


def closing(spec: GptSpec) -> list[Line]:
    return part(pieces(spec).embedding_grad, "embedding", None, "backward")


def transfer(spec: GptSpec) -> list[Line]:
    return [
        Line(
            collective("hcom_batchSendRecv_", "pp", (8,), "FLOAT", "communication"),
            ("pipeline_transfers", None, "none"),
        )
    ]


def frame(lines: list[Line]) -> pl.DataFrame:
    rows = [
        {
            "step": "1",
            "name": line.op.type,
            "type": line.op.type,
            "kind": "communication" if line.op.comm else "compute",
            "start_ns": 1000 * i,
            "duration_ns": 900,
            "stream_id": None if line.op.comm else 2,
            "input_shapes": text([shape for shape, _ in line.op.inputs]),
            "output_shapes": text([shape for shape, _ in line.op.outputs]),
        }
        for i, line in enumerate(lines)
    ]
    return pl.DataFrame(rows, schema=polars_schema(KERNEL_COLUMNS))


def text(shapes: list[tuple[int, ...] | None]) -> str:
    return ";".join(",".join(map(str, shape or ())) for shape in shapes)


def check(lines: list[Line], layers: int, micro_batches: int = 1) -> pl.DataFrame:
    placed, report = attribute(frame(lines))
    found = placed.select("part", "layer", "pass").rows()
    wrong = [(i, lines[i].op.type, found[i], lines[i].place) for i in range(len(lines)) if found[i] != lines[i].place]
    assert wrong == []
    assert (report["layer_count"], report["micro_batches"]) == (layers, micro_batches)
    return placed


DENSE, EXPERTS = small(), small(moe=Moe(8, 2, 128))


def test_first_layer_dense_the_others_of_experts() -> None:
    kinds = [DENSE, EXPERTS, EXPERTS, EXPERTS]
    forward = [line for i, spec in enumerate(kinds) for line in layer(spec, i, "forward")]
    backward = [line for i in (3, 2, 1, 0) for line in layer(kinds[i], i, "backward")]
    check(opening(DENSE) + forward + head(DENSE) + backward + closing(DENSE), 4)


def test_dense_and_expert_layers_in_turn() -> None:
    kinds = [DENSE, EXPERTS] * 3
    forward = [line for i, spec in enumerate(kinds) for line in layer(spec, i, "forward")]
    backward = [line for i in reversed(range(6)) for line in layer(kinds[i], i, "backward")]
    check(opening(DENSE) + forward + head(DENSE) + backward + closing(DENSE), 6)


def test_only_the_first_layers_are_recomputed() -> None:
    forward = [line for i in range(4) for line in layer(DENSE, i, "forward")]
    backward = layer(DENSE, 3, "backward") + layer(DENSE, 2, "backward")
    for i in (1, 0):
        backward += layer(DENSE, i, "recompute") + layer(DENSE, i, "backward")
    check(opening(DENSE) + forward + head(DENSE) + backward + closing(DENSE), 4)


def test_layers_are_recomputed_in_pairs() -> None:
    forward = [line for i in range(4) for line in layer(DENSE, i, "forward")]
    backward: list[Line] = []
    for i in (2, 0):
        backward += layer(DENSE, i, "recompute") + layer(DENSE, i + 1, "recompute")
        backward += layer(DENSE, i + 1, "backward") + layer(DENSE, i, "backward")
    check(opening(DENSE) + forward + head(DENSE) + backward + closing(DENSE), 4)


def core_again(lines: list[Line], index: int) -> list[Line]:
    """A layer's backward with its attention core run again first."""
    core = next(op for op in pieces(DENSE).forward if op.type == "FlashAttentionScore")
    at = next(i for i, line in enumerate(lines) if line.op.type == "FlashAttentionScoreGrad")
    return [*lines[:at], Line(core, ("layer", index, "recompute")), *lines[at:]]


def test_only_the_attention_core_is_recomputed() -> None:
    forward = [line for i in range(4) for line in layer(DENSE, i, "forward")]
    backward = [line for i in (3, 2, 1, 0) for line in core_again(layer(DENSE, i, "backward"), i)]
    check(opening(DENSE) + forward + head(DENSE) + backward + closing(DENSE), 4)


def test_middle_stage_knows_its_passes_by_transfers_alone() -> None:
    """No embedding, no loss: forward, forward, backward, forward, backward, backward with transfers around each."""
    lines: list[Line] = transfer(DENSE)
    for pass_ in ("forward", "forward", "backward", "forward", "backward", "backward"):
        order = (0, 1, 2) if pass_ == "forward" else (2, 1, 0)
        lines += [line for i in order for line in layer(DENSE, i, pass_)] + transfer(DENSE)
    check(lines, 3, micro_batches=3)


def test_forward_passes_alone_are_layers_too() -> None:
    lines = [
        line for _ in range(3) for line in opening(DENSE) + [x for i in range(4) for x in layer(DENSE, i, "forward")]
    ]
    check(lines, 4, micro_batches=3)


def test_a_vision_stack_before_the_language_model_has_layers_of_its_own() -> None:
    """Three layers of one width, then, behind the embedding, four of another; layers are numbered through."""
    vision = small(hidden=128, heads=2, kv_heads=2, ffn=384, norm="layer", activation="gelu")
    lines = [line for i in range(3) for line in layer(vision, i, "forward")] + opening(DENSE)
    lines += [line for i in range(3, 7) for line in layer(DENSE, i, "forward")] + head(DENSE)
    lines += [line for i in (6, 5, 4, 3) for line in layer(DENSE, i, "backward")] + closing(DENSE)
    lines += [line for i in (2, 1, 0) for line in layer(vision, i, "backward")]
    check(lines, 7)
