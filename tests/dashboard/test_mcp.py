"""The Model Context Protocol: what an assistant may ask with a token, and how wrong messages are answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import AgentToken, Project
from dashboard.runs.models import Capture, CaptureState, ChecklistResult, DumpState, ItemStatus
from tests.dashboard.alert_data import capture, project
from tests.factories import make_capture, make_dump

__all__ = ["project"]
pytestmark = pytest.mark.django_db
NAMES = ["compare", "compare_ranks", "gate", "get_capture", "get_run", "get_section", "list_runs", "list_violations"]


class Assistant:
    """An MCP client with a token of the project."""

    def __init__(self, project: Project, *scopes: str) -> None:
        _, self.token = AgentToken.objects.issue(project, "assistant", list(scopes))
        self.client = Client()

    def post(self, message: Any, **headers: str) -> Any:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json, text/event-stream", **headers}
        return self.client.post("/api/mcp", body, content_type="application/json", headers=headers)

    def ask(self, method: str, **params: Any) -> Any:
        answer = self.post({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        assert answer.status_code == 200, answer.content
        assert (answer.json()["jsonrpc"], answer.json()["id"]) == ("2.0", 7)
        return answer.json()

    def call(self, tool: str, **arguments: Any) -> Any:
        result = self.ask("tools/call", name=tool, arguments=arguments)["result"]
        (content,) = result["content"]
        assert content["type"] == "text"
        return content["text"] if result["isError"] else json.loads(content["text"])


@pytest.fixture
def assistant(project) -> Assistant:
    return Assistant(project, "read")


@pytest.fixture
def ready(project) -> Capture:
    one = capture(project, 1, run="main", step_time_ns=100_000_000, mfu=0.4)
    one.report = {
        "bottleneck": {"verdict": "compute"},
        "fix_first": {"items": [{"id": "dtype_cast", "summary": "Cast", "summary_zh": "转换", "recoverable_us": 5.0}]},
        "checklist": {
            "items": [{"id": "dtype_cast", "status": "fail", "advice": "a", "advice_zh": "b", "evidence": [1]}]
        },
        "findings": [],
        "cluster": {},
    }
    one.save()
    make_dump(one, rank=3, entry={"rank": 3, "steps": [{"step_time_us": 100_000.0}], "op_types": [{"type": "Cast"}]})
    return one


def test_a_client_is_greeted_in_the_version_it_speaks(assistant):
    told = assistant.ask("initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo={"name": "x"})[
        "result"
    ]
    assert told["protocolVersion"] == "2025-03-26"
    assert told["serverInfo"]["name"] == "stepscope" and "tools" in told["capabilities"]
    assert assistant.ask("initialize", protocolVersion="1999-01-01")["result"]["protocolVersion"] == "2025-06-18"
    assert assistant.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
    assert assistant.ask("ping")["result"] == {}


def test_tools_say_what_they_take(assistant):
    tools = assistant.ask("tools/list")["result"]["tools"]
    assert sorted(tool["name"] for tool in tools) == NAMES
    for tool in tools:
        assert tool["description"] and tool["inputSchema"]["type"] == "object"
        assert tool["annotations"]["readOnlyHint"] is True


def test_an_assistant_finds_its_way_from_runs_to_a_rank(assistant, ready):
    (run,) = assistant.call("list_runs", search="mai")["runs"]
    assert (run["key"], assistant.call("list_runs", search="other")["runs"]) == ("main", [])
    (one,) = assistant.call("get_run", run=run["id"])["captures"]
    assert (one["id"], one["metrics"]["mfu"]) == (ready.pk, 0.4)
    told = assistant.call("get_capture", capture=one["id"])
    assert told["bottleneck"] == {"verdict": "compute"} and told["ranks"] == [3]
    assert told["fix_first"]["items"] == [{"id": "dtype_cast", "summary": "Cast", "recoverable_us": 5.0}]
    assert told["checklist"] == [{"id": "dtype_cast", "status": "fail", "advice": "a"}]
    section = assistant.call("get_section", capture=one["id"], rank=3, section="op_types")
    assert section == {"rank": 3, "op_types": [{"type": "Cast"}]}
    assert "no rank 0" in assistant.call("get_section", capture=one["id"], section="steps")


def test_captures_are_compared_and_judged(assistant, ready, project):
    steady = (109_900, 110_000, 110_100)
    slower = capture(project, 2, run="next", step_time_ns=110_000_000, mfu=0.4, steps_us=steady)
    found = assistant.call("compare", captures=[ready.pk, slower.pk])
    assert [one["id"] for one in found["captures"]] == [ready.pk, slower.pk]
    judged = assistant.call("gate", capture=slower.pk, against="main")
    assert judged["verdict"] == "fail"
    assert [rule["metric"] for rule in judged["rules"] if rule["status"] == "fail"] == ["step_time_ns"]
    assert "nobody" in assistant.call("gate", capture=slower.pk, against="nobody")


def test_ranks_of_a_capture_are_compared(assistant, ready):
    """Rank 5 computes 60 of its 100 ms, rank 4 only 50."""
    for rank, computing in ((4, 50_000.0), (5, 60_000.0)):
        step = {"step_time_us": 100_000.0, "computing_us": computing, "free_us": 100_000.0 - computing,
                "communication_not_overlapped_us": 0.0}  # fmt: skip
        make_dump(ready, rank=rank, state=DumpState.DIGESTED, computing_ns=int(computing * 1e3),
                  entry={"rank": rank, "steps": [step]})  # fmt: skip
    found = assistant.call("compare_ranks", capture=ready.pk)
    assert found["ranks"] == [4, 5]
    parts = {row["kind"]: row["us"] for row in found["step_time"][0]["contributions"]}
    assert (parts["computing"], parts["free"]) == (10_000.0, -10_000.0)
    assert assistant.call("compare_ranks", capture=ready.pk, ranks=[5, 4])["ranks"] == [5, 4]
    alone = make_capture(ready.run, key="alone", state=CaptureState.READY)
    assert "not two" in assistant.call("compare_ranks", capture=alone.pk)


def test_violations_are_those_of_the_project(assistant, ready, project):
    row = {"capture": ready, "run": ready.run, "item": "dtype_cast", "status": ItemStatus.FAIL, "latest": True}
    ChecklistResult.objects.create(**row, value=0.12, lost_ns=7.2e12)
    (one,) = assistant.call("list_violations", project=project.slug)["violations"]
    assert (one["item"], one["value"], one["lost_npu_hours"], one["run"]["key"]) == ("dtype_cast", 0.12, 2.0, "main")


def test_other_projects_do_not_exist(assistant, ready):
    stranger = Assistant(Project.objects.create(slug="other", name="Other"), "read")
    for tool, arguments in (
        ("get_run", {"run": ready.run_id}),
        ("get_capture", {"capture": ready.pk}),
        ("get_section", {"capture": ready.pk, "section": "steps"}),
        ("compare", {"captures": [ready.pk, ready.pk]}),
        ("gate", {"capture": ready.pk}),
        ("list_violations", {"project": "gpt"}),
        ("list_runs", {"project": "gpt"}),
    ):
        assert "there is no such" in stranger.call(tool, **arguments), tool
    assert stranger.call("list_runs")["runs"] == []


def test_a_token_must_be_live_and_may_have_to_read(project, client):
    assert Assistant(project, "upload").post({"jsonrpc": "2.0", "id": 1, "method": "ping"}).status_code == 403
    for headers in ({}, {"Authorization": "Bearer garbage"}):
        answer = client.post("/api/mcp", b"{}", content_type="application/json", headers=headers)
        assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
    assert client.get("/api/mcp").status_code == 405


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"{", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'{"id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": [], "method": "ping"}', -32600),
    ],
)
def test_what_is_no_message_is_told_so(assistant, message, code):
    answer = assistant.post(message)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_unknown_methods_tools_and_arguments_are_told(assistant):
    assert assistant.ask("resources/list")["error"]["code"] == -32601
    assert assistant.ask("tools/call", name="drop_tables")["error"]["code"] == -32602
    answer = assistant.post({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": [1]})
    assert answer.json()["error"]["code"] == -32602
    assert "run" in assistant.call("get_run", run="main")
    assert "run" in assistant.call("get_run", run=10**30)
    assert "extra" in assistant.call("get_run", run=1, more=2).lower()
    assert "order may be" in assistant.call("list_runs", order="password")
    assert "search" in assistant.call("list_runs", search="a\0b")


def test_a_capture_that_is_not_ready_has_nothing_to_say_yet(assistant, project):
    one = capture(project, 1, state=CaptureState.DIGESTING)
    assert "no analysis yet" in assistant.call("get_capture", capture=one.pk)


def test_long_lists_are_cut_to_what_is_read(assistant, ready):
    ready.report = {**ready.report, "findings": [{"id": str(number)} for number in range(100)]}
    ready.save()
    assert len(assistant.call("get_capture", capture=ready.pk)["findings"]) == 30
