"""The run list: columns, saved views, tags, archive and the CSV file."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client

from dashboard.accounts.models import Project, Role, User
from dashboard.runs import columns
from dashboard.runs.models import Run, SavedView
from tests.factories import make_member, make_project, make_run, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User, client: Client) -> Project:
    client.force_login(alice)
    return make_project("llm", owner=alice)


def heads(response: Any) -> list[str]:
    return [str(column.key) for column in response.context["columns"]]


def test_the_address_chooses_columns_and_keeps_their_order(client, project):
    make_run(project, name="one", hfu=0.5)
    response = client.get("/projects/llm/runs/?columns=hfu,setup,nonsense&columns=mfu")
    assert heads(response) == ["setup", "mfu", "hfu"]
    assert "50.0\u202f%" in response.content.decode()
    assert heads(client.get("/projects/llm/runs/?columns=nonsense")) == list(columns.USUAL)


def test_equal_views_have_equal_queries():
    one = QueryDict("order=mfu&mode=graph&page=3&columns=mfu&columns=cast&evil=1")
    other = QueryDict("columns=cast,mfu&mode=graph&order=mfu&q=")
    assert columns.view_query(one) == columns.view_query(other) == "mode=graph&order=mfu&columns=mfu,cast"
    assert columns.view_query(QueryDict(f"columns={','.join(columns.USUAL)}")) == ""


def test_a_view_is_saved_shown_as_current_and_deleted(client, project, alice):
    response = client.post("/projects/llm/views/", {"name": "Graph by MFU", "query": "mode=graph&order=mfu&x=1"})
    assert response["Location"] == "/projects/llm/runs/?mode=graph&order=mfu"
    view = SavedView.objects.get(user=alice, project=project)
    assert view.query == "mode=graph&order=mfu"
    assert client.get("/projects/llm/runs/?order=mfu&mode=graph").context["current_view"] == view
    assert client.get("/projects/llm/runs/?mode=graph").context["current_view"] is None
    client.post("/projects/llm/views/", {"name": "Graph by MFU", "query": "mode=pynative"})
    assert SavedView.objects.get(pk=view.pk).query == "mode=pynative"
    client.post(f"/projects/llm/views/{view.pk}/delete/")
    assert not SavedView.objects.exists()


def test_views_belong_to_one_person_in_one_project(client, project, alice):
    view = SavedView.objects.create(project=project, user=alice, name="mine", query="mode=graph")
    bob = make_user("bob")
    make_member(project, bob, Role.VIEWER)
    client.force_login(bob)
    assert client.get("/projects/llm/runs/").context["views"] == []
    assert client.post(f"/projects/llm/views/{view.pk}/delete/").status_code == 404
    client.post("/projects/llm/views/", {"name": "mine", "query": ""})
    assert SavedView.objects.filter(name="mine").count() == 2
    client.force_login(make_user("stranger"))
    assert client.post("/projects/llm/views/", {"name": "mine"}).status_code == 404


def change(client: Client, runs: list[Run], **fields: str) -> Any:
    return client.post("/projects/llm/runs/change/", {"run": [str(run.pk) for run in runs], **fields})


def test_chosen_runs_are_tagged_found_by_tag_and_untagged(client, project):
    one, two, three = (make_run(project, name=name) for name in ("one", "two", "three"))
    assert change(client, [one, two], change="tag", new_tag="nightly")["HX-Refresh"] == "true"
    change(client, [two], change="tag", new_tag="nightly")
    response = client.get("/projects/llm/runs/?tag=nightly")
    assert {run.name for run in response.context["page"]} == {"one", "two"}
    assert [run.tags for run in Run.objects.order_by("pk")] == [["nightly"], ["nightly"], []]
    assert {facet["key"]: facet["values"] for facet in response.context["facets"]}["tag"] == ["nightly"]
    change(client, [one, three], change="untag", new_tag="nightly")
    assert [run.tags for run in Run.objects.order_by("pk")] == [[], ["nightly"], []]


def test_chosen_runs_are_archived_and_restored(client, project):
    run = make_run(project)
    change(client, [run], change="archive")
    assert list(client.get("/projects/llm/runs/").context["page"]) == []
    change(client, [run], change="restore")
    assert list(client.get("/projects/llm/runs/").context["page"]) == [run]


@pytest.mark.parametrize("fields", [{"change": "tag"}, {"change": "tag", "new_tag": "a,b"}, {"change": "drop"}])
def test_a_change_that_is_none_changes_nothing(client, project, fields):
    run = make_run(project, tags=["kept"])
    change(client, [run], **fields)
    run.refresh_from_db()
    assert run.tags == ["kept"] and not run.archived


def test_all_that_match_the_filter_are_changed_and_no_others(client, project):
    Run.objects.bulk_create(Run(project=project, key=f"r{n}", name=f"run {n}", mode="graph") for n in range(120))
    eager, hidden = make_run(project, key="eager", mode="pynative"), make_run(project, mode="graph", archived=True)
    foreign = make_run(make_project("other"), mode="graph")
    address = "/projects/llm/runs/change/?mode=graph"
    assert "all 120 that match" in client.get("/projects/llm/runs/?mode=graph").content.decode()
    client.post(address, {"change": "tag", "new_tag": "old", "all": "1", "run": [str(eager.pk)]})
    assert set(Run.objects.exclude(tags=["old"])) == {eager, hidden, foreign}


def test_thousands_of_chosen_runs_are_changed_in_one_form(client, project):
    Run.objects.bulk_create(Run(project=project, key=f"r{n}", name=f"run {n}") for n in range(3000))
    change(client, list(Run.objects.all()), change="archive")
    assert not Run.objects.filter(archived=False).exists()


def test_a_form_beyond_all_measure_is_answered_in_words(client, project):
    form = {"change": "archive", "run": [str(number) for number in range(20_001)]}
    response = client.post("/projects/llm/runs/change/", form)
    assert response.status_code == 413
    assert "choose all that match a filter" in response.content.decode()


def test_runs_of_another_project_are_not_changed(client, project):
    other = make_run(make_project("other"))
    change(client, [other], change="archive")
    other.refresh_from_db()
    assert not other.archived


def test_a_viewer_may_look_and_not_change(client, project):
    run, viewer = make_run(project), make_user("viewer")
    make_member(project, viewer, Role.VIEWER)
    client.force_login(viewer)
    assert change(client, [run], change="archive").status_code == 403
    assert "hx-post" not in client.get("/projects/llm/runs/").content.decode()


def test_the_csv_file_holds_every_filtered_run(client, project):
    Run.objects.bulk_create(Run(project=project, key=f"r{n}", name=f"run {n}", mode="graph") for n in range(120))
    make_run(project, key="eager", mode="pynative")
    lines = b"".join(client.get("/projects/llm/runs.csv?mode=graph&order=name").streaming_content).decode().splitlines()
    rows = list(csv.DictReader(lines))
    assert len(rows) == 120 and rows[0]["name"] == "run 0" and rows[0]["mfu"] == ""
