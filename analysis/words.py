"""Columns of few different words: work on the words, not on a million rows.

A kernels table repeats a few thousand texts. Readers of large files give them as categories; everything here takes
categories and plain text alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
_DENSE = 1 << 16
"""So many numbers fit a table that stays in the processor's cache."""
_FEW_ROWS = 1 << 14
"""Up to here sorting the rows is quicker than filling such a table."""


def as_categories(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` with its text columns as categories: a quarter of the memory, and fast to compare."""
    return frame.cast({pl.String: pl.Categorical})


def as_text(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` with its categories as text."""
    return frame.cast(dict.fromkeys(category_columns(frame), pl.String()))


def category_columns(frame: pl.DataFrame) -> list[str]:
    """Names of the columns that hold categories."""
    return [name for name, kind in frame.schema.items() if kind in (pl.Categorical, pl.Enum)]


def distinct(column: pl.Series) -> tuple[Ints, pl.Series]:
    """(number of each row's value, the values, as text where they are text). Null is a value like others."""
    codes, rows = recode(_numbers([column])[0])
    return codes, _as_told(column[rows])


def _as_told(values: pl.Series) -> pl.Series:
    return values.cast(pl.String) if values.dtype in (pl.Categorical, pl.Enum) else values


def _numbers(columns: Sequence[pl.Series]) -> list[npt.NDArray[np.integer[Any]]]:
    """By column a number for each row, from 0, alike where the values are."""
    named = {str(place): _countable(column) for place, column in enumerate(columns)}
    texts = [name for name, column in named.items() if column.dtype in (pl.Categorical, pl.Enum)]
    number = pl.col(texts).to_physical().cast(pl.UInt32), pl.exclude(texts)
    told = pl.DataFrame(named).with_columns((each + 1).fill_null(0) for each in number)
    return [column.to_numpy() for column in told]


def _countable(column: pl.Series) -> pl.Series:
    """Texts as categories; whole numbers with the lowest taken off; of others, or of numbers too far apart, their
    rank."""
    if column.dtype in (pl.Categorical, pl.Enum):
        return column
    if column.dtype == pl.String:
        return column.cast(pl.Categorical)
    low, high = column.min(), column.max()
    if column.dtype.is_integer() and isinstance(low, int) and isinstance(high, int) and high - low < 1 << 62:
        return column - low
    return column.rank("dense")


def combined(columns: Sequence[pl.Series]) -> tuple[Ints, Ints]:
    """(number of each row's combination of values, a row that has each)."""
    codes, count = np.zeros(len(columns[0]), dtype=np.int64), 1
    most = _DENSE if len(codes) > _FEW_ROWS else 1 << 40
    for more, rows in map(recode, _numbers(columns)):
        if len(rows) > 1:
            count *= len(rows)
            codes = codes * np.int64(len(rows)) + more
            if count > most:
                codes, rows = recode(codes)
                count = len(rows)
    return recode(codes)


def mapped(column: pl.Series, change: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """What `change` makes of the column, worked out once per value. Text becomes categories."""
    return mapped_all([column], change)[0]


def mapped_all(columns: Sequence[pl.Series], change: Callable[[pl.Series], pl.Series]) -> list[pl.Series]:
    """`mapped` of several columns of one type, with `change` called once."""
    if not columns:
        return []
    codes, rows = zip(*map(recode, _numbers(columns)), strict=True)
    values = [_as_told(column[row]) for column, row in zip(columns, rows, strict=True)]
    changed = change(pl.concat(values))
    if changed.dtype == pl.String:
        changed = changed.cast(pl.Categorical)
    starts = [0, *accumulate(map(len, values[:-1]))]
    told = zip(columns, codes, starts, strict=True)
    return [changed[code + start].alias(column.name) for column, code, start in told]


def recode(values: npt.NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """(values, none below 0, counted from 0 in the order they come; the first row that has each). No sort where values
    are small."""
    top, count = int(values.max(initial=0)), len(values)
    if top > 16 * (count if count <= _FEW_ROWS else max(count, _DENSE)):
        _, first, places = np.unique(values, return_index=True, return_inverse=True)
        rows = np.sort(first)
    else:
        places = values.astype(np.intp, copy=False)  # NumPy turns every index into one of these, each time
        first = np.full(top + 1, -1, dtype=np.intp)
        first[places[::-1]] = np.arange(count - 1, -1, -1)  # of rows with one value the first is written last
        rows = np.sort(first[first >= 0])
    number = np.zeros(len(first), dtype=np.int64)
    number[places[rows]] = np.arange(len(rows))
    return number[places], rows
