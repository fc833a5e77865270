"""Layers from MindSpore's scope names and from the agent's scope map, laid over what structure found.

A forward kernel's scope is right but for shared primitives and Python operators, which carry the scope of their first
use: where structure and scopes agree on the rest, structure decides those. A gradient's own scope is that of one
instance of its primitive and is never used; its layer comes from the scope map's link, or from structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from analysis.layers.layout import BLOCK_CODE, COLUMNS, MOVEMENT, PART_CODE, Layout
from analysis.layers.neighbours import fill_between
from analysis.layers.scope_names import Scope, read_scope, scope_path
from analysis.layers.track import Bools, Ints
from analysis.words import distinct

STRUCTURE, SCOPE, SCOPE_MAP, NEIGHBOURS = 0, 1, 2, 3
_LAYER = PART_CODE["layer"]
_FORWARD, _BACKWARD, _RECOMPUTE, _NONE = range(4)
_AGREEMENT = 0.9
_PART_PASS = {"embedding": _FORWARD, "head_loss": _FORWARD, "final_norm": _FORWARD, "optimizer": _NONE}


@dataclass(frozen=True)
class Named:
    """Scopes by row of the frame; -1 where a name does not say."""

    scoped: Bools
    backward: Bools
    recompute: Bools
    expanded: Bools
    layer: Ints
    part: Ints
    block: Ints


def apply_scopes(
    kernels: pl.DataFrame, scope_map: Mapping[str, Any] | list[Any] | None, layout: Layout, attribution: Ints
) -> bool:
    """Write what names and map tell into `layout` and `attribution`; whether names gave any layer."""
    code, names = _unique_names(kernels)
    scopes = [read_scope(name) for name in names]
    offsets = _layer_lists(scopes)
    if not offsets:
        return False
    named = _by_row(scopes, offsets, code)
    moved = (
        np.isin(kernels["class"].to_numpy(), ("cast", "movement"))
        if "class" in kernels.columns
        else np.zeros(len(code), dtype=bool)
    )
    forward = named.scoped & ~named.backward & ~named.expanded
    trusted = _align(layout, named, forward & (named.layer >= 0))
    _apply_forward(layout, attribution, named, forward, trusted, moved)
    _apply_outside(layout, attribution, named, forward, moved)
    _drop_conflicts(layout, attribution, named)
    if scope_map:
        _apply_map(layout, attribution, _links(scope_map, names, offsets), code, moved)
    fill_between(kernels, layout, attribution, NEIGHBOURS)
    if not layout.layers:
        layout.layers = len(np.unique(named.layer[named.layer >= 0]))
        layout.micro_batches, layout.steps = 0, max(1, layout.steps)
    return True


def _unique_names(kernels: pl.DataFrame) -> tuple[Ints, list[str]]:
    """(index of each row's name, the names)."""
    code, names = distinct(kernels["name"].fill_null(""))
    return code, names.to_list()


def _layer_lists(scopes: list[Scope | None]) -> dict[str, int]:
    """Lists of cells that hold attention, each with the number its first layer gets: lists follow one another."""
    sizes: dict[str, int] = {}
    attends: set[str] = set()
    for scope in scopes:
        if scope is None or scope.layer is None or scope.backward:
            continue
        sizes[scope.owner] = max(sizes.get(scope.owner, 0), scope.layer + 1)
        if scope.attention:
            attends.add(scope.owner)
    offsets, total = {}, 0
    for owner, size in sizes.items():
        if owner in attends:
            offsets[owner] = total
            total += size
    return offsets


def _by_row(scopes: list[Scope | None], offsets: dict[str, int], code: Ints) -> Named:
    def flags(field: str) -> Bools:
        return np.array([scope is not None and getattr(scope, field) for scope in scopes], dtype=bool)[code]

    layer, part, block = ([] for _ in range(3))  # type: list[int], list[int], list[int]
    for scope in scopes:
        known = scope is not None and scope.owner in offsets and scope.layer is not None
        layer.append(offsets[scope.owner] + scope.layer if known else -1)  # type: ignore[union-attr, operator]
        outside = scope.part if scope is not None and not known and scope.part != "layer" else None
        part.append(PART_CODE[outside] if outside else -1)
        block.append(BLOCK_CODE[scope.block] if known and scope.block else -1)  # type: ignore[union-attr]
    scoped = np.array([scope is not None for scope in scopes], dtype=bool)[code]
    columns = (np.array(values, dtype=np.int64)[code] for values in (layer, part, block))
    return Named(scoped, flags("backward"), flags("recompute"), flags("expanded"), *columns)


def _align(layout: Layout, named: Named, rows: Bools) -> bool:
    """Give structure's layers the numbers the scopes use; whether the two agree on nearly all forward kernels."""
    both = rows & (layout.part == _LAYER) & (layout.pass_ != _BACKWARD)
    if not both.any():
        return False
    own, theirs = layout.layer[both], named.layer[both]
    numbers, places = np.unique(theirs, return_inverse=True)
    votes = np.zeros((layout.layers, len(numbers)), dtype=np.int64)
    np.add.at(votes, (own, places), 1)
    number = numbers[votes.argmax(axis=1)]
    missing = votes.sum(axis=1) == 0
    number[missing] = np.arange(layout.layers)[missing]
    placed = layout.layer >= 0
    layout.layer[placed] = number[layout.layer[placed]]
    return bool((number[own] == theirs).mean() >= _AGREEMENT)


def _apply_forward(
    layout: Layout, attribution: Ints, named: Named, forward: Bools, trusted: bool, moved: Bools
) -> None:
    rows = forward & (named.layer >= 0)
    in_layer = (layout.part == _LAYER) & (layout.pass_ != _BACKWARD)
    same = rows & in_layer & (layout.layer == named.layer)
    attribution[same] = SCOPE
    other = rows & ~same & ~(in_layer if trusted else np.zeros(len(rows), dtype=bool))
    layout.part[other] = _LAYER
    layout.layer[other] = named.layer[other]
    layout.pass_[other] = np.where(layout.pass_[other] == _RECOMPUTE, _RECOMPUTE, _FORWARD)
    layout.within[other] = np.where(named.block[other] >= 0, named.block[other], BLOCK_CODE["other"])
    layout.block[other] = np.where(moved[other], MOVEMENT, layout.within[other])
    layout.micro_batch[other] = np.where(layout.micro_batch[other] < 0, 0, layout.micro_batch[other])
    attribution[other] = SCOPE


def _apply_outside(layout: Layout, attribution: Ints, named: Named, forward: Bools, moved: Bools) -> None:
    for part, pass_ in _PART_PASS.items():
        rows = forward & (named.part == PART_CODE[part])
        kept = rows & (layout.part == PART_CODE[part])
        attribution[kept] = SCOPE
        _place_outside(layout, rows & ~kept, part, pass_, moved)
        attribution[rows] = SCOPE


def _place_outside(layout: Layout, rows: Bools, part: str, pass_: int, moved: Bools) -> None:
    layout.part[rows] = PART_CODE[part]
    layout.layer[rows] = -1
    layout.pass_[rows] = pass_
    layout.within[rows] = BLOCK_CODE[part]
    layout.block[rows] = np.where(moved[rows], MOVEMENT, BLOCK_CODE[part])
    layout.micro_batch[rows] = -1 if pass_ == _NONE else np.maximum(layout.micro_batch[rows], 0)


def _drop_conflicts(layout: Layout, attribution: Ints, named: Named) -> None:
    """A gradient kernel among forward ones was hoisted there: structure does not know where it belongs."""
    wrong = named.backward & (layout.part == _LAYER) & (layout.pass_ == _FORWARD)
    loss = wrong & (named.part == PART_CODE["head_loss"])
    _place_outside(layout, loss, "head_loss", _BACKWARD, np.zeros(len(wrong), dtype=bool))
    attribution[loss] = SCOPE
    for name in COLUMNS:
        getattr(layout, name)[wrong & ~loss] = -1
    attribution[wrong & ~loss] = -1


# Scope map


@dataclass(frozen=True)
class Links:
    """By unique name: what the map links a kernel to; -1 where it does not."""

    layer: Ints
    part: Ints
    block: Ints
    recompute: Bools


def _links(scope_map: Mapping[str, Any] | list[Any], names: list[str], offsets: dict[str, int]) -> Links:
    entries = map_entries(scope_map)
    layer, part, block = (np.full(len(names), -1, dtype=np.int64) for _ in range(3))
    recompute = np.zeros(len(names), dtype=bool)
    for index, name in enumerate(names):
        path = scope_path(name)
        module, pass_ = entries.get(path, (None, None)) if path else (None, None)
        if module is None or pass_ not in ("backward", "recompute"):
            continue
        scope = read_scope(module)
        recompute[index] = pass_ == "recompute"
        if scope is None:
            continue
        if scope.layer is not None and scope.owner in offsets:
            layer[index] = offsets[scope.owner] + scope.layer
            block[index] = BLOCK_CODE[scope.block] if scope.block else -1
        elif scope.part in _PART_PASS:
            part[index] = PART_CODE[scope.part]
    return Links(layer, part, block, recompute)


def map_entries(scope_map: Mapping[str, Any] | list[Any]) -> dict[str, tuple[str | None, str | None]]:
    """Kernel scope -> (forward scope it is linked to, pass). Takes the agent's map and a plain list of linked nodes."""
    found: dict[str, tuple[str | None, str | None]] = {}
    if isinstance(scope_map, list):
        for row in scope_map:
            if isinstance(row, dict) and isinstance(row.get("name"), str):
                forward = row.get("forward_scope")
                found[row["name"]] = (forward if isinstance(forward, str) else None, "backward" if forward else None)
        return found
    kernels = scope_map.get("kernels")
    for name, row in kernels.items() if isinstance(kernels, dict) else ():
        if isinstance(row, dict):
            module, pass_ = row.get("module"), row.get("pass")
            found[name] = (module if isinstance(module, str) else None, pass_ if isinstance(pass_, str) else None)
    return found


def _apply_map(layout: Layout, attribution: Ints, links: Links, code: Ints, moved: Bools) -> None:
    linked = links.layer[code]
    rows = linked >= 0
    if not rows.any():
        return
    new = rows & (layout.part != _LAYER)
    block = links.block[code][new]
    layout.within[new] = np.where(block >= 0, block, BLOCK_CODE["other"])
    layout.block[new] = np.where(moved[new], MOVEMENT, layout.within[new])
    layout.disputed = rows & (layout.part == _LAYER) & (layout.layer != linked)
    layout.structural = np.where(layout.part == _LAYER, layout.layer, linked)
    layout.part[rows] = _LAYER
    layout.layer[rows] = linked[rows]
    layout.pass_[rows] = np.where(links.recompute[code][rows], _RECOMPUTE, _BACKWARD)
    layout.micro_batch[rows] = np.maximum(layout.micro_batch[rows], 0)
    attribution[rows] = SCOPE_MAP
    for part in ("embedding", "head_loss", "final_norm"):
        outside = links.part[code] == PART_CODE[part]
        _place_outside(layout, outside, part, _BACKWARD, moved)
        attribution[outside] = SCOPE_MAP
