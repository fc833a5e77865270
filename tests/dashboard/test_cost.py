"""Where NPU-hours went: sums by project of what runs cost and lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.runs import cost_rows
from dashboard.runs.cost_rows import RunCost, summed
from dashboard.runs.models import CaptureState, Run, StepRecord
from dashboard.runs.rollup import update_run
from tests.factories import make_capture, make_member, make_project, make_run, make_user

pytestmark = pytest.mark.django_db
HOUR_NS = 3_600_000_000_000


def cost(**changes: Any) -> RunCost:
    """10 cards, 100 steps of an hour: 1 000 NPU-hours, 40 % of them work at the peak."""
    values = {
        "pk": 1, "name": "r", "project_id": 1, "world_size": 10, "step_time_ns": HOUR_NS, "steps_run": 100, "mfu": 0.4,
        "compute_ratio": 0.7, "exposed_communication_ratio": 0.1, "device_ratio": 0.85,
        "recoverable_ns": HOUR_NS // 4, "verdict": "compute",
    }  # fmt: skip
    return RunCost(**{**values, **changes})


def rounded(parts):
    return {name: round(hours, 6) for name, hours in parts.items() if round(hours, 6)}


def test_hours_are_cut_into_the_peak_and_each_loss():
    """Of 1 000: 700 compute, 100 communicate, 150 are free; the device works 850, so 50 are the pipeline's bubble."""
    total = summed([cost()])
    assert total.hours == 1000
    assert rounded(total.parts) == {
        "peak": 400.0, "computing": 300.0, "communication": 100.0, "bubble": 50.0, "free": 150.0
    }  # fmt: skip
    assert total.recoverable == 250.0


@pytest.mark.parametrize("missing", ["world_size", "step_time_ns", "steps_run"])
def test_a_run_of_unknown_length_is_counted_and_costs_nothing(missing):
    total = summed([cost(), cost(**{missing: None})])
    assert (total.runs, total.unknown, total.hours) == (2, 1, 1000)


def test_what_no_run_tells_is_unknown_and_not_none():
    total = summed([cost(steps_run=None), cost(steps_run=None)])
    assert (total.hours, total.recoverable, total.recoverable_share, total.bar) == (None, None, None, [])
    assert summed([cost(recoverable_ns=None)]).recoverable is None


def test_what_no_number_tells_is_said_to_be_unknown():
    assert rounded(summed([cost(mfu=None, compute_ratio=None)]).parts) == {
        "communication": 100.0, "free": 150.0, "untold": 750.0
    }  # fmt: skip
    assert rounded(summed([cost(mfu=None)]).parts) == {
        "uncut": 700.0, "communication": 100.0, "bubble": 50.0, "free": 150.0
    }  # fmt: skip


def test_savings_end_at_the_whole_step():
    assert summed([cost(recoverable_ns=2 * HOUR_NS)]).recoverable == 1000


def ran(project, days_ago: float, **fields) -> Run:
    """100 cards, a step of an hour, captured so long ago."""
    at = timezone.now() - timedelta(days=days_ago)
    run = make_run(project, world_size=100, step_time_ns=HOUR_NS, steps_run=30, last_capture_at=at, **fields)
    make_capture(run, state=CaptureState.READY, captured_at=at, last_step=30)
    return run


def test_steps_are_those_of_the_log_else_up_to_the_newest_capture():
    project = make_project("team")
    logged, profiled = ran(project, 1), ran(project, 1)
    StepRecord.objects.bulk_create(StepRecord(run=logged, step=step) for step in (11, 12, 20))
    for run in (logged, profiled):
        update_run(run.pk)
    assert [Run.objects.get(pk=run.pk).steps_run for run in (logged, profiled)] == [10, 30]


def test_the_time_before_is_summed_apart_and_other_projects_are_not_there():
    mine, other = make_project("mine"), make_project("other")
    ran(mine, 1)
    ran(mine, 10)
    ran(mine, 20)
    ran(other, 1)
    found = cost_rows.costs([mine], 7, timezone.now())
    assert (found["total"].runs, found["before"].runs) == (1, 1)
    assert [(project.slug, sums.hours) for project, sums in found["projects"]] == [("mine", 3000.0)]


def test_the_page_shows_projects_a_person_sees(client, django_assert_max_num_queries):
    mine, other = make_project("mine", name="My team"), make_project("other", name="Their team")
    reader = make_user("reader")
    make_member(mine, reader)
    ran(mine, 1, mfu=0.4, compute_ratio=0.7, exposed_communication_ratio=0.1, device_ratio=0.8, name="Big run",
        recoverable_ns=HOUR_NS // 10)  # fmt: skip
    ran(other, 1)
    client.force_login(reader)
    with django_assert_max_num_queries(12):
        text = client.get("/cost/").content.decode()
    assert "My team" in text and "Their team" not in text
    assert "3,000" in text and "Big run" in text and "300" in text  # a tenth could be won
    assert "No run in this time" not in client.get("/cost/?days=7").content.decode()
    assert client.get("/cost/?days=evil").status_code == 200


def test_nothing_ran(client):
    client.force_login(make_user("reader"))
    assert "No run in this time" in client.get("/cost/").content.decode()
