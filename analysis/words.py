"""Columns of few different words: work on the words, not on a million rows.

A kernels table repeats a few thousand texts. Readers of large files give them as categories; everything here takes
categories and plain text alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
_DENSE = 1 << 16
"""So many numbers fit a table that stays in the processor's cache."""


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
    if column.dtype == pl.String:
        column = column.cast(pl.Categorical)
    is_text = column.dtype in (pl.Categorical, pl.Enum)
    numbers = column.to_physical() if is_text else _from_zero(column)
    if numbers.null_count():
        top = numbers.max()
        numbers = numbers.cast(pl.Int64).fill_null(top + 1 if isinstance(top, int) else 0)
    codes, rows = recode(numbers.to_numpy())
    values = column.gather(rows)
    return codes, values.cast(pl.String) if is_text else values


def _from_zero(column: pl.Series) -> pl.Series:
    """Whole numbers with the lowest taken off; of others, or of numbers too far apart, their rank."""
    low, high = column.min(), column.max()
    if column.dtype.is_integer() and isinstance(low, int) and isinstance(high, int) and high - low < 1 << 62:
        return column - low
    return column.rank("dense")


def combined(columns: Sequence[pl.Series]) -> tuple[Ints, Ints]:
    """(number of each row's combination of values, a row that has each)."""
    codes, values = distinct(columns[0])
    count = len(values)
    for column in columns[1:]:
        more, values = distinct(column)
        if len(values) > 1:
            count *= len(values)
            codes = codes * np.int64(len(values)) + more
            if count > _DENSE:
                codes, rows = recode(codes)
                count = len(rows)
    return recode(codes)


def mapped(column: pl.Series, change: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """What `change` makes of the column, worked out once per value. Text becomes categories."""
    codes, values = distinct(column)
    changed = change(values)
    if changed.dtype == pl.String:
        changed = changed.cast(pl.Categorical)
    return changed.gather(codes).alias(column.name)


def recode(values: npt.NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """(values, none below 0, counted from 0 in the order they come; the first row that has each). No sort where values
    are small."""
    top = int(values.max(initial=0))
    if top > 16 * max(len(values), _DENSE):
        _, first, values = np.unique(values, return_index=True, return_inverse=True)
        used = np.ones(len(first), dtype=np.bool_)
    else:
        first = np.full(top + 1, -1, dtype=np.int64)
        first[values[::-1]] = np.arange(len(values) - 1, -1, -1)  # of rows with one value the first is written last
        used = first >= 0
    rows = np.sort(first[used]).astype(np.int64)
    place = np.zeros(len(first), dtype=np.int64)
    place[values[rows]] = np.arange(len(rows))
    return place[values], rows
