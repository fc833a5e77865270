"""Captures in which time makes no sense: steps that overlap or come out of order, clocks that go back, cells that are
no number, kernels outside every step. Rows are right, or a warning or one clear error says what is wrong."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.breakdown import steps_from_kernels
from analysis.cli import build_report
from analysis.compare import step_time_change
from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.free_time import free_time
from analysis.lateness import count_votes, excess_us, groups_of
from analysis.rank import read_rank
from analysis.report import capture_report
from analysis.schema import KERNEL_COLUMNS, polars_schema
from tests.analysis.small_dumps import HEADER_2025, OUTPUT, kernel, table, write_dump

EVENTS = {"ph": pl.String, "cat": pl.String, "tid": pl.String, "id": pl.String, "start_ns": pl.Int64,
          "duration_ns": pl.Int64, "class": pl.String, "number": pl.Int64, "name": pl.String}  # fmt: skip
STEPS = st.sampled_from(["1", "2", "3", ""])
SPANS = st.lists(
    st.tuples(STEPS, st.integers(0, 200), st.integers(0, 50), st.sampled_from(["compute", "communication"])),
    min_size=1,
    max_size=25,
)


def frame(rows):
    known = [
        {**dict.fromkeys(KERNEL_COLUMNS), "name": f"k{n}", "step": step or None, "kind": kind, "start_ns": start,
         "duration_ns": length}
        for n, (step, start, length, kind) in enumerate(rows)
    ]  # fmt: skip
    return pl.DataFrame(known, schema=polars_schema(KERNEL_COLUMNS))


def ticks(rows):
    """The same, one nanosecond at a time."""
    return {at for _, start, length, _ in rows for at in range(start, start + length)}


@settings(max_examples=80, deadline=None)
@given(SPANS)
def test_steps_of_any_kernels_are_the_ticks_they_cover(rows):
    found = {row["step"]: row for row in steps_from_kernels(frame(rows)).iter_rows(named=True)}
    labels = {step for step, *_ in rows if step}
    for label in labels or {""}:
        mine = [row for row in rows if row[0] == label]
        busy, compute = ticks(mine), ticks([row for row in mine if row[3] == "compute"])
        span = max(start + length for _, start, length, _ in mine) - min(start for _, start, *_ in mine)
        row = found[label or None]
        assert row["computing_ns"] == len(compute)
        assert row["communication_not_overlapped_ns"] == len(busy - compute)
        assert row["free_ns"] == span - len(busy)
    assert len(found) == len(labels or {""})


@settings(max_examples=80, deadline=None)
@given(SPANS, st.lists(st.tuples(st.integers(0, 250), st.integers(1, 80)), max_size=4))
def test_gaps_are_the_ticks_of_the_steps_in_which_nothing_runs(rows, windows):
    ranges = [
        {"ph": "X", "cat": "cpu_op", "tid": "1", "start_ns": at, "duration_ns": length, "name": f"ProfilerStep#{n}"}
        for n, (at, length) in enumerate(windows)
    ]
    events = pl.DataFrame([{**dict.fromkeys(EVENTS), **row} for row in ranges], schema=EVENTS)
    kernels = frame(rows)
    found = free_time(kernels, events, set())
    if found is None:
        assert not windows or kernels.is_empty()
        return
    busy = ticks(rows)
    for n, (at, length) in enumerate(windows):
        mine = found.gaps.filter(pl.col("step") == str(n))
        assert mine["duration_ns"].sum() == len(set(range(at, at + length)) - busy)
        assert (mine["duration_ns"] > 0).all()
    json.dumps(found.report, allow_nan=False)


CELLS = st.one_of(
    st.integers(-(10**6), 10**9).map(str),
    st.floats(-1e6, 1e9, allow_nan=False).map(lambda value: f"{value:.3f}"),
    st.sampled_from(["NaN", "inf", "-inf", "N/A", "", "1e400", "99999999999999999999", "0x10", "1_0"]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(STEPS, CELLS, CELLS), min_size=1, max_size=12))
def test_any_times_give_a_report_or_one_clear_error(rows):
    lines = [kernel(f"k{n}", "Add", start, length, step=step) for n, (step, start, length) in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        write_dump(Path(folder), {f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, lines)})
        try:
            result = read_rank(find_dumps(Path(folder))[0])
        except BadDump as error:
            assert "\n" not in str(error)
            return
    assert result.frames["kernels"].height == len(rows)
    report = capture_report([(result.entry, result.source)], config=None, run={}, series=[])
    (entry,) = json.loads(json.dumps(report, allow_nan=False))["ranks"]
    for step in entry["steps"]:
        times = [step[key] for key in ("step_time_us", "computing_us", "free_us") if step[key] is not None]
        assert all(value >= 0 and math.isfinite(value) for value in times)
        assert step["device_ratio"] is None or 0 <= step["device_ratio"] <= 1
    if any(_number(start) is None or _number(length) is None for _, start, length in rows):
        assert report["source"]["warnings"] or all(_blank(s) or _blank(d) for _, s, d in rows)


def _blank(cell):
    return cell in ("", "N/A")


def _number(cell):
    try:
        value = float(cell.replace("_", "x"))
    except ValueError:
        return None if not _blank(cell) else 0.0
    return value if 0 <= value < 1e13 else None


def test_a_clock_that_goes_back_and_steps_out_of_order_count_as_written(tmp_path):
    # Step 2 is written first and lies before step 1 on the clock; inside it the second kernel starts before the first.
    rows = [
        kernel("a", "Add", "500.000", "10.000", step="2"),
        kernel("b", "Add", "480.000", "15.000", step="2"),
        kernel("c", "Add", "900.000", "30.000", step="1"),
        kernel("d", "Add", "10.000", "5.000", step=""),
    ]
    write_dump(tmp_path, {f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, rows)})
    (entry,) = build_report(tmp_path)["ranks"]
    assert [(s["step"], s["step_time_us"], s["computing_us"], s["free_us"]) for s in entry["steps"]] == [
        ("1", 30.0, 30.0, 0.0),
        ("2", 30.0, 25.0, 5.0),
    ]
    assert entry["kernels"]["count"] == 4


PARTS = st.tuples(*[st.one_of(st.none(), st.floats(0, 1e6)) for _ in range(4)])


def told(steps):
    names = ("computing_us", "communication_not_overlapped_us", "bubble_us", "free_us")
    rows = [
        {"step": str(n), "step_time_us": total, "warmup": warm, **dict(zip(names, parts, strict=True))}
        for n, (total, warm, parts) in enumerate(steps)
    ]
    types = [{"type": "Add", "core": "AI_CORE", "total_us": 10.0 * len(rows), "count": 2}]
    return {"source": {}, "ranks": [{"rank": 0, "steps": rows, "op_types": types, "facts": {"steps": len(rows)}}]}


ANY_STEPS = st.lists(st.tuples(st.floats(1.0, 4e6), st.booleans(), PARTS), min_size=1, max_size=6).map(told)


@settings(max_examples=80, deadline=None)
@given(ANY_STEPS, ANY_STEPS)
def test_contributions_add_up_to_the_change_whatever_is_known(before, after):
    found = step_time_change(before, after)
    if found["change_us"] is None:
        assert found["contributions"] == []
        return
    assert sum(row["us"] for row in found["contributions"]) == pytest.approx(found["change_us"], abs=1e-3)
    for row in found["contributions"]:
        for split in (row.get("by") or {}).values():
            assert not split or sum(part["us"] for part in split) == pytest.approx(row["us"], abs=1e-3)


@st.composite
def visits(draw):
    """Two to five ranks in up to eight collectives of one group that end together; when each rank comes."""
    ranks, count = draw(st.integers(2, 5)), draw(st.integers(1, 8))
    clock, rows = 0, []
    for _ in range(count):
        comes = draw(st.lists(st.integers(0, 1000), min_size=ranks, max_size=ranks))
        rows.append((clock, [clock + at for at in comes], clock + 1000))
        clock += 1000
    return rows


@settings(max_examples=60, deadline=None)
@given(visits())
def test_nobody_costs_more_than_the_others_wait(rows):
    ranks = []
    for rank in range(len(rows[0][1])):
        starts = [float(comes[rank]) for _, comes, _ in rows]
        stays = [float(end - comes[rank]) for _, comes, end in rows]
        group = {"step": "1", "group": "g", "ids": list(range(len(rows))), "start_us": starts, "elapse_us": stays,
                 "blocked_us": stays}  # fmt: skip
        ranks.append({"rank": rank, "steps": [], "arrivals": [group]})
    groups = groups_of(ranks)
    assert sum(count_votes(groups).count.values()) <= len(rows)
    for late in range(len(ranks)):
        lost = sum(sorted(comes)[-1] - sorted(comes)[-2] for _, comes, _ in rows if comes.index(max(comes)) == late)
        assert excess_us(ranks, groups, late) == pytest.approx(lost)
