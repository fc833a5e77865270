"""Who gets what: every address of the project and every operation of the API, asked by everybody.

An address without a line here fails the test: whoever adds one says who may use it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from dashboard.accounts.models import AgentToken, Member, Project, Role, User
from dashboard.alerts.models import Alert, Channel
from dashboard.hosts.models import Agent, AgentRun, CaptureRequest
from dashboard.ingest.api import api
from dashboard.runs.models import Capture, CaptureState, Dump, DumpState, Run, SavedView
from tests.dashboard.test_timeline import kept, kernels
from tests.factories import make_dump

pytestmark = pytest.mark.django_db
ROLES = (Role.VIEWER, Role.MEMBER, Role.OWNER)
REFUSALS = (401, 403, 404, 405)


@dataclass
class World:
    """A project with one of everything, and a stranger with a project of their own."""

    people: dict[str, User]
    project: Project
    run: Run
    capture: Capture
    dump: Dump
    member: Member
    agent: Agent
    request: CaptureRequest
    token: AgentToken
    alert: Alert
    channel: Channel
    view: SavedView
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        return self.project.slug


@pytest.fixture
def world(settings: Any, tmp_path: Path) -> World:
    cache.clear()
    settings.DATA_ROOT = tmp_path
    settings.MIN_FREE_BYTES = 0
    people = {name: User.objects.create(username=name) for name in ("stranger", *ROLES)}
    project = Project.objects.create(slug="gpt", name="GPT")
    other = Project.objects.create(slug="other", name="Other")
    Member.objects.create(project=other, user=people["stranger"], role=Role.OWNER)
    members = {role: Member.objects.create(project=project, user=people[role], role=role) for role in ROLES}
    spare = Member.objects.create(project=project, user=User.objects.create(username="spare"), role=Role.VIEWER)
    run = Run.objects.create(project=project, key="run", name="Run")
    capture = Capture.objects.create(run=run, key="step-1", state=CaptureState.READY)
    frames = kept(tmp_path, kernels=kernels().with_columns(core=pl.lit("AI_CORE")))
    dump = make_dump(capture, state=DumpState.DIGESTED, frames=frames, entry={"rank": 0, "steps": []})
    agent = Agent.objects.create(project=project, uid="a", host="host01")
    AgentRun.objects.create(agent=agent, run=run, via="callback")
    asked = CaptureRequest.objects.create(run=run, asked_by=members[Role.OWNER].user)
    alert = Alert.objects.create(project=project, capture=capture, metric="mfu", new_value=0.3)
    channel = Channel.objects.create(project=project, name="hook", url="jsons://hooks.example.com/x")
    view = SavedView.objects.create(project=project, user=people[Role.VIEWER], name="Mine")
    token, texts = tokens(project, other)
    return World(people, project, run, capture, dump, spare, agent, asked, token, alert, channel, view, texts)


SCOPES = ["upload", "read", "triage"]


def tokens(project: Project, other: Project) -> tuple[AgentToken, dict[str, str]]:
    """A token of the project, and the texts of one of each kind."""
    issue = AgentToken.objects.issue
    made = {name: issue(project, name, SCOPES) for name in ("right", "revoked", "expired")}
    made |= {scope: issue(project, scope, [scope]) for scope in ("upload", "read", "triage")}
    made["foreign"] = issue(other, "foreign", SCOPES)
    now = timezone.now()
    AgentToken.objects.filter(pk=made["revoked"][0].pk).update(revoked=now)
    AgentToken.objects.filter(pk=made["expired"][0].pk).update(expires=now - timedelta(days=1))
    return made["right"][0], {name: text for name, (_, text) in made.items()}


# --- Pages


@dataclass(frozen=True)
class Page:
    """Who may use an address. `roles`: who is let in; strangers are 404 unless `personal`: then it shows their own."""

    method: str = "GET"
    arguments: Callable[[World], list[Any]] = lambda world: []
    roles: tuple[str, ...] = ROLES
    data: Callable[[World], dict[str, Any]] = lambda world: {}
    personal: bool = False
    public: bool = False


def slug(world: World) -> list[Any]:
    return [world.slug]


def run(world: World) -> list[Any]:
    return [world.run.pk]


def capture(world: World) -> list[Any]:
    return [world.capture.pk]


def rank(world: World) -> list[Any]:
    return [world.capture.pk, 0]


def with_slug(*names: str) -> Callable[[World], list[Any]]:
    """The project's slug and what stands after it: a number of the world's, or a text."""
    return lambda world: [world.slug, *(getattr(world, name).pk if hasattr(world, name) else name for name in names)]


def of_violation(world: World) -> dict[str, Any]:
    day = (timezone.now() + timedelta(days=7)).date().isoformat()
    return {"run": world.run.pk, "item": "dtype_cast", "owner": "member", "reason": "known", "expires": day}


CHANGERS = (Role.MEMBER, Role.OWNER)
OWNERS = (Role.OWNER,)
PAGES: dict[str, Page] = {
    "runs:home": Page(personal=True),
    "runs:compare": Page(personal=True, data=lambda world: {"captures": f"{world.capture.pk},{world.capture.pk}"}),
    "runs:compare_chart": Page(
        arguments=lambda world: ["steps"],
        data=lambda world: {"captures": f"{world.capture.pk},{world.capture.pk}"},
        personal=True,
    ),
    "runs:search": Page(personal=True, data=lambda world: {"q": "run"}),
    "runs:violations": Page(personal=True),
    "runs:cost": Page(personal=True),
    "alerts:inbox": Page(personal=True, data=lambda world: {"alert": world.alert.pk}),
    "accounts:project_new": Page(personal=True),
    "accounts:account": Page(personal=True),
    "accounts:end_sessions": Page("POST", personal=True),
    "runs:run_list": Page(arguments=slug),
    "runs:run_list_csv": Page(arguments=slug),
    "runs:trends": Page(arguments=slug),
    "runs:trends_chart": Page(arguments=with_slug("mfu")),
    "runs:run": Page(arguments=run),
    "runs:run_live": Page(arguments=run),
    "runs:run_chart": Page(arguments=lambda world: [world.run.pk, "loss"]),
    "runs:run_pairs": Page(arguments=run),
    "runs:capture": Page(arguments=capture),
    "runs:capture_live": Page(arguments=capture),
    "runs:operators": Page(arguments=capture),
    "runs:capture_chart": Page(arguments=lambda world: [world.capture.pk, "memory"]),
    "runs:ranks": Page(arguments=capture),
    "runs:rank_compare": Page(arguments=capture, data=lambda world: {"ranks": "0,1"}),
    "runs:rank_chart": Page(arguments=lambda world: [world.capture.pk, "layers"], data=lambda world: {"ranks": "0,1"}),
    "runs:step": Page(arguments=rank),
    "runs:step_timeline": Page(arguments=rank),
    "runs:step_boxes": Page(arguments=rank, data=lambda world: {"v": world.dump.frames}),
    "runs:step_sums": Page(arguments=rank, data=lambda world: {"from": 0, "to": 1000}),
    "runs:step_find": Page(arguments=rank, data=lambda world: {"q": "a"}),
    "runs:step_kernel": Page(arguments=rank, data=lambda world: {"row": 0}),
    "runs:step_trace": Page(arguments=rank),
    "runs:change_runs": Page("POST", slug, CHANGERS, lambda world: {"runs": world.run.pk, "action": "archive"}),
    "runs:save_view": Page("POST", slug, ROLES, lambda world: {"name": "x", "query": ""}),
    "runs:delete_view": Page("POST", with_slug("view"), (Role.VIEWER,)),  # each person's own
    "runs:run_edit": Page("POST", run, CHANGERS, lambda world: {"name": "New", "tags": ""}),
    "runs:waive": Page("POST", roles=CHANGERS, data=of_violation),
    "runs:assign": Page("POST", roles=CHANGERS, data=of_violation),
    "runs:unwaive": Page("POST", roles=CHANGERS, data=of_violation),
    "alerts:decide": Page("POST", lambda world: [world.alert.pk], CHANGERS, lambda world: {"state": "expected"}),
    "alerts:assign": Page("POST", lambda world: [world.alert.pk], CHANGERS, lambda world: {"assignee": "member"}),
    "alerts:rules": Page(arguments=slug),
    "alerts:rule_edit": Page("POST", with_slug("mfu"), OWNERS, lambda world: {"mfu-enabled": "on", "mfu-effect": "5"}),
    "alerts:rule_reset": Page("POST", with_slug("mfu"), OWNERS),
    "alerts:channels": Page(arguments=slug),
    "alerts:channel_new": Page("POST", slug, OWNERS, lambda world: {"name": "x", "url": "jsons://hooks.example.com/x"}),
    "alerts:channel_test": Page("POST", with_slug("channel"), OWNERS),
    "alerts:channel_switch": Page("POST", with_slug("channel"), OWNERS),
    "alerts:channel_delete": Page("POST", with_slug("channel"), OWNERS),
    "alerts:weekly": Page(arguments=with_slug("channel")),
    "alerts:weekly_save": Page(
        "POST", with_slug("channel"), OWNERS, lambda world: {"day": 0, "hour": 9, "zone": "UTC"}
    ),
    "alerts:weekly_test": Page("POST", with_slug("channel"), OWNERS),
    "accounts:project_settings": Page(arguments=slug),
    "accounts:project_edit": Page("POST", slug, OWNERS, lambda world: {"name": "New"}),
    "accounts:retention_edit": Page("POST", slug, OWNERS, lambda world: {"keep_uploads_days": "7"}),
    "ingest:retention_preview": Page("GET", slug, OWNERS),
    "accounts:member_add": Page("POST", slug, OWNERS, lambda world: {"person": "stranger", "role": "viewer"}),
    "accounts:member_role": Page("POST", with_slug("member"), OWNERS, lambda world: {"role": "member"}),
    "accounts:member_remove": Page("POST", with_slug("member"), OWNERS),
    "accounts:tokens": Page("POST", slug, OWNERS, lambda world: {"name": "x", "scopes": ["read"], "days": "30"}),
    "accounts:token_revoke": Page("POST", with_slug("token"), OWNERS),
    "hosts:hosts": Page(arguments=slug),
    "hosts:forget": Page("POST", with_slug("agent"), OWNERS),
    "hosts:requests": Page(arguments=run),
    "hosts:ask": Page(
        "POST", run, CHANGERS, lambda world: {"kind": "next", "steps": "3", "which": "all", "level": "Level1"}
    ),
    "hosts:take_back": Page("POST", lambda world: [world.request.pk], CHANGERS),
    "ingest:browser_upload": Page(arguments=slug, roles=CHANGERS),
    "ingest:dump_files": Page(arguments=lambda world: [world.dump.pk]),
    "ingest:dump_file": Page(arguments=lambda world: [world.dump.pk, 0]),
    "ingest:retry": Page("POST", lambda world: [world.dump.pk], CHANGERS),
    "ingest:healthz": Page(public=True),
    "ingest:agent_pyz": Page(public=True),
    "set_language": Page("POST", public=True, data=lambda world: {"language": "en"}),
}
GONE_FOR_ALL = {"ingest:dump_file"}
"""The world's dump has no bytes: 404 for members as well, tested with bytes in test_ingest."""
OTHERS_TESTS = {"ingest:files", "ingest:file", "mcp", "metrics"}
"""The tus addresses, see TUS below; that of assistants is asked in test_mcp, that of Prometheus in test_own_metrics."""
NOT_OURS = ("account_", "socialaccount_", "openid_connect_", "usersessions_", "admin:", "api:", "accounts:sso_login")
"""allauth's and Django's own, tested there; the administration is asked below, the API by its operations."""


def addresses(resolver: Any = None, space: str = "") -> Iterator[tuple[str, str]]:
    """(name, route) of every address there is."""
    for one in (resolver or get_resolver()).url_patterns:
        if isinstance(one, URLPattern):
            yield space + str(one.name), str(one.pattern)
        elif isinstance(one, URLResolver):
            yield from addresses(one, space + (f"{one.namespace}:" if one.namespace else ""))


def test_every_address_has_a_line_here():
    names = {name for name, route in addresses() if not name.startswith(NOT_OURS) and not route.startswith("social/")}
    assert names - {"None"} == set(PAGES) | OTHERS_TESTS


def ask(page: Page, name: str, world: World, who: str, method: str = "") -> int:
    client = Client(raise_request_exception=False)
    if who != "anonymous":
        client.force_login(world.people[who])
    call = client.post if (method or page.method) == "POST" else client.get
    answer = call(reverse(name, args=page.arguments(world)), page.data(world))
    if answer.status_code == 302 and "/accounts/login/" in answer["Location"]:
        return 401
    return int(answer.status_code)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_pages(world, name):
    page = PAGES[name]
    if page.public:
        assert ask(page, name, world, "anonymous") in (200, 302)
        return
    assert ask(page, name, world, "anonymous") == 401, "anonymous"
    assert ask(page, name, world, "stranger") in ((200, 302) if page.personal else (404,)), "stranger"
    outside = [role for role in ROLES if role not in page.roles]
    for role in outside:
        assert ask(page, name, world, role) in (403, 404), role
    expected = (404,) if name in GONE_FOR_ALL else (200, 302, 409, 422)
    assert ask(page, name, world, page.roles[-1]) in expected, page.roles[-1]


@pytest.mark.parametrize(
    "name", sorted(name for name in PAGES if not PAGES[name].public and name != "accounts:project_new")
)
def test_pages_by_the_wrong_method(world, name):
    page = PAGES[name]
    wrong = "GET" if page.method == "POST" else "POST"
    assert ask(page, name, world, page.roles[-1], wrong) == 405


@pytest.mark.parametrize("role", list(ROLES[:-1]))
def test_who_is_let_in_below_owner_gets_in(world, role):
    """The tests above ask the highest role; nothing that reads is closed to the lower ones."""
    for name, page in PAGES.items():
        if page.method == "GET" and role in page.roles and not page.public and name not in GONE_FOR_ALL:
            assert ask(page, name, world, role) == 200, name


def test_what_strangers_see_of_their_own_holds_nothing_of_others(world):
    client = Client()
    client.force_login(world.people["stranger"])
    for name, page in PAGES.items():
        if page.personal and page.method == "GET":
            text = client.get(reverse(name, args=page.arguments(world)), page.data(world)).content.decode()
            assert "GPT" not in text and f"/captures/{world.capture.pk}/" not in text, name


def test_the_administration_is_for_administrators(world):
    for who in ("anonymous", *world.people):
        client = Client()
        if who != "anonymous":
            client.force_login(world.people[who])
        for name, route in addresses():
            if name.startswith("admin:") and "<" not in route and "(?P" not in route and name != "admin:logout":
                assert client.get(reverse(name)).status_code in (302, 403, 404), (who, name)


# --- The API


@dataclass(frozen=True)
class Operation:
    """An operation's scope, and what to send so that it finds its object."""

    scope: str
    path: Callable[[World], str]
    body: dict[str, Any] | None = None
    lists: bool = False


def of(template: str) -> Callable[[World], str]:
    def path(world: World) -> str:
        return template.format(
            slug=world.slug,
            run=world.run.pk,
            capture=world.capture.pk,
            dump=world.dump.pk,
            request=world.request.pk,
            alert=world.alert.pk,
        )

    return path


MANIFEST = {"capture": "step-2", "rank": 0, "files": [{"name": "a.csv", "size": 1, "sha256": "0" * 64}]}
OPERATIONS: dict[str, Operation] = {
    "make_run": Operation("upload", of("/projects/{slug}/runs"), {"key": "x"}),
    "announce_dump": Operation("upload", of("/runs/{run}/dumps"), MANIFEST),
    "send_contents": Operation("upload", of("/dumps/{dump}/contents"), {}),
    "complete_dump": Operation("upload", of("/dumps/{dump}/complete"), {}),
    "retry_dump": Operation("upload", of("/dumps/{dump}/retry"), {}),
    "store_steps": Operation("upload", of("/runs/{run}/steps"), {"steps": [{"step": 1}]}),
    "name_reference": Operation("upload", of("/runs/{run}/reference"), {}),
    "announce_archive": Operation(
        "upload", of("/projects/{slug}/archives"), {"run": "x", "files": [{"name": "a.zip", "size": 1}]}
    ),
    "complete_archive": Operation("upload", of("/archives/{request}/complete"), {}),
    "get_archive": Operation("", of("/archives/{request}")),
    "agent_heartbeat": Operation("upload", of("/projects/{slug}/agents"), {"agent": "a", "host": "host01"}),
    "report_request": Operation("upload", of("/capture-requests/{request}"), {"state": "accepted"}),
    "list_runs": Operation("read", of("/runs"), lists=True),
    "get_run": Operation("read", of("/runs/{run}")),
    "list_captures": Operation("read", of("/runs/{run}/captures")),
    "list_steps": Operation("read", of("/runs/{run}/steps")),
    "get_capture": Operation("", of("/captures/{capture}")),
    "get_report": Operation("read", of("/captures/{capture}/report")),
    "get_gate": Operation("", of("/captures/{capture}/gate")),
    "list_alerts": Operation("read", of("/alerts"), lists=True),
    "get_alert": Operation("read", of("/alerts/{alert}")),
    "decide_alert": Operation("triage", of("/alerts/{alert}/decisions"), {"state": "acknowledged"}),
    "list_dumps": Operation("read", of("/captures/{capture}/dumps")),
    "get_dump": Operation("", of("/dumps/{dump}")),
}
NO_OBJECT = {"complete_archive", "get_archive"}
"""The world holds no archive: 404 for the right caller too, tested with one in test_archives."""


def operations() -> set[str]:
    paths = api.get_openapi_schema()["paths"]
    return {one["operationId"] for methods in paths.values() for one in methods.values()}


def test_every_operation_has_a_line_here():
    described = {name for name in operations() if name in OPERATIONS or not name.startswith("tus_")}
    assert described == set(OPERATIONS)


def call(operation: Operation, world: World, token: str | None = None, who: str = "", method: str = "") -> int:
    client = Client(raise_request_exception=False)
    if who:
        client.force_login(world.people[who])
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    method = method or ("GET" if operation.body is None else "POST")
    body = json.dumps(operation.body or {})
    path = "/api/v1" + operation.path(world)
    return int(client.generic(method, path, body, content_type="application/json", headers=headers).status_code)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operations_by_token(world, name):
    operation = OPERATIONS[name]
    for text in (None, "garbage", "sst_000000000000_x", world.texts["revoked"], world.texts["expired"]):
        assert call(operation, world, text) == 401, text
    assert call(operation, world, world.texts["foreign"]) == (200 if operation.lists else 404)
    narrow = {"upload": "read", "read": "upload", "triage": "read"}.get(operation.scope)
    if narrow:
        assert call(operation, world, world.texts[narrow]) == 403
    right = call(operation, world, world.texts["right"])
    assert right == 404 if name in NO_OBJECT else right not in REFUSALS and right < 500


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operations_by_session(world, name):
    operation = OPERATIONS[name]
    assert call(operation, world, who="stranger") == (200 if operation.lists else 404)
    if operation.scope in ("upload", "triage") and name not in NO_OBJECT:
        assert call(operation, world, who="viewer") == 403
    # A form of another site cannot make a person's browser call: no token, no change.
    member = call(operation, world, who="member")
    assert member == 404 if name in NO_OBJECT else member not in REFUSALS and member < 500


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operations_by_the_wrong_method(world, name):
    assert call(OPERATIONS[name], world, world.texts["right"], method="DELETE") == 405


def test_a_list_holds_nothing_of_others(world):
    client = Client()
    answer = client.get("/api/v1/runs", headers={"Authorization": f"Bearer {world.texts['foreign']}"})
    assert answer.json()["runs"] == []


def test_tus_addresses_know_their_callers(world):
    client = Client(raise_request_exception=False)
    tus = {
        "Tus-Resumable": "1.0.0",
        "Upload-Length": "1",
        "Upload-Metadata": f"dump {_b64(world.dump.pk)},name {_b64('a.csv')},sha256 {_b64('0' * 64)}",
    }
    for token, expected in ((None, 401), ("revoked", 401), ("expired", 401), ("foreign", 404), ("read", 403)):
        headers = {**tus, **({"Authorization": f"Bearer {world.texts[token]}"} if token else {})}
        assert client.post("/api/v1/files", headers=headers).status_code == expected, token
        for method in (client.head, client.patch, client.delete):
            answer = method(f"/api/v1/files/{uuid4()}", headers=headers)
            assert answer.status_code in (expected, 404) and (token or answer.status_code == 401), token


def _b64(value: object) -> str:
    return base64.b64encode(str(value).encode()).decode()
