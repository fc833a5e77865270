"""Trends: where levels changed, what changed when, and lines that never cross a denominator."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from dashboard.runs import queries, trend_charts
from dashboard.runs.changes import Change, change_points, least_change, noise_of
from dashboard.runs.models import StepRecord
from dashboard.runs.rollup import sparkline
from tests.dashboard.page_data import START
from tests.dashboard.test_charts import point
from tests.factories import make_capture, make_project, make_run, make_user

WOBBLE = (0.001, -0.001, 0.0005, -0.0005)


def level(value: float, count: int) -> list[float]:
    return [value + WOBBLE[place % 4] for place in range(count)]


def test_a_step_in_a_calm_series_is_one_change_with_both_levels():
    values = level(0.40, 12) + level(0.36, 12)
    (change,) = change_points(values, "mfu")
    assert change.index == 12
    assert (change.before, change.after) == (pytest.approx(0.40, abs=0.001), pytest.approx(0.36, abs=0.001))


def test_each_of_three_levels_begins_at_its_own_point():
    values = level(0.40, 10) + level(0.30, 10) + level(0.45, 10)
    assert [change.index for change in change_points(values, "mfu")] == [10, 20]


def test_a_change_below_the_least_effect_is_left_out():
    # 1.25 % of MFU is beyond the noise, but below the 3 % that are worth a mark.
    assert change_points(level(0.400, 20) + level(0.395, 20), "mfu") == []
    assert change_points(level(0.040, 20) + level(0.055, 20), "cast_ratio") != []
    assert least_change("mfu", 0.4) == pytest.approx(0.012)
    assert least_change("cast_ratio", 0.4) == 0.01
    assert least_change("device_ratio", 0.4) == 0.03
    assert least_change("recoverable_ns", 5e7) == 5e6


@pytest.mark.parametrize("values", [[], [0.4], [0.4] * 3, [0.4] * 50, level(0.4, 50), [0.0] * 9])
def test_few_points_and_calm_ones_have_no_change(values):
    assert change_points(values, "mfu") == []


def test_one_bad_capture_is_no_new_level():
    assert change_points(level(0.4, 10) + [0.2] + level(0.4, 10), "mfu") == []
    assert change_points([*level(0.4, 10), 0.2], "mfu") == []
    assert change_points([0.2, *level(0.4, 10)], "mfu") == []
    assert [change.index for change in change_points([*level(0.4, 10), 0.2, 0.2], "mfu")] == [10]


def test_noise_does_not_count_steps():
    # Of 8 differences one is the step; the median of |differences| is 2, and 1.4826 x 2 / sqrt(2) = 2.0967.
    assert noise_of([0, 2, 0, 2, 100, 102, 100, 102, 100]) == pytest.approx(2.0967, abs=1e-4)


def test_levels_are_told_for_each_denominator_alone():
    first = [point(value) for value in level(0.40, 8)]
    other = [point(value, peak_tflops=200.0) for value in level(0.20, 8)]
    assert trend_charts.level_changes(first + other, "mfu") == []
    drop = [point(value) for value in level(0.30, 8)]
    ((row, change),) = trend_charts.level_changes(first + other + drop, "mfu")
    assert row == 16 and isinstance(change, Change)


def test_shares_of_two_models_make_two_lines():
    rows = [point(value, run__model_name=name) for value in (0.1, 0.2) for name in ("GPT 7B", "MoE 30B")]
    lines = trend_charts.trend(rows, "cast_ratio")["options"]["series"]
    assert [line["name"] for line in lines] == ["GPT 7B", "MoE 30B"]


def test_captures_of_unknown_models_are_points_without_a_line_and_without_levels():
    rows = [point(value, run__model_name="") for value in level(0.40, 8) + level(0.30, 8)]
    (line,) = trend_charts.trend(rows, "cast_ratio")["options"]["series"]
    assert (line["name"], line["lineStyle"]["width"], line["showAllSymbol"]) == ("model unknown", 0, True)
    assert trend_charts.level_changes(rows, "cast_ratio") == []
    assert trend_charts.line_label(("", 4), "step_time_ns") == "model unknown × 4"


def marks(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return list(spec["options"]["series"][0]["markLine"]["data"])


def test_config_and_commit_are_told_without_a_label():
    rows = [
        point(0.4, config_fingerprint="aaaa", run__meta__git_commit="1" * 40),
        point(0.4, config_fingerprint="bbbb"),
        point(0.4, run__meta__git_commit="2" * 40, run__mode="pynative"),
    ]
    drawn = marks(trend_charts.trend(rows, "mfu"))
    assert [(mark["xAxis"], mark.get("name", "")) for mark in drawn] == [(1, ""), (2, "PYNATIVE")]
    assert drawn[0]["lines"] == [["config aaaa → bbbb", ""]]
    assert drawn[1]["lines"] == [["GRAPH → PYNATIVE", ""], [f"commit {'1' * 12} → {'2' * 12}", ""]]


def test_changed_keys_of_a_config_are_told_from_what_to_what():
    keys = {1: {"dtype": "float32", "layers": "32"}, 2: {"dtype": "bfloat16", "layers": "32", "tp": "2"}}
    rows = [
        point(0.4, run_id=1, config_fingerprint="aaaa", config_md5="x"),
        point(0.4, run_id=2, config_fingerprint="aaaa", config_md5="y"),
    ]
    (mark,) = trend_charts.version_marks(rows, keys)
    assert mark.changes == ["dtype float32 → bfloat16", "tp (not set) → 2"]
    assert (mark.before, mark.short) == (0, "")


def test_a_config_is_held_against_the_one_before_of_the_same_model():
    keys = {1: {"layers": "32"}, 2: {"layers": "48"}, 3: {"layers": "32", "bf16": "True"}}
    rows = [
        point(
            0.4, run_id=run, config_fingerprint=str(run), config_md5=str(run), run__model_name=model, cann_version=cann
        )
        for run, model, cann in ((1, "small", "8.2"), (2, "large", "8.3"), (3, "small", "8.2"))
    ]
    assert trend_charts.version_marks(rows, keys) == [(2, 0, "", ["bf16 (not set) → True"])]


def test_many_changed_keys_are_cut_and_counted_and_long_values_too():
    old, new = ({f"k{place}": value for place in range(10)} for value in ("a", "b" * 80))
    rows = [point(0.4, run_id=run, config_fingerprint="f", config_md5=str(run)) for run in (1, 2)]
    (mark,) = trend_charts.version_marks(rows, {1: old, 2: new})
    assert len(mark.changes) == 9 and mark.changes[-1] == "and 2 more keys"
    assert mark.changes[0] == "k0 a → " + "b" * 59 + "…"


@pytest.mark.django_db
def test_the_trends_page_names_changed_keys_and_leads_to_the_comparison(client: Client):
    user = make_user()
    project = make_project(owner=user)
    client.force_login(user)
    made = []
    for day, dtype in enumerate(("float32", "float32", "bfloat16")):
        run = make_run(
            project, model_name="m", config_fingerprint="same", config_text=f"model: {{dtype: {dtype}}}  # day {day}"
        )
        made.append(make_capture(run, state="ready", captured_at=START + timedelta(days=day), mfu=0.4, world_size=8,
                                 config_fingerprint="same"))  # fmt: skip
    html = client.get(f"/projects/{project.slug}/trends/").content.decode()
    assert html.count("model.dtype float32 → bfloat16") == 1
    assert f"captures={made[1].pk},{made[2].pk}" in html
    chart = client.get(f"/projects/{project.slug}/trends/mfu/chart/").json()
    (mark,) = chart["options"]["series"][0]["markLine"]["data"]
    assert mark["lines"] == [["model.dtype float32 → bfloat16", ""]]


def test_a_fallen_level_is_marked_as_bad_and_a_lower_cast_share_as_good():
    fall = [point(value) for value in level(0.40, 8) + level(0.30, 8)]
    for metric, colour in (("mfu", "$fail"), ("cast_ratio", "$pass")):
        (mark,) = marks(trend_charts.trend(fall, metric))
        assert (mark["xAxis"], mark["name"], mark["lineStyle"]["color"]) == (8, "▼", colour)


@pytest.mark.django_db
def test_a_sparkline_leaves_out_the_compile_steps_before_the_first_usual_one():
    run = make_run()
    times = [103_000, 9_000] + [1_000] * 40 + [5_000] + [1_000] * 7
    StepRecord.objects.bulk_create(
        StepRecord(run=run, step=step, step_time_ns=ms * 1_000_000) for step, ms in enumerate(times, 1)
    )
    assert sparkline(run) == ([1_000.0] * 40 + [5_000.0] + [1_000.0] * 7, "step_time")


@pytest.mark.django_db
def test_configurations_that_take_long_to_read_are_told_by_their_fingerprint():
    project = make_project()
    for day, text in enumerate(("a: 1\n", "a: 2\n" + "# x\n" * 25_000)):
        run = make_run(project, model_name="m", config_text=text)
        make_capture(run, state="ready", captured_at=START + timedelta(days=day), mfu=0.4, config_fingerprint=f"f{day}")
    rows = queries.trend_rows(project, "mfu")
    (mark,) = trend_charts.version_marks(rows, queries.trend_config_keys(rows))
    assert mark.changes == ["config f0 → f1"]
