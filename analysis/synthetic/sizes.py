"""Sizes one rank sees, derived once from a spec, and the small pieces every layer is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.synthetic.ops import (
    Op,
    Shape,
    Tensor,
    cast,
    collective,
    half,
    linear,
    linear_dgrad,
    linear_wgrad,
    vector,
)
from analysis.synthetic.spec import GptSpec


@dataclass(frozen=True)
class Sizes:
    """Sizes on one rank: `t` tokens, `h` hidden, `q` and `kv` widths of queries and keys, `f` feed-forward width."""

    spec: GptSpec
    load: float = 1.0
    """Tokens of this rank's experts against the mean."""

    @property
    def s(self) -> int:
        """Length of a sequence on one rank."""
        return self.spec.seq // self.spec.cp

    @property
    def t(self) -> int:
        return self.spec.tokens

    @property
    def local(self) -> int:
        """Tokens where sequence parallel splits them."""
        return self.t // self.spec.tp if self.spec.sequence_parallel else self.t

    @property
    def h(self) -> int:
        return self.spec.hidden

    @property
    def heads(self) -> int:
        return self.spec.heads // self.spec.tp

    @property
    def kv_heads(self) -> int:
        return self.spec.kv_heads // self.spec.tp

    @property
    def d_qk(self) -> int:
        return self.spec.mla.nope_dim + self.spec.mla.rope_dim if self.spec.mla else self.spec.head_dim

    @property
    def d_v(self) -> int:
        return self.spec.mla.v_dim if self.spec.mla else self.spec.head_dim

    @property
    def f(self) -> int:
        return self.spec.ffn // self.spec.tp

    @property
    def dt(self) -> str:
        return half(self.spec)

    @property
    def torch(self) -> bool:
        return self.spec.mode == "torch"

    @property
    def cell(self) -> str:
        return "attention-LLamaAttention" if self.spec.norm == "rms" else "attention-MultiHeadAttention"

    @property
    def ffn_cell(self) -> str:
        return "feed_forward-LLamaFeedForward" if self.spec.norm == "rms" else "output-FeedForward"

    def casts(self, site: str) -> bool:
        return site in self.spec.casts

    def hidden_shape(self, tokens: int = 0, width: int = 0) -> tuple[int, ...]:
        """Activations as the framework lays them out: (S, B, H) in Megatron, (B, S, H) in MindSpore Transformers."""
        b = self.spec.micro_batch
        s = (tokens or self.t) // b
        return (s, b, width or self.h) if self.torch else (b, s, width or self.h)

    def head_shape(self, heads: int, dim: int) -> tuple[int, ...]:
        b, s = self.spec.micro_batch, self.s
        if self.torch:
            return (s, b, heads, dim)
        return (b, s, heads, dim) if self.spec.fused_attention else (b, heads, s, dim)


def forward_linear(z: Sizes, m: int, k: int, n: int, block: str, scope: str) -> list[Op]:
    cast_weight = [cast((n, k), "FLOAT", z.dt, scope)] if z.casts("weights") else []
    return [*cast_weight, linear(m, k, n, z.dt, block, scope)]


def backward_linear(z: Sizes, m: int, k: int, n: int, block: str, scope: str) -> list[Op]:
    """Input gradient, weight gradient, and its sum where Megatron's main_grad or several micro-batches need one."""
    ops = [linear_wgrad(m, k, n, z.dt, block, scope)]
    if z.casts("weights"):
        ops.append(cast((n, k), z.dt, "FLOAT", scope))
    if z.torch or z.spec.micro_batches > 1:
        total: Tensor = ((n, k), "FLOAT")
        ops.append(vector("Add", [total, ((n, k), z.dt)], [total], block, scope, aclnn="aclnnAdd_AddAiCore"))
    return [linear_dgrad(m, k, n, z.dt, block, scope), *(replace(op, of_weight=True) for op in ops)]


def again(z: Sizes, module: str, ops: Sequence[Op]) -> list[Op]:
    """`ops` as they run a second time in backward, where that module is recomputed."""
    return [replace(op, again=True) for op in ops] if module in z.spec.recompute_modules else []


def norm(z: Sizes, shape: tuple[int, ...], block: str, scope: str) -> list[Op]:
    width = shape[-1]
    inner = "FLOAT" if z.casts("norm") else z.dt
    statistics: Shape = (*shape[:-1], 1)
    if z.spec.norm == "rms":
        kernel = vector(
            "RmsNorm",
            [(shape, inner), ((width,), inner)],
            [(shape, inner), (statistics, "FLOAT")],
            block,
            scope,
            cost=1.4,
        )
    else:
        kernel = vector(
            "LayerNormV3",
            [(shape, inner), ((width,), inner), ((width,), inner)],
            [(shape, inner), (statistics, "FLOAT"), (statistics, "FLOAT")],
            block,
            scope,
            prim="LayerNorm",
            aclnn="aclnnLayerNorm_LayerNormV3AiCore",
            cost=1.4,
        )
    return around_casts(z, kernel, shape, scope)


def norm_grad(z: Sizes, shape: tuple[int, ...], block: str, scope: str) -> list[Op]:
    width = shape[-1]
    inner = "FLOAT" if z.casts("norm") else z.dt
    statistics: Shape = (*shape[:-1], 1)
    rms = z.spec.norm == "rms"
    kernel = vector(
        "RmsNormGrad" if rms else "LayerNormGradV3",
        [(shape, inner), (shape, inner), (statistics, "FLOAT"), ((width,), inner)],
        [(shape, inner), ((width,), "FLOAT")],
        block,
        scope,
        prim="RmsNormGrad" if rms else "LayerNormGrad",
        core="MIX_AIV",
        cost=2.5,
    )
    ops = around_casts(z, kernel, shape, scope)
    if z.torch:
        ops.append(cast((width,), "FLOAT", z.dt, scope))
    return ops


def around_casts(z: Sizes, kernel: Op, shape: tuple[int, ...], scope: str) -> list[Op]:
    """The norm in float32 between two casts where the job computes norms so."""
    if not z.casts("norm"):
        return [kernel]
    return [cast(shape, z.dt, "FLOAT", scope), kernel, cast(shape, "FLOAT", z.dt, scope)]


def residual(z: Sizes, block: str = "residual", scope: str = "@network") -> list[Op]:
    """The Add of a residual branch. MindSpore gives Python operators the scope of the network, not of the layer."""
    shape = z.hidden_shape(z.local)
    wide = z.casts("residual")
    dtype = "FLOAT" if wide else z.dt
    add = vector("Add", [(shape, dtype), (shape, dtype)], [(shape, dtype)], block, scope, aclnn="aclnnAdd_AddAiCore")
    return [cast(shape, z.dt, "FLOAT"), add] if wide else [add]


def enter_split(z: Sizes) -> list[Op]:
    """Before a column parallel linear: gather the sequence where it was split."""
    if z.spec.tp == 1 or not z.spec.sequence_parallel:
        return []
    return [collective("hcom_allGather_", "tp", (z.t, z.h), z.dt, "communication")]


def leave_split(z: Sizes) -> list[Op]:
    """After a row parallel linear: sum over the tensor parallel ranks."""
    if z.spec.tp == 1:
        return []
    op = "hcom_reduceScatter_" if z.spec.sequence_parallel else "hcom_allReduce_"
    return [collective(op, "tp", (z.t, z.h), z.dt, "communication")]


def half_of(shape: Sequence[int]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // 2)
