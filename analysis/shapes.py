"""Shapes as profilers write them, and the floating-point operations they imply.

A multiply-add counts as two operations. Only the matrix units' work is counted: matmul family, convolution, attention.
Everything else, and every kernel whose shapes are not known, has null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod

import polars as pl

from analysis.optypes import normalise, op_class

Shape = tuple[int, ...]
Shapes = list[Shape]

MOST_ELEMENTS = 1 << 52
"""No tensor has so many; sums over their bytes stay exact below."""
CAUSAL_FACTOR = 0.5
"""Share of the score matrix a causal mask leaves, as the Megatron causal formula counts it."""
BACKWARD_ATTENTION_FACTOR = 2.5
"""Backward attention runs five matrix products where forward runs two: scores again, dV, dP, dQ, dK."""
_COUNTED = ("matmul", "grouped_matmul", "conv", "attention", "attention_grad")


def parse_shapes(text: str | None) -> Shapes:
    """`"128,64;64,64"` -> [(128, 64), (64, 64)]. A scalar or missing operand is `()`; unknown text, or a size
    that no tensor has, gives [].

    Accepts the doubled quotes of CSV cells, blank optional operands and the JSON form `[[128, 64], [64]]`.
    """
    if text is None or text.strip().strip('"') in ("", "N/A"):
        return []
    body = text.strip().strip('"')
    parts = re.findall(r"\[([^\[\]]*)\]", body) if body.startswith("[") else body.split(";")
    shapes = [_shape(part) for part in parts]
    return [shape for shape in shapes if shape is not None] if None not in shapes else []


def _shape(part: str) -> Shape | None:
    numbers = [piece.strip() for piece in part.split(",") if piece.strip()]
    if not all(re.fullmatch(r"-?\d{1,18}", number) for number in numbers):
        return None
    shape = tuple(int(number) for number in numbers)
    return shape if prod(max(abs(size), 1) for size in shape) < MOST_ELEMENTS else None


def with_flops(kernels: pl.DataFrame) -> pl.DataFrame:
    """`kernels` with a column `flops` (Int64), null where the kernel has none to count or its shapes are unknown."""
    keys = ["type", "input_shapes", "output_shapes", "input_formats", "output_formats"]
    combos = kernels.select(keys).unique()
    counted = [kernel_flops(*row) for row in combos.iter_rows()]
    combos = combos.with_columns(pl.Series("flops", counted, dtype=pl.Int64))
    return kernels.join(combos, on=keys, how="left", nulls_equal=True, maintain_order="left")


def kernel_flops(
    type: str | None,
    inputs: str | None,
    outputs: str | None,
    input_formats: str | None = None,
    output_formats: str | None = None,
) -> int | None:
    """Floating-point operations of one kernel of that type and those shapes; null when they cannot be told."""
    if type is None or (cls := op_class(type)) not in _COUNTED:
        return None
    ins, outs = parse_shapes(inputs), parse_shapes(outputs)
    if not ins or not outs or any(size < 0 for shape in ins + outs for size in shape):
        return None
    kinds = _formats(input_formats, len(ins)) + _formats(output_formats, len(outs))
    flops = _FORMULAS[cls](normalise(type), ins, outs, kinds)
    return flops if flops is not None and flops < 2**63 else None


def _formats(text: str | None, count: int) -> list[str]:
    kinds = [kind.strip().upper() for kind in (text or "").strip().strip('"').split(";")]
    return (kinds + [""] * count)[:count]


def matmul_dims(inputs: Shapes, outputs: Shapes) -> tuple[int, int, int, int] | None:
    """(batch, M, N, K) of a product, whichever operand is transposed; null when the shapes do not make one.

    K is the axis both inputs have and the output lacks, so it is found by elements: |A| * |B| = batch^2 * M * N * K^2.
    """
    operands = [shape for shape in inputs if len(shape) >= 2][:2]
    if len(operands) < 2 or len(outputs[0]) < 2:
        return None
    left, right, out = operands[0], operands[1], outputs[0]
    m, n = out[-2], out[-1]
    for k in dict.fromkeys((left[-1], left[-2])):
        if sorted(left[-2:]) == sorted((m, k)) and sorted(right[-2:]) == sorted((k, n)):
            return prod(out[:-2]), m, n, k
    return _folded_dims(left, right, out)


def _folded_dims(left: Shape, right: Shape, out: Shape) -> tuple[int, int, int, int] | None:
    """A product of flattened leading axes: [B, S, K] x [K, N] -> [B * S, N], or a weight gradient summed over them."""
    n, m = out[-1], prod(out[:-1])
    if not m or not n or prod(left) % m or prod(right) % n:
        return None
    k = prod(left) // m
    return (1, m, n, k) if k * n == prod(right) else None


def _matmul(name: str, ins: Shapes, outs: Shapes, formats: Sequence[str]) -> int | None:
    tensors = [unfold_nz(s) if "NZ" in kind else s for s, kind in zip(ins + outs, formats, strict=True)]
    dims = matmul_dims(tensors[: len(ins)], tensors[len(ins) :])
    return 2 * prod(dims) if dims else None


def unfold_nz(shape: Shape) -> Shape:
    """FRACTAL_NZ stores [.., n1, m1, 16, 16] for [.., m1 * 16, n1 * 16]; a shape already written plainly stays."""
    if len(shape) >= 4 and shape[-1] in (16, 32, 64) and shape[-2] == 16:
        return (*shape[:-4], shape[-3] * shape[-2], shape[-4] * shape[-1])
    return shape


def is_batched(op_type: str, inputs: Shapes) -> bool:
    """Whether a matrix product is one of stacks of matrices, as scores and context of written-out attention are.

    Without shapes its name tells. An operand stored in fractals is one matrix, however many axes it has; only a
    product that is batched by its name may be of stacks of 16 x 16.
    """
    name = normalise(op_type)
    named = "batch" in name or name == "bmm"
    operands = [shape for shape in inputs if len(shape) >= 2][:2]
    if len(operands) < 2:
        return named
    return all(len(shape if named else unfold_nz(shape)) >= 3 for shape in operands)


def _grouped(name: str, ins: Shapes, outs: Shapes, formats: Sequence[str]) -> int | None:
    """Every token meets one group's weight, so groups do not multiply: 2 x tokens x K x N."""
    operands = [shape for shape in ins if len(shape) >= 2]
    if len(operands) < 2:
        return None
    tokens, weight, out = operands[0], operands[1], outs[0]
    if len(weight) == 3 and len(out) == 2:
        return 2 * out[0] * out[1] * tokens[-1]
    if len(out) == 3 and len(weight) == 2:
        return 2 * weight[0] * out[-1] * out[-2]
    return _listed_groups(operands, outs)


def _listed_groups(operands: Shapes, outs: Shapes) -> int | None:
    """One tensor per group: first all activations, then all weights."""
    half = len(operands) // 2
    pairs = zip(operands[:half], operands[half : 2 * half], strict=True)
    total = [prod(left) * right[-1] for left, right in pairs if left[-1] == right[0]]
    return 2 * sum(total) if len(total) == half else None


def _conv(name: str, ins: Shapes, outs: Shapes, formats: Sequence[str]) -> int | None:
    """2 x positions of the forward output x elements of the weight; both gradients cost the same product.

    Elements of a weight are counted as stored, so channels padded to a block of 16 count as the hardware works them.
    """
    tensors = [(shape, kind) for shape, kind in zip(ins + outs, formats, strict=True) if len(shape) >= 4]
    if len(tensors) < 3:
        return None
    first, second, result = tensors[0], tensors[1], tensors[-1]
    if "filter" in name:
        return 2 * min(_positions(*first), _positions(*second)) * prod(result[0])
    if "input" in name:
        weight, grad = (second, first) if "FRACTAL_Z" in second[1] else (first, second)
        return 2 * _positions(*grad) * prod(weight[0])
    return 2 * _positions(*result) * prod(second[0])


def _positions(shape: Shape, kind: str) -> int:
    """Batch x spatial positions of a feature map: every axis but the channel ones."""
    if "NDC1HWC0" in kind:
        return prod(shape[:2]) * prod(shape[3:5])
    if "NC1HWC0" in kind or (not kind and len(shape) == 5 and shape[4] == 16):
        return shape[0] * shape[2] * shape[3]
    if kind.endswith("WC"):
        return prod(shape[:-1])
    return shape[0] * prod(shape[2:])


def _attention(name: str, ins: Shapes, outs: Shapes, formats: Sequence[str]) -> int | None:
    """2 x scores x (d_qk + d_v), the scores cut by the mask where one is passed."""
    found = attention_dims(ins, outs)
    if found is None:
        return None
    batch, heads, queries, keys, d_qk, d_v, causal = found
    scores = batch * heads * queries * keys * (CAUSAL_FACTOR if causal else 1)
    return int(2 * scores * (d_qk + d_v))


def _attention_grad(name: str, ins: Shapes, outs: Shapes, formats: Sequence[str]) -> int | None:
    forward = _attention(name, ins, outs, formats)
    return None if forward is None else int(forward * BACKWARD_ATTENTION_FACTOR)


def attention_dims(ins: Shapes, outs: Shapes) -> tuple[int, int, int, int, int, int, bool] | None:
    """(batch, heads, queries, keys, d_qk, d_v, causal); for BSH and SBH heads is 1 and widths are of all heads.

    The layout is not in a dump. The softmax statistics [batch, heads, queries, 8] tell it; without them the head axis
    is the one where query and key differ, else the shorter one. The compressed mask of 2048 x 2048 is taken for a
    causal one (sparse modes 2 and 3): what lies above the diagonal is not computed. TND packs sequences whose lengths a
    dump does not hold: an even split is assumed, the least they can cost.
    """
    if len(ins) < 3 or len({len(shape) for shape in ins[:3]}) != 1 or len(ins[0]) not in (3, 4):
        return None
    query, key, value = ins[:3]
    rest = ins[3:] + outs
    causal = any(_is_compressed_mask(shape) for shape in ins[3:])
    statistics = next((shape for shape in rest if len(shape) == 4 and shape[-1] == 8), None)
    if len(query) == 4:
        head, row = _axes_of_four(query, key, statistics)
        return query[0], query[head], query[row], key[row], query[3], value[3], causal
    if any(len(shape) == 3 and shape[-1] == 8 for shape in rest):
        count = max((shape[0] for shape in ins[3:] if len(shape) == 1), default=1) or 1
        return count, query[1], query[0] // count, key[0] // count, query[2], value[2], causal
    batch, row = _axes_of_three(query, statistics)
    return query[batch], 1, query[row], key[row], query[2], _value_width(query, key, value), causal


def attention_heads(ins: Shapes, outs: Shapes) -> tuple[int | None, int] | None:
    """(heads, width of the queries of all heads) of an attention kernel; heads are unknown where width alone is told,
    both where the shapes are not those of attention."""
    dims = attention_dims(ins, outs)
    if dims is None:
        return None
    query, rest = ins[0], ins[3:] + outs
    statistics = next((shape for shape in rest if len(shape) == 4 and shape[-1] == 8), None)
    packed = any(len(shape) == 3 and shape[-1] == 8 for shape in rest)
    if len(query) == 4 or packed:
        return dims[1], dims[1] * dims[4]
    return (statistics[1] if statistics is not None else None), query[2]


def _axes_of_three(query: Shape, statistics: Shape | None) -> tuple[int, int]:
    """(batch axis, sequence axis) of a three-axis query: BSH or SBH."""
    if statistics is not None:
        return (0, 1) if (statistics[0], statistics[2]) == query[:2] else (1, 0)
    return (0, 1) if query[0] <= query[1] else (1, 0)


def _value_width(query: Shape, key: Shape, value: Shape) -> int:
    """Width of all value heads as queries see them: grouped key heads serve several query heads each."""
    return query[2] * value[2] // key[2] if key[2] else query[2]


def _axes_of_four(query: Shape, key: Shape, statistics: Shape | None) -> tuple[int, int]:
    """(head axis, sequence axis) of a four-axis query: BNSD or BSND."""
    if statistics is not None and statistics[1:3] in (query[1:3], (query[2], query[1])):
        return (1, 2) if statistics[1:3] == query[1:3] else (2, 1)
    if (query[1] == key[1]) != (query[2] == key[2]):
        return (2, 1) if query[1] == key[1] else (1, 2)
    return (2, 1) if query[2] < query[1] else (1, 2)


def _is_compressed_mask(shape: Shape) -> bool:
    """The 2048 x 2048 triangle that stands for a causal mask of any length; a mask in full is computed in full."""
    return shape[-2:] == (2048, 2048) and prod(shape) == 2048 * 2048


def mode_decides(ins: Shapes, outs: Shapes) -> bool:
    """Whether a mask of 2048 x 2048 may as well be one in full, since the sequences are as long: then only the sparse
    mode tells, which a dump does not hold."""
    dims = attention_dims(ins, outs)
    return dims is not None and dims[6] and dims[2:4] == (2048, 2048)


_FORMULAS: dict[str, Callable[[str, Shapes, Shapes, Sequence[str]], int | None]] = {
    "matmul": _matmul,
    "grouped_matmul": _grouped,
    "conv": _conv,
    "attention": _attention,
    "attention_grad": _attention_grad,
}
