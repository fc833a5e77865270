"""Captures of which little or nothing is known: the page says what it lacks and which switch brings it."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Role
from dashboard.runs import switches
from dashboard.runs.models import Capture, Run
from tests.dashboard.page_data import entry, report
from tests.factories import make_capture, make_dump, make_member, make_project, make_run, make_user

pytestmark = pytest.mark.django_db
TOLD = {"rank": 0, "memory": {"peak_allocated_bytes": None, "peak_reserved_bytes": None}}
MISSING = [
    {"file": "step_trace_time.csv", "hides": ["step_time"], "how": "profile with schedule(...)"},
    {"file": "run configuration (YAML)", "hides": ["mfu"], "how": "--config RUN.yaml"},
    {"file": "trace_view.json", "hides": [], "how": "--with-trace"},
]


def bare(owner: Any, **fields: Any) -> Capture:
    """A ready capture that tells two operators and no step."""
    run = make_run(make_project(owner=owner), framework="mindspore", key="night-7")
    told = {**report(), "source": {"missing": MISSING}, "bottleneck": {}, "fix_first": {}}
    capture = make_capture(run, state="ready", report=told, rank_count=1, cast_ratio=0.1, **fields)
    make_dump(capture, state="digested", entry={**TOLD, "op_types": entry()["op_types"][:2]})
    return capture


@pytest.fixture
def alice(client: Client) -> Any:
    user = make_user("alice")
    client.force_login(user)
    return user


def test_a_capture_without_steps_says_first_what_would_bring_them(client, alice):
    html = client.get(f"/captures/{bare(alice).pk}/").content.decode()
    assert "How long a step takes is not in this dump" in html and "It tells 2 types of operators." in html
    assert html.index('id="missing"') < html.index('id="checklist"') and html.count('id="missing"') == 1
    assert "profiler_level=ms.ProfilerLevel.Level1" in html
    assert "upload /data/profiles --run-key night-7 --config RUN.yaml --with-trace" in html
    # One tile is known; charts of steps, the memory and communication have nothing to say.
    assert html.count('<div class="tile ') == 1 and "10.0" in html
    for absent in (
        "charts/waterfall",
        "charts/steps",
        "charts/memory",
        "Communication by operation",
        'href="#overview"',
    ):
        assert absent not in html


def test_a_capture_with_steps_keeps_what_is_missing_at_its_end(client, alice):
    html = client.get(f"/captures/{bare(alice, step_time_ns=1_000_000).pk}/").content.decode()
    assert html.index('id="missing"') > html.index('id="checklist"') and "charts/waterfall" in html
    assert '<details class="more" id="switches">' in html


def test_a_capture_of_which_nothing_was_read_names_its_files_and_what_a_dump_must_hold(client, alice):
    capture = make_capture(make_run(make_project(owner=alice), key="k 1"), state="failed", error="rank 0: is empty")
    make_dump(
        capture, state="failed", error="op_summary.csv: is empty", attempts=1,
        contents={f"P/op_summary_{number}.csv": b"" if number == 0 else b"xx" for number in range(14)},
    )  # fmt: skip
    html = client.get(f"/captures/{capture.pk}/").content.decode()
    assert "Nothing of this capture could be read" in html and html.count("is empty") == 1
    assert html.count("op_summary_0.csv") == 1 and ">empty</span>" in html and "and 2 more files" in html
    assert "--run-key &#x27;k 1&#x27; --replace" in html and "Try again" in html
    assert "data-chart-url" not in html and 'class="tile' not in html


def test_viewers_are_not_offered_to_try_again(client):
    project = make_project()
    viewer = make_user()
    make_member(project, viewer, Role.VIEWER)
    capture = make_capture(make_run(project), state="failed")
    make_dump(capture, state="failed", error="is empty")
    client.force_login(viewer)
    html = client.get(f"/captures/{capture.pk}/").content.decode()
    assert "Nothing of this capture could be read" in html and "Try again" not in html


@pytest.mark.parametrize("framework", ["mindspore", "torch_npu"])
def test_the_call_is_python_and_asks_for_what_the_agents_own_call_asks(framework):
    call = switches.profiler_call(framework, MISSING)
    (block,) = [node for node in ast.parse(call).body if isinstance(node, ast.With)]
    made = block.items[0].context_expr
    assert isinstance(made, ast.Call)
    names = {keyword.arg for keyword in made.keywords}
    assert names == {"activities", "profile_memory", "schedule", "on_trace_ready", "experimental_config"}


def test_where_no_profiler_file_is_missing_no_call_is_shown():
    assert switches.profiler_call("mindspore", [MISSING[1]]) == ""
    assert switches.profiler_call("msprof", MISSING) == ""
    assert switches.upload_command(Run(key="a"), []) == "python3 stepscope-agent.pyz upload /data/profiles --run-key a"
