"""Work on the distinct values of a column: what comes out is what row by row work would give."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from analysis.words import as_categories, as_text, combined, distinct, mapped, recode

TEXTS = ["b", "a", None, "b", "", "a"]
COLUMNS = {
    "text": pl.Series(TEXTS),
    "categories": pl.Series(TEXTS, dtype=pl.Categorical),
    "numbers": pl.Series([7, -3, None, 7, 2**62, -3]),
    "small numbers": pl.Series([7, -3, None, 7, 0, -3], dtype=pl.Int8),
    "floats": pl.Series([0.5, -1.0, None, 0.5, 9.0, -1.0]),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_values_are_numbered_in_the_order_they_come(column: pl.Series) -> None:
    codes, values = distinct(column)
    assert codes.tolist() == [0, 1, 2, 0, 3, 1]
    assert values.to_list() == [column.to_list()[row] for row in (0, 1, 2, 4)]


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Int64, pl.Float64])
def test_columns_without_rows_or_without_values(dtype: type[pl.DataType]) -> None:
    assert distinct(pl.Series([], dtype=dtype))[0].tolist() == []
    codes, values = distinct(pl.Series([None, None], dtype=dtype))
    assert (codes.tolist(), values.to_list()) == ([0, 0], [None])


def test_combinations_are_told_apart_whatever_the_columns_are() -> None:
    codes, rows = combined([*COLUMNS.values(), pl.Series([1, 1, 1, 2, 1, 1])])
    assert codes.tolist() == [0, 1, 2, 3, 4, 1]
    assert rows.tolist() == [0, 1, 2, 3, 4]


def test_many_combinations_do_not_overflow() -> None:
    columns = [pl.Series(np.random.default_rng(seed).permutation(70_000)) for seed in range(6)]
    codes, rows = combined(columns)
    assert codes.tolist() == rows.tolist() == list(range(70_000))


def test_numbers_far_apart_are_recoded_like_small_ones() -> None:
    codes, rows = recode(np.array([2**60, 5, 2**60, 0]))
    assert (codes.tolist(), rows.tolist()) == ([0, 1, 0, 2], [0, 1, 3])


def test_a_change_is_worked_out_once_per_value() -> None:
    seen: list[str | None] = []

    def upper(values: pl.Series) -> pl.Series:
        seen.extend(values.to_list())
        return values.str.to_uppercase()

    changed = mapped(pl.Series("x", TEXTS, dtype=pl.Categorical), upper)
    assert changed.to_list() == ["B", "A", None, "B", "", "A"]
    assert (changed.name, changed.dtype) == ("x", pl.Categorical)
    assert seen == ["b", "a", None, ""]


def test_text_becomes_categories_and_text_again() -> None:
    frame = pl.DataFrame({"word": TEXTS, "number": range(6)})
    assert as_categories(frame).dtypes == [pl.Categorical, pl.Int64]
    assert as_text(as_categories(frame)).equals(frame)
