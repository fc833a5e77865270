"""The JSON calls: who may call, what is refused and how, what repeating does."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.accounts.models import AgentToken, Role
from dashboard.runs.models import Capture, Dump, DumpState, Run, StepRecord
from tests.dashboard.api_client import ApiClient, error_of
from tests.factories import make_capture, make_dump, make_member, make_project, make_run, make_token, make_user

YAML = """
trainer: {type: CausalLanguageModelingTrainer, model_name: llama2_7b}
runner_config: {batch_size: 1}
parallel_config: {data_parallel: 2, model_parallel: 1, pipeline_stage: 2, micro_batch_num: 2}
model:
  model_config: {type: LlamaConfig, num_layers: 32, hidden_size: 4096, num_heads: 32, seq_length: 4096,
    vocab_size: 32000}
"""


@pytest.mark.parametrize(
    "change",
    [{"revoked": timezone.now()}, {"expires": timezone.now() - timedelta(seconds=1)}],
    ids=["revoked", "expired"],
)
def test_a_dead_token_is_refused(project, change):
    assert error_of(ApiClient(make_token(project, **change)).get("/runs")) == (401, "bad_token")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer sst_0_0", "Basic eDp5", "Bearer \x01", "Bearer sst_" + "a" * 5000]
)
def test_no_token_or_an_unknown_one_is_refused(project, header):
    client = ApiClient()
    client.headers = {"Authorization": header} if header else {}
    assert error_of(client.get("/runs")) == (401, "bad_token")


def test_a_token_lacks_the_scopes_it_was_not_given(project):
    run = make_run(project)
    reader, sender = (ApiClient(make_token(project, (scope,))) for scope in ("read", "upload"))
    assert error_of(reader.post(f"/projects/{project.slug}/runs", {"key": "a"})) == (403, "scope")
    assert error_of(sender.get(f"/runs/{run.pk}")) == (403, "scope")


def test_things_of_another_project_look_like_things_that_are_not_there(api):
    other = make_project()
    dump = make_dump(make_capture(make_run(other)))
    run, capture = dump.capture.run, dump.capture
    for path in (f"/runs/{run.pk}", f"/runs/{run.pk}/captures", f"/captures/{capture.pk}", f"/dumps/{dump.pk}"):
        foreign, absent = api.get(path), api.get(path.replace(str(path.split("/")[2]), "999999999", 1))
        assert error_of(foreign) == error_of(absent) == (404, "not_found")
    assert error_of(api.post(f"/projects/{other.slug}/runs", {"key": "a"})) == (404, "not_found")
    assert error_of(api.announce(run.pk, {"profiler_info.json": b"{}"})) == (404, "not_found")
    for call in ("complete", "retry"):
        assert error_of(api.post(f"/dumps/{dump.pk}/{call}")) == (404, "not_found")
    assert error_of(api.post(f"/runs/{run.pk}/steps", {"steps": []})) == (404, "not_found")
    assert api.get("/runs").json()["runs"] == []


def test_the_use_of_a_token_is_noted(api):
    api.get("/runs")
    assert AgentToken.objects.get().last_used is not None


def test_another_protocol_version_is_told_which_one_is_spoken(api):
    response = api.post("/projects/x/runs", {}, **{"Stepscope-Protocol": "2"})
    assert error_of(response) == (426, "protocol")
    assert response.json()["error"]["versions"] == [1]


def test_too_many_calls_are_told_to_wait(api, settings):
    settings.CALLS_PER_MINUTE = 2
    for _ in range(6):  # a minute may end in between once, not twice
        response = api.get("/runs")
    assert error_of(response) == (429, "slow_down")
    assert 0 < int(response["Retry-After"]) <= 60


def test_a_run_is_made_once_and_its_facts_are_merged(api, project):
    path = f"/projects/{project.slug}/runs"
    made = api.post(path, {"key": "a.b-1", "name": "First", "meta": {"mode": "graph", "parallel": {"dp": 2, "tp": 4}}})
    again = api.post(path, {"key": "a.b-1", "meta": {"soc": "Ascend910B3", "parallel": {"tp": 8}, "mode": None}})
    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json()["run"]["id"] == again.json()["run"]["id"]
    run = Run.objects.get()
    assert (run.name, run.mode, run.soc, run.dp, run.tp) == ("First", "graph", "Ascend910B3", 2, 8)
    assert run.meta == {"mode": "graph", "soc": "Ascend910B3", "parallel": {"dp": 2, "tp": 8}}


def test_a_config_gives_model_name_split_and_fingerprint(api, project):
    api.run(project.slug, config={"name": "run.yaml", "text": YAML})
    run = Run.objects.get()
    assert (run.model_name, run.dp, run.pp, run.config_name) == ("llama2_7b", 2, 2, "run.yaml")
    assert run.config_fingerprint and run.config_text == YAML


def test_a_config_that_is_no_yaml_is_refused_by_name(api, project):
    body = {"key": "a", "config": {"name": "run.yaml", "text": "model: [1, 2"}}
    response = api.post(f"/projects/{project.slug}/runs", body)
    assert error_of(response) == (400, "bad_request")
    assert response.json()["error"]["file"] == "run.yaml"
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{",
        "\xff",
        '{"key": "a", "meta": {"x": NaN}}',
        '{"key": "a", "meta": {"x": 1e999}}',
        '{"key": "a", "name": "a\\u0000b"}',
        '{"key": "a", "meta": {"x\\ud800": 1}}',
        '{"key": "a", "meta": ' + '{"x":' * 90_000 + "1" + "}" * 90_001,
        '{"key": "../a"}',
        '{"key": "a\\n"}',
        '{"key": "' + "a" * 101 + '"}',
        '{"key": 5}',
        '{"key": "a", "meta": {"sink": "yes"}}',
        '{"key": "a", "meta": {"world_size": 0}}',
        '{"key": "a", "meta": {"parallel": {"dp": 99999999999}}}',
        '{"name": "no key"}',
    ],
)
def test_a_malformed_run_is_refused_with_one_clear_line(api, project, body):
    response = api.post(f"/projects/{project.slug}/runs", body)
    assert error_of(response) == (400, "bad_request")
    assert "\n" not in response.json()["error"]["message"]
    assert not Run.objects.exists()


def test_step_records_are_merged_and_unknown_values_overwrite_nothing(api, project):
    run = make_run(project)
    steps = [{"step": 2, "loss": 9.0}, {"step": 1, "loss": 10.5, "step_time_ms": 7637.25, "overflow": False}]
    assert api.post(f"/runs/{run.pk}/steps", {"source": "log", "steps": steps}).json() == {"stored": 2}
    api.post(f"/runs/{run.pk}/steps", {"source": "callback", "steps": [{"step": 1, "loss": None, "lr": 1e-5}]})
    record = StepRecord.objects.get(step=1)
    assert (record.loss, record.lr, record.step_time_ns, record.overflow) == (10.5, 1e-5, 7_637_250_000, False)
    assert StepRecord.objects.count() == 2


def test_step_records_are_read_in_order_from_any_step_on(api, project):
    run = make_run(project)
    for number, loss in ((3, 8.0), (1, 10.0), (2, None)):
        StepRecord.objects.create(run=run, step=number, loss=loss, source="log")
    answer = api.get(f"/runs/{run.pk}/steps", after=1).json()
    assert [(row["step"], row["loss"]) for row in answer["steps"]] == [(2, None), (3, 8.0)]
    assert answer["next"] is None


def test_more_step_records_than_a_call_takes_are_refused(api, project):
    steps = [{"step": number} for number in range(5001)]
    response = api.post(f"/runs/{make_run(project).pk}/steps", {"source": "log", "steps": steps})
    assert error_of(response) == (400, "bad_request")
    assert "5000" in response.json()["error"]["message"]


def test_a_signed_in_person_reads_but_a_viewer_sends_nothing(project, client):
    run, user = make_run(project), make_user()
    make_member(project, user, Role.VIEWER)
    client.force_login(user)
    browser = ApiClient(client=client)
    assert browser.get(f"/runs/{run.pk}").json()["run"]["key"] == run.key
    assert error_of(browser.post(f"/runs/{run.pk}/steps", {"steps": []})) == (403, "scope")


def test_a_stranger_who_is_signed_in_sees_nothing(project, client):
    run = make_run(project)
    client.force_login(make_user())
    browser = ApiClient(client=client)
    assert error_of(browser.get(f"/runs/{run.pk}")) == (404, "not_found")
    assert browser.get("/runs").json()["runs"] == []


def test_a_form_of_another_site_cannot_use_the_session(project):
    from django.test import Client

    client, user = Client(enforce_csrf_checks=True), make_user()
    make_member(project, user)
    client.force_login(user)
    response = ApiClient(client=client).post(f"/projects/{project.slug}/runs", {"key": "a"})
    assert error_of(response) == (403, "csrf")


def test_runs_are_ordered_with_unknown_values_last_and_filtered(api, project):
    for key, mfu in (("low", 0.2), ("high", 0.4), ("unknown", None)):
        make_run(project, key=key, mfu=mfu)
    assert [run["key"] for run in api.get("/runs", order="-mfu").json()["runs"]] == ["high", "low", "unknown"]
    assert [run["key"] for run in api.get("/runs", order="mfu").json()["runs"]] == ["low", "high", "unknown"]
    assert [run["key"] for run in api.get("/runs", q="IGH").json()["runs"]] == ["high"]
    assert error_of(api.get("/runs", order="project__members")) == (400, "bad_request")
    assert error_of(api.get("/runs", q="\0")) == (400, "bad_request")
    assert error_of(api.get("/runs", page="0")) == (400, "bad_request")


def test_lists_take_the_same_queries_for_one_row_and_for_many(api, project, django_assert_max_num_queries):
    run = make_run(project)
    for number in range(30):
        make_run(project, key=f"r{number}")
        capture = make_capture(run)
    for rank in range(40):
        make_dump(capture, rank=rank)
    for path in ("/runs", f"/runs/{run.pk}/captures", f"/captures/{capture.pk}", f"/captures/{capture.pk}/dumps"):
        with django_assert_max_num_queries(6):
            assert api.get(path).status_code == 200


def test_a_capture_counts_its_dumps_by_state(api, project):
    capture = make_capture(make_run(project))
    make_dump(capture, rank=0, state=DumpState.DIGESTED)
    make_dump(capture, rank=1, state=DumpState.FAILED)
    shown = api.get(f"/captures/{capture.pk}").json()["capture"]
    assert shown["dumps"] == {"receiving": 0, "uploaded": 0, "digesting": 0, "digested": 1, "failed": 1}
    assert shown["metrics"]["mfu"] is None and shown["url"].endswith(f"/captures/{capture.pk}/")


def test_a_capture_without_a_report_says_so(api, project):
    capture = make_capture(make_run(project))
    assert error_of(api.get(f"/captures/{capture.pk}/report")) == (409, "incomplete")


def test_the_api_describes_itself_without_the_network(client, db):
    page = client.get("/api/docs")
    assert page.status_code == 200 and "announce_dump" in page.content.decode()
    assert "http://cdn" not in page.content.decode() and "https://cdn" not in page.content.decode()
    schema = json.loads(client.get("/api/openapi.json").content)
    assert "/api/v1/runs/{run_id}/dumps" in schema["paths"]


def test_a_retry_takes_only_a_failed_dump(api, project):
    dump = make_dump(make_capture(make_run(project)), contents={"profiler_info.json": b"{}"}, state=DumpState.DIGESTED)
    assert error_of(api.post(f"/dumps/{dump.pk}/retry")) == (409, "conflict")
    Dump.objects.update(state=DumpState.FAILED)
    assert error_of(api.post(f"/dumps/{dump.pk}/retry")) == (409, "incomplete")


def test_the_retry_button_is_for_members(client, project):
    dump = make_dump(make_capture(make_run(project)), contents={}, state=DumpState.FAILED, error="why", attempts=3)
    viewer, member = make_user(), make_user()
    make_member(project, viewer, Role.VIEWER)
    make_member(project, member)
    client.force_login(make_user())
    assert client.post(f"/dumps/{dump.pk}/retry/").status_code == 404
    client.force_login(viewer)
    assert client.post(f"/dumps/{dump.pk}/retry/").status_code == 403
    client.force_login(member)
    assert client.post(f"/dumps/{dump.pk}/retry/")["Location"] == f"/captures/{dump.capture_id}/"
    dump.refresh_from_db()
    assert (dump.state, dump.attempts, dump.error) == (DumpState.UPLOADED, 0, "")
    assert Capture.objects.get().state == "digesting"
