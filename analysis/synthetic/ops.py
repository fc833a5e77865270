"""Kernels as things with shapes, work and a place in the model; how long they take follows from their work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from analysis.synthetic.spec import GptSpec

Shape = tuple[int, ...] | None
Tensor = tuple[Shape, str]
"""A shape (None: an argument that was not given) and a dtype as the profiler writes it."""

BYTES = {"FLOAT": 4, "DT_BF16": 2, "FLOAT16": 2, "INT64": 8, "INT32": 4, "BOOL": 1, "UINT8": 1, "DOUBLE": 8}
MOVEMENT = {"Cast", "Transpose", "Slice", "ConcatD", "SplitD", "TensorMove", "ZerosLike", "MemSet", "StridedSlice"}
LAUNCH_NS = 1_200
"""Shortest a kernel on the device can last."""


@dataclass(frozen=True)
class Comm:
    """A communication kernel's meaning."""

    op: str  # hcom_allReduce_
    group: str  # "tp", "dp", "pp", "ep", "world"
    size_bytes: int
    overlap: bool = False  # runs beside compute, joined by the next one that does not
    p2p: bool = False
    receives: bool = False


@dataclass(frozen=True)
class Op:
    """One kind of kernel. `scope` is its path inside the layer or model, `aclnn` the front of its device name."""

    type: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    block: str
    scope: str = ""
    prim: str = ""
    aclnn: str = ""
    core: str = "AI_VECTOR_CORE"
    flops: int = 0
    cost: float = 1.0  # how many times slower than its bytes say
    comm: Comm | None = None
    again: bool = False
    """Runs a second time, for backward."""
    joins: bool = False
    """Waits for what was sent beside compute before it."""
    of_weight: bool = False
    """Makes a weight's gradient, which nothing in backward waits for."""

    @property
    def primitive(self) -> str:
        return self.prim or self.type

    @property
    def bytes(self) -> int:
        return sum(prod(shape) * BYTES.get(dtype, 0) for shape, dtype in self.inputs + self.outputs if shape)


def nominal_ns(op: Op, spec: GptSpec) -> float:
    """How long the kernel would take without jitter."""
    if op.comm:
        return 12_000 + op.comm.size_bytes / spec.link_gbps
    memory = op.bytes * op.cost / spec.memory_gbps
    if not op.flops:
        return LAUNCH_NS + memory
    efficiency = spec.attention_efficiency if op.type.startswith("FlashAttention") else spec.cube_efficiency
    return 3_000 + max(op.flops / (spec.peak_tflops * 1e3 * efficiency), memory)


def half(spec: GptSpec) -> str:
    return "DT_BF16" if spec.dtype == "bf16" else "FLOAT16"


def vector(
    type: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    block: str,
    scope: str = "",
    *,
    prim: str = "",
    aclnn: str = "",
    core: str = "AI_VECTOR_CORE",
    cost: float = 1.0,
) -> Op:
    block = "movement" if type in MOVEMENT else block
    return Op(type, tuple(inputs), tuple(outputs), block, scope, prim, aclnn, core, cost=cost)


def cast(shape: Sequence[int], source: str, target: str, scope: str = "") -> Op:
    return vector("Cast", [(tuple(shape), source)], [(tuple(shape), target)], "movement", scope)


def linear(m: int, k: int, n: int, dtype: str, block: str, scope: str) -> Op:
    """Forward of a linear layer: (m, k) x (n, k) transposed."""
    return _matmul(((m, k), (n, k)), (m, n), 2 * m * k * n, dtype, block, scope, "MatMul")


def linear_dgrad(m: int, k: int, n: int, dtype: str, block: str, scope: str) -> Op:
    """Gradient of a linear layer's input: (m, n) x (n, k)."""
    return _matmul(((m, n), (n, k)), (m, k), 2 * m * k * n, dtype, block, scope, "MatMul")


def linear_wgrad(m: int, k: int, n: int, dtype: str, block: str, scope: str) -> Op:
    """Gradient of a linear layer's weight: (m, n) transposed x (m, k)."""
    return _matmul(((m, n), (m, k)), (n, k), 2 * m * k * n, dtype, block, scope, "MatMul")


def batch_matmul(
    batch: tuple[int, ...], m: int, k: int, n: int, dtype: str, block: str, scope: str, transpose_b: bool = False
) -> Op:
    second = (*batch, n, k) if transpose_b else (*batch, k, n)
    inputs = ((*batch, m, k), second)
    return Op(
        "BatchMatMulV2",
        tuple((shape, dtype) for shape in inputs),
        (((*batch, m, n), dtype),),
        block,
        scope,
        "BatchMatMul",
        "aclnnBatchMatMul_BatchMatMulNd",
        "AI_CORE",
        flops=2 * prod(batch) * m * k * n,
    )


def grouped_matmul(groups: int, rows: int, k: int, n: int, dtype: str, block: str, scope: str) -> Op:
    """`groups` experts share `rows` tokens; weights are (groups, k, n)."""
    inputs: tuple[Tensor, ...] = (((rows, k), dtype), ((groups, k, n), dtype), ((groups,), "INT64"))
    return Op(
        "GroupedMatmul",
        inputs,
        (((rows, n), dtype),),
        block,
        scope,
        "GroupedMatmul",
        "aclnnGroupedMatmul_GroupedMatmul",
        "MIX_AIC",
        flops=2 * rows * k * n,
    )


def _matmul(
    inputs: tuple[tuple[int, int], tuple[int, int]],
    output: tuple[int, int],
    flops: int,
    dtype: str,
    block: str,
    scope: str,
    prim: str,
) -> Op:
    return Op(
        "MatMulV3",
        tuple((shape, dtype) for shape in inputs),
        ((output, dtype),),
        block,
        scope,
        prim,
        "aclnnMatmul_MatMulV3Common",
        "AI_CORE",
        flops=flops,
    )


def collective(
    op: str, group: str, shape: Sequence[int], dtype: str, block: str, *, overlap: bool = False, receives: bool = False
) -> Op:
    """A collective over `group`; `shape` is the whole buffer."""
    size = prod(shape) * BYTES[dtype]
    p2p = op in {"hcom_send_", "hcom_receive_", "hcom_batchSendRecv_"}
    return Op(
        op,
        (),
        (),
        block,
        prim=op[5:6].upper() + op[6:-1],
        core="COMMUNICATION",
        comm=Comm(op, group, size, overlap, p2p, receives),
    )
