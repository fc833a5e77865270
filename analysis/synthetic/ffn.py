"""Feed-forward half of a layer, dense or mixture of experts, forward and backward."""

from __future__ import annotations

from dataclasses import replace

from analysis.synthetic.ops import Op, Tensor, collective, grouped_matmul, linear, linear_dgrad, linear_wgrad, vector
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
    ops = norm(z, z.hidden_shape(z.local), "norm_ffn", _norm_scope(z))
    ops += _moe(z) if z.spec.moe else enter_split(z) + _dense(z, z.f) + leave_split(z)
    return ops + residual(z)


def backward(z: Sizes) -> list[Op]:
    ops = _moe_grad(z) if z.spec.moe else enter_split(z) + _dense_grad(z, z.f) + leave_split(z)
    return ops + norm_grad(z, z.hidden_shape(z.local), "norm_ffn", _norm_scope(z)) + residual(z)


def _norm_scope(z: Sizes) -> str:
    return "ffn_norm-LlamaRMSNorm" if z.spec.norm == "rms" else "layernorm2-LayerNorm"


def _dense(z: Sizes, f: int) -> list[Op]:
    if z.spec.activation == "gelu":
        return [
            *forward_linear(z, z.t, z.h, f, "ffn_up", f"{z.ffn_cell}/mapping-Linear"),
            _activation(z, "Gelu", z.t, f, f, 1),
            *forward_linear(z, z.t, f, z.h, "ffn_down", f"{z.ffn_cell}/projection-Linear"),
        ]
    down = forward_linear(z, z.t, f, z.h, "ffn_down", f"{z.ffn_cell}/w2-Linear")
    if z.torch:
        return [*forward_linear(z, z.t, z.h, 2 * f, "ffn_up", ""), _activation(z, "SwiGlu", z.t, 2 * f, f, 1), *down]
    return [
        *forward_linear(z, z.t, z.h, f, "ffn_up", f"{z.ffn_cell}/w1-Linear"),
        _activation(z, "Swish", z.t, f, f, 1),
        *forward_linear(z, z.t, z.h, f, "ffn_up", f"{z.ffn_cell}/w3-Linear"),
        _activation(z, "Mul", z.t, f, f, 2),
        *down,
    ]


def _dense_grad(z: Sizes, f: int) -> list[Op]:
    normed = again(z, "norm", norm(z, z.hidden_shape(z.local), "norm_ffn", _norm_scope(z)))
    if z.spec.activation == "gelu":
        return [
            *again(z, "activation", [_activation(z, "Gelu", z.t, f, f, 1)]),
            *backward_linear(z, z.t, f, z.h, "ffn_down", f"{z.ffn_cell}/projection-Linear"),
            _activation(z, "GeluGrad", z.t, f, f, 3),
            *normed,
            *backward_linear(z, z.t, z.h, f, "ffn_up", f"{z.ffn_cell}/mapping-Linear"),
        ]
    down = backward_linear(z, z.t, f, z.h, "ffn_down", f"{z.ffn_cell}/w2-Linear")
    if z.torch:
        gated = again(z, "activation", [_activation(z, "SwiGlu", z.t, 2 * f, f, 1)])
        gate = _activation(z, "SwiGluGrad", z.t, 2 * f, 2 * f, 1, extra=f)
        return [*gated, *down, gate, *normed, *backward_linear(z, z.t, z.h, 2 * f, "ffn_up", "")]
    return [
        *again(z, "activation", [_activation(z, "Swish", z.t, f, f, 1)]),
        *down,
        _activation(z, "Mul", z.t, f, f, 2),
        _activation(z, "Mul", z.t, f, f, 2),
        *normed,
        *backward_linear(z, z.t, z.h, f, "ffn_up", f"{z.ffn_cell}/w3-Linear"),
        _activation(z, "SwishGrad", z.t, f, f, 3),
        *backward_linear(z, z.t, z.h, f, "ffn_up", f"{z.ffn_cell}/w1-Linear"),
    ]


def _activation(z: Sizes, type: str, rows: int, width: int, out: int, inputs: int, extra: int = 0) -> Op:
    operands: list[Tensor] = [((rows, width), z.dt)] * inputs
    if extra:
        operands = [((rows, extra), z.dt), *operands]
    prim = {"Gelu": "GeLU", "GeluGrad": "GeLUGrad", "Swish": "SiLU", "SwishGrad": "SiLUGrad"}.get(type, type)
    name = {"Mul": "aclnnMul_MulAiCore"}.get(type, "")
    scope = f"{z.ffn_cell}/{'mul-Mul' if type == 'Mul' else 'act-' + prim.removesuffix('Grad')}"
    return vector(type, operands, [((rows, out), z.dt)], "activation", scope, prim=prim, aclnn=name)


def _router_rows(z: Sizes) -> int:
    return z.local


def _routed(z: Sizes) -> int:
    """Token copies the local experts see."""
    assert z.spec.moe is not None
    return round(_router_rows(z) * z.spec.moe.topk * z.load)


def _moe(z: Sizes) -> list[Op]:
    moe = z.spec.moe
    assert moe is not None
    rows, routed, local = _router_rows(z), _routed(z), moe.experts // z.spec.ep
    router = f"{z.ffn_cell}/router-Router"
    logits: Tensor = ((rows, moe.experts), "FLOAT")
    chosen: Tensor = ((rows, moe.topk), "FLOAT")
    index: Tensor = ((rows, moe.topk), "INT32")
    ops = [
        linear(rows, z.h, moe.experts, "FLOAT", "moe_router", f"{router}/dense-Dense"),
        vector(
            "SoftmaxV2", [logits], [logits], "moe_router", router, prim="Softmax", aclnn="aclnnSoftmax_SoftmaxV2AiCore"
        ),
        vector("TopKV2", [logits], [chosen, index], "moe_router", router, prim="TopkExt", cost=4),
        _permute(z, "MoeTokenPermute", rows, routed),
        *_exchange(z, rows * moe.topk),
        grouped_matmul(local, routed, z.h, 2 * moe.ffn, z.dt, "moe_experts", f"{z.ffn_cell}/ffn-RoutedParallelMLP/w1"),
        _expert_activation(z, "SwiGlu", routed, 2 * moe.ffn, moe.ffn),
        grouped_matmul(local, routed, moe.ffn, z.h, z.dt, "moe_experts", f"{z.ffn_cell}/ffn-RoutedParallelMLP/w2"),
        *_exchange(z, routed),
        _permute(z, "MoeTokenUnpermute", routed, rows),
    ]
    return ops + (_dense(z, moe.shared_ffn // z.spec.tp) if moe.shared_ffn else [])


def _moe_grad(z: Sizes) -> list[Op]:
    moe = z.spec.moe
    assert moe is not None
    rows, routed, local = _router_rows(z), _routed(z), moe.experts // z.spec.ep
    router, experts = f"{z.ffn_cell}/router-Router", f"{z.ffn_cell}/ffn-RoutedParallelMLP"
    logits: Tensor = ((rows, moe.experts), "FLOAT")
    ops = [
        _permute(z, "MoeTokenUnpermuteGrad", rows, routed),
        *_exchange(z, rows * moe.topk),
        grouped_matmul(local, routed, z.h, moe.ffn, z.dt, "moe_experts", f"{experts}/w2"),
        _grouped_wgrad(z, local, routed, moe.ffn, z.h, f"{experts}/w2"),
        _expert_activation(z, "SwiGluGrad", routed, 2 * moe.ffn, 2 * moe.ffn),
        grouped_matmul(local, routed, 2 * moe.ffn, z.h, z.dt, "moe_experts", f"{experts}/w1"),
        _grouped_wgrad(z, local, routed, z.h, 2 * moe.ffn, f"{experts}/w1"),
        *_exchange(z, routed),
        _permute(z, "MoeTokenPermuteGrad", routed, rows),
        vector(
            "SoftmaxGrad",
            [logits, logits],
            [logits],
            "moe_router",
            router,
            aclnn="aclnnSoftmaxBackward_SoftmaxGradAiCore",
        ),
        linear_dgrad(rows, z.h, moe.experts, "FLOAT", "moe_router", f"{router}/dense-Dense"),
        replace(linear_wgrad(rows, z.h, moe.experts, "FLOAT", "moe_router", f"{router}/dense-Dense"), of_weight=True),
    ]
    return (_dense_grad(z, moe.shared_ffn // z.spec.tp) if moe.shared_ffn else []) + ops


def _grouped_wgrad(z: Sizes, groups: int, rows: int, k: int, n: int, scope: str) -> Op:
    """Weight gradients of all local experts: (k, rows) x (rows, n), rows cut by group."""
    inputs: tuple[Tensor, ...] = (((k, rows), z.dt), ((rows, n), z.dt), ((groups,), "INT64"))
    return Op(
        "GroupedMatmul",
        inputs,
        (((groups, k, n), z.dt),),
        "moe_experts",
        scope,
        aclnn="aclnnGroupedMatmul_GroupedMatmul",
        core="MIX_AIC",
        flops=2 * rows * k * n,
        of_weight=True,
    )


def _expert_activation(z: Sizes, type: str, rows: int, width: int, out: int) -> Op:
    operands: list[Tensor] = [((rows, width), z.dt)]
    if type.endswith("Grad"):
        operands.insert(0, ((rows, width // 2), z.dt))
    return vector(type, operands, [((rows, out), z.dt)], "moe_experts", f"{z.ffn_cell}/ffn-RoutedParallelMLP")


def _permute(z: Sizes, type: str, rows: int, out: int) -> Op:
    index: Tensor = ((min(rows, out), z.spec.moe.topk if z.spec.moe else 1), "INT32")
    scope = f"{z.ffn_cell}/dispatcher-MoETokenDispatcher"
    return vector(type, [((rows, z.h), z.dt), index], [((out, z.h), z.dt)], "moe_dispatch", scope, cost=1.3)


def _exchange(z: Sizes, rows: int) -> list[Op]:
    """`rows` are what the rank sends: copies of its own tokens on their way to experts, those of its experts back."""
    if z.spec.ep == 1:
        return []
    return [collective("hcom_alltoAllV_", "ep", (rows, z.h), z.dt, "communication")]
