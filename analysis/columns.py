"""Rows kept by column: of a thousand ranks with hundreds of rows each, a tenth of what as many dicts take."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

Json = dict[str, Any]
_INT64 = 1 << 63


class Columns(Sequence[Json]):
    """Rows of one set of keys, given as plain dicts that are made anew for each look: changing one changes nothing."""

    __slots__ = ("_keys", "_length", "_values")

    def __init__(self, rows: Sequence[Mapping[str, Any]], words: dict[str, str] | None = None) -> None:
        self._keys = tuple(rows[0]) if rows else ()
        self._length = len(rows)
        self._values = [compact([row[key] for row in rows], words) for key in self._keys]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Json]:
        keys = self._keys
        for values in zip(*self._values, strict=True):
            yield dict(zip(keys, values, strict=True))

    @overload
    def __getitem__(self, index: int) -> Json: ...
    @overload
    def __getitem__(self, index: slice) -> list[Json]: ...
    def __getitem__(self, index: int | slice) -> Json | list[Json]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._length))]
        return {key: values[index] for key, values in zip(self._keys, self._values, strict=True)}


def columns(rows: Any, words: dict[str, str] | None = None) -> Any:
    """The rows by column, when they are rows that all have the same keys; else what was given. Texts that `words` has
    are its own, and it learns new ones."""
    if not isinstance(rows, list) or not rows or not all(type(row) is dict for row in rows):
        return rows
    keys = rows[0].keys()
    return Columns(rows, words) if keys and all(row.keys() == keys for row in rows) else rows


def compact(values: list[Any], words: dict[str, str] | None = None) -> Sequence[Any]:
    """The same values: machine numbers where all are floats or all 64-bit integers, and the texts that `words` has."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return array("d", values)
    if kinds == {int} and all(-_INT64 <= value < _INT64 for value in values):
        return array("q", values)
    if kinds == {str} and words is not None:
        return [words.setdefault(value, value) for value in values]
    return values
