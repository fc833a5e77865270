"""Alerts for scripts, and the history of what was made of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Project, User
from dashboard.alerts.models import Alert, Decision
from tests.dashboard.alert_data import capture, member, owner, project
from tests.dashboard.api_client import ApiClient
from tests.factories import make_project, make_token, make_user

__all__ = ["member", "owner", "project"]
pytestmark = pytest.mark.django_db


def make_alert(project: Project, day: int = 1, **fields: Any) -> Alert:
    values = {"metric": "mfu", "old_value": 0.4, "new_value": 0.3, "change": -0.25, "cause": "Cast", **fields}
    return Alert.objects.create(project=project, capture=capture(project, day, run=f"run-{day}"), **values)


def script(project: Project, *scopes: str) -> ApiClient:
    return ApiClient(make_token(project, scopes))


def test_alerts_come_newest_first_fifty_to_a_page(project):
    now = timezone.now()
    for day in range(1, 53):
        make_alert(project, day, created=now + timedelta(minutes=day))
    reader = script(project, "read")
    first, second = (reader.get("/alerts", page=page).json() for page in (1, 2))
    runs = [alert["run"]["key"] for alert in (*first["alerts"], *second["alerts"])]
    assert runs == [f"run-{day}" for day in range(52, 0, -1)]
    assert (len(first["alerts"]), first["next"], second["next"]) == (50, 2, None)


def test_alerts_of_one_state_or_project(project):
    make_alert(project, 1)
    make_alert(project, 2, state="expected")
    make_alert(make_project("other"), 3)
    reader = script(project, "read")

    def found(**query: str) -> list[str]:
        return [alert["run"]["key"] for alert in reader.get("/alerts", **query).json()["alerts"]]

    assert sorted(found()) == ["run-1", "run-2"]
    assert (found(state="open"), found(state="expected"), found(project="other")) == (["run-1"], ["run-2"], [])
    for query in ({"state": "shut"}, {"project": "a\0"}, {"page": "0"}, {"page": "9" * 30}):
        assert reader.get("/alerts", **query).status_code == 400, query


def test_one_alert_tells_what_got_worse_and_unknown_is_null(project):
    alert = make_alert(project, old_value=None)
    got = script(project, "read").get(f"/alerts/{alert.pk}").json()["alert"]
    assert (got["metric"], got["old_value"], got["new_value"], got["change"]) == ("mfu", None, 0.3, -0.25)
    assert (got["project"], got["capture"], got["previous"], got["assignee"]) == (
        project.slug,
        alert.capture_id,
        None,
        None,
    )
    assert got["url"].endswith(f"/alerts/?alert={alert.pk}") and got["decisions"] == []


def test_a_script_decides_with_a_token_for_that_and_stands_by_its_name(project):
    alert = make_alert(project)
    token = make_token(project, ("triage", "read"), name="nightly bot")
    bot = ApiClient(token)
    answer = bot.post(f"/alerts/{alert.pk}/decisions", {"state": "false_alarm", "note": "cold cache"})
    assert answer.status_code == 200
    (decision,) = answer.json()["alert"]["decisions"]
    assert (decision["state"], decision["note"], decision["person"], decision["token"]) == (
        "false_alarm",
        "cold cache",
        None,
        "nightly bot",
    )
    alert.refresh_from_db()
    assert (alert.state, alert.note, alert.decided_by) == ("false_alarm", "cold cache", None)
    assert script(project, "read", "upload").post(f"/alerts/{alert.pk}/decisions", {"state": "open"}).status_code == 403


@pytest.mark.parametrize(
    "body", [{}, {"state": "shut"}, {"state": 1}, {"state": "open", "note": 1}, {"state": "open", "note": "x" * 1001}]
)
def test_an_answer_that_is_none_changes_nothing(project, body):
    alert = make_alert(project)
    assert script(project, "triage").post(f"/alerts/{alert.pk}/decisions", body).status_code == 400
    assert not Decision.objects.exists()


def test_every_answer_stays_with_who_when_and_why(project, member: User, owner: User):
    alert = make_alert(project)
    for person, state, note in (
        (member, "acknowledged", "looking"),
        (owner, "open", ""),
        (owner, "expected", "CANN 8.3"),
    ):
        client = Client()
        client.force_login(person)
        client.post(f"/alerts/{alert.pk}/decide/", {"state": state, "note": note})
    rows = [(row.by, row.state, row.note) for row in alert.decisions.all()]
    assert rows == [
        (owner.username, "expected", "CANN 8.3"),
        (owner.username, "open", ""),
        (member.username, "acknowledged", "looking"),
    ]
    page = client.get(f"/alerts/?alert={alert.pk}").content.decode()
    shown = page[page.index('class="decisions"') :]
    assert shown.index("CANN 8.3") < shown.index("looking") and member.username in shown


def test_the_history_outlives_the_person(project, member: User):
    alert = make_alert(project)
    alert.decide("acknowledged", "mine", member)
    member.delete()
    (row,) = alert.decisions.all()
    assert (row.by, row.note) == ("", "mine")


def test_the_administration_cannot_answer_behind_the_history(project):
    alert = make_alert(project)
    client = Client()
    client.force_login(make_user("root", is_superuser=True, is_staff=True))
    address = f"/admin/alerts/alert/{alert.pk}/change/"
    assert client.get(address).status_code == 200
    client.post(address, {"state": "expected", "note": "quietly"})
    client.post(
        f"/admin/accounts/project/{project.pk}/change/", {"name": "GPT", "slug": "gpt", "keep_uploads_days": "1"}
    )
    alert.refresh_from_db()
    project.refresh_from_db()
    assert (alert.state, alert.note, project.keep_uploads_days) == ("open", "", None)
