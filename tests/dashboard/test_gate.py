"""A build held against a baseline: what an alert would say, at once and without being written down."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.accounts.models import AgentToken
from dashboard.alerts.models import Alert, ProjectRule
from dashboard.runs.models import Capture, CaptureState, ChecklistResult, ItemStatus, StepRecord
from tests.dashboard.alert_data import capture, project

__all__ = ["project"]
pytestmark = pytest.mark.django_db
STEADY = (109_900, 110_000, 110_100)  # us: 0.1 ms from step to step
RESTLESS = (100_000, 110_000, 120_000)


@pytest.fixture
def ask(client, project):
    _, text = AgentToken.objects.issue(project, "ci", ["upload"])

    def asked(one: Capture, **query: str) -> Any:
        return client.get(
            f"/api/v1/captures/{one.pk}/gate", query_params=query, headers={"Authorization": f"Bearer {text}"}
        )

    return asked


def rules(answer: Any) -> dict[str, str]:
    return {rule["metric"]: rule["status"] for rule in answer.json()["gate"]["rules"]}


def test_a_build_as_good_as_those_before_it_passes(project, ask):
    for day in range(3):
        capture(project, day, run=f"main-{day}", step_time_ns=100_000_000, mfu=0.41)
    answer = ask(capture(project, 3, run="ci", step_time_ns=101_000_000, mfu=0.405, steps_us=STEADY))
    gate = answer.json()["gate"]
    assert gate["verdict"] == "pass"
    assert rules(answer) == {
        "cast_ratio": "unknown",
        "mfu": "pass",
        "device_ratio": "unknown",
        "step_time_ns": "pass",
        "peak_memory_bytes": "unknown",
    }
    assert [one["run"] for one in gate["baseline"]] == ["main-0", "main-1", "main-2"]


def test_a_slower_build_fails_with_both_numbers_and_nothing_is_written_down(project, ask):
    capture(project, 0, run="main", step_time_ns=100_000_000)
    answer = ask(capture(project, 1, run="ci", step_time_ns=110_000_000, steps_us=STEADY))
    gate = answer.json()["gate"]
    assert gate["verdict"] == "fail"
    (step,) = [rule for rule in gate["rules"] if rule["metric"] == "step_time_ns"]
    assert (step["old"], step["new"], step["change"]) == (100_000_000, 110_000_000, pytest.approx(0.1))
    assert "100" in step["text"] and "110" in step["text"] and "+10.0" in step["text"]
    assert Alert.objects.count() == 0


def test_a_build_that_is_slower_within_its_own_spread_is_unsure(project, ask):
    capture(project, 0, run="main", step_time_ns=100_000_000)
    answer = ask(capture(project, 1, run="ci", step_time_ns=110_000_000, steps_us=RESTLESS))
    assert answer.json()["gate"]["verdict"] == "unsure"


def judged(answer: Any, metric: str = "step_time_ns") -> tuple[str, str, float]:
    """(status, who tells of the noise, its deviation)."""
    (rule,) = [rule for rule in answer.json()["gate"]["rules"] if rule["metric"] == metric]
    return rule["status"], rule["noise"]["source"], rule["noise"]["deviation"]


@pytest.mark.parametrize(("slower", "status"), [(125_000_000, "unsure"), (130_000_000, "fail")])
def test_of_single_steps_alone_a_large_change_is_told(project, ask, slower, status):
    """Five percent from step to step are assumed: 3 x sqrt(2) x 0.05 x 125 = 26.5 ms, x 130 = 27.6 ms."""
    capture(project, 0, run="main", step_time_ns=100_000_000, steps_us=(100_000,))
    answer = ask(capture(project, 1, run="ci", step_time_ns=slower, steps_us=(slower / 1000,)))
    assert judged(answer) == (status, "assumed", pytest.approx(2**0.5 * 0.05 * slower))


def test_two_steps_that_lie_further_apart_than_assumed_are_believed(project, ask):
    """80 and 180 ms: 70.7 ms of deviation."""
    capture(project, 0, run="main", step_time_ns=100_000_000)
    answer = ask(capture(project, 1, run="ci", step_time_ns=130_000_000, steps_us=(80_000, 180_000)))
    assert judged(answer) == ("unsure", "assumed", pytest.approx(100_000_000))


@pytest.mark.parametrize(("swing_ns", "status"), [(1_000_000, "fail"), (4_000_000, "unsure")])
def test_the_step_log_of_a_run_tells_how_far_its_steps_lie_apart(project, ask, swing_ns, status):
    """Ten steps of 100 ms, more or less the swing: its deviation is swing x sqrt(10 / 9). The profiled one is not of
    them."""
    capture(project, 0, run="main", step_time_ns=100_000_000, steps_us=(100_000,))
    build = capture(project, 1, run="ci", step_time_ns=110_000_000, steps_us=(110_000,), first_step=12, last_step=12)
    for step in range(2, 12):
        time = 100_000_000 + (swing_ns if step % 2 else -swing_ns)
        StepRecord.objects.create(run=build.run, step=step, step_time_ns=time)
    StepRecord.objects.create(run=build.run, step=12, step_time_ns=140_000_000)
    of_one = swing_ns * (10 / 9) ** 0.5 / 100_000_000 * 110_000_000
    assert judged(ask(build)) == (status, "log", pytest.approx(2**0.5 * of_one))


@pytest.mark.parametrize(("slower", "status"), [(108_000_000, "unsure"), (110_000_000, "fail")])
def test_captures_before_it_tell_how_far_single_steps_lie_apart(project, ask, slower, status):
    """99, 100, 101 and 100 ms: deviation sqrt(2 / 3), widened by Student's t for three degrees of freedom, 9.22 / 3,
    and for the level's own error by sqrt(5 / 4): 2.81 ms, three of which are 8.42 ms."""
    for day, time in enumerate((99, 100, 101, 100)):
        capture(project, day, run=f"main-{day}", step_time_ns=time * 1_000_000, steps_us=(time * 1000,))
    answer = ask(capture(project, 4, run="ci", step_time_ns=slower, steps_us=(slower / 1000,)))
    assert judged(answer) == (status, "history", pytest.approx(1e6 * (2 / 3) ** 0.5 * 9.22 / 3 * 1.25**0.5))


def test_steps_of_the_baseline_tell_how_far_the_builds_lie_apart(project, ask):
    """99.9, 100 and 100.1 ms: 0.1 %, widened for three steps by 19.21 x sqrt(2 / 3) / 3."""
    capture(project, 0, run="main", step_time_ns=100_000_000, steps_us=(99_900, 100_000, 100_100))
    answer = ask(capture(project, 1, run="ci", step_time_ns=110_000_000, steps_us=(110_000,)))
    of_one = 0.001 * 19.21 * (2 / 3) ** 0.5 / 3 * 110_000_000
    assert judged(answer) == ("fail", "baseline", pytest.approx(2**0.5 * of_one))


@pytest.mark.parametrize(("gib", "status"), [(10.6, "unsure"), (11.2, "fail")])
def test_peak_memory_has_no_steps_and_is_told_where_it_grows_much(project, ask, gib, status):
    """Two percent are assumed: 3 x sqrt(2) x 0.02 x 10.6 = 0.90 GiB, x 11.2 = 0.95 GiB."""
    capture(project, 0, run="main", peak_memory_bytes=10 * 2**30)
    answer = ask(capture(project, 1, run="ci", peak_memory_bytes=int(gib * 2**30)))
    assert judged(answer, "peak_memory_bytes")[:2] == (status, "assumed")


def test_noise_is_told_only_where_something_is_worse(project, ask):
    capture(project, 0, run="main", step_time_ns=100_000_000)
    answer = ask(capture(project, 1, run="ci", step_time_ns=100_000_000))
    assert {rule["noise"] for rule in answer.json()["gate"]["rules"]} == {None}


def test_without_anything_comparable_the_verdict_is_unknown(project, ask):
    capture(project, 0, run="main", step_time_ns=100_000_000, world_size=16)
    answer = ask(capture(project, 1, run="ci", step_time_ns=110_000_000))
    assert answer.json()["gate"] == {"verdict": "unknown", "baseline": [], "rules": []}


def test_a_build_can_be_held_against_one_run_of_the_project(project, ask):
    capture(project, 0, run="release", step_time_ns=100_000_000)
    for day in range(1, 4):  # the branch has been slow for a while: to its own past the build is no worse
        capture(project, day, run=f"branch-{day}", step_time_ns=110_000_000)
    build = capture(project, 4, run="ci", step_time_ns=110_000_000, steps_us=STEADY)
    assert ask(build).json()["gate"]["verdict"] == "pass"
    against = ask(build, against="release").json()["gate"]
    assert against["verdict"] == "fail"
    assert [one["run"] for one in against["baseline"]] == ["release"]


def test_a_run_newer_than_the_build_may_be_the_baseline(project, ask):
    build = capture(project, 0, run="ci", step_time_ns=110_000_000, steps_us=STEADY)
    capture(project, 1, run="release", step_time_ns=100_000_000)
    assert ask(build, against="release").json()["gate"]["verdict"] == "fail"


def test_a_checklist_item_that_passed_and_fails_now_fails_the_build(project, ask):
    old, new = capture(project, 0, run="main"), capture(project, 1, run="ci")
    for one, status, value in ((old, ItemStatus.PASS, 0.02), (new, ItemStatus.FAIL, 0.2)):
        row = {"capture": one, "run": one.run}
        ChecklistResult.objects.create(**row, item="dtype_cast", status=status, value=value)
        ChecklistResult.objects.create(**row, item="fused_attention", status=ItemStatus.FAIL)
    answer = ask(new)
    assert answer.json()["gate"]["verdict"] == "fail"
    assert {"item:dtype_cast"} == {metric for metric, status in rules(answer).items() if status == "fail"}


def test_rules_that_are_off_do_not_judge(project, ask):
    ProjectRule.objects.create(project=project, metric="step_time_ns", enabled=False)
    capture(project, 0, run="main", step_time_ns=100_000_000, mfu=0.4)
    answer = ask(capture(project, 1, run="ci", step_time_ns=200_000_000, mfu=0.4))
    assert answer.json()["gate"]["verdict"] == "pass"
    assert "step_time_ns" not in rules(answer)


def test_runs_that_do_not_exist_and_captures_that_are_not_ready_are_refused(project, ask):
    ready = capture(project, 0, run="ci")
    stranger = ask(ready, against="nobody")
    assert (stranger.status_code, "'nobody'" in stranger.json()["error"]["message"]) == (404, True)
    assert ask(ready, against="a\0b").status_code == 400
    digesting = capture(project, 1, run="ci", state=CaptureState.DIGESTING)
    assert (ask(digesting).status_code, ask(digesting).json()["error"]["code"]) == (409, "incomplete")
