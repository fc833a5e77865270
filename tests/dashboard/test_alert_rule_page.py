from __future__ import annotations

import pytest

from dashboard.accounts.models import Member, Project, Role, User
from dashboard.alerts.models import ProjectRule, RuleChange
from dashboard.alerts.rules import BY_METRIC
from dashboard.runs.models import ChecklistResult, Run
from tests.dashboard.alert_data import capture, look, series

pytestmark = pytest.mark.django_db


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="gpt", name="GPT")


@pytest.fixture
def owner(project, client) -> User:
    user = User.objects.create_user("olga")
    Member.objects.create(project=project, user=user, role=Role.OWNER)
    client.force_login(user)
    return user


def change(client, metric, **data):
    fields = {f"{metric}-{name}": value for name, value in {"enabled": "on", **data}.items()}
    return client.post(f"/projects/gpt/rules/{metric}/", fields)


def test_the_page_says_each_rule_in_words(client, owner):
    page = client.get("/projects/gpt/rules/").content.decode()
    assert "Told when it rises by 1 point or more, or passes 5\u202f%." in page
    assert page.count("Told when it falls by 3\u202f% or more.") == 1  # MFU
    assert "Told when it falls by 3 points or more." in page
    assert "Told when any checklist item passed and fails now." in page
    assert page.count("Watches all captures.") == len(BY_METRIC)


def test_what_an_owner_sets_counts_from_then_on(client, project, owner):
    assert change(client, "mfu", effect="15").status_code == 302
    assert series(project, mfu=[0.40, 0.36, 0.36]) == [[], [], []]
    assert series(Project.objects.create(slug="other", name="Other"), mfu=[0.40, 0.36, 0.36])[-1] == ["mfu"]


def test_a_rule_that_is_off_says_nothing(client, project, owner):
    change(client, "mfu", enabled="", effect="3")
    assert series(project, mfu=[0.40, 0.36, 0.36]) == [[], [], []]
    assert "Off: nothing is told." in client.get("/projects/gpt/rules/").content.decode()


def test_a_limit_can_be_taken_away(client, project, owner):
    change(client, "cast_ratio", effect="1", limit="")
    assert series(project, cast_ratio=[0.0495, 0.0501, 0.0501]) == [[], [], []]


def test_a_rule_of_tagged_runs_sees_only_those(client, project, owner):
    change(client, "mfu", effect="3", tag="nightly")
    assert series(project, mfu=[0.40, 0.36, 0.36]) == [[], [], []]
    Run.objects.update(tags=["nightly"])
    newest = Run.objects.get(key="run-2").captures.get()
    assert [alert.metric for alert in look(newest)] == ["mfu"]


def test_checklist_items_can_be_chosen(client, project, owner):
    change(client, "checklist", items=["graph_sink"])
    for day, status in ((1, "pass"), (2, "fail")):
        one = capture(project, day)
        for item in ("fused_attention", "graph_sink"):
            ChecklistResult.objects.create(capture=one, run=one.run, item=item, status=status)
    assert [alert.metric for alert in look(one)] == ["item:graph_sink"]


def test_a_change_is_noted_with_who_and_from_what_to_what(client, project, owner):
    change(client, "mfu", effect="5", least_devices="8")
    noted = RuleChange.objects.get()
    assert (noted.changed_by, noted.metric) == (owner, "mfu")
    assert (noted.before["effect"], noted.after["effect"], noted.after["least_devices"]) == (0.03, 0.05, 8)
    page = client.get("/projects/gpt/rules/").content.decode()
    assert "Told when it falls by 3\u202f% or more. (all captures)" in page
    assert "Told when it falls by 5\u202f% or more. (8 cards or more)" in page
    assert "Changed by olga" in page


def test_saving_what_stood_there_is_no_change(client, project, owner):
    change(client, "mfu", effect="3")
    assert not RuleChange.objects.exists() and not ProjectRule.objects.exists()


def test_back_to_the_default_is_noted_as_well(client, project, owner):
    change(client, "mfu", effect="5")
    client.post("/projects/gpt/rules/mfu/reset/")
    assert not ProjectRule.objects.exists()
    assert [(row.before["effect"], row.after["effect"]) for row in RuleChange.objects.all()] == [
        (0.05, 0.03),
        (0.03, 0.05),
    ]


@pytest.mark.parametrize(
    "data",
    [
        {"effect": ""},
        {"effect": "0"},
        {"effect": "-3"},
        {"effect": "101"},
        {"effect": "nan"},
        {"effect": "inf"},
        {"effect": "3", "least_devices": "0"},
        {"effect": "3", "tag": "x" * 41},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(client, project, owner, data):
    answer = change(client, "mfu", **data)
    assert answer.status_code == 422
    assert "errorlist" in answer.content.decode()
    assert not ProjectRule.objects.exists()


def test_an_unknown_checklist_item_is_refused(client, project, owner):
    assert change(client, "checklist", items=["nonsense"]).status_code == 422


def test_there_is_no_rule_for_an_unknown_metric(client, owner):
    assert change(client, "nonsense", effect="3").status_code == 404
    assert client.post("/projects/gpt/rules/nonsense/reset/").status_code == 404


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER])
def test_others_read_the_rules_and_owners_alone_change_them(client, project, role):
    person = User.objects.create_user("mia")
    Member.objects.create(project=project, user=person, role=role)
    client.force_login(person)
    assert client.get("/projects/gpt/rules/").status_code == 200
    assert change(client, "mfu", effect="5").status_code == 403
    assert client.post("/projects/gpt/rules/mfu/reset/").status_code == 403
