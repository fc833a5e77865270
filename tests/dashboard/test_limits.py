"""Whatever JSON comes in, the answer is an answer: never a traceback, never half a change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.ingest import steps
from dashboard.ingest.api import api as ninja_api
from dashboard.ingest.models import IncomingArchive
from dashboard.runs.models import Capture, Dump, Run, StepRecord
from tests.dashboard.api_client import ApiClient, error_of
from tests.factories import make_capture, make_dump, make_run

KEYS = (
    *(
        "key",
        "name",
        "meta",
        "config",
        "text",
        "parallel",
        "dp",
        "sink",
        "world_size",
        "mode",
        "capture",
        "rank",
        "files",
    ),
    *(
        "size",
        "sha256",
        "window",
        "first_step",
        "captured_at",
        "replace",
        "steps",
        "step",
        "loss",
        "source",
        "run",
        "host",
    ),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["a", "kernel_details.csv", "0" * 64, "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "log"]),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)
GOOD_FILE = {"name": "kernel_details.csv", "size": 3, "sha256": "0" * 64}
GOOD: dict[str, dict[str, Any]] = {
    "/projects/{slug}/runs": {
        "key": "a",
        "meta": {"parallel": {"dp": 1}},
        "config": {"name": "a.yaml", "text": "model: {}"},
    },
    "/runs/{run}/dumps": {"capture": "c", "rank": 0, "window": {"first_step": 1}, "files": [GOOD_FILE]},
    "/runs/{run}/steps": {"source": "log", "steps": [{"step": 1, "loss": 1.0}]},
    "/projects/{slug}/archives": {"run": "a", "files": [{"name": "a.zip", "size": 3}]},
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, Any]:
    """A call, and its good body with one or two places replaced by anything; or anything at all."""
    path = draw(st.sampled_from(sorted(GOOD)))
    if draw(st.booleans()):
        return path, draw(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8))
    body = json.loads(json.dumps(GOOD[path]))
    for _ in range(draw(st.integers(1, 2))):
        place = body
        key = draw(st.sampled_from(sorted(place) or ["key"]))
        while isinstance(place.get(key), dict) and place[key] and draw(st.booleans()):
            place = place[key]
            key = draw(st.sampled_from(sorted(place)))
        place[key] = draw(JSON)
    return path, body


@pytest.mark.django_db
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=bodies())
def test_any_body_gets_an_answer_of_the_one_shape(api: ApiClient, project, call):
    run = Run.objects.filter(project=project).first() or make_run(project)
    path = call[0].format(slug=project.slug, run=run.pk)
    response = api.post(path, json.dumps(call[1]))
    assert response.status_code < 500, response.content
    body = json.loads(response.content)
    assert response.status_code < 300 or set(body["error"]) >= {"code", "message"}


@pytest.mark.django_db
def test_a_window_that_ends_before_it_begins_is_refused(api: ApiClient, project):
    body = GOOD["/runs/{run}/dumps"] | {"window": {"first_step": 9, "last_step": 1}}
    response = api.post(f"/runs/{make_run(project).pk}/dumps", json.dumps(body))
    assert response.status_code == 400
    assert "last_step 1 lies before first_step 9" in response.json()["error"]["message"]


def test_what_nobody_foresaw_is_answered_in_the_one_shape_and_logged(rf, caplog):
    response = ninja_api.on_exception(rf.post("/api/v1/archives"), RuntimeError("disk on fire"))
    assert response.status_code == 500
    error = json.loads(response.content)["error"]
    assert error["code"] == "internal" and "disk on fire" not in error["message"]
    assert "disk on fire" in caplog.text


NUMBERS = ("0", "-1", "1", str(2**31), str(2**63 - 1), str(2**63), "9" * 40, "1e3", "x", "%00", "٣")


ANSWERS = {200, 202, 400, 404, 409, 422}
"""Not 405 either: each of these calls is documented."""


@pytest.mark.parametrize("number", NUMBERS)
def test_any_id_gets_an_answer(api, project, number):
    make_dump(make_capture(make_run(project)))
    for path in ("/runs/{}", "/runs/{}/captures", "/runs/{}/steps", "/captures/{}", "/captures/{}/report", "/dumps/{}"):
        assert api.get(path.format(number)).status_code in ANSWERS
    for path in ("/runs/{}/dumps", "/dumps/{}/complete", "/dumps/{}/retry", "/archives/{}/complete"):
        assert api.post(path.format(number), {}).status_code in ANSWERS
    for query in ({"page": number}, {"order": number}, {"project": number}, {"q": number}):
        assert api.get("/runs", **query).status_code in ANSWERS
    assert not IncomingArchive.objects.exists() and Dump.objects.count() == Capture.objects.count() == 1


def test_a_body_over_eight_megabytes_is_refused(api, project):
    response = api.post(f"/projects/{project.slug}/runs", json.dumps({"key": "a", "name": "x" * (9 << 20)}))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "1969-12-31T23:59:59Z"])
def test_a_moment_at_the_end_of_the_calendar_is_refused(api, project, moment):
    response = api.announce(make_run(project).pk, {"kernel_details.csv": b"x"}, captured_at=moment)
    assert error_of(response) == (400, "bad_request")
    assert not Capture.objects.exists()


def test_meta_that_calls_add_up_to_has_a_limit(api, project, settings):
    settings.MAX_META_BYTES = 1_000
    first = api.post(f"/projects/{project.slug}/runs", {"key": "a", "meta": {"x": "é" * 300}})
    second = api.post(f"/projects/{project.slug}/runs", {"key": "a", "name": "new", "meta": {"y": "é" * 300}})
    assert first.status_code == 201 and error_of(second) == (413, "body_too_large")
    run = Run.objects.get()
    assert (run.name, list(run.meta)) == ("a", ["x"])
    again = api.post(f"/projects/{project.slug}/runs", {"key": "a", "meta": {"x": "é" * 400}})  # replaces
    assert again.status_code == 200


def test_a_moment_in_a_time_zone_that_the_database_does_not_know_is_taken(api, project):
    moment = "2026-01-01T23:59:00+23:59"  # by PostgreSQL a zone is less than 16 hours from Greenwich
    response = api.announce(make_run(project).pk, {"kernel_details.csv": b"x"}, captured_at=moment)
    assert response.status_code == 201
    assert Capture.objects.get().captured_at.isoformat() == "2026-01-01T00:00:00+00:00"


def test_a_body_nested_without_end_is_refused(api, project):
    body = '{"key": "a", "meta": {"x": ' + '{"a":' * 60 + "1" + "}" * 62
    response = api.post(f"/projects/{project.slug}/runs", body)
    assert error_of(response) == (400, "bad_request") and "50 deep" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("text", "name"), [('trainer: {model_name: "a\\0b"}', "ab"), ('trainer: {model_name: "\\ud800"}', "")]
)
def test_a_model_name_that_cannot_be_stored_loses_what_cannot(api, project, text, name):
    api.run(project.slug, config={"name": "run.yaml", "text": f"model: {{hidden_size: 8}}\n{text}\n"})
    assert Run.objects.get().model_name == name


def test_a_split_no_job_can_have_is_refused(api, project):
    config = {"name": "run.yaml", "text": "model: {hidden_size: 8}\nparallel_config: {data_parallel: 2147483648}\n"}
    response = api.post(f"/projects/{project.slug}/runs", {"key": "a", "config": config})
    assert error_of(response) == (400, "bad_request")


def test_a_number_that_no_mean_can_hold_is_unknown(api, project):
    run = make_run(project)
    sent = [{"step": 1, "loss": 1.7e308, "lr": 0.5}, {"step": 2, "loss": -1.7e308}, {"step": 3, "loss": 1e300}]
    assert api.post(f"/runs/{run.pk}/steps", {"steps": sent}).json() == {"stored": 3}
    rows = api.get(f"/runs/{run.pk}/steps").json()["steps"]
    assert [(row["loss"], row["lr"]) for row in rows] == [(None, 0.5), (None, None), (1e300, None)]


def test_step_times_that_no_step_takes_are_unknown(project):
    run = make_run(project)
    steps.store_steps(
        run, "callback", [{"step": 1, "step_time_ms": 1e300, "loss": 2.0}, {"step": 2, "step_time_ms": -1}]
    )
    rows = StepRecord.objects.order_by("step").values_list("step_time_ns", "loss")
    assert list(rows) == [(None, 2.0), (None, None)]
