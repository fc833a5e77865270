"""What a run's numbers are held against: the run before it of the same project, model and cards."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dashboard.accounts.models import Project, User
from dashboard.runs.before import run_before, value_before, with_before
from dashboard.runs.models import Run
from tests.dashboard.page_data import ready_capture
from tests.factories import make_project, make_run, make_user

pytestmark = pytest.mark.django_db
START = datetime(2026, 10, 1, tzinfo=UTC)


def run_of(project: Project, day: int | None, mfu: float | None = 0.4, **fields: Any) -> Run:
    at = None if day is None else START + timedelta(days=day)
    usual = {"model_name": "llama", "world_size": 8, "peak_tflops": 300.0, "peak_dtype": "BF16"}
    return make_run(project, last_capture_at=at, mfu=mfu, **{**usual, **fields})


def before(run: Run) -> Run | None:
    return run_before(with_before(Run.objects.all()).get(pk=run.pk))


@pytest.fixture
def project() -> Project:
    return make_project("llm", owner=make_user("alice"))


def test_the_newest_older_run_of_the_same_model_and_cards_comes_before(project):
    oldest, old, new = (run_of(project, day) for day in (1, 2, 9))
    run_of(project, 3, model_name="qwen")
    run_of(project, 4, world_size=16)
    run_of(project, 5, archived=True)
    run_of(make_project("other"), 6)
    run_of(project, None)
    assert before(new) == old and before(old) == oldest and before(oldest) is None


@pytest.mark.parametrize("unknown", [{"model_name": ""}, {"world_size": None}])
def test_what_is_not_known_is_not_compared(project, unknown):
    run_of(project, 1, **unknown)
    assert before(run_of(project, 2, **unknown)) is None


def test_mfu_under_another_peak_is_not_held_against_this_one(project):
    older, run = run_of(project, 1, peak_dtype="FP16", step_time_ns=100), run_of(project, 2, step_time_ns=90)
    assert value_before(run, older, "mfu") is None
    assert value_before(run, older, "step_time_ns") == 100


def test_the_list_and_the_run_tell_what_changed(project, client):
    older = run_of(project, 1, mfu=0.409, name="Nightly", step_time_ns=1_456_000_000)
    run = run_of(project, 2, mfu=0.384, step_time_ns=1_550_000_000)
    client.force_login(User.objects.get(username="alice"))
    rows = client.get("/projects/llm/runs/").content.decode()
    assert 'class="change bad"' in rows and "−2.5\u202fpts" in rows and "since Nightly" in rows
    page = client.get(f"/runs/{run.pk}/").content.decode()
    # 1 550 / 1 456 = 1.0646
    assert "−2.5\u202fpts" in page and "+6.5\u202f%" in page
    assert f"/compare/?runs={older.pk},{run.pk}" in page
    assert 'class="change' not in client.get(f"/runs/{older.pk}/").content.decode()


def test_a_comparison_puts_what_is_the_same_aside(project, client):
    client.force_login(User.objects.get(username="alice"))
    one, other = (run_of(project, day, cann_version=cann) for day, cann in ((1, "8.2"), (2, "8.3")))
    ids = ",".join(str(ready_capture(run).pk) for run in (one, other))
    context = client.get(f"/compare/?captures={ids}").context
    assert [row["name"] for row in context["differing"]] == ["CANN"]
    assert {"name": "Model", "values": ["llama", "llama"], "differs": False} in context["same"]


def test_the_run_tells_what_changed_in_its_setup_since_the_run_before(project, client):
    same = {"config_fingerprint": "f", "name": "Nightly"}
    older = run_of(project, 1, cann_version="8.2", config_text="model: {dtype: bfloat16, layers: 2}", **same)
    run = run_of(project, 2, cann_version="8.3", config_text="model: {dtype: float32, layers: 2}", **same)
    client.force_login(User.objects.get(username="alice"))
    html = client.get(f"/runs/{run.pk}/pairs/").content.decode()
    rows = re.findall(r"<tr>\s*<th[^>]*>([^<]*)</th>\s*<td[^>]*>([^<]*)</td>\s*<td[^>]*>([^<]*)</td>\s*</tr>", html)
    assert rows == [("CANN", "8.2", "8.3"), ("model.dtype", "bfloat16", "float32")]
    assert "What changed since Nightly" in html and f"runs={older.pk},{run.pk}" in html
    Run.objects.filter(pk=run.pk).update(cann_version="8.2", config_text=older.config_text)
    assert (
        "Versions, setup, environment and config are the same" in client.get(f"/runs/{run.pk}/pairs/").content.decode()
    )
    assert "What changed since" not in client.get(f"/runs/{older.pk}/pairs/").content.decode()
