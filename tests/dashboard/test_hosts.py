"""Agents, captures asked for, and the ledger of cards: the server's side."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Project, Role
from dashboard.hosts import requests
from dashboard.hosts.models import Agent, AgentRun, CaptureRequest
from dashboard.runs.models import Dump, DumpState, Run
from tests.dashboard.api_client import ApiClient, error_of
from tests.factories import make_capture, make_dump, make_member, make_project, make_run, make_token, make_user

BEAT = {
    "agent": "a-1",
    "host": "node01",
    "version": "0.1.0",
    "driver": "24.1.rc2",
    "npus": [{"id": 0, "chip": "910B3", "serial": "S0", "health": "OK"}],
    "spool": {"sent": 3, "waiting": 1},
    "trouble": None,
}


def beat(api: ApiClient, project: Project, **more: Any) -> Any:
    response = api.post(f"/projects/{project.slug}/agents", {**BEAT, **more})
    assert response.status_code == 200, response.content
    return response.json()


def in_hand(api: ApiClient, run: Run, step: int | None = 70, agent: str = "a-1", **more: Any) -> Any:
    return beat(api, run.project, agent=agent, runs=[{"key": run.key, "step": step, "via": "callback"}], **more)


def report(api: ApiClient, request: CaptureRequest, state: str, **more: Any) -> Any:
    response = api.post(f"/capture-requests/{request.pk}", {"state": state, **more})
    assert response.status_code == 200, response.content
    request.refresh_from_db()
    return response.json()["request"]


def asked(run: Run, **wanted: Any) -> CaptureRequest:
    request = requests.ask(run, make_user(), **wanted)
    assert request is not None
    return request


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project)


def test_a_heartbeat_is_kept_and_answered(api, project):
    assert beat(api, project) == {"every_s": 30, "requests": []}
    agent = Agent.objects.get()
    assert (agent.host, agent.version, agent.driver, agent.spool) == (
        "node01",
        "0.1.0",
        "24.1.rc2",
        {"sent": 3, "waiting": 1},
    )
    assert agent.npus == [{"id": 0, "chip": "910B3", "serial": "S0", "health": "OK"}]
    assert not agent.is_silent


def test_a_renamed_host_is_the_same_agent(api, project):
    beat(api, project)
    beat(api, project, host="node99")
    assert [(agent.uid, agent.host) for agent in Agent.objects.all()] == [("a-1", "node99")]


def test_an_agent_that_missed_four_beats_is_silent(api, project, settings):
    beat(api, project)
    agent = Agent.objects.get()
    agent.last_seen = timezone.now() - timedelta(seconds=4 * settings.HEARTBEAT_SECONDS - 5)
    assert not agent.is_silent
    agent.last_seen -= timedelta(seconds=10)
    assert agent.is_silent


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": ""},
        {"agent": "../x"},
        {"agent": None},
        {"npus": [{"id": -1}]},
        {"npus": [{"id": number} for number in range(65)]},
        {"spool": {"sent": "3"}},
        {"runs": [{"key": "run", "step": -1}]},
        {"trouble": "x" * 2001},
    ],
)
def test_a_malformed_heartbeat_is_refused(api, project, wrong):
    response = api.post(f"/projects/{project.slug}/agents", {**BEAT, **wrong})
    assert error_of(response) == (400, "bad_request")
    assert not Agent.objects.exists()


def test_a_heartbeat_needs_a_token_of_the_project_with_upload(project, data_root):
    path = f"/projects/{project.slug}/agents"
    assert error_of(ApiClient().post(path, BEAT)) == (401, "bad_token")
    assert error_of(ApiClient(make_token(make_project())).post(path, BEAT)) == (404, "not_found")
    assert error_of(ApiClient(make_token(project, scopes=("read",))).post(path, BEAT)) == (403, "scope")
    revoked = ApiClient(make_token(project, revoked=timezone.now()))
    assert error_of(revoked.post(path, BEAT)) == (401, "bad_token")


def test_another_protocol_version_is_told_which_are_spoken(api, project):
    response = api.post(f"/projects/{project.slug}/agents", BEAT, **{"Stepscope-Protocol": "2"})
    assert error_of(response) == (426, "protocol")
    assert response.json()["error"]["versions"] == [1]


def test_keys_a_newer_agent_sends_are_passed_over(api, project):
    assert beat(api, project, mood="fine")["requests"] == []


def test_an_agent_hears_of_requests_of_its_runs_alone(api, project, run):
    asked(run, steps=2, ranks=[0, 3])
    asked(make_run(project))
    assert beat(api, project)["requests"] == []
    answer = in_hand(api, run)
    assert answer["every_s"] == 5
    (request,) = answer["requests"]
    assert request["run_key"] == run.key and request["state"] == "requested"
    assert (request["kind"], request["first_step"], request["steps"], request["ranks"]) == ("next", None, 2, [0, 3])
    assert request["lead_s"] == 15


def test_runs_no_longer_in_hand_are_dropped(api, project, run):
    in_hand(api, run)
    beat(api, project, runs=[])
    assert not AgentRun.objects.exists()


def test_two_agents_of_one_run_get_more_lead_and_one_first_step(api, run):
    in_hand(api, run)
    request = asked(run)
    assert in_hand(api, run, agent="a-2")["requests"][0]["lead_s"] == 60
    assert report(api, request, "accepted", agent="a-2", first_step=90)["first_step"] == 90
    assert report(api, request, "accepted", agent="a-1", first_step=95)["first_step"] == 90
    assert request.agent.uid == "a-2"


def test_a_request_goes_through_its_states_and_is_linked_to_its_capture(api, run):
    in_hand(api, run)
    request = asked(run)
    report(api, request, "accepted", agent="a-1", first_step=90)
    report(api, request, "collecting", agent="a-1")
    assert report(api, request, "accepted", agent="a-1")["state"] == "collecting"  # never back
    capture = make_capture(run, key=f"request-{request.pk}")
    report(api, request, "uploaded", agent="a-1")
    assert (request.state, request.capture, request.reason) == ("uploaded", capture, "")
    assert request.created <= request.accepted <= request.collecting <= request.ended
    assert in_hand(api, run)["requests"] == []


def test_a_late_dump_makes_a_failed_request_an_uploaded_one_and_nothing_else_wakes_it(api, run):
    request = asked(run)
    report(api, request, "failed", reason="no room")
    report(api, request, "collecting")
    assert (request.state, request.reason) == ("failed", "no room")
    make_capture(run, key=f"request-{request.pk}")
    report(api, request, "uploaded")
    assert (request.state, request.reason) == ("uploaded", "")
    report(api, request, "failed", reason="second host")
    assert request.state == "uploaded"


def test_requests_of_a_foreign_project_are_not_found(api):
    foreign = asked(make_run())
    assert error_of(api.post(f"/capture-requests/{foreign.pk}", {"state": "accepted"})) == (404, "not_found")
    assert error_of(api.post("/capture-requests/999999", {"state": "accepted"})) == (404, "not_found")


def test_a_state_nobody_may_report_is_refused(api, run):
    request = asked(run)
    for state in ("requested", "expired", "", None):
        assert error_of(api.post(f"/capture-requests/{request.pk}", {"state": state})) == (400, "bad_request")


def age(request: CaptureRequest, **delta: float) -> None:
    CaptureRequest.objects.filter(pk=request.pk).update(created=timezone.now() - timedelta(**delta))


def test_requests_time_out(api, project):
    fresh, unanswered, accepted, late = (asked(make_run(project)) for _ in range(4))
    report(api, accepted, "accepted")
    report(api, late, "accepted")
    age(fresh, minutes=14)
    age(unanswered, minutes=16)
    age(accepted, hours=23)
    age(late, hours=25)
    assert requests.expire() == 2
    states = [CaptureRequest.objects.get(pk=one.pk).state for one in (fresh, unanswered, accepted, late)]
    assert states == ["requested", "expired", "accepted", "expired"]


def test_a_request_whose_capture_is_here_does_not_time_out(api, run):
    request = asked(run)
    report(api, request, "accepted")
    capture = make_capture(run, key=request.capture_key)
    age(request, hours=25)
    assert requests.expire() == 0
    request.refresh_from_db()
    assert (request.state, request.capture) == ("uploaded", capture)


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def people(project: Project) -> dict[str, Client]:
    found = {"stranger": signed_in(make_user())}
    for role in (Role.OWNER, Role.MEMBER, Role.VIEWER):
        user = make_user(username=f"the-{role}")
        make_member(project, user, role)
        found[role] = signed_in(user)
    return found


ASK = {"kind": "next", "steps": "2", "which": "stages", "level": "Level1"}


def test_members_ask_viewers_may_not_and_strangers_find_nothing(api, run, people):
    in_hand(api, run)
    address = f"/runs/{run.pk}/requests/new/"
    assert people["stranger"].post(address, ASK).status_code == 404
    assert people["viewer"].post(address, ASK).status_code == 403
    assert Client().post(address, ASK).status_code == 302
    assert not CaptureRequest.objects.exists()
    assert people["member"].post(address, ASK).status_code == 302
    request = CaptureRequest.objects.get()
    assert (request.asked_by.username, request.kind, request.first_step, request.steps, request.ranks) == (
        "the-member",
        "next",
        None,
        2,
        None,
    )
    assert people["stranger"].get(f"/runs/{run.pk}/requests/").status_code == 404
    assert people["stranger"].post(f"/requests/{request.pk}/take-back/").status_code == 404
    assert people["viewer"].post(f"/requests/{request.pk}/take-back/").status_code == 403


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"kind": "steps", "first_step": "500", "which": "all"}, ("steps", 500, "all")),
        ({"kind": "steps", "first_step": "500", "which": "chosen", "chosen": "7, 0 7"}, ("steps", 500, [0, 7])),
        ({"kind": "next", "first_step": "500"}, ("next", None, None)),
    ],
)
def test_what_is_asked_for_is_kept(api, run, people, form, wanted):
    in_hand(api, run)
    people["member"].post(f"/runs/{run.pk}/requests/new/", {**ASK, **form})
    request = CaptureRequest.objects.get()
    assert (request.kind, request.first_step, request.ranks) == wanted


@pytest.mark.parametrize(
    "form",
    [
        {"steps": "0"},
        {"steps": "21"},
        {"kind": "steps"},
        {"kind": "steps", "first_step": "0"},
        {"which": "chosen", "chosen": ""},
        {"which": "chosen", "chosen": "one"},
        {"which": "chosen", "chosen": "-1"},
        {"level": "Level9"},
        {"kind": "now"},
    ],
)
def test_impossible_wishes_are_refused_with_words(api, run, people, form):
    in_hand(api, run)
    response = people["member"].post(f"/runs/{run.pk}/requests/new/", {**ASK, **form}, follow=True)
    assert not CaptureRequest.objects.exists()
    assert '<li class="error">' in response.content.decode()


def test_one_open_request_a_run_and_none_without_an_agent(api, run, people):
    address = f"/runs/{run.pk}/requests/new/"
    people["member"].post(address, ASK)
    assert CaptureRequest.objects.count() == 0
    in_hand(api, run)
    for _ in range(2):
        people["member"].post(address, ASK)
    assert CaptureRequest.objects.count() == 1


def test_a_request_is_taken_back_with_the_name_of_who_did(api, run, people):
    in_hand(api, run)
    request = asked(run)
    people["owner"].post(f"/requests/{request.pk}/take-back/")
    request.refresh_from_db()
    assert (request.state, request.reason) == ("failed", "taken back by the-owner")
    assert in_hand(api, run)["requests"] == []


def test_the_run_page_shows_form_and_requests_to_those_who_may(api, run, people):
    address = f"/runs/{run.pk}/"
    assert "No agent has this run in hand" in people["member"].get(address).content.decode()
    in_hand(api, run)
    for who, offered in (("member", True), ("viewer", False)):
        assert (f"/runs/{run.pk}/requests/new/" in people[who].get(address).content.decode()) is offered
    request = asked(run)
    text = people["member"].get(f"/runs/{run.pk}/requests/").content.decode()
    assert "hx-get" in text and "Requested" in text and "<html" not in text
    report(api, request, "failed", reason="the disk is <full>")
    text = people["viewer"].get(f"/runs/{run.pk}/requests/").content.decode()
    assert "hx-get" not in text and "the disk is &lt;full&gt;" in text


def test_the_hosts_page_shows_who_is_silent_and_what_is_wrong(api, project, people):
    address = f"/projects/{project.slug}/hosts/"
    assert "No agent has called yet" in people["viewer"].get(address).content.decode()
    beat(api, project, trouble="cannot reach <server>")
    beat(api, project, agent="a-2", host="node02")
    Agent.objects.filter(uid="a-2").update(last_seen=timezone.now() - timedelta(hours=1))
    text = people["viewer"].get(address).content.decode()
    assert "cannot reach &lt;server&gt;" in text and "1 silent" in text
    assert text.index("node02") < text.index("node01")  # the silent one first
    assert people["stranger"].get(address).status_code == 404


def test_a_capture_is_asked_for_from_the_hosts_page(api, project, run, people):
    address = f"/projects/{project.slug}/hosts/"
    in_hand(api, run)
    action = f'action="/runs/{run.pk}/requests/new/"'
    assert action in people["member"].get(address).content.decode()
    assert action not in people["viewer"].get(address).content.decode()
    asked(run)
    text = people["member"].get(address).content.decode()
    assert action not in text and "capture asked for" in text


def test_the_page_says_how_to_put_an_agent_on_a_host(api, project, people):
    address = f"/projects/{project.slug}/hosts/"
    for _ in range(2):  # with no agent yet, and with one
        text = people["viewer"].get(address).content.decode()
        assert "curl -fsSLO http://testserver/agent/stepscope-agent.pyz" in text
        assert f"export STEPSCOPE_PROJECT={project.slug}\nexport STEPSCOPE_TOKEN=TOKEN" in text
        beat(api, project)


def test_owners_forget_agents_that_are_no_more(api, project, people):
    beat(api, project)
    address = f"/projects/{project.slug}/hosts/{Agent.objects.get().pk}/forget/"
    assert people["member"].post(address).status_code == 403
    assert people["owner"].post(address).status_code == 302
    assert not Agent.objects.exists()


def sighting(run: Run, slow: bool | None, host: str = "node01", device: int | None = 3, **more: Any) -> Dump:
    return make_dump(make_capture(run), host=host, device_id=device, slow=slow, state=DumpState.DIGESTED, **more)


def test_the_ledger_counts_by_physical_card_over_jobs(project, people, api):
    first, second = make_run(project, name="first"), make_run(project, name="second")
    for run, slow in ((first, True), (first, True), (second, True), (second, False)):
        sighting(run, slow, excess_ns=2_000_000 if slow else None, slow_kind="compute" if slow else "")
    sighting(first, None)  # a capture of one rank says nothing
    sighting(first, True, device=4)
    sighting(make_run(), True)  # another project's
    sighting(first, True, host="")
    sighting(first, True, device=None)
    beat(api, project, npus=[{"id": 3, "chip": "910B3", "serial": "S3"}])
    cards = people["viewer"].get(f"/projects/{project.slug}/hosts/").context["cards"]
    assert [(card.host, card.device_id, card.times, card.captures, card.run_count) for card in cards] == [
        ("node01", 3, 3, 4, 2),
        ("node01", 4, 1, 1, 1),
    ]
    card = cards[0]
    assert (card.share, card.excess_ns, card.kinds, card.serial) == (0.75, 2_000_000, ["compute"], "S3")
    assert [(run["name"], run["times"]) for run in card.runs] == [("first", 2), ("second", 1)]
    assert [card.is_suspect for card in cards] == [True, False]


def test_reports_of_before_the_ledger_are_taken_over(run):
    from importlib import import_module

    from django.db import connection

    slow = [{"rank": 1, "kind": "host", "excess_us": 12.5, "votes": 9, "of": 10}]
    several = make_capture(run, rank_count=2, report={"cluster": {"slow_ranks": slow}})
    alone = make_capture(run, rank_count=1, report={"cluster": {"slow_ranks": []}})
    make_capture(run, rank_count=2)  # no report yet
    for capture, rank in ((several, 0), (several, 1), (alone, 0)):
        make_dump(capture, rank=rank, state=DumpState.DIGESTED)
    with connection.cursor() as cursor:
        cursor.execute(import_module("dashboard.runs.migrations.0003_fill_slow_ranks").FILL)
    found = Dump.objects.order_by("capture", "rank").values_list("slow", "slow_kind", "excess_ns")
    assert list(found) == [(False, "", None), (True, "host", 12_500), (None, "", None)]


def test_the_hosts_page_needs_no_more_queries_for_more_agents_and_captures(
    api, project, people, django_assert_max_num_queries
):
    for number in range(5):
        run = make_run(project)
        in_hand(api, run, agent=f"a-{number}", host=f"node{number}")
        for device in range(4):
            sighting(run, True, host=f"node{number}", device=device)
    with django_assert_max_num_queries(12):
        assert people["owner"].get(f"/projects/{project.slug}/hosts/").status_code == 200
