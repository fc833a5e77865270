from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from analysis import spans


def frame(*pairs: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(list(pairs), schema={"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")


def test_covered_time_counts_overlapping_spans_once():
    assert spans.covered_ns(frame((0, 10), (5, 15), (20, 30))) == 25


def test_a_span_inside_another_adds_nothing():
    assert spans.covered_ns(frame((0, 100), (10, 20), (30, 40))) == 100


def test_no_spans_cover_nothing():
    assert spans.covered_ns(frame()) == 0


def test_overlap_counts_only_time_both_run():
    assert spans.overlapped_ns(frame((0, 10), (20, 30)), frame((5, 25))) == 10


def test_cover_is_told_per_key_and_keys_do_not_shadow_each_other():
    rows = pl.DataFrame({"step": ["1", "2", "1", "2"], "start_ns": [0, 0, 5, 50], "end_ns": [10, 100, 20, 60]})
    found = dict(spans.covered_by_ns(rows, "step").iter_rows())
    assert found == {"1": 20, "2": 100}


def test_touching_spans_merge_and_gaps_lie_between_the_rest():
    rows = frame((20, 30), (0, 10), (10, 12))
    assert spans.merged(rows).rows() == [(0, 12), (20, 30)]
    assert spans.gaps(rows).rows() == [(12, 20)]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), max_size=30))
def test_cover_equals_the_count_of_covered_ticks(pairs: list[tuple[int, int]]):
    rows = frame(*((start, start + length) for start, length in pairs))
    ticks = {tick for start, length in pairs for tick in range(start, start + length)}
    assert spans.covered_ns(rows) == len(ticks)
