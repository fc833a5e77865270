"""How many layers each stage of a pipeline holds, and of which kind.

A layout is the layers by model chunk and stage, ((4, 5), (5, 4)) for two chunks on two stages. The model's layers run
through the stages of the first chunk, then through those of the second one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from analysis.config import ModelConfig

Layout = tuple[tuple[int, ...], ...]
_MOST = 4096
"""Chunks of a layout at most: numbers of a file must not fill the memory."""


def even(layers: int, stages: int, chunks: int = 1) -> Layout | None:
    """As many layers everywhere; None where they cannot be."""
    if not 0 < stages * chunks <= _MOST:
        return None
    each, rest = divmod(layers, stages * chunks)
    return ((each,) * stages,) * chunks if each and not rest else None


def shifted(layers: int, stages: int, chunks: int, offset: Any) -> Layout | None:
    """MindSpore Transformers' `offset`: what each stage, of each chunk or of all, holds beyond the whole part of the
    mean. None where it is no such list or does not add up to the model."""
    if not 0 < stages * chunks <= _MOST:
        return None
    given = offset if isinstance(offset, list) else [offset] * stages
    per_chunk = given if any(isinstance(row, list) for row in given) else [given] * chunks
    if len(per_chunk) != chunks or any(not _counts(row, stages) for row in per_chunk):
        return None
    mean = layers // (stages * chunks)
    return _whole(tuple(tuple(mean + more for more in row) for row in per_chunk), layers)


def _counts(row: Any, stages: int) -> bool:
    return isinstance(row, list) and len(row) == stages and all(type(more) is int for more in row)


def listed(layers: int, stages: int, chunks: int, by_stage: Sequence[int]) -> Layout | None:
    """A list of one number for each stage; None where it does not add up or a stage cannot be cut into chunks."""
    if len(by_stage) != stages or chunks > _MOST or any(count % chunks for count in by_stage):
        return None
    return _whole((tuple(count // chunks for count in by_stage),) * chunks, layers)


def with_ends(layers: int, stages: int, chunks: int, first: int | None, last: int | None) -> Layout | None:
    """Megatron-LM's number of layers on the first and the last stage; the others share the rest evenly."""
    ends = [count for count in (first, last) if count is not None]
    if stages <= len(ends) or stages > _MOST:
        return listed(layers, stages, chunks, ends)
    middle, rest = divmod(layers - sum(ends), stages - len(ends))
    if rest:
        return None
    inner = [middle] * (stages - len(ends))
    return listed(
        layers, stages, chunks, [*([] if first is None else [first]), *inner, *([] if last is None else [last])]
    )


def _whole(layout: Layout, layers: int) -> Layout | None:
    counts = [count for row in layout for count in row]
    return layout if sum(counts) == layers and min(counts, default=-1) >= 0 else None


def without(layout: Layout, absent: Collection[int]) -> Layout:
    """The layout without some layers, by their place in the model from 0."""
    return _each(layout, lambda first, count: count - sum(first <= place < first + count for place in absent))


def _leading(layout: Layout, leading: int) -> Layout:
    """How many of the model's first `leading` layers each chunk holds."""
    return _each(layout, lambda first, count: min(count, max(0, leading - first)))


def _each(layout: Layout, change: Callable[[int, int], int]) -> Layout:
    """Each chunk's count changed, by the place of its first layer in the model."""
    found, first = [], 0
    for row in layout:
        changed = []
        for count in row:
            changed.append(change(first, count))
            first += count
        found.append(tuple(changed))
    return tuple(found)


def layers_by_stage(layout: Layout) -> list[int]:
    """Layers of each stage, all its chunks together."""
    return [sum(column) for column in zip(*layout, strict=True)]


class Held(NamedTuple):
    """Fewest and most layers of a stage: all, those without experts, those with."""

    layers: tuple[int, int]
    dense: tuple[int, int]
    moe: tuple[int, int]


def held(config: ModelConfig, stage: int | None) -> Held:
    """What a stage holds, or, where it is not known which, any of them. Where nobody says how layers that do not go
    into the stages are shared out, a stage may hold one more."""
    layers, stages, chunks = config.layers or 0, config.pp or 1, config.interleave or 1
    leading = min(config.dense_layers or 0, layers) if config.experts else layers
    layout = config.stage_layers or even(layers, stages, chunks) or even(layers, stages)
    if layout is None:
        return _uncertain(layers // stages, leading, layers)
    all_of, dense = layers_by_stage(layout), layers_by_stage(_leading(layout, leading))
    chosen = range(stages) if stage is None else [stage]
    return Held(
        _range([all_of[one] for one in chosen]),
        _range([dense[one] for one in chosen]),
        _range([all_of[one] - dense[one] for one in chosen]),
    )


def _range(counts: Sequence[int]) -> tuple[int, int]:
    return min(counts), max(counts)


def _uncertain(least: int, leading: int, layers: int) -> Held:
    """Of a stage with `least` layers or one more; the model's first `leading` layers have no experts."""
    most = least + 1
    if leading == layers:
        return Held((least, most), (least, most), (0, 0))
    return Held((least, most), (0, min(leading, most)), (max(0, least - leading), most))
