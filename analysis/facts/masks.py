"""The attention mask: shape and dtype of the operand, and kernels that build it again and again."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, total_ns, totals, us
from analysis.facts.recovery import Marks
from analysis.shapes import Shape, parse_shapes

_BUILDERS = ("elementwise", "movement", "cast", "reduction")
_BOOLEAN = ("BOOL", "UINT8", "DT_BOOL", "DT_UINT8")
_REPEATED = 0.8  # builders per attention from which a mask counts as rebuilt in each layer


def facts(compute: Kernels, attention: dict[str, Any], marks: Marks) -> dict[str, Any]:
    """Mask operands of attention kernels and of masked softmax, and the kernels whose output is such a mask."""
    length = attention["sequence_length"]
    operands = _operands(compute)
    builders = _builders(compute, [tuple(row["shape"]) for row in operands], length)
    count = attention["fused_count"] + attention["unfused_count"]
    rows = totals(builders, ["type", "output_shapes", "output_dtypes", "part"], 10)
    most = max((int(str(row["count"])) for row in rows), default=0)
    rebuilt = count >= 2 and most >= _REPEATED * count
    if rebuilt:
        marks.add("attention_mask", builders["row"])
    return {
        "sequence_length": length,
        "operands": operands,
        "builders": rows,
        "builders_us": us(total_ns(builders)),
        "rebuilt": rebuilt,
    }


def _operands(compute: Kernels) -> list[dict[str, Any]]:
    users = compute.kinds.filter((pl.col("class") == "attention") | _masked_softmax())
    found: dict[tuple[Shape, str | None], dict[str, Any]] = {}
    for row in totals(users, ["class", "input_shapes", "input_dtypes"], 50):
        operand = mask_operand(str(row["class"]), _text(row["input_shapes"]), _text(row["input_dtypes"]))
        if operand is None:
            continue
        shape, dtype = operand
        entry = found.setdefault(operand, {"shape": list(shape), "dtype": dtype, "count": 0})
        entry["count"] += int(str(row["count"]))
    return sorted(found.values(), key=lambda entry: -int(entry["count"]))[:10]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _masked_softmax() -> pl.Expr:
    masked = pl.col("type").str.to_lowercase().str.contains("maskedsoftmax", literal=True)
    return (pl.col("class") == "softmax") & masked


def mask_operand(op_class: str, inputs: str | None, dtypes: str | None) -> tuple[Shape, str | None] | None:
    """(shape, dtype) of the mask among the operands, None where there is none to see.

    Query, key and value come first. A bool or uint8 operand with two long last axes is the mask; of other dtypes only
    one behind the places of position bias and dropout mask can be.
    """
    shapes = parse_shapes(inputs)
    kinds = ((dtypes or "").strip().strip('"').split(";") + [""] * len(shapes))[: len(shapes)]
    first = 3 if op_class == "attention" else 1
    square = [
        (index, shape, kind.strip() or None)
        for index, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
        if index >= first and 2 <= len(shape) <= 4 and min(shape[-2:]) >= 16
    ]
    boolean = [(shape, kind) for _, shape, kind in square if kind and kind.upper() in _BOOLEAN]
    late = [(shape, kind) for index, shape, kind in square if index >= first + 2 or op_class != "attention"]
    return next(iter(boolean + late), None)


def _builders(compute: Kernels, masks: list[Shape], length: int | None) -> pl.DataFrame:
    """Kernels of simple classes whose output has a mask's two last axes and no head axis."""
    sides = {shape[-2:] for shape in masks} | ({(length, length)} if length else set())
    simple = compute.kinds.filter(pl.col("class").is_in(_BUILDERS))
    if compute.attributed:
        simple = simple.filter(pl.col("part") == "layer")
    wanted = [_is_mask(row["output_shapes"], row["output_dtypes"], sides) for row in simple.iter_rows(named=True)]
    return compute.of(simple.filter(pl.Series(wanted, dtype=pl.Boolean)))


def _is_mask(shapes: str | None, dtypes: str | None, sides: set[Shape]) -> bool:
    outs = parse_shapes(shapes)
    if len(outs) != 1 or outs[0][-2:] not in sides or len(outs[0]) not in (2, 3, 4):
        return False
    boolean = (dtypes or "").strip().strip('"').upper() in _BOOLEAN
    heads_free = all(size == 1 for size in outs[0][1:-2])
    return heads_free and (boolean or len(outs[0]) == 4)
