"""The kernels of one training step of one pipeline stage, in launch order, each with its place in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, pi, prod
from typing import NamedTuple

import numpy as np

from analysis.synthetic import attention, ffn
from analysis.synthetic.ops import (
    BYTES,
    Op,
    Tensor,
    cast,
    collective,
    linear,
    linear_dgrad,
    linear_wgrad,
    vector,
)
from analysis.synthetic.schedule import Unit, stage_order
from analysis.synthetic.sizes import Sizes, norm, norm_grad
from analysis.synthetic.spec import GptSpec


class Slot(NamedTuple):
    """One kernel launch: what, and where it belongs."""

    op: Op
    part: str
    layer: int | None
    pass_: str
    micro_batch: int | None
    join: bool = False  # overlapped communication must have ended before this one starts


@dataclass(frozen=True)
class Pieces:
    """Kernels of the parts, built once and used for every layer and micro-batch."""

    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    embedding: tuple[Op, ...]
    embedding_grad: tuple[Op, ...]
    head: tuple[tuple[str, Op], ...]
    head_grad: tuple[tuple[str, Op], ...]
    encoder: tuple[Op, ...] = ()
    encoder_grad: tuple[Op, ...] = ()


@cache
def pieces(spec: GptSpec, load: float = 1.0) -> Pieces:
    """Kernels of a layer whose experts have `load` times the mean number of tokens, and of what is around layers."""
    z = Sizes(spec, load)
    alone = tuple(attention.forward(z) + ffn.forward(z)), tuple(ffn.backward(z) + attention.backward(z))
    if spec.encoder_layers:
        forward = attention.forward(z) + attention.cross_forward(z) + ffn.forward(z)
        backward = ffn.backward(z) + attention.cross_backward(z) + attention.backward(z)
    layer = (tuple(forward), tuple(backward)) if spec.encoder_layers else alone
    return Pieces(
        *layer,
        tuple(_embedding(z)),
        tuple(_embedding_grad(z)),
        tuple(_head(z)),
        tuple(_head_grad(z)),
        *(alone if spec.encoder_layers else ()),
    )


def step_slots(spec: GptSpec, stage: int = 0, rank: int = 0) -> list[Slot]:
    """All kernels of one step on a rank of that stage; ranks differ only where the load of experts is uneven."""
    slots: list[Slot] = []
    parts = {"forward": _forward_slots, "backward": _backward_slots}
    for unit in stage_order(spec, stage):
        if unit.pass_ == "weights":
            slots += _weight_slots(spec, stage, rank, unit.micro_batch)
        else:
            slots += parts[unit.pass_](spec, stage, rank, unit)
    return slots + list(_after_backward(spec, stage))


def expert_load(spec: GptSpec, layer: int, rank: int) -> float:
    """Tokens of the experts on `rank` in a layer against the mean over its expert parallel group; the mean is 1."""
    if spec.moe is None or not spec.moe.uneven or spec.ep == 1:
        return 1.0
    place = spec.group("ep", rank).index(rank)
    if spec.moe.drawn:
        ranks, layers = (np.random.default_rng(seed).uniform(-1, 1, spec.ep) for seed in ([12], [12, layer]))
        swing = (2 * (ranks - ranks.mean()) + layers - layers.mean()) / 3
        return float(1 + spec.moe.uneven * swing[place])
    return 1 + spec.moe.uneven * cos(2 * pi * (place + 0.5 * layer) / spec.ep)


def layer_parameters(spec: GptSpec) -> list[tuple[int, ...]]:
    """Shapes of the trainable tensors of one layer on one rank."""
    return _parameters(pieces(spec).forward)


def _parameters(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    for op in ops:
        if op.type in {"MatMulV3", "GroupedMatmul"} or op.type in {"RmsNorm", "LayerNormV3"}:
            weight = op.inputs[1][0]
            assert weight is not None
            shapes.append(weight)
            if op.type == "LayerNormV3":
                shapes.append(weight)
    return shapes


def _layer_pieces(spec: GptSpec, layer: int, rank: int) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """(forward, backward) of one layer; those in front are an encoder's."""
    built = pieces(spec, expert_load(spec, layer, rank))
    return (built.encoder, built.encoder_grad) if layer < spec.encoder_layers else (built.forward, built.backward)


def _forward_slots(spec: GptSpec, stage: int, rank: int, unit: Unit) -> list[Slot]:
    built, micro_batch = pieces(spec), unit.micro_batch
    slots: list[Slot] = []
    if spec.ai_cpu:
        index: Tensor = ((spec.tokens,), "INT64")
        op = vector("Sort", [index], [index, index], "other", core="AI_CPU", cost=60)
        slots.append(Slot(op, "other", None, "forward", micro_batch))
    embedding = [Slot(op, "embedding", None, "forward", micro_batch) for op in built.embedding]
    if stage == 0 and unit.chunk == 0:
        slots += embedding
    else:
        slots.append(Slot(_p2p(spec, receive=True), "pipeline_transfers", None, "forward", micro_batch))
    for layer in _unit_layers(spec, stage, unit):
        if layer and layer == spec.encoder_layers:
            slots += embedding
        ops = _layer_pieces(spec, layer, rank)[0]
        slots += [Slot(op, "layer", layer, "forward", micro_batch, join=op.joins) for op in ops]
    if stage == spec.pp - 1 and unit.chunk == spec.interleave - 1:
        slots += [Slot(op, part, None, "forward", micro_batch) for part, op in built.head]
    else:
        slots.append(Slot(_p2p(spec, receive=False), "pipeline_transfers", None, "forward", micro_batch))
    return slots


def _backward_slots(spec: GptSpec, stage: int, rank: int, unit: Unit) -> list[Slot]:
    built, micro_batch = pieces(spec), unit.micro_batch
    slots: list[Slot] = []
    if stage == spec.pp - 1 and unit.chunk == spec.interleave - 1:
        slots += [Slot(op, part, None, "backward", micro_batch) for part, op in built.head_grad]
    else:
        slots.append(Slot(_p2p(spec, receive=True), "pipeline_transfers", None, "backward", micro_batch))
    embedding = [Slot(op, "embedding", None, "backward", micro_batch) for op in built.embedding_grad]
    for layer in reversed(_unit_layers(spec, stage, unit)):
        slots += _layer_backward(spec, rank, layer, micro_batch)
        if layer and layer == spec.encoder_layers:
            slots += embedding
    if stage == 0 and unit.chunk == 0:
        slots += embedding
    else:
        slots.append(Slot(_p2p(spec, receive=False), "pipeline_transfers", None, "backward", micro_batch))
    return slots


def _layer_backward(spec: GptSpec, rank: int, layer: int, micro_batch: int) -> list[Slot]:
    forward, backward = _layer_pieces(spec, layer, rank)
    slots = (
        [Slot(op, "layer", layer, "recompute", micro_batch, join=op.joins) for op in forward] if spec.recompute else []
    )
    for op in backward:
        if not (spec.defer_wgrad and op.of_weight):
            pass_ = "recompute" if op.again else "backward"
            slots.append(Slot(op, "layer", layer, pass_, micro_batch, join=op.joins))
    return slots if spec.defer_wgrad else slots + _last_sync(spec, micro_batch)


def _weight_slots(spec: GptSpec, stage: int, rank: int, micro_batch: int) -> list[Slot]:
    """Gradients of weights that a backward pass left for later, last layer first."""
    slots: list[Slot] = []
    for layer in reversed(_unit_layers(spec, stage, Unit("weights", micro_batch))):
        ops = [op for op in _layer_pieces(spec, layer, rank)[1] if op.of_weight]
        slots += [Slot(op, "layer", layer, "backward", micro_batch) for op in ops] + _last_sync(spec, micro_batch)
    return slots


def _last_sync(spec: GptSpec, micro_batch: int) -> list[Slot]:
    """Once the last micro-batch is through a layer its gradients are ready to be reduced."""
    if micro_batch < spec.micro_batches - 1 or spec.cp * spec.dp == 1 or not spec.overlap_grad_sync:
        return []
    return [Slot(_grad_sync(spec, overlap=True), "gradient_sync", None, "none", None)]


def _unit_layers(spec: GptSpec, stage: int, unit: Unit) -> list[int]:
    return [*range(spec.encoder_layers), *spec.chunk_layers(stage, unit.chunk)]


def _after_backward(spec: GptSpec, stage: int) -> Iterator[Slot]:
    layers = len(spec.local_layers(stage)) - spec.encoder_layers
    shapes = layer_parameters(spec) * layers
    if spec.encoder_layers:
        shapes += _parameters(pieces(spec).encoder) * spec.encoder_layers
    embedding = (spec.vocab // spec.tp, spec.hidden)
    ends = [embedding] * ((stage == 0) + (stage == spec.pp - 1))
    if spec.cp * spec.dp > 1:
        for _ in range(0 if spec.overlap_grad_sync else layers):
            yield Slot(_grad_sync(spec, overlap=False), "gradient_sync", None, "none", None)
        for shape in ends:
            sync = collective(_reduce(spec), "dp", shape, _grad_dtype(spec), "communication")
            yield Slot(sync, "gradient_sync", None, "none", None, join=True)
    for op in _optimizer(spec, [*shapes, *ends]):
        yield Slot(op, "optimizer", None, "none", None, join=True)
    if spec.cp * spec.dp > 1 and spec.optimizer_shard:
        for _ in range(layers):
            gather = collective("hcom_allGather_", "dp", (_layer_size(spec),), Sizes(spec).dt, "communication")
            yield Slot(gather, "gradient_sync", None, "none", None, join=True)


def _layer_size(spec: GptSpec) -> int:
    """Parameters of a layer that data parallel ranks share: not those of experts which no other rank has."""
    alone = spec.ep == spec.cp * spec.dp
    return sum(prod(shape) for shape in layer_parameters(spec) if not (alone and len(shape) == 3))


def _grad_dtype(spec: GptSpec) -> str:
    return "FLOAT" if spec.mode == "torch" else Sizes(spec).dt


def _reduce(spec: GptSpec) -> str:
    return "hcom_reduceScatter_" if spec.optimizer_shard else "hcom_allReduce_"


def _grad_sync(spec: GptSpec, *, overlap: bool) -> Op:
    return collective(_reduce(spec), "dp", (_layer_size(spec),), _grad_dtype(spec), "communication", overlap=overlap)


def _p2p(spec: GptSpec, *, receive: bool) -> Op:
    z = Sizes(spec)
    name = "hcom_batchSendRecv_" if z.torch else "hcom_receive_" if receive else "hcom_send_"
    return collective(name, "pp", z.hidden_shape(z.local), z.dt, "communication", receives=receive)


def _embedding(z: Sizes) -> list[Op]:
    table: Tensor = ((z.spec.vocab // z.spec.tp, z.h), z.dt)
    ids: Tensor = ((z.spec.micro_batch, z.s), "INT64")
    out: Tensor = ((z.spec.micro_batch, z.s, z.h), z.dt)
    gathered: Tensor = (out[0], z.dt)
    gather = Op(
        "GatherV2",
        (table, ids, ((1,), "INT64")),
        (out,),
        "embedding",
        "tok_embeddings-LlamaEmbedding",
        "Gather",
        "aclnnEmbedding_GatherV2AiCore",
        # the table is not read whole: price it by what is gathered
        cost=3 * prod(out[0] or ()) * BYTES[z.dt] / (prod(table[0] or ()) + prod(out[0] or ())) / BYTES[z.dt],
    )
    ops = [
        gather,
        vector("Muls", [gathered], [out], "embedding", "tok_embeddings-LlamaEmbedding", aclnn="aclnnMuls_Muls"),
    ]
    if z.spec.tp > 1:
        ops.append(collective("hcom_allReduce_", "tp", out[0] or (), z.dt, "communication"))
    return ops


def _embedding_grad(z: Sizes) -> list[Op]:
    table: Tensor = ((z.spec.vocab // z.spec.tp, z.h), "FLOAT")
    grad: Tensor = ((z.spec.micro_batch, z.s, z.h), "FLOAT")
    index: Tensor = ((z.t,), "INT32")
    scope = "tok_embeddings-LlamaEmbedding"
    name = "aclnnEmbeddingDenseBackward_EmbeddingDenseGradV2"
    return [
        cast(grad[0] or (), z.dt, "FLOAT", scope),
        vector(
            "Sort",
            [index],
            [index, index],
            "embedding",
            scope,
            core="MIX_AIV",
            aclnn="aclnnEmbeddingDenseBackward_SortAiCore",
        ),
        vector("EmbeddingDenseGradV2", [grad, index, index], [table], "embedding", scope, core="MIX_AIV", aclnn=name),
        cast(table[0] or (), "FLOAT", z.dt, scope),
    ]


def _head(z: Sizes) -> list[tuple[str, Op]]:
    v, t = z.spec.vocab // z.spec.tp, z.t
    logits: Tensor = ((t, v), "FLOAT")
    labels: Tensor = ((t,), "INT32")
    scalar: Tensor = ((1,), "FLOAT")
    row: Tensor = ((t,), "FLOAT")
    scope = "@loss"
    return [
        *[("final_norm", op) for op in norm(z, z.hidden_shape(z.local), "final_norm", "@model/norm_out-LlamaRMSNorm")],
        ("head_loss", linear(t, z.h, v, z.dt, "head_loss", "@network/lm_head-Linear")),
        ("head_loss", cast((t, v), z.dt, "FLOAT", scope)),
        ("head_loss", vector("LogSoftmaxV2", [logits], [logits], "head_loss", scope, prim="LogSoftmax", cost=1.3)),
        ("head_loss", vector("NLLLoss", [logits, labels, row], [scalar, scalar], "head_loss", scope, cost=0.1)),
    ]


def _head_grad(z: Sizes) -> list[tuple[str, Op]]:
    v, t = z.spec.vocab // z.spec.tp, z.t
    logits: Tensor = ((t, v), "FLOAT")
    labels: Tensor = ((t,), "INT32")
    head: Callable[..., Op]
    ops = [
        ("head_loss", vector("NLLLossGrad", [logits, ((1,), "FLOAT"), labels], [logits], "head_loss", "@loss")),
        ("head_loss", vector("LogSoftmaxGrad", [logits, logits], [logits], "head_loss", "@loss", cost=1.3)),
        ("head_loss", cast((t, v), "FLOAT", z.dt, "@loss")),
    ]
    for head in (linear_dgrad, linear_wgrad):
        ops.append(("head_loss", head(t, z.h, v, z.dt, "head_loss", "@network/lm_head-Linear")))
    shape = z.hidden_shape(z.local)
    return ops + [("final_norm", op) for op in norm_grad(z, shape, "final_norm", "@model/norm_out-LlamaRMSNorm")]


def _optimizer(spec: GptSpec, shapes: Sequence[tuple[int, ...]]) -> list[Op]:
    """Gradient norm over all parameters, then one update each, on this rank's share."""
    share = spec.cp * spec.dp if spec.optimizer_shard else 1
    counts = [max(1, prod(shape) // share) for shape in shapes]
    ops = [
        vector(
            "LpNormV2",
            [((n,), "FLOAT")],
            [((), "FLOAT")],
            "optimizer",
            "@optimizer",
            prim="LpNorm",
            core="MIX_AIV",
            aclnn="aclnnLinalgVectorNorm_LpNormV2",
        )
        for n in counts
    ]
    if spec.world_size > 1:
        ops.append(collective("hcom_allReduce_", "world", (1,), "FLOAT", "communication"))
    for n in counts:
        state: list[Tensor] = [*[((n,), "FLOAT")] * 4, ((1,), "INT64")]
        ops.append(
            vector(
                "ApplyAdamWV2",
                state,
                [],
                "optimizer",
                "@optimizer",
                prim="AdamW",
                aclnn="aclnnApplyAdamWV2_ApplyAdamWV2",
                cost=1.75,  # three of the four inputs are written too
            )
        )
    return ops
