"""Naming the run that the project's others are compared with."""

from __future__ import annotations

from django.test import Client

from dashboard.runs.models import Capture, CaptureState, Run
from tests.dashboard.api_client import ApiClient, error_of
from tests.factories import make_capture, make_member, make_project, make_run, make_token, make_user


def reference(project) -> str | None:
    return Run.objects.filter(project=project, is_reference=True).values_list("key", flat=True).first()


def test_a_run_becomes_the_reference_and_stays_it(api, project):
    run = make_run(project, key="good")
    for _ in range(2):
        assert api.post(f"/runs/{run.pk}/reference", {}).status_code == 200
    assert reference(project) == "good"


def test_another_reference_stays_unless_it_may_be_replaced(api, project):
    first, second = make_run(project, key="first"), make_run(project, key="second")
    api.post(f"/runs/{first.pk}/reference", {})
    answer = api.post(f"/runs/{second.pk}/reference", {})
    assert error_of(answer) == (409, "conflict")
    assert answer.json()["error"]["reference"] == "first"
    assert reference(project) == "first"
    assert api.post(f"/runs/{second.pk}/reference", {"replace": True}).status_code == 200
    assert reference(project) == "second"


def test_each_project_has_its_own(api, project):
    other = make_run(make_project(), key="elsewhere", is_reference=True)
    api.post(f"/runs/{make_run(project, key='here').pk}/reference", {"replace": True})
    assert (reference(project), reference(other.project)) == ("here", "elsewhere")


def test_the_newest_captures_of_other_runs_are_judged_anew(api, project):
    def ready(run: Run) -> Capture:
        Run.objects.filter(pk=run.pk).update(last_capture_at="2026-01-01T00:00:00Z")
        return make_capture(run, state=CaptureState.READY, rollup_due=False)

    run, other = make_run(project, key="good"), make_run(project, key="other")
    own, theirs = ready(run), ready(other)
    api.post(f"/runs/{run.pk}/reference", {})
    due = set(Capture.objects.filter(rollup_due=True).values_list("pk", flat=True))
    assert theirs.pk in due and own.pk not in due


def test_strangers_readers_and_viewers_cannot_name_one(api, project):
    run = make_run(project)
    address = f"/runs/{run.pk}/reference"
    assert error_of(ApiClient(make_token(make_project())).post(address, {})) == (404, "not_found")
    assert error_of(ApiClient(make_token(project, ("read",))).post(address, {})) == (403, "scope")
    viewer = make_user()
    make_member(project, viewer, "viewer")
    client = Client(raise_request_exception=False)
    client.force_login(viewer)
    assert error_of(ApiClient(client=client).post(address, {})) == (403, "scope")
    assert reference(project) is None


def test_a_member_names_it_on_the_run_page_and_takes_it_back(db):
    project, user = make_project(), make_user()
    make_member(project, user)
    old, new, other = (make_run(project, key=key) for key in ("old", "new", "other"))
    Run.objects.filter(pk=old.pk).update(is_reference=True)
    Run.objects.update(last_capture_at="2026-01-01T00:00:00Z")
    first, latest = (
        make_capture(other, key=day, state=CaptureState.READY, captured_at=f"2026-01-{day}T00:00:00Z")
        for day in ("01", "02")
    )
    Capture.objects.update(rollup_due=False)
    client = Client()
    client.force_login(user)
    page = client.get(f"/runs/{new.pk}/").content.decode()
    assert 'name="reference"' in page

    client.post(f"/runs/{new.pk}/edit/", {"name": "New", "tags": "", "reference": "on"})
    assert reference(project) == "new"
    assert list(Capture.objects.filter(rollup_due=True)) == [latest] and first != latest

    client.post(f"/runs/{new.pk}/edit/", {"name": "New", "tags": ""})
    assert reference(project) is None
