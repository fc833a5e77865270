from __future__ import annotations

import polars as pl
import pytest

from analysis.store import write_frames
from dashboard.accounts.models import Member, Project, Role, User
from dashboard.alerts.models import Alert, AlertState, Channel, Delivery
from dashboard.alerts.spread import spread_of
from dashboard.alerts.wording import headline
from dashboard.runs import kernel_rows
from dashboard.runs.models import Capture, CaptureState, ChecklistResult
from tests.dashboard.alert_data import capture, look, member, owner, project, series
from tests.factories import make_dump

__all__ = ["member", "owner", "project"]
pytestmark = pytest.mark.django_db


def test_a_regression_makes_one_alert_with_old_and_new_value(project):
    before = capture(project, 1, run="a", cast_ratio=0.03, mfu=0.41)
    first = capture(project, 2, run="b", cast_ratio=0.08, mfu=0.38)
    assert look(first) == []  # one capture whose steps nobody knows may be an accident
    second = capture(project, 3, run="c", cast_ratio=0.08, mfu=0.38)
    for _ in range(2):
        assert {alert.metric for alert in look(second)} == {"cast_ratio", "mfu"}
    assert Alert.objects.count() == 2
    cast = Alert.objects.get(metric="cast_ratio")
    assert (cast.project, cast.previous, cast.capture, cast.confirmation) == (project, before, first, "points")
    assert (cast.old_value, cast.new_value, cast.change) == (0.03, 0.08, pytest.approx(0.05))
    assert Alert.objects.get(metric="mfu").change == pytest.approx(-3 / 41)


def test_one_capture_is_enough_when_its_steps_rule_the_old_level_out(project):
    capture(project, 1, step_time_ns=100_000_000)
    after = capture(project, 2, step_time_ns=110_000_000, steps_us=(109_800, 110_000, 110_200))
    # 0.2 ms from step to step, ten from the old level
    assert [(alert.metric, alert.confirmation) for alert in look(after)] == [("step_time_ns", "spread")]


def test_one_capture_is_not_enough_when_its_steps_lie_far_apart(project):
    capture(project, 1, step_time_ns=100_000_000)
    noisy = capture(project, 2, step_time_ns=110_000_000, steps_us=(100_000, 110_000, 120_000))
    assert look(noisy) == []
    assert len(look(capture(project, 3, step_time_ns=110_000_000, steps_us=(100_000, 110_000, 120_000)))) == 1


def test_a_single_step_has_no_spread(project):
    capture(project, 1, step_time_ns=100_000_000)
    assert look(capture(project, 2, step_time_ns=110_000_000, steps_us=(110_000,))) == []


def test_the_first_capture_and_better_ones_raise_nothing(project):
    assert series(project, cast_ratio=[0.12, 0.11, 0.03]) == [[], [], []]


def test_the_same_level_is_not_told_again(project):
    told = series(project, cast_ratio=[0.03, 0.08, 0.081, 0.08, 0.08, 0.08])
    assert told == [[], [], ["cast_ratio"], [], [], []]


def test_an_accident_is_not_told(project):
    assert series(project, mfu=[0.40, 0.40, 0.36, 0.40, 0.40, 0.40]) == [[]] * 6


def test_a_level_that_was_better_twice_in_between_is_told_again(project):
    told = series(project, mfu=[0.40, 0.36, 0.36, 0.40, 0.40, 0.36, 0.36])
    assert told == [[], [], ["mfu"], [], [], [], ["mfu"]]


def test_a_level_worse_than_the_one_told_escalates(project):
    told = series(project, mfu=[0.40, 0.38, 0.38, 0.38, 0.36, 0.36])
    assert told == [[], [], ["mfu"], [], [], ["mfu"]]
    worse = Alert.objects.order_by("id").last()
    assert worse.escalates == Alert.objects.order_by("id").first()
    assert headline(worse).startswith("Worse again: MFU")


def test_a_slow_slide_within_the_least_change_is_told_once_its_level_moved(project):
    slide = [0.400, 0.401, 0.399, 0.400, 0.392, 0.391, 0.392, 0.384, 0.385, 0.384, 0.377, 0.376, 0.377]
    assert ["mfu"] in series(project, mfu=slide)


def test_a_false_alarm_is_quiet_while_it_lasts_and_told_when_it_comes_back(project):
    series(project, mfu=[0.40, 0.36, 0.36])
    Alert.objects.update(state=AlertState.FALSE_ALARM)
    assert look(capture(project, 3, run="same", mfu=0.36)) == []
    for day in (4, 5, 6):
        look(capture(project, day, run=f"good-{day}", mfu=0.40))
    look(capture(project, 7, run="bad-7", mfu=0.36))
    assert len(look(capture(project, 8, run="bad-8", mfu=0.36))) == 1


def test_after_an_expected_change_its_level_is_the_baseline(project):
    series(project, mfu=[0.40, 0.40, 0.40, 0.36, 0.36])
    Alert.objects.update(state=AlertState.EXPECTED)
    # 3 % under the new level, not under the old one alone
    assert look(capture(project, 5, run="run-5", mfu=0.352)) == []
    assert look(capture(project, 6, run="run-6", mfu=0.352)) == []
    look(capture(project, 7, run="run-7", mfu=0.335))
    alert = look(capture(project, 8, run="run-8", mfu=0.335))[0]
    assert alert.old_value == pytest.approx(0.352)  # the median of the three before it: 0.36, 0.352, 0.352


def test_opening_an_expected_change_again_takes_the_baseline_back(project):
    series(project, mfu=[0.40, 0.40, 0.40, 0.36, 0.36])
    newest = Capture.objects.order_by("captured_at").last()
    Alert.objects.update(state=AlertState.EXPECTED)
    assert look(newest) == []
    Alert.objects.update(state=AlertState.OPEN)
    assert [alert.old_value for alert in look(newest)] == [0.40]


@pytest.mark.parametrize(
    "other",
    [
        {"world_size": 16},
        {"config_fingerprint": "13b"},
        {"peak_tflops": 280.0},
        {"peak_dtype": "fp16"},
        {"state": CaptureState.FAILED},
    ],
)
def test_captures_that_cannot_be_compared_raise_nothing(project, other):
    capture(project, 1, cast_ratio=0.01, **other)
    capture(project, 2, run="b", cast_ratio=0.2)
    assert look(capture(project, 3, run="c", cast_ratio=0.2)) == []


def test_without_a_known_model_only_the_same_run_is_comparable(project):
    capture(project, 1, run="a", config_fingerprint="", cast_ratio=0.01)
    for day in (2, 3):
        assert look(capture(project, day, run="b", config_fingerprint="", cast_ratio=0.2)) == []
    capture(project, 4, run="a", config_fingerprint="", cast_ratio=0.2)
    assert len(look(capture(project, 5, run="a", config_fingerprint="", cast_ratio=0.2))) == 1


def test_another_project_is_not_comparable(project):
    capture(Project.objects.create(slug="other", name="Other"), 1, cast_ratio=0.01)
    capture(project, 2, run="b", cast_ratio=0.2)
    assert look(capture(project, 3, run="c", cast_ratio=0.2)) == []


def test_mfu_of_another_formula_is_not_compared(project):
    capture(project, 1, mfu=0.4, flops_formula="megatron_causal", cast_ratio=0.01)
    capture(project, 2, mfu=0.2, flops_formula="other", cast_ratio=0.2)
    found = look(capture(project, 3, mfu=0.2, flops_formula="other", cast_ratio=0.2))
    assert [one.metric for one in found] == ["cast_ratio"]


def test_a_late_capture_is_held_against_the_one_taken_before_it(project):
    capture(project, 1, cast_ratio=0.02)
    capture(project, 9, cast_ratio=0.3)
    capture(project, 4, cast_ratio=0.04)
    assert look(capture(project, 5, cast_ratio=0.04))[0].old_value == 0.02


def test_a_checklist_item_that_passed_and_fails_is_told_with_unknown_left_unknown(project):
    for day, status in ((1, "pass"), (2, "fail")):
        one = capture(project, day)
        ChecklistResult.objects.create(capture=one, run=one.run, item="fused_attention", status=status)
    alert = look(one)[0]
    assert (alert.metric, alert.old_value, alert.new_value) == ("item:fused_attention", None, None)


def test_an_alert_that_a_second_look_does_not_find_is_dropped_with_its_notice(project):
    Channel.objects.create(project=project, name="hook", url="jsons://hooks.example.com/x")
    capture(project, 1, step_time_ns=100_000_000)
    after = capture(project, 2, step_time_ns=110_000_000, steps_us=(110_000, 110_000))
    assert len(look(after)) == 1
    after.step_time_ns = 100_000_000
    assert look(after) == []
    assert not Alert.objects.exists() and not Delivery.objects.exists()


def test_a_second_look_at_the_first_bad_capture_keeps_what_a_later_one_confirmed(project):
    series(project, mfu=[0.40, 0.36, 0.36])
    first = Alert.objects.get().capture
    look(first)
    assert Alert.objects.get().capture == first


def test_cast_share_by_step_is_read_from_the_kernels_that_are_kept(project, settings, tmp_path):
    settings.DATA_ROOT = tmp_path
    made = capture(project, 1, cast_ratio=0.2)
    steps = [{"step": "1", "step_time_us": 1.0}, {"step": "2", "step_time_us": 1.0}]
    make_dump(made, entry={"rank": 0, "steps": steps}, frames="1-0123456789ab")
    rows = [("1", "cast", "compute", 100), ("1", "matmul", "compute", 900), ("2", "cast", "compute", 300)]
    rows += [("2", "matmul", "compute", 700), ("2", "cast", "communication", 9000), ("9", "cast", "compute", 5000)]
    frame = pl.DataFrame(rows, schema=["step", "class", "kind", "duration_ns"], orient="row")
    write_frames(tmp_path / "frames" / "1-0123456789ab", {"kernels": frame})
    # 0.1 and 0.3: 0.1414 apart as a standard deviation of two
    assert spread_of(made, "cast_ratio") == pytest.approx(0.2 / 2**0.5)


def test_mfu_spreads_as_the_inverse_of_step_time(project):
    made = capture(project, 1, mfu=0.4, steps_us=(90.0, 110.0))
    # 0.4 x 100 / 90 and 0.4 x 100 / 110
    assert spread_of(made, "mfu") == pytest.approx((0.4 * 100 / 90 - 0.4 * 100 / 110) / 2**0.5)


def test_device_ratio_is_counted_over_the_ranks_step_by_step(project):
    made = capture(project, 1, device_ratio=0.8)
    for rank, free in ((0, (10.0, 30.0)), (1, (20.0, 20.0))):
        steps = [{"step_time_us": 100.0, "free_us": one} for one in free]
        make_dump(made, rank=rank, entry={"rank": rank, "steps": steps})
    # 1 - 30/200 and 1 - 50/200
    assert spread_of(made, "device_ratio") == pytest.approx((0.85 - 0.75) / 2**0.5)


def test_peak_memory_has_no_steps(project):
    assert spread_of(capture(project, 1, peak_memory_bytes=2**30, steps_us=(1.0, 2.0)), "peak_memory_bytes") is None


def test_an_alert_is_given_to_a_member_and_to_no_stranger(client, project, member, owner):
    alert = Alert.objects.create(project=project, capture=capture(project, 1), metric="mfu", new_value=0.3)
    User.objects.create_user("eve")
    client.force_login(owner)
    for name, expected in (("mia", member), ("eve", member), ("", None)):
        client.post(f"/alerts/{alert.pk}/assign/", {"assignee": name})
        alert.refresh_from_db()
        assert alert.assignee == expected


def test_mine_shows_what_was_given_to_me(client, project, member):
    for day, person in ((1, member), (2, None)):
        Alert.objects.create(
            project=project,
            capture=capture(project, day, run=f"run-{day}"),
            metric="mfu",
            new_value=0.3,
            assignee=person,
        )
    client.force_login(member)
    page = client.get("/alerts/?mine=1").content.decode()
    assert "run-1" in page and "run-2" not in page


def test_the_cause_leads_to_the_kernels_it_speaks_of(client, project, member):
    made = capture(project, 1)
    evidence = {"rank": 3, "type": "Cast", "block": "position"}
    Alert.objects.create(project=project, capture=made, metric="mfu", new_value=0.3, evidence=evidence)
    client.force_login(member)
    page = client.get("/alerts/").content.decode()
    assert f'href="/captures/{made.pk}/ranks/3/?type=Cast&amp;block=position#kernels"' in page


def test_the_inbox_shows_only_alerts_of_my_projects(client, project, member):
    other = Project.objects.create(slug="other", name="Other")
    Alert.objects.create(project=project, capture=capture(project, 1), metric="mfu", old_value=0.4, new_value=0.3)
    foreign = Alert.objects.create(project=other, capture=capture(other, 1), metric="mfu", old_value=0.9, new_value=0.7)
    client.force_login(member)
    page = client.get("/alerts/").content.decode()
    assert "40.0" in page and "90.0" not in page
    assert client.post(f"/alerts/{foreign.pk}/decide/", {"state": "expected"}).status_code == 404


def test_the_overview_tells_open_alerts_of_my_projects_with_their_causes(client, project, member):
    other = Project.objects.create(slug="other", name="Other")
    known = {"metric": "mfu", "old_value": 0.4, "new_value": 0.3, "cause": "Cast grew.", "cause_zh": "Cast 变多。"}
    mine = Alert.objects.create(project=project, capture=capture(project, 1), **known)
    Alert.objects.create(project=other, capture=capture(other, 1), **{**known, "cause": "Nobody's business."})
    client.force_login(member)
    page = client.get("/").content.decode()
    assert f'href="/alerts/?alert={mine.pk}"' in page and "Cast grew." in page and "given to nobody" in page
    assert "Nobody's business." not in page and "All 1" not in page
    mine.decide(AlertState.EXPECTED, "", member)
    assert "What got worse" not in client.get("/").content.decode()


def test_a_member_decides_and_a_viewer_does_not(client, project, member):
    alert = Alert.objects.create(project=project, capture=capture(project, 1), metric="mfu", new_value=0.3)
    client.force_login(member)
    client.post(f"/alerts/{alert.pk}/decide/", {"state": "expected", "note": "new data set"})
    alert.refresh_from_db()
    assert (alert.state, alert.note, alert.decided_by) == ("expected", "new data set", member)
    viewer = User.objects.create_user("victor")
    Member.objects.create(project=project, user=viewer, role=Role.VIEWER)
    client.force_login(viewer)
    assert client.post(f"/alerts/{alert.pk}/decide/", {"state": "open"}).status_code == 403
    assert client.get("/alerts/?state=all").status_code == 200


def test_after_a_decision_nobody_is_led_to_another_site(client, project, member):
    alert = Alert.objects.create(project=project, capture=capture(project, 1), metric="mfu", new_value=0.3)
    client.force_login(member)
    answer = client.post(f"/alerts/{alert.pk}/decide/", {"state": "expected", "next": "https://evil.example/"})
    assert answer.url == "/alerts/"


def test_the_inbox_asks_few_questions_however_many_alerts(client, project, member, django_assert_max_num_queries):
    for day in range(30):
        Alert.objects.create(project=project, capture=capture(project, day), metric="mfu", new_value=0.3)
    client.force_login(member)
    with django_assert_max_num_queries(12):
        client.get("/alerts/")


def test_the_kernels_of_a_block_include_the_casts_that_serve_it(tmp_path, settings, project):
    settings.DATA_ROOT = tmp_path
    rows = [
        ("a", "Cast", "movement", "position"),
        ("b", "Cast", "movement", "qkv"),
        ("c", "Mul", "position", "position"),
    ]
    names = ["name", "type", "block", "within"]
    same = {"start_ns": 0, "duration_ns": 5, "step": "1", "layer": 0}
    frame = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        pl.lit(value).alias(key) for key, value in same.items()
    )
    write_frames(tmp_path / "frames" / "1-0123456789ab", {"kernels": frame})
    dump = make_dump(capture(project, 1), frames="1-0123456789ab")
    for asked, expected in (({"block": "position"}, {"a", "c"}), ({"block": "position", "type": "Cast"}, {"a"})):
        found = kernel_rows.kernels(dump, kernel_rows.KernelSearch.from_params(asked))
        assert {row["name"] for row in found["rows"]} == expected
