"""Attention half of a layer: norm, projections, position, core, output, forward and backward."""

from __future__ import annotations

from dataclasses import replace

from analysis.synthetic.ops import Op, Tensor, batch_matmul, cast, collective, vector
from analysis.synthetic.sizes import (
    Sizes,
    again,
    backward_linear,
    enter_split,
    forward_linear,
    leave_split,
    norm,
    norm_grad,
    residual,
)


def forward(z: Sizes) -> list[Op]:
    ops = norm(z, z.hidden_shape(z.local), "norm_attention", _norm_scope(z)) + enter_split(z)
    ops += _mla_projections(z) if z.spec.mla else _projections(z)
    ops += _rotary(z)
    if z.spec.mask_rebuilt:
        ops += _build_mask(z)
    ops += _fused(z) if z.spec.fused_attention else _unfused(z)
    ops += forward_linear(z, z.t, z.heads * z.d_v, z.h, "attention_out", f"{z.cell}/wo-Linear")
    return ops + leave_split(z) + residual(z)


def backward(z: Sizes) -> list[Op]:
    ops = enter_split(z) + backward_linear(z, z.t, z.heads * z.d_v, z.h, "attention_out", f"{z.cell}/wo-Linear")
    ops += again(z, "core", _fused(z) if z.spec.fused_attention else _unfused(z)[:-1])
    ops += _fused_grad(z) if z.spec.fused_attention else _unfused_grad(z)
    ops += _rotary_grad(z)
    ops += again(z, "norm", norm(z, z.hidden_shape(z.local), "norm_attention", _norm_scope(z)))
    ops += _mla_projections_grad(z) if z.spec.mla else _projections_grad(z)
    ops += leave_split(z)
    ops += norm_grad(z, z.hidden_shape(z.local), "norm_attention", _norm_scope(z))
    return ops + residual(z, scope="@network")


def cross_forward(z: Sizes) -> list[Op]:
    """Attention to the encoder's output, behind self-attention: queries from here, keys and values from there."""
    d, cell = z.spec.head_dim, "cross_attention-CrossAttention"
    ops = norm(z, z.hidden_shape(z.local), "norm_attention", "cross_norm-LlamaRMSNorm")
    ops += forward_linear(z, z.t, z.h, z.heads * d, "qkv", f"{cell}/wq-Linear")
    ops += forward_linear(z, z.t, z.h, 2 * z.kv_heads * d, "qkv", f"{cell}/wkv-Linear")
    ops += _fused(z)
    return [*ops, *forward_linear(z, z.t, z.heads * d, z.h, "attention_out", f"{cell}/wo-Linear"), *residual(z)]


def cross_backward(z: Sizes) -> list[Op]:
    """Backward of `cross_forward`; the gradient of the encoder's output is summed over the layers."""
    d, cell = z.spec.head_dim, "cross_attention-CrossAttention"
    ops = backward_linear(z, z.t, z.heads * d, z.h, "attention_out", f"{cell}/wo-Linear") + _fused_grad(z)
    ops += backward_linear(z, z.t, z.h, 2 * z.kv_heads * d, "qkv", f"{cell}/wkv-Linear")
    ops.append(_add(z, z.hidden_shape(), "qkv"))
    ops += backward_linear(z, z.t, z.h, z.heads * d, "qkv", f"{cell}/wq-Linear")
    ops += norm_grad(z, z.hidden_shape(z.local), "norm_attention", "cross_norm-LlamaRMSNorm")
    return ops + residual(z, scope="@network")


def _norm_scope(z: Sizes) -> str:
    return "attention_norm-LlamaRMSNorm" if z.spec.norm == "rms" else "layernorm1-LayerNorm"


def _projections(z: Sizes) -> list[Op]:
    d = z.spec.head_dim
    if z.torch:
        width = (z.heads + 2 * z.kv_heads) * d
        return forward_linear(z, z.t, z.h, width, "qkv", "") + _split_fused_qkv(z)
    ops: list[Op] = []
    for name, heads in (("wq", z.heads), ("wk", z.kv_heads), ("wv", z.kv_heads)):
        ops += forward_linear(z, z.t, z.h, heads * d, "qkv", f"{z.cell}/{name}-Linear")
    if not z.spec.fused_attention:
        ops += [_transpose(z, heads) for heads in (z.heads, z.kv_heads, z.kv_heads)]
    return ops


def _projections_grad(z: Sizes) -> list[Op]:
    d = z.spec.head_dim
    if z.torch:
        width = (z.heads + 2 * z.kv_heads) * d
        return _join_fused_qkv(z) + backward_linear(z, z.t, z.h, width, "qkv", "")
    ops: list[Op] = []
    if not z.spec.fused_attention:
        ops += [_transpose(z, heads) for heads in (z.kv_heads, z.kv_heads, z.heads)]
    for name, heads in (("wv", z.kv_heads), ("wk", z.kv_heads), ("wq", z.heads)):
        ops += backward_linear(z, z.t, z.h, heads * d, "qkv", f"{z.cell}/{name}-Linear")
    return ops + [_add(z, z.hidden_shape(), "qkv"), _add(z, z.hidden_shape(), "qkv")]


def _slice(z: Sizes, width: int, aclnn: str) -> Op:
    groups, d = z.kv_heads, z.spec.head_dim
    whole = (z.t, groups, (z.heads // groups + 2) * d)
    indices: list[Tensor] = [((3,), "INT64"), ((3,), "INT64")]
    return vector("Slice", [(whole, z.dt), *indices], [((z.t, groups, width), z.dt)], "movement", aclnn=aclnn)


def _split_fused_qkv(z: Sizes) -> list[Op]:
    d = z.spec.head_dim
    ops = [_slice(z, z.heads // z.kv_heads * d, "aclnnInplaceCopy_SliceAiCore")]
    if z.spec.qk_norm:
        ops += norm(z, z.head_shape(z.heads, d), "qkv", "")
    ops.append(_slice(z, d, "aclnnContiguous_SliceAiCore"))
    if z.spec.qk_norm:
        ops += norm(z, z.head_shape(z.kv_heads, d), "qkv", "")
    return ops


def _join_fused_qkv(z: Sizes) -> list[Op]:
    d, groups = z.spec.head_dim, z.kv_heads
    ops = [_slice(z, d, "aclnnContiguous_SliceAiCore")]
    if z.spec.qk_norm:
        for heads in (z.kv_heads, z.heads):
            ops += norm_grad(z, z.head_shape(heads, d), "qkv", "")
            ops.append(_add(z, (d,), "qkv"))
    parts: list[Tensor] = [((z.t, groups, width), z.dt) for width in (z.heads // groups * d, d, d)]
    whole: Tensor = ((z.t, groups, (z.heads // groups + 2) * d), z.dt)
    return [*ops, vector("ConcatD", parts, [whole], "movement", prim="Concat", aclnn="aclnnCat_ConcatD")]


def _mla_projections(z: Sizes) -> list[Op]:
    ops: list[Op] = []
    for kind, k, n, name in _mla_steps(z):
        scope = f"{z.cell}/{name}"
        ops += forward_linear(z, z.t, k, n, "qkv", scope) if kind == "linear" else _latent_norm(z, k, scope)
    return ops


def _mla_projections_grad(z: Sizes) -> list[Op]:
    ops: list[Op] = []
    for kind, k, n, name in reversed(_mla_steps(z)):
        scope = f"{z.cell}/{name}"
        ops += backward_linear(z, z.t, k, n, "qkv", scope) if kind == "linear" else _latent_norm_grad(z, k, scope)
    return ops


def _latent_norm(z: Sizes, width: int, scope: str) -> list[Op]:
    return norm(z, z.hidden_shape(z.t, width), "qkv", scope)


def _latent_norm_grad(z: Sizes, width: int, scope: str) -> list[Op]:
    return norm_grad(z, z.hidden_shape(z.t, width), "qkv", scope)


def _mla_steps(z: Sizes) -> list[tuple[str, int, int, str]]:
    """Linear layers and norms of latent attention in order: kind, width in, width out, scope."""
    mla = z.spec.mla
    assert mla is not None
    q_up, kv_up = z.heads * z.d_qk, z.heads * (mla.nope_dim + mla.v_dim)
    return [
        ("linear", z.h, mla.q_lora, "q2l_proj-Linear"),
        ("norm", mla.q_lora, mla.q_lora, "lq_norm-LlamaRMSNorm"),
        ("linear", mla.q_lora, q_up, "l2q_proj-Linear"),
        ("linear", z.h, mla.kv_lora + mla.rope_dim, "kv2l-Linear"),
        ("norm", mla.kv_lora, mla.kv_lora, "lkv_norm-LlamaRMSNorm"),
        ("linear", mla.kv_lora, kv_up, "lkv2kv-Linear"),
    ]


def _rotary_width(z: Sizes) -> int:
    return z.spec.mla.rope_dim if z.spec.mla else z.spec.head_dim


def _rotary(z: Sizes) -> list[Op]:
    d = _rotary_width(z)
    ops: list[Op] = []
    for heads in (z.heads, z.kv_heads if not z.spec.mla else 1):
        if z.torch and z.spec.rotary_per_layer:
            ops += _angles(z, d)
        ops += _cast_pair(z, heads, d, _rope(z, heads, d, "RotaryPositionEmbedding"))
        if z.torch:
            shape = z.head_shape(heads, d)
            ops.append(
                vector("TensorMove", [(shape, z.dt)], [(shape, z.dt)], "movement", aclnn="aclnnCat_TensorMoveAiCore")
            )
    if z.torch and not z.spec.mla:
        ops.append(_slice(z, z.spec.head_dim, "aclnnInplaceCopy_SliceAiCore"))
    return ops


def _rope(z: Sizes, heads: int, d: int, type: str) -> Op:
    shape = z.head_shape(heads, d)
    dtype = "FLOAT" if z.casts("rotary") else z.dt
    table: Tensor = ((z.s, 1, 1, d), dtype)
    scope = f"{z.cell}/apply_rotary_emb-ApplyRotaryEmb"
    return vector(type, [(shape, dtype), table, table], [(shape, dtype)], "position", scope, cost=1.5)


def _cast_pair(z: Sizes, heads: int, d: int, op: Op) -> list[Op]:
    if not z.casts("rotary"):
        return [op]
    shape, scope = z.head_shape(heads, d), f"{z.cell}/apply_rotary_emb-ApplyRotaryEmb"
    return [cast(shape, z.dt, "FLOAT", scope), op, cast(shape, "FLOAT", z.dt, scope)]


def _angles(z: Sizes, d: int) -> list[Op]:
    """Cos and Sin of the rotary angles, computed again though no layer changes them."""
    angle: Tensor = ((z.s, 1, 1, d), "FLOAT")
    ops: list[Op] = []
    for function in ("Cos", "Sin"):
        ops.append(vector(function, [angle], [angle], "position", aclnn=f"aclnn{function}_{function}AiCore", cost=2.5))
        ops.append(vector("Mul", [angle, ((), "FLOAT")], [angle], "position", aclnn="aclnnMuls_MulAiCore"))
        ops.append(cast((z.s, 1, 1, d), "FLOAT", z.dt))
    return ops


def _rotary_grad(z: Sizes) -> list[Op]:
    d = _rotary_width(z)
    ops: list[Op] = []
    for heads in (z.kv_heads if not z.spec.mla else 1, z.heads):
        ops += _cast_pair(z, heads, d, _rope(z, heads, d, "RotaryPositionEmbeddingGrad"))
        if z.torch:
            shape: Tensor = (z.head_shape(heads, d), z.dt)
            ops.append(vector("ZerosLike", [shape], [shape], "movement", aclnn="aclnnInplaceZero_ZerosLikeAiCore"))
            ops.append(_add(z, z.head_shape(heads, d), "position"))
    return ops


def _mask_shape(z: Sizes) -> tuple[int, ...]:
    s = z.s
    return (2048, 2048) if z.spec.mask == "compressed" and z.spec.fused_attention else (z.spec.micro_batch, 1, s, s)


def _mask_dtype(z: Sizes) -> str:
    return "BOOL" if z.torch else "UINT8"


def _build_mask(z: Sizes) -> list[Op]:
    """Lower triangle, comparison with the padding mask, and the dtype the attention wants."""
    shape, scope = (z.spec.micro_batch, 1, z.s, z.s), f"{z.cell}/casual_mask-LowerTriangularMask"
    return [
        vector("Tril", [(shape, z.dt)], [(shape, z.dt)], "attention_core", scope, aclnn="aclnnTril_TrilAiCore"),
        vector(
            "Sub", [((1,), z.dt), (shape, z.dt)], [(shape, z.dt)], "attention_core", scope, aclnn="aclnnRsubs_SubAiCore"
        ),
        cast(shape, z.dt, _mask_dtype(z), scope),
    ]


def _scores(z: Sizes) -> int:
    """Score elements the attention computes; a compressed mask halves them."""
    whole = z.spec.micro_batch * z.heads * z.s**2
    return whole // 2 if z.spec.mask == "compressed" else whole


def _attention_heads(z: Sizes) -> int:
    return z.heads if z.spec.mla else z.kv_heads


def _fused(z: Sizes) -> list[Op]:
    first = _flash(z)
    if z.spec.cp == 1:
        return [first]
    out, statistics = first.outputs[3], first.outputs[0]
    update = vector("RingAttentionUpdate", [out, statistics, out], [out], "attention_core", first.scope)
    ops = [*_ring(z, 2), first]
    for turn in range(1, z.spec.cp):
        ops += [*(_ring(z, 2) if turn < z.spec.cp - 1 else []), _ring_step(z, first), update]
    return ops


def _fused_grad(z: Sizes) -> list[Op]:
    first = _flash_grad(z)
    if z.spec.cp == 1:
        return [first]
    ops = [first]
    for _ in range(1, z.spec.cp):
        dk, dv = first.inputs[1], first.inputs[2]
        sums = [vector("Add", [t, t], [t], "attention_core", first.scope, aclnn="aclnnAdd_AddAiCore") for t in (dk, dv)]
        ops += [*_ring(z, 4), _ring_step(z, first), *sums]
    return ops


def _ring(z: Sizes, tensors: int) -> list[Op]:
    """Keys and values (and their gradients) go to the next rank of the ring while the ones at hand are used."""
    shape = z.hidden_shape(z.t, tensors * _attention_heads(z) * z.d_qk)
    names = ("hcom_batchSendRecv_",) if z.torch else ("hcom_send_", "hcom_receive_")
    return [collective(name, "cp", shape, z.dt, "communication", overlap=True) for name in names]


def _ring_step(z: Sizes, first: Op) -> Op:
    """Against half of another rank's keys, so that every rank has the same work; there is nothing to mask."""
    inputs: list[Tensor] = [(None, t) if t in ("BOOL", "UINT8") else (shape, t) for shape, t in first.inputs]
    for index in (1, 2):
        shape, dtype = inputs[index]
        inputs[index] = (
            tuple(n // 2 if n == z.s and i == (not z.torch) else n for i, n in enumerate(shape or ())),
            dtype,
        )
    flops = first.flops if z.spec.mask == "compressed" else first.flops // 2
    return replace(first, inputs=tuple(inputs), flops=flops, joins=True)


def _flash(z: Sizes) -> Op:
    q: Tensor = (z.hidden_shape(z.t, z.heads * z.d_qk), z.dt)
    k: Tensor = (z.hidden_shape(z.t, _attention_heads(z) * z.d_qk), z.dt)
    v: Tensor = (z.hidden_shape(z.t, _attention_heads(z) * z.d_v), z.dt)
    out: Tensor = (z.hidden_shape(z.t, z.heads * z.d_v), z.dt)
    statistics: Tensor = ((z.spec.micro_batch, z.heads, z.s, 8), "FLOAT")
    rest: list[Tensor] = [(None, dtype) for dtype in ["INT64"] * 5 + ["FLOAT"] * 3]
    inputs: list[Tensor] = [
        q,
        k,
        v,
        (None, z.dt),
        (None, "UINT8"),
        (None, z.dt),
        (_mask_shape(z), _mask_dtype(z)),
        *rest,
    ]
    flops = 2 * _scores(z) * (z.d_qk + z.d_v)
    return Op(
        "FlashAttentionScore",
        tuple(inputs),
        (statistics, statistics, (None, z.dt), out),
        "attention_core",
        f"{z.cell}/flash_attention-FlashAttention",
        aclnn="aclnnFlashAttentionScore_FlashAttentionScore",
        core="MIX_AIC",
        flops=flops,
    )


def _flash_grad(z: Sizes) -> Op:
    forward_op = _flash(z)
    q, k, v = forward_op.inputs[:3]
    mask = forward_op.inputs[6]
    largest, total, _, out = forward_op.outputs
    rest: list[Tensor] = [(None, dtype) for dtype in ["INT64"] + ["FLOAT"] * 5]
    return Op(
        "FlashAttentionScoreGrad",
        (q, k, v, out, mask, largest, total, (None, z.dt), out, *rest),
        (q, k, v, (None, z.dt), (None, z.dt), (None, z.dt)),
        "attention_core",
        f"{z.cell}/flash_attention-FlashAttention",
        aclnn="aclnnFlashAttentionScoreGrad_FlashAttentionScoreGrad",
        core="MIX_AIC",
        flops=forward_op.flops * 5 // 2,
    )


def _unfused(z: Sizes) -> list[Op]:
    """Scores in full: two batched products with scale, mask and softmax between them."""
    s, batch, scope = z.s, (z.spec.micro_batch, z.heads), f"{z.cell}/core_attention-CoreAttention"
    scores: Tensor = ((*batch, s, s), z.dt)
    mask: Tensor = ((z.spec.micro_batch, 1, s, s), z.dt)
    ops = [
        batch_matmul(batch, s, z.d_qk, s, z.dt, "attention_core", scope, transpose_b=True),
        vector("Mul", [scores, ((), z.dt)], [scores], "attention_core", scope, aclnn="aclnnMuls_MulAiCore"),
        vector("Add", [scores, mask], [scores], "attention_core", scope, aclnn="aclnnAdd_AddAiCore"),
        *_softmax(z, batch, scope, "SoftmaxV2", 1),
        batch_matmul(batch, s, s, z.d_v, z.dt, "attention_core", scope),
    ]
    return [*ops, _transpose(z, z.heads)]


def _unfused_grad(z: Sizes) -> list[Op]:
    s, batch, scope = z.s, (z.spec.micro_batch, z.heads), f"{z.cell}/core_attention-CoreAttention"
    scores: Tensor = ((*batch, s, s), z.dt)
    return [
        _transpose(z, z.heads),
        batch_matmul(batch, s, z.d_v, s, z.dt, "attention_core", scope, transpose_b=True),
        batch_matmul(batch, s, s, z.d_v, z.dt, "attention_core", scope),
        *_softmax(z, batch, scope, "SoftmaxGrad", 2),
        vector("Mul", [scores, ((), z.dt)], [scores], "attention_core", scope, aclnn="aclnnMuls_MulAiCore"),
        batch_matmul(batch, s, s, z.d_qk, z.dt, "attention_core", scope),
        batch_matmul(batch, s, s, z.d_qk, z.dt, "attention_core", scope),
    ]


def _softmax(z: Sizes, batch: tuple[int, int], scope: str, type: str, inputs: int) -> list[Op]:
    shape = (*batch, z.s, z.s)
    dtype = "FLOAT" if z.casts("softmax") else z.dt
    prim = {"SoftmaxV2": "Softmax"}.get(type, type)
    kernel = vector(type, [(shape, dtype)] * inputs, [(shape, dtype)], "attention_core", scope, prim=prim, cost=1.3)
    if not z.casts("softmax"):
        return [kernel]
    return [cast(shape, z.dt, "FLOAT", scope), kernel, cast(shape, "FLOAT", z.dt, scope)]


def _transpose(z: Sizes, heads: int) -> Op:
    b, s, d = z.spec.micro_batch, z.s, z.spec.head_dim
    inputs: list[Tensor] = [((b, s, heads, d), z.dt), ((4,), "INT64")]
    return vector(
        "Transpose", inputs, [((b, heads, s, d), z.dt)], "movement", z.cell, aclnn="aclnnPermute_TransposeAiCore"
    )


def _add(z: Sizes, shape: tuple[int, ...], block: str) -> Op:
    tensor: Tensor = (shape, z.dt)
    return vector("Add", [tensor, tensor], [tensor], block, "@network", aclnn="aclnnAdd_AddAiCore")
