"""Rows that wait in a file until somebody looks at them: a report of thousands of ranks looks at few of each at a
time."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from analysis.columns import Columns, Json, columns

LEAST_BYTES = 200
"""What is less than this as bytes takes little more memory than the place where it is."""


class Shelf:
    """A file of ours that holds rows. Give it one without a name: nobody else writes it, and it ends with us."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._last: tuple[int, Any] = (-1, None)

    def put(self, value: Any) -> Any:
        """Rows, or an object, to be read anew at each look, where that is worth it; else what was given. Raises
        OSError where the disk is full."""
        kind = _kind(value)
        if kind is None:
            return value
        data = pickle.dumps(columns(list(value)) if kind is Shelved else value, pickle.HIGHEST_PROTOCOL)
        if len(data) < LEAST_BYTES:
            return value
        place = self._file.seek(0, 2)
        self._file.write(data)
        return kind(self, place, len(value))

    def take(self, place: int) -> Any:
        """What was put there. Whoever looks at one thing often looks at it several times in a row."""
        if self._last[0] != place:
            self._file.seek(place)
            self._last = (place, pickle.load(self._file))
        return self._last[1]


class Shelved(Columns):
    """Rows on a shelf, for reading alone."""

    __slots__ = ("_length", "_place", "shelf")

    def __init__(self, shelf: Shelf, place: int, length: int) -> None:
        self.shelf, self._place, self._length = shelf, place, length

    def __iter__(self) -> Iterator[Json]:
        return iter(self.shelf.take(self._place))

    def __getitem__(self, index: Any) -> Any:
        return self.shelf.take(self._place)[index]


class ShelvedObject(Mapping[str, Any]):
    """An object on a shelf, for reading alone."""

    __slots__ = ("_length", "_place", "_shelf")

    def __init__(self, shelf: Shelf, place: int, length: int) -> None:
        self._shelf, self._place, self._length = shelf, place, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return iter(self._shelf.take(self._place))

    def __getitem__(self, name: str) -> Any:
        return self._shelf.take(self._place)[name]


def _kind(value: Any) -> type[Shelved] | type[ShelvedObject] | None:
    if isinstance(value, (list, Columns)):
        return Shelved if value and all(type(row) is dict for row in value) else None
    return ShelvedObject if type(value) is dict and value else None
