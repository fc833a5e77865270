"""Kernels in order, each known by what it is: the input of everything that looks for structure.

A track has two views. `order` lists all kernels of the frame by step and start. Main kernels, those of the stream (or
streams) that carry the matrix work, are the sequence in which layers repeat; communication and side streams are placed
by time against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.optypes import normalise, op_class
from analysis.shapes import is_batched, parse_shapes
from analysis.words import combined, distinct

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]

MATMUL = ("matmul", "grouped_matmul")
_MAIN_SHARE = 0.2
_BASE = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Kind:
    """What all kernels of one type and shapes have in common."""

    cls: str
    name: str  # normalised type
    batched: bool  # a matrix product with a batch axis on both sides
    elements: int  # of the first input, 0 where unknown
    out_elements: int
    rank: int  # axes of the first output, -1 where unknown
    width: int  # last axis of the first input, 0 where unknown

    @property
    def moves(self) -> bool:
        """Whether it moves or converts data without computing."""
        return self.cls in ("cast", "movement")

    @property
    def is_grad(self) -> bool:
        return self.cls.endswith("_grad") or self.name.endswith("grad") or self.name == "unsortedsegmentsum"


@dataclass(frozen=True)
class Track:
    """Main kernels in order. Arrays run over main kernels unless said otherwise."""

    order: Ints  # row in the frame, over all kernels, by step and start
    main: Ints  # position in `order` of each main kernel
    before: Ints  # over `order`: index of the main kernel at or before it, -1 where there is none
    steps: Ints  # over `order`: number of its step
    kind: Ints  # index into `kinds`
    kinds: list[Kind]
    word: Ints  # equal where type and widths are equal: the alphabet of motifs
    communication: Bools  # over `order`
    hashes: Hashes  # running hash of `word`
    unscale: Hashes

    @cached_property
    def products(self) -> frozenset[int]:
        """Words of matrix products."""
        return frozenset(np.unique(self.word[self.flag(*MATMUL)]).tolist())

    @cached_property
    def main_steps(self) -> Ints:
        """Step of each main kernel."""
        return self.steps[self.main]

    @cached_property
    def moves(self) -> Bools:
        """Main kernels that move or convert data without computing."""
        return np.array([kind.moves for kind in self.kinds], dtype=bool)[self.kind]

    @cached_property
    def is_grad(self) -> Bools:
        """Main kernels that make a gradient, as far as their type says so."""
        return np.array([kind.is_grad for kind in self.kinds], dtype=bool)[self.kind]

    def flag(self, *classes: str) -> Bools:
        """Main kernels of these classes."""
        wanted = np.array([kind.cls in classes for kind in self.kinds], dtype=bool)
        return wanted[self.kind] if len(self.kind) else np.zeros(0, dtype=bool)

    def signatures(self, starts: Ints, ends: Ints) -> Hashes:
        """Equal for spans [start, end) of main kernels that read the same."""
        return (self.hashes[ends] - self.hashes[starts]) * self.unscale[starts]

    def kinds_of(self, start: int, end: int) -> list[Kind]:
        return [self.kinds[index] for index in self.kind[start:end]]


def build_track(kernels: pl.DataFrame) -> Track:
    """The track of a kernels frame. Types the profiler did not write are taken from the kernel's name."""
    start = kernels["start_ns"].fill_null(0).to_numpy()
    step = _steps(kernels, start)
    order = _order(step, start)
    code, kinds, words = _kinds(kernels)
    talk = (kernels["kind"] == "communication").to_numpy()
    is_main = _main_rows(kernels, code, kinds, talk)[order]
    main = np.flatnonzero(is_main)
    kind = code[order][main]
    word = words[kind]
    hashes, unscale = _running_hash(word)
    steps = step[order]
    before = np.cumsum(is_main) - 1
    valid = before >= 0
    valid[valid] &= steps[main[before[valid]]] == steps[valid] if len(main) else False
    return Track(order, main, np.where(valid, before, -1), steps, kind, kinds, word, talk[order], hashes, unscale)


def _steps(kernels: pl.DataFrame, start: Ints) -> Ints:
    """Number of each row's step, in the order the steps begin."""
    codes, values = distinct(kernels["step"].fill_null(""))
    begin = np.full(len(values), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(begin, codes, start)
    number = np.empty(len(values), dtype=np.int64)
    number[np.argsort(begin, kind="stable")] = np.arange(len(values))
    return number[codes]


def _order(step: Ints, start: Ints) -> Ints:
    """Rows by step and start; profilers mostly write them so."""
    later = np.diff(step)
    if ((later > 0) | ((later == 0) & (np.diff(start) >= 0))).all():
        return np.arange(len(step))
    return np.lexsort((start, step)).astype(np.int64)


def _kinds(kernels: pl.DataFrame) -> tuple[Ints, list[Kind], Ints]:
    """(index of each row's kind, the kinds, word of each kind)."""
    label = kernels["type"]
    if label.null_count():
        label = kernels.select(pl.coalesce("type", "name").fill_null("")).to_series()
    columns = [label, kernels["input_shapes"].fill_null(""), kernels["output_shapes"].fill_null("")]
    codes, first = combined(columns)
    rows = list(zip(*(column.gather(first).to_list() for column in columns), strict=True)) if kernels.height else []
    kinds = [_kind(*row) for row in rows]
    # a type whose shapes are not always known is compared without them
    bare = {kind.name for kind, (_, inputs, _) in zip(kinds, rows, strict=True) if not inputs}
    index: dict[tuple[object, ...], int] = {}
    words = [
        index.setdefault(_word(kind.name, "" if kind.name in bare else inputs, outputs), len(index))
        for kind, (_, inputs, outputs) in zip(kinds, rows, strict=True)
    ]
    return codes, kinds, np.array(words, dtype=np.int64)


def _kind(label: str, inputs: str, outputs: str) -> Kind:
    ins, outs = parse_shapes(inputs), parse_shapes(outputs)
    name, cls = normalise(label), op_class(label)
    elements = prod(ins[0]) if ins and ins[0] else 0
    out = next((shape for shape in outs if shape), ())
    return Kind(
        cls,
        name,
        cls == "matmul" and is_batched(label, ins),
        elements,
        prod(out) if out else 0,
        len(outs[0]) if outs else -1,
        _width(ins[0]) if ins else 0,
    )


def _word(name: str, inputs: str, outputs: str) -> tuple[object, ...]:
    """Widths, not whole shapes: the number of tokens of an expert differs from layer to layer."""
    if not inputs:
        return (name,)
    ins, outs = parse_shapes(inputs), parse_shapes(outputs)
    return (name, *map(_width, ins[:4]), -1, *map(_width, outs[:2]))


def _width(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 0


def _main_rows(kernels: pl.DataFrame, code: Ints, kinds: list[Kind], talk: Bools) -> Bools:
    """Compute kernels of every stream that does a good part of the matrix work."""
    heavy = np.array([kind.cls in (*MATMUL, "attention", "attention_grad", "conv") for kind in kinds], dtype=bool)
    weight = np.where(heavy[code] if len(kinds) else False, kernels["duration_ns"].fill_null(0).to_numpy(), 0)
    index, ids = distinct(kernels["stream_id"])
    share = np.bincount(index[~talk], weights=weight[~talk], minlength=len(ids)) if len(ids) else np.zeros(0)
    if not share.sum():
        return np.asarray(~talk)
    return np.asarray(~talk & (share >= _MAIN_SHARE * share.max())[index])


def _running_hash(word: Ints) -> tuple[Hashes, Hashes]:
    """Prefix sums of word * base^i modulo 2^64, and base^-i to compare spans wherever they lie."""
    size = len(word) + 1
    inverse = pow(_BASE, -1, 2**64)
    scale, unscale = np.full(size, _BASE, dtype=np.uint64), np.full(size, inverse, dtype=np.uint64)
    scale[0] = unscale[0] = 1
    mixed = (word.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(29)
    hashes = np.zeros(size, dtype=np.uint64)
    np.cumsum(mixed * np.cumprod(scale)[:-1], out=hashes[1:])
    return hashes, np.cumprod(unscale)
