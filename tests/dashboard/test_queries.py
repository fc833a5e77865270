from __future__ import annotations

from typing import Any

import pytest

from dashboard.runs import compare_rows, pairs, queries, violation_rows
from dashboard.runs.models import Capture, ChecklistResult, RankStep, Run, StepRecord
from dashboard.runs.paging import NarrowPaginator
from dashboard.runs.views.page import number_list
from tests.dashboard.page_data import block, entry, filled_project, part, ready_capture, step
from tests.factories import make_dump, make_project, make_run, make_user

pytestmark = pytest.mark.django_db


def test_violations_are_ordered_by_what_they_cost_over_all_cards():
    user = make_user()
    project = make_project(owner=user)
    small, large = make_run(project, world_size=2), make_run(project, world_size=1000)
    for run in (small, large):
        ready_capture(run)
    # 200 us and 30 us a step: 200 000, 30 000 and 400, 60 us over the cards.
    found = [(row.capture.run_id, row.item) for row in violation_rows.violations(user)]
    assert found == [
        (large.pk, "graph_sink"),
        (large.pk, "dtype_cast"),
        (small.pk, "graph_sink"),
        (small.pk, "dtype_cast"),
    ]


def test_only_the_newest_capture_of_a_run_counts():
    user = make_user()
    run = make_run(make_project(owner=user))
    ready_capture(run, day=0, latest=False)
    newest = ready_capture(run, day=1)
    assert {row.capture_id for row in violation_rows.violations(user)} == {newest.pk}
    assert ChecklistResult.objects.filter(status="fail").count() == 4


def test_violations_of_archived_runs_are_closed():
    user = make_user()
    run = make_run(make_project(owner=user), archived=True)
    ready_capture(run)
    assert not violation_rows.violations(user).exists()


def test_unknown_values_sort_last_in_both_directions():
    project = make_project()
    for key, mfu in (("low", 0.1), ("none", None), ("high", 0.4)):
        make_run(project, key=key, mfu=mfu)
    for order, expected in (("mfu", ["high", "low", "none"]), ("-mfu", ["low", "high", "none"])):
        runs, _key, _descending = queries.ordered_runs(Run.objects.filter(project=project), order)
        assert [run.key for run in runs] == expected


def test_a_long_series_is_averaged_into_buckets():
    run = make_run()
    StepRecord.objects.bulk_create(StepRecord(run=run, step=step, loss=float(step)) for step in range(3000))
    series, stride = queries.run_series([run.pk], "loss")
    assert stride == 2 and len(series[run.pk]) == 1500
    assert series[run.pk][:2] == [(0, 0.5), (2, 2.5)]


def test_a_series_of_a_run_that_diverged_is_averaged_too():
    run = make_run()
    for number, loss in enumerate((1e300, 3e300, -1e300, None)):
        StepRecord.objects.create(run=run, step=number, loss=loss)
    StepRecord.objects.create(run=run, step=2 * queries.SERIES_POINTS - 1, loss=-2e300)  # two steps a point
    series, stride = queries.run_series([run.pk], "loss")
    assert (stride, series[run.pk]) == (2, [(0, 2e300), (2, -1e300), (2 * queries.SERIES_POINTS - 1, -2e300)])


def test_a_field_that_is_no_series_gives_nothing():
    run = make_run()
    StepRecord.objects.create(run=run, step=1, loss=1.0)
    assert queries.run_series([run.pk], "run__project__name") == ({}, 1)


def test_the_home_trend_stops_at_another_denominator():
    user = make_user()
    project = make_project(owner=user)
    for day, (mfu, peak) in enumerate(((0.9, 10.0), (0.3, 100.0), (0.4, 100.0))):
        ready_capture(make_run(project), day=day, mfu=mfu, peak_tflops=peak)
    (row,) = queries.project_overview(user)
    assert row["trend"] == [0.3, 0.4]
    assert row["change"] == pytest.approx(0.1)


def test_the_home_trend_is_of_the_newest_runs_model():
    user = make_user()
    project = make_project(owner=user)
    for day, (mfu, model) in enumerate(((0.3, "7b"), (0.9, "moe"), (0.4, "7b"))):
        ready_capture(make_run(project, model_name=model), day=day, mfu=mfu)
    (row,) = queries.project_overview(user)
    assert row["trend"] == [0.3, 0.4]
    assert row["change"] == pytest.approx(0.1)


def test_compared_captures_keep_the_order_of_the_address():
    user = make_user()
    _project, captures = filled_project(user)
    ids = [capture.pk for capture in captures[::-1]]
    assert [capture.pk for capture in queries.compared(user, ids)] == ids
    assert queries.compared(make_user(), ids) == []


def test_ids_come_from_text_in_order_and_at_most_eight():
    assert number_list("3,1,x,3,-2,99999999999999999999") == [3, 1]
    assert number_list(",".join(map(str, range(20)))) == list(range(8))


def test_mfu_of_other_peaks_is_shown_without_a_difference():
    captures = [
        Capture(mfu=0.4, peak_tflops=100.0, step_time_ns=10),
        Capture(mfu=0.3, peak_tflops=200.0, step_time_ns=5),
    ]
    rows = {row["key"]: row for row in compare_rows.metric_rows(captures)}
    assert rows["mfu"]["incomparable"] and rows["mfu"]["cells"][1]["change"] is None
    # Half the step time is 50 % less and good.
    assert rows["step_time_ns"]["cells"][1]["change"] == "−50.0\u202f%"
    assert rows["step_time_ns"]["cells"][1]["good"] is True


def two(second: dict[str, Any]) -> dict[str, Any]:
    """The differences of a capture with this entry against the usual one."""
    return compare_rows.differences([Capture(), Capture()], [entry(), second])


def test_contributions_add_up_to_the_change():
    # 200 us more: 100 of computing, 150 of communication, 50 less free.
    change = compare_rows.contributions(two({**entry(), "steps": [step(1200.0, 700.0, 250.0, 250.0)]}), 1)
    assert change["change_us"] == 200.0
    assert [(row["kind"], row["us"], row["css"]) for row in change["rows"] if row["us"]] == [
        ("communication", 150.0, "comm"),
        ("computing", 100.0, "compute"),
        ("free", -50.0, "free"),
    ]


def test_operators_are_ordered_by_what_they_changed():
    rows = compare_rows.table_rows(two(entry(cast_us=160.0))["op_types"], ("type",), 1)
    # What did not change is left out.
    assert [(row["type"], row["change_us"], row["relative"]) for row in rows] == [("Cast", 100.0, 1.0)]
    assert [cell["us"] for cell in rows[0]["cells"]] == [60.0, 160.0]


def test_blocks_are_summed_over_layers_and_passes():
    slower = entry()
    slower["layers"] = {**slower["layers"], "parts": [part(0, "forward", block("qkv", 200.0))]}
    rows = compare_rows.table_rows(two(slower)["blocks"], ("part", "block"), 1)
    found = {row["block"]: [cell["us"] for cell in row["cells"]] for row in rows}
    # 40 + 80 + 40 and 60 + 120 + 90 us before.
    assert found == {"qkv": [160.0, 200.0], "attention_core": [270.0, 0.0]}


def test_a_capture_without_ranks_can_still_be_compared():
    found = compare_rows.differences([Capture(), Capture()], [entry(), {}])
    assert compare_rows.contributions(found, 1) == {"change_us": None, "rows": [], "places": [], "layers": []}
    assert compare_rows.table_rows(found["op_types"], ("type",), 1)[0]["change_us"] is None


def test_ready_made_pairs_are_the_nearest_of_each_kind():
    project, captures = filled_project(make_user("bob"), "pairs")
    first, second, third = (capture.run for capture in captures)
    Run.objects.filter(project=project).update(framework_version="2.7.1", tp=1, pp=1, dp=8)
    third.refresh_from_db()
    found = {pair["kind"]: (pair["first"]["id"], pair["last"]["id"], pair["title"]) for pair in pairs.pairs_of(third)}
    assert found == {
        "other_mode": (first.pk, third.pk, "PYNATIVE → GRAPH"),
        "upgrade": (second.pk, third.pk, "Upgrade: CANN 8.2 → 8.3"),
    }
    of_project = {pair["kind"]: (pair["first"]["id"], pair["last"]["id"]) for pair in pairs.project_pairs(project.pk)}
    assert of_project == {"other_mode": (first.pk, third.pk), "upgrade": (second.pk, third.pk)}


def test_each_parallel_dimension_that_was_added_is_a_pair_of_its_own():
    project, captures = filled_project(make_user("bob"), "splits")
    plain, tensor, pipeline = (capture.run for capture in captures)
    same = {"framework_version": "2.7.1", "cann_version": "8.2", "mode": "graph", "cp": 1, "ep": 1}
    for run, split in ((plain, (1, 1, 8)), (tensor, (2, 1, 4)), (pipeline, (1, 2, 4))):
        Run.objects.filter(pk=run.pk).update(**same, **dict(zip(("tp", "pp", "dp"), split, strict=True)))
    plain.refresh_from_db()
    found = [(pair["kind"], pair["first"]["id"], pair["last"]["id"], pair["title"]) for pair in pairs.pairs_of(plain)]
    assert found == [
        ("added_tp", plain.pk, tensor.pk, "Parallel split: TP 1 → 2, DP 8 → 4"),
        ("added_pp", plain.pk, pipeline.pk, "Parallel split: PP 1 → 2, DP 8 → 4"),
    ]


def test_a_split_that_one_run_does_not_tell_is_not_another_one():
    project, captures = filled_project(make_user("bob"), "unknown-splits")
    one, two, _ = (capture.run for capture in captures)
    Run.objects.filter(project=project).update(framework_version="2.7.1", cann_version="8.2", mode="graph", soc="X")
    Run.objects.filter(pk=one.pk).update(tp=2, pp=4, dp=1, cp=None, ep=None)
    Run.objects.exclude(pk=one.pk).filter(project=project).update(tp=2, pp=4, dp=1, cp=1, ep=1)
    one.refresh_from_db()
    assert pairs.pairs_of(one) == []
    Run.objects.filter(pk=two.pk).update(pp=2, dp=2)
    assert [pair["title"] for pair in pairs.pairs_of(one)] == ["Parallel split: PP 4 → 2, DP 1 → 2"]


def test_settings_that_differ_come_first():
    rows = compare_rows.setting_rows([Run(mode="graph", soc="A"), Run(mode="pynative", soc="A")])
    assert [(row["values"], row["differs"]) for row in rows] == [(["GRAPH", "PYNATIVE"], True), (["A", "A"], False)]


def test_a_setting_that_one_run_does_not_tell_does_not_differ():
    runs = [Run(soc="A", cann_version="8.2"), Run(soc="", cann_version="8.3"), Run(soc="A", cann_version="")]
    assert [(str(row["name"]), row["differs"]) for row in compare_rows.setting_rows(runs)] == [
        ("CANN", True),
        ("Chip", False),
    ]


def test_commit_and_command_are_held_beside_each_other():
    rows = compare_rows.setting_rows(
        [Run(meta={"git_commit": "abc", "command": "run"}), Run(meta={"git_commit": "def"})]
    )
    assert [(str(row["name"]), row["values"], row["differs"]) for row in rows] == [
        ("Commit", ["abc", "def"], True),
        ("Command", ["run", None], False),
    ]


def test_config_keys_that_differ_are_told_for_every_run():
    texts = ("a: 1\nb: 2", "a: 1\nb: 3\nc: {d: 4}", "", "a: 1 # same\nb: 2")
    runs = [Run(pk=pk, config_text=text) for pk, text in enumerate(texts, 1)]
    assert compare_rows.config_key_rows(runs, compare_rows.keys_of(runs)) == [
        {"key": "b", "values": ["2", "3", None, "2"]},
        {"key": "c.d", "values": ["(not set)", "4", None, "(not set)"]},
    ]


def changes_of(before: Run, run: Run) -> list[tuple[str, Any, Any]]:
    rows = compare_rows.setup_changes(before, run, compare_rows.keys_of([before, run]))
    return [(str(row["name"]), row["old"], row["new"]) for row in rows]


def test_what_changed_since_a_run_names_versions_environment_and_config_keys():
    before = Run(pk=1, cann_version="8.2", soc="A", meta={"environment": {"HCCL": "1"}}, config_text="a: 1\nb: 2")
    run = Run(pk=2, cann_version="8.3", soc="", meta={"environment": {"HCCL": "2"}}, config_text="a: 1\nb: 3")
    assert changes_of(before, run) == [("CANN", "8.2", "8.3"), ("HCCL", "1", "2"), ("b", "2", "3")]
    run.config_text = ""
    assert changes_of(before, run) == [("CANN", "8.2", "8.3"), ("HCCL", "1", "2")]


def test_of_a_configuration_too_long_to_be_told_by_keys_only_that_it_differs_is_told():
    long = "a: 1\n" + "#" * 100_000
    before, run = (Run(pk=pk, config_text=long, config_fingerprint=digits) for pk, digits in ((1, "4f1c"), (2, "9d20")))
    assert changes_of(before, run) == [("Config", "4f1c", "9d20")]
    run.config_fingerprint = "4f1c"
    assert changes_of(before, run) == []


def test_configs_are_compared_line_by_line():
    lines = compare_rows.config_diff(Run(pk=1, config_text="a: 1\nb: 2"), Run(pk=2, config_text="a: 1\nb: 3"))
    assert ("del", "-b: 2") in lines and ("add", "+b: 3") in lines


def test_what_the_newest_run_of_a_model_passes_is_told_of_the_older_ones():
    user = make_user("lead")
    _project, (old, _middle, new) = filled_project(user)
    newest = violation_rows.newest_runs(user)
    assert newest == [new.run_id]
    ChecklistResult.objects.filter(run=new.run, item="dtype_cast").update(status="pass")
    results = list(violation_rows.violations(user))
    answered = violation_rows.answered_by(results, newest)
    assert {item for _run, item in answered} == {"dtype_cast"}
    assert answered[old.run_id, "dtype_cast"] == new.run
    # Of a run that names no model nobody knows what is its newest.
    Run.objects.update(model_name="")
    assert violation_rows.answered_by(list(violation_rows.violations(user)), newest) == {}


def test_open_violations_are_counted_by_project_and_item():
    user = make_user()
    first, second = make_project(owner=user, slug="first"), make_project(owner=user, slug="second")
    for run in (make_run(first), make_run(first), make_run(second)):
        ready_capture(run)
    counts = violation_rows.open_counts(violation_rows.violations(user))
    assert {(row.project, row.item): row.count for row in counts} == {
        ("first", "dtype_cast"): 2,
        ("first", "graph_sink"): 2,
        ("second", "dtype_cast"): 1,
        ("second", "graph_sink"): 1,
    }
    totals = violation_rows.violation_totals(counts)
    assert {row["item"]: row["count"] for row in totals} == {"dtype_cast": 3, "graph_sink": 3}


def test_a_page_of_a_long_list_has_its_rows_in_their_order():
    project = make_project()
    runs = [make_run(project, key=f"run-{number}", mfu=number / 10) for number in range(7)]
    rows, _key, _descending = queries.ordered_runs(Run.objects.filter(project=project), "mfu")
    page = NarrowPaginator(rows, 3).get_page(2)
    assert [run.key for run in page] == ["run-3", "run-2", "run-1"]
    assert (page.paginator.count, page.has_next()) == (len(runs), True)


def test_the_strip_and_the_newest_captures_do_not_depend_on_the_page():
    run = make_run()
    made = [ready_capture(run, day=day, latest=False) for day in range(queries.PAGE_SIZE + 2)]
    shown = queries.run_captures(run, "2")
    assert [capture.pk for capture in shown.page] == [made[1].pk, made[0].pk]
    assert [capture.pk for capture in shown.newest] == [made[-1].pk, made[-2].pk]
    assert len(shown.strip) == queries.STRIP_LENGTH and shown.strip[0] == made[-1]
    (cast, *_others) = queries.checklist_strip(shown.strip)
    assert (cast["cells"][-1][0].pk, cast["cells"][-1][1]) == (made[-1].pk, "fail")


def test_only_series_with_a_value_are_offered():
    run, other = make_run(key="one"), make_run(key="two")
    StepRecord.objects.create(run=run, step=1, loss=1.0)
    StepRecord.objects.create(run=other, step=1, lr=1.0)
    assert [name for name, known in queries.has_series(run).items() if known] == ["loss"]


def test_filter_values_are_those_that_occur_without_empty_ones():
    project = make_project()
    for model, cards in (("b", 8), ("a", 8), ("", None)):
        make_run(project, key=f"run-{model}", model_name=model, world_size=cards, tags=["x", "nightly"])
    found = {facet["key"]: facet["values"] for facet in queries.run_facets(project)}
    assert (found["model"], found["cards"], found["tag"]) == (["a", "b"], [8], ["nightly", "x"])


def test_many_long_runs_share_the_points_of_a_chart():
    runs = [make_run(key=f"run-{number}") for number in range(8)]
    StepRecord.objects.bulk_create(
        StepRecord(run=run, step=step, loss=float(number)) for number, run in enumerate(runs) for step in range(2500)
    )
    series, stride = queries.run_series([*(run.pk for run in runs), runs[0].pk, 10**9], "loss")
    # 8 000 points for the nine that were asked for, one of which is not there
    assert stride == 3 and set(series) == {run.pk for run in runs}
    assert all(len(points) == 834 for points in series.values())
    assert series[runs[3].pk][-1] == (2499, 3.0)


def test_the_bubble_of_a_rank_is_the_mean_of_its_judged_steps():
    capture = ready_capture(make_run(make_project()), ranks=0)
    for rank, times in enumerate(((10, 30), (None, None))):
        dump = make_dump(capture, rank=rank)
        RankStep.objects.create(dump=dump, step="0", position=0, warmup=True, bubble_ns=900)
        for position, bubble in enumerate(times, 1):
            RankStep.objects.create(dump=dump, step=str(position), position=position, bubble_ns=bubble)
    assert queries.capture_bubbles(capture) == {0: 20.0}
