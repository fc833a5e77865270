"""Rows by column are the rows they were made of."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.columns import Columns, columns, compact
from analysis.entries import rows

VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
ROWS = st.lists(st.fixed_dictionaries({"name": VALUES, "size": VALUES}), max_size=8)


@given(ROWS)
def test_rows_by_column_are_the_rows_they_were_made_of(given_rows):
    packed = columns(given_rows)
    assert [*packed] == given_rows == rows({"a": packed}, "a")
    assert [(type(row["name"]), type(row["size"])) for row in packed] == [
        (type(row["name"]), type(row["size"])) for row in given_rows
    ]


def test_they_can_be_counted_and_looked_up():
    packed = Columns([{"us": 1.5, "op": "a"}, {"us": 2.5, "op": "b"}, {"us": 3.5, "op": "c"}])
    assert len(packed) == 3
    assert packed[1] == packed[-2] == {"us": 2.5, "op": "b"}
    assert packed[1:] == [{"us": 2.5, "op": "b"}, {"us": 3.5, "op": "c"}]
    with pytest.raises(IndexError):
        packed[3]


@pytest.mark.parametrize("odd", [None, 3, "text", [], [{"a": 1}, {"b": 1}], [{"a": 1}, 2], [{}], {"a": 1}])
def test_what_is_no_table_stays_as_it_is(odd):
    assert columns(odd) is odd


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1.0, 2.5], array("d", [1.0, 2.5])),
        ([1, -(2**63)], array("q", [1, -(2**63)])),
        ([1, 2**63], [1, 2**63]),
        ([1, 2.5], [1, 2.5]),
        ([True, False], [True, False]),
        ([1.0, None], [1.0, None]),
        ([], []),
    ],
)
def test_numbers_of_one_kind_become_machine_numbers(values, kept):
    assert compact(values) == kept and type(compact(values)) is type(kept)
