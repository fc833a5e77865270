"""A build held against a baseline: what an alert would say, at once and without being written down."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.accounts.models import AgentToken
from dashboard.alerts.models import Alert, ProjectRule
from dashboard.runs.models import Capture, CaptureState, ChecklistResult, ItemStatus
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
