from __future__ import annotations

from statistics import median
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import breakdown
from analysis.breakdown import disagreements, mark_warmup


def kernels(*rows: tuple[str | None, str, int, int | None]) -> pl.DataFrame:
    schema = {"step": pl.String, "kind": pl.String, "start_ns": pl.Int64, "duration_ns": pl.Int64}
    return pl.DataFrame(list(rows), schema=schema, orient="row")


OVERLAPPING = kernels(
    ("7", "compute", 0, 100), ("7", "communication", 50, 100), ("7", "compute", 180, 20), ("8", "compute", 1000, 10)
)


def test_a_step_is_split_into_compute_exposed_communication_and_free():
    step = breakdown.steps_from_kernels(OVERLAPPING).row(0, named=True)
    assert (step["computing_ns"], step["communication_ns"]) == (120, 100)
    assert (step["overlapped_ns"], step["communication_not_overlapped_ns"], step["free_ns"]) == (50, 50, 30)
    assert step["stage_ns"] is None and step["bubble_ns"] is None


def test_two_streams_computing_at_once_count_once():
    step = breakdown.steps_from_kernels(kernels(("1", "compute", 0, 10), ("1", "compute", 5, 10))).row(0, named=True)
    assert (step["computing_ns"], step["free_ns"]) == (15, 0)


def test_kernels_without_any_step_are_one_step_without_a_name():
    frame = breakdown.steps_from_kernels(kernels((None, "compute", 0, 10), (None, "compute", 20, 10)))
    assert frame["step"].to_list() == [None]
    assert frame["free_ns"].to_list() == [10]


def test_kernels_outside_every_step_belong_to_none_of_them():
    frame = breakdown.steps_from_kernels(kernels(("1", "compute", 0, 10), (None, "compute", 500, 10)))
    assert frame["step"].to_list() == ["1"]
    assert frame["free_ns"].to_list() == [0]


def rows_of(frame: pl.DataFrame, lengths: breakdown.Lengths | None = None) -> list[dict[str, Any]]:
    return breakdown.step_rows(frame, "kernel intervals", breakdown.kernel_sums(OVERLAPPING), lengths or {})


def test_ratios_are_of_the_step_time():
    step = rows_of(breakdown.steps_from_kernels(OVERLAPPING))[0]
    assert step["step_time_us"] == 0.2
    assert (step["device_ratio"], step["compute_ratio"], step["kernel_time_ratio"]) == (0.85, 0.6, 1.1)


def test_a_measured_step_time_wins_and_the_rest_of_it_is_free():
    step = rows_of(breakdown.steps_from_kernels(OVERLAPPING), {"7": (0.34, "stepscope_steps.jsonl")})[0]
    assert (step["step_time_us"], step["free_us"], step["device_ratio"]) == (0.34, 0.17, 0.5)
    assert step["source"] == "stepscope_steps.jsonl"


def test_a_measured_step_time_shorter_than_the_work_in_it_is_not_believed():
    step = rows_of(breakdown.steps_from_kernels(OVERLAPPING), {"7": (0.1, "trace_view.json")})[0]
    assert (step["step_time_us"], step["source"]) == (0.2, "kernel intervals")


def test_steps_are_ordered_by_number_not_by_text():
    frame = breakdown.steps_from_kernels(
        kernels(("10", "compute", 0, 1), ("9", "compute", 5, 1), ("100", "compute", 9, 1))
    )
    assert [row["step"] for row in breakdown.step_rows(frame, "", {}, {})] == ["9", "10", "100"]


def test_steps_named_by_what_only_looks_like_numbers_keep_their_order():
    for odd in ("\u00b2", "9" * 5000):
        frame = breakdown.steps_from_kernels(kernels(("10", "compute", 0, 1), (odd, "compute", 5, 1)))
        assert {row["step"] for row in breakdown.step_rows(frame, "", {}, {})} == {"10", odd}


def timed(*times: float | None) -> list[dict[str, Any]]:
    return [{"step_time_us": time, "warmup": False} for time in times]


def warm(rows: list[dict[str, Any]], first_of_run: bool = False) -> list[bool]:
    breakdown.mark_warmup(rows, first_of_run)
    return [row["warmup"] for row in rows]


def test_leading_steps_longer_than_one_and_a_half_medians_are_warmup():
    assert warm(timed(900, 160, 100, 100, 100)) == [True, True, False, False, False]


def test_a_slow_step_in_the_middle_is_no_warmup():
    assert warm(timed(100, 900, 100)) == [False, False, False]


def test_the_first_step_of_a_run_never_counts_unless_it_is_the_only_one():
    assert warm(timed(100, 100), first_of_run=True) == [True, False]
    assert warm(timed(100), first_of_run=True) == [False]


def test_unknown_step_times_mark_nothing():
    assert warm(timed(None, None)) == [False, False]


def test_kernels_that_do_not_add_up_to_the_profilers_own_sum_are_said():
    rows = [{"step": "7", "computing_us": 0.2}]
    found = breakdown.disagreements(rows, breakdown.kernel_sums(OVERLAPPING), "step_trace_time.csv")
    assert found == ["step 7: compute kernels sum to 0 us, step_trace_time.csv says 0 us"]
    assert breakdown.disagreements([{"step": "7", "computing_us": 0.121}], breakdown.kernel_sums(OVERLAPPING), "") == []


def test_a_step_of_which_no_duration_is_known_is_not_said_to_sum_to_nothing():
    assert breakdown.kernel_sums(kernels(("7", "compute", 0, None), ("8", "compute", 0, 5))) == {"8": (5, 5)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(1, 60).map(float)), min_size=1, max_size=9), st.booleans())
def test_warm_up_is_what_leads_and_passes_one_and_a_half_medians_of_the_rest(times, first_of_run):
    rows = [{"step_time_us": time, "warmup": False} for time in times]
    mark_warmup(rows, first_of_run)
    leading = 0
    for index, time in enumerate(times[:-1]):
        rest = [other for other in times[index + 1 :] if other is not None]
        if not ((index == 0 and first_of_run) or (time is not None and rest and time > 1.5 * median(rest))):
            break
        leading = index + 1
    assert [row["warmup"] for row in rows] == [index < leading for index in range(len(times))]


def test_kernels_of_other_steps_than_the_step_trace_are_said():
    rows = [{"step": "1", "computing_us": 10.0}, {"step": "2", "computing_us": 10.0}]
    told = "kernels are of steps 5, 6, step_trace_time.csv tells steps 1, 2: nothing of one is known of the other"
    assert disagreements(rows, {"5": (10_000, 0), "6": (10_000, 0), None: (1, 0)}, "step_trace_time.csv") == [told]
    assert disagreements(rows, {"2": (10_000, 0), "6": (10_000, 0)}, "step_trace_time.csv") == []
    assert disagreements(rows, {None: (20_000, 0)}, "step_trace_time.csv") == []
