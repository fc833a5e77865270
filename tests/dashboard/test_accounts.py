from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.accounts.models import AgentToken, Member, Project, Role, User

pytestmark = pytest.mark.django_db


def person(name: str, **fields) -> User:
    return User.objects.create_user(name, f"{name}@example.com", "correct horse battery", **fields)


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="gpt", name="GPT")


@pytest.fixture
def owner(project) -> User:
    return joined(person("olga"), project, Role.OWNER)


def joined(user: User, project: Project, role: str) -> User:
    Member.objects.create(project=project, user=user, role=role)
    return user


CHANGES = [
    ("settings/edit/", {"name": "New name"}),
    ("members/", {"person": "nina", "role": "viewer"}),
    ("tokens/", {"name": "host01", "scopes": ["upload"], "days": "30"}),
]


def test_who_makes_a_project_owns_it(client):
    user = person("olga")
    client.force_login(user)
    answer = client.post("/projects/new/", {"name": "Llama", "slug": "llama"})
    assert answer.url == "/projects/llama/settings/"
    assert Member.objects.get(project__slug="llama", user=user).role == Role.OWNER


@pytest.mark.parametrize("slug", ["", "a b", "../x", "-a", "x" * 101, "gpt", "名字"])
def test_a_bad_or_taken_short_name_is_refused(client, project, slug):
    client.force_login(person("olga"))
    answer = client.post("/projects/new/", {"name": "Llama", "slug": slug})
    assert answer.status_code == 422
    assert Project.objects.count() == 1


def test_pages_ask_strangers_without_session_to_sign_in(client, project):
    for path in ("/projects/new/", "/projects/gpt/settings/", "/projects/gpt/channels/", "/alerts/"):
        assert client.get(path).status_code == 302
        assert "/accounts/login/" in client.get(path).url


def test_settings_of_a_foreign_project_are_not_found(client, project):
    client.force_login(person("eve"))
    assert client.get("/projects/gpt/settings/").status_code == 404
    for path, data in CHANGES:
        assert client.post(f"/projects/gpt/{path}", data).status_code == 404


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER])
def test_only_owners_change_settings_members_and_tokens(client, project, role):
    client.force_login(joined(person("victor"), project, role))
    assert client.get("/projects/gpt/settings/").status_code == 200
    for path, data in CHANGES:
        assert client.post(f"/projects/gpt/{path}", data).status_code == 403
    assert not project.tokens.exists()


@pytest.mark.parametrize("text", ["nina", "NINA@example.com"])
def test_a_member_is_added_by_username_or_email(client, project, owner, text):
    nina = person("nina")
    client.force_login(owner)
    assert client.post("/projects/gpt/members/", {"person": text, "role": "viewer"}).status_code == 302
    assert Member.objects.get(project=project, user=nina).role == Role.VIEWER


def test_an_unknown_person_and_a_member_twice_are_refused(client, project, owner):
    client.force_login(owner)
    for text in ("nobody", "olga"):
        assert client.post("/projects/gpt/members/", {"person": text, "role": "viewer"}).status_code == 422
    assert project.members.count() == 1


def test_the_last_owner_can_neither_go_nor_step_down(client, project, owner):
    client.force_login(owner)
    member = Member.objects.get(user=owner)
    client.post(f"/projects/gpt/members/{member.pk}/role/", {"role": "viewer"})
    client.post(f"/projects/gpt/members/{member.pk}/remove/")
    member.refresh_from_db()
    assert member.role == Role.OWNER


def test_an_owner_may_step_down_when_another_stays(client, project, owner):
    joined(person("otto"), project, Role.OWNER)
    client.force_login(owner)
    member = Member.objects.get(user=owner)
    client.post(f"/projects/gpt/members/{member.pk}/role/", {"role": "member"})
    member.refresh_from_db()
    assert member.role == Role.MEMBER


def test_a_role_that_does_not_exist_is_not_given(client, project, owner):
    member = Member.objects.create(project=project, user=person("nina"), role=Role.VIEWER)
    client.force_login(owner)
    client.post(f"/projects/gpt/members/{member.pk}/role/", {"role": "root"})
    member.refresh_from_db()
    assert member.role == Role.VIEWER


def test_a_member_of_another_project_cannot_be_changed_through_mine(client, project, owner):
    other = Project.objects.create(slug="other", name="Other")
    member = Member.objects.create(project=other, user=person("nina"), role=Role.VIEWER)
    client.force_login(owner)
    assert client.post(f"/projects/gpt/members/{member.pk}/remove/").status_code == 404
    assert Member.objects.filter(pk=member.pk).exists()


def test_a_viewer_may_leave_but_not_remove_others(client, project, owner):
    viewer = joined(person("victor"), project, Role.VIEWER)
    client.force_login(viewer)
    assert client.post(f"/projects/gpt/members/{Member.objects.get(user=owner).pk}/remove/").status_code == 403
    client.post(f"/projects/gpt/members/{Member.objects.get(user=viewer).pk}/remove/")
    assert not Member.objects.filter(user=viewer).exists()


def test_a_token_is_shown_once_and_works(client, project, owner):
    client.force_login(owner)
    answer = client.post("/projects/gpt/tokens/", {"name": "host01", "scopes": ["upload"], "days": "30"})
    text = re.search(r"sst_[0-9a-f]{12}_[\w-]{43}", answer.content.decode()).group()
    assert "no-store" in answer["Cache-Control"]
    token = AgentToken.objects.find(text)
    assert (token.project, token.scopes, token.created_by) == (project, ["upload"], owner)
    assert timedelta(days=29) < token.expires - timezone.now() <= timedelta(days=30)
    assert text not in client.get("/projects/gpt/settings/").content.decode()


def test_a_token_needs_a_scope_and_a_known_lifetime(client, project, owner):
    client.force_login(owner)
    for data in ({"scopes": [], "days": "30"}, {"scopes": ["root"], "days": "30"}, {"scopes": ["read"], "days": "7"}):
        assert client.post("/projects/gpt/tokens/", {"name": "x", **data}).status_code == 422
    assert not project.tokens.exists()


def test_a_revoked_token_is_dead_and_stays_listed(client, project, owner):
    token, text = AgentToken.objects.issue(project, "host01", ["upload"])
    client.force_login(owner)
    client.post(f"/projects/gpt/tokens/{token.pk}/revoke/")
    assert AgentToken.objects.find(text) is None
    assert "host01" in client.get("/projects/gpt/settings/").content.decode()


def test_a_token_of_another_project_cannot_be_revoked_through_mine(client, project, owner):
    token, text = AgentToken.objects.issue(Project.objects.create(slug="other", name="Other"), "x", ["read"])
    client.force_login(owner)
    assert client.post(f"/projects/gpt/tokens/{token.pk}/revoke/").status_code == 404
    assert AgentToken.objects.find(text) == token


def test_an_owner_sets_the_peak_and_empty_takes_it_back(client, project, owner):
    client.force_login(owner)
    client.post("/projects/gpt/settings/edit/", {"name": "GPT", "peak_tflops": "353.9"})
    project.refresh_from_db()
    assert project.peak_tflops == 353.9
    client.post("/projects/gpt/settings/edit/", {"name": "GPT", "peak_tflops": ""})
    project.refresh_from_db()
    assert project.peak_tflops is None
    assert client.post("/projects/gpt/settings/edit/", {"name": "GPT", "peak_tflops": "-1"}).status_code == 422


def test_names_are_escaped(client, project, owner):
    client.force_login(owner)
    client.post("/projects/gpt/settings/edit/", {"name": "<script>alert(1)</script>"})
    assert "<script>alert(1)" not in client.get("/projects/gpt/settings/").content.decode()


def test_settings_name_the_run_that_others_are_held_against(client, project, owner):
    client.force_login(owner)
    assert "None yet" in client.get("/projects/gpt/settings/").content.decode()
    run = project.runs.create(key="a", name="Aligned", is_reference=True)
    assert f'<a href="/runs/{run.pk}/">Aligned</a>' in client.get("/projects/gpt/settings/").content.decode()
