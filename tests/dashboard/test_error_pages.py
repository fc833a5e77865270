"""Errors are pages of the product: they say what is wrong and lead back."""

from __future__ import annotations

import pytest
from django.test import Client, RequestFactory
from django.utils import timezone
from django.views.defaults import server_error

from dashboard.accounts.models import DEMO, Role
from tests.factories import make_member, make_project, make_run, make_user

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_what_is_not_there_says_so_and_leads_back(client: Client, language: str):
    client.force_login(make_user())
    client.cookies["django_language"] = language
    response = client.get("/runs/999999/")
    assert response.status_code == 404
    if language == "en":
        assert "There is nothing here" in response.content.decode()
    assert 'href="/"' in response.content.decode()


def test_a_stranger_sees_no_difference_between_foreign_and_missing(client: Client):
    run = make_run(make_project("secret", name="Secret plans"))
    client.force_login(make_user())
    response = client.get(f"/runs/{run.pk}/")
    assert response.status_code == 404 and "Secret plans" not in response.content.decode()


def test_what_a_role_may_not_do_is_told_apart(client: Client):
    project, viewer = make_project("llm"), make_user()
    make_member(project, viewer, Role.VIEWER)
    client.force_login(viewer)
    response = client.post("/projects/llm/runs/change/", {"change": "archive"})
    assert response.status_code == 403
    assert "Your role in this project does not include this" in response.content.decode()


def test_an_unexpected_error_has_a_page_that_needs_nothing():
    page = server_error(RequestFactory().get("/")).content.decode()
    assert "Something broke" in page and "app.css" in page and "服务器" in page


def test_empty_places_say_what_to_do_next(client: Client):
    client.force_login(make_user("first"))
    assert "Make one, or ask its owner" in client.get("/").content.decode()
    owner = make_user("owner")
    project = make_project("llm", owner=owner)
    client.force_login(owner)
    runs = client.get("/projects/llm/runs/").content.decode()
    assert "stepscope-agent.pyz upload" in runs and "Get a token" in runs and "STEPSCOPE_PROJECT=llm" in runs
    assert "two make a line" in client.get("/projects/llm/trends/").content.decode()
    make_run(project)
    assert "Remove a filter" in client.get("/projects/llm/runs/?q=nothing").content.decode()


def test_a_form_from_an_old_page_says_what_to_do():
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user())
    response = client.post("/projects/new/", {"name": "x"})
    assert response.status_code == 403
    assert "load the page again" in response.content.decode() and 'href="/"' in response.content.decode()


def test_an_account_shut_after_wrong_passwords_says_until_when(client: Client, settings):
    make_user("alice")
    for _attempt in range(settings.AXES_FAILURE_LIMIT + 1):
        response = client.post("/accounts/login/", {"login": "alice", "password": "guess"})
    assert response.status_code == 429
    # The text and the setting say the same.
    assert settings.AXES_COOLOFF_TIME == 0.5 and "half an hour" in response.content.decode()


@pytest.mark.parametrize(
    ("path", "text", "onward"),
    [
        ("/accounts/password/reset/key/abc-def/", "This link no longer works", "/accounts/password/reset/"),
        ("/accounts/confirm-email/xyz/", "This link no longer works", "/accounts/login/"),
        ("/accounts/3rdparty/login/cancelled/", "Sign-in was cancelled", "/accounts/login/"),
        ("/accounts/3rdparty/login/error/", "did not let you in", "/accounts/login/"),
        ("/accounts/signup/", "No sign-ups", "/accounts/login/"),
        ("/accounts/inactive/", "Account not active", "/accounts/login/"),
        ("/accounts/password/reset/done/", "Look into your mail", "/accounts/login/"),
        ("/accounts/password/reset/key/done/", "Your password is changed", "/accounts/login/"),
    ],
)
def test_every_closed_door_says_why_and_leads_on(client: Client, path: str, text: str, onward: str):
    page = client.get(path, follow=True).content.decode()
    assert f"{text}</h1>" in page and f'href="{onward}"' in page and "<title>Stepscope" not in page


def test_a_new_person_is_led_on_until_there_is_a_run_or_they_put_it_away(client: Client):
    alice = make_user("alice")
    demo, own = make_project(DEMO, owner=alice, name="Demo"), make_project("llm", owner=alice)
    run = make_run(demo, last_capture_at=timezone.now())
    client.force_login(alice)
    page = client.get("/").content.decode()
    assert "Start here" in page and f'href="/runs/{run.pk}/">Look around' in page
    assert 'href="/projects/llm/upload/">Send a dump' in page and 'href="/projects/llm/hosts/">Let an agent' in page
    client.cookies["start"] = "done"
    assert "Start here" not in client.get("/").content.decode()
    del client.cookies["start"]
    make_run(own, last_capture_at=timezone.now())
    assert "Start here" not in client.get("/").content.decode()


def test_a_form_that_is_too_large_says_how_much_may_be_sent(settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE, settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 2048, 10
    client = Client()
    client.force_login(make_user())
    for form in ({"name": "x" * 3000}, {f"field{number}": "1" for number in range(11)}):
        body = "&".join(f"{name}={value}" for name, value in form.items())
        response = client.post("/projects/new/", body, content_type="application/x-www-form-urlencoded")
        page = response.content.decode()
        assert response.status_code == 413
        assert "2.00\u202fKiB and 10 fields at most" in page and "分块上传" in page and 'href="/"' in page
