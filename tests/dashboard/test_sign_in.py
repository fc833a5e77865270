"""Guessing passwords, sessions, cookies, and where a sign-in leads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.core import mail
from django.core.cache import cache
from django.db import connection
from django.test import Client, RequestFactory

from dashboard.accounts.adapter import client_ip
from dashboard.accounts.hashers import Argon2PasswordHasher
from dashboard.accounts.models import User
from dashboard.accounts.sign_in import MOST_A_MINUTE
from tests.factories import make_user

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def nobody_failed_yet():
    cache.clear()


def attempt(client, name, password, **extra):
    return client.post("/accounts/login/", {"login": name, "password": password}, **extra)


def is_in(client):
    return "_auth_user_id" in client.session


def test_one_name_from_one_address_is_paused(client, settings):
    make_user("olga")
    for _ in range(settings.LOGIN_FAILURES):
        attempt(client, "olga", "wrong")
    attempt(client, "olga", PASSWORD)
    assert not is_in(client)
    attempt(client, "olga", PASSWORD, REMOTE_ADDR="192.0.2.9")
    assert is_in(client)


def test_passwords_are_hashed_by_argon2id_at_its_cost(client):
    assert make_user("olga").password.startswith("argon2$argon2id$v=19$m=19456,t=2,p=1$")
    attempt(client, "olga", PASSWORD.upper())
    assert not is_in(client)
    attempt(client, "olga", PASSWORD)
    assert is_in(client)


def test_a_hash_of_the_reference_implementation_is_taken_and_renewed(client):
    user = make_user("olga")
    # "password" and "somesalt" in the tests of github.com/P-H-C/phc-winner-argon2
    told = bytes.fromhex("09316115d5cf24ed5a15a31a3ba326e5cf32edc24702987c02b6566f61913cf7")
    salt, found = (b64encode(part).decode().rstrip("=") for part in (b"somesalt", told))
    User.objects.filter(pk=user.pk).update(password=f"argon2$argon2id$v=19$m=65536,t=2,p=1${salt}${found}")
    attempt(client, "olga", "password")
    assert is_in(client)
    assert "$m=19456,t=2,p=1$" in User.objects.get().password


def test_who_signs_in_with_an_older_hash_gets_a_new_one(client):
    user = make_user("olga")
    User.objects.filter(pk=user.pk).update(password=PBKDF2PasswordHasher().encode(PASSWORD, "salt" * 6))
    attempt(client, "olga", "wrong")
    assert not is_in(client) and User.objects.get().password.startswith("pbkdf2_sha256$")
    attempt(client, "olga", PASSWORD)
    assert is_in(client) and User.objects.get().password.startswith("argon2$")


def test_the_form_of_an_account_shows_how_its_password_is_hashed(client):
    root = make_user("root", is_staff=True, is_superuser=True)
    client.force_login(root)
    page = client.get(f"/admin/accounts/user/{root.pk}/change/").content.decode()
    words = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "variety : argon2id" in words and "memory cost : 19456 time cost : 2 parallelism : 1" in words
    assert root.password.rpartition("$")[2] not in page


def test_many_names_from_one_address_are_paused(client, settings):
    settings.ADDRESS_LOGIN_FAILURES = 5
    make_user("olga")
    for number in range(5):
        attempt(client, f"name{number}", "Winter2026!")
    attempt(client, "olga", PASSWORD)
    assert not is_in(client)
    attempt(client, "olga", PASSWORD, REMOTE_ADDR="192.0.2.9")
    assert is_in(client)


def test_the_limits_are_those_that_are_documented(settings):
    assert (settings.LOGIN_FAILURES, settings.ADDRESS_LOGIN_FAILURES, MOST_A_MINUTE) == (8, 50, 300)


def test_one_name_from_many_addresses_is_paused(client):
    make_user("olga")
    for number in range(80):
        attempt(client, "olga", "wrong", REMOTE_ADDR=f"192.0.2.{number}")
    attempt(client, "olga", PASSWORD, REMOTE_ADDR="192.0.2.200")
    assert not is_in(client)


def test_an_office_behind_one_address_comes_in_on_a_monday(settings):
    """Sixty people within a minute, each of whom mistypes the password once."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    names = [make_user(f"person{number}").username for number in range(60)]
    inside = []
    for name in names:
        one = Client()
        attempt(one, name, PASSWORD.upper())
        attempt(one, name.upper(), PASSWORD)
        inside.append(is_in(one))
    assert inside == [True] * 60


@pytest.mark.django_db(transaction=True)
def test_an_office_may_come_in_all_at_once(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    names = [make_user(f"person{number}").username for number in range(60)]

    def come(name: str) -> bool:
        try:
            one = Client()
            attempt(one, name, PASSWORD)
            return is_in(one)
        finally:
            connection.close()

    with ThreadPoolExecutor(16) as pool:
        assert [*pool.map(come, names)] == [True] * 60


def test_only_mistakes_of_who_comes_in_are_forgotten(client, settings):
    """An account of one's own does not wash off guesses at those of others."""
    settings.ADDRESS_LOGIN_FAILURES = 5
    make_user("olga")
    make_user("eve")
    for number in range(4):
        attempt(client, f"name{number}", "Winter2026!")
        attempt(Client(), "eve", PASSWORD)
    attempt(client, "name4", "Winter2026!")
    attempt(client, "olga", PASSWORD)
    assert not is_in(client)


def test_no_more_than_three_mistakes_are_forgotten(client, settings):
    settings.ADDRESS_LOGIN_FAILURES = 6
    for name in ("olga", "nina"):
        make_user(name)
    for _ in range(5):
        attempt(client, "olga", "wrong")
    attempt(Client(), "olga", PASSWORD)  # two stay
    for number in range(4):
        attempt(client, f"name{number}", "Winter2026!")
    attempt(client, "nina", PASSWORD)
    assert not is_in(client)


def _counted(real, found):
    def count(*arguments):
        found.append("hashed")
        return real(*arguments)

    return count


@pytest.fixture
def hashed(monkeypatch):
    """Every password that was hashed."""
    found: list[str] = []
    monkeypatch.setattr(Argon2PasswordHasher, "encode", _counted(Argon2PasswordHasher.encode, found))
    monkeypatch.setattr(Argon2PasswordHasher, "verify", _counted(Argon2PasswordHasher.verify, found))
    return found


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("olga", "wrong"),
        ("OLGA", "wrong"),
        ("olga@example.com", "wrong"),
        ("nobody", "wrong"),
        ("nobody@example.com", "wrong"),
        ("gone", PASSWORD),
        ("from-sso", "wrong"),
        ("olga", PASSWORD),
        ("olga@example.com", PASSWORD),
    ],
)
def test_an_attempt_hashes_one_password_whoever_is_meant(client, hashed, name, password):
    make_user("olga", email="olga@example.com")
    make_user("gone", is_active=False)
    single = make_user("from-sso")
    single.set_unusable_password()
    single.save()
    hashed.clear()
    attempt(client, name, password)
    assert is_in(client) == (password == PASSWORD and name != "gone")
    assert hashed == ["hashed"]


def test_capitals_do_not_make_another_name_to_guess_at(client, settings):
    make_user("olga")
    for number in range(settings.LOGIN_FAILURES):
        attempt(client, ("olga", "Olga", "OLGA", "oLGA")[number % 4], "wrong")
    attempt(client, "olga", PASSWORD)
    assert not is_in(client)


def test_a_name_longer_than_any_is_a_wrong_one(client):
    assert attempt(client, "n" * 3_000, "wrong", HTTP_USER_AGENT="u" * 3_000).status_code == 200
    assert not is_in(client)


def test_who_signs_in_rightly_uses_nothing_up(settings):
    settings.ADDRESS_LOGIN_FAILURES = 2
    make_user("olga")
    for _ in range(4):
        one = Client()
        attempt(one, "olga", PASSWORD)
        assert is_in(one)


def test_administrators_come_in_by_the_same_door(client):
    make_user("root", is_staff=True, is_superuser=True)
    answer = client.post("/admin/login/", {"username": "root", "password": PASSWORD})
    assert answer.status_code == 302 and answer.url.startswith("/accounts/login/")
    assert not is_in(client)


@pytest.mark.parametrize(
    ("behind", "forwarded", "expected"),
    [
        (False, "198.51.100.7", "203.0.113.1"),  # anybody may write that header
        (True, "198.51.100.7", "198.51.100.7"),
        (True, "10.0.0.1, 198.51.100.7", "198.51.100.7"),  # the proxy wrote the last one
        (True, "", "203.0.113.1"),
    ],
)
def test_the_address_is_the_callers(settings, behind, forwarded, expected):
    settings.BEHIND_PROXY = behind
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.1", headers={"X-Forwarded-For": forwarded})
    assert client_ip(request) == expected


def test_a_session_from_before_the_sign_in_is_not_the_one_after_it(client):
    client.get("/accounts/login/?next=/alerts/")
    client.session.save()
    before = client.session.session_key
    client.cookies["sessionid"] = before
    attempt(client, make_user("olga").username, PASSWORD)
    assert is_in(client) and client.session.session_key != before


def test_a_new_password_ends_the_other_sessions(client):
    user = make_user("olga")
    other = Client()
    for one in (client, other):
        attempt(one, "olga", PASSWORD)
    new = "another horse staple"
    client.post("/accounts/password/change/", {"oldpassword": PASSWORD, "password1": new, "password2": new})
    assert client.get("/account/").status_code == 200
    assert other.get("/account/").status_code == 302
    assert User.objects.get(pk=user.pk).check_password(new)


def test_one_can_sign_out_everywhere_else(client):
    make_user("olga")
    other, stranger = Client(), Client()
    for one in (client, other):
        attempt(one, "olga", PASSWORD, HTTP_USER_AGENT="Netscape")
    make_user("eve")
    attempt(stranger, "eve", PASSWORD)
    page = client.get("/account/").content.decode()
    assert page.count("Netscape") == 2 and page.count("this one") == 1
    client.post("/account/end-sessions/")
    assert client.get("/account/").status_code == 200
    assert other.get("/account/").status_code == 302
    assert stranger.get("/account/").status_code == 200


@pytest.mark.parametrize(
    "following", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_nobody_is_led_to_another_site(client, following):
    make_user("olga")
    answer = client.post("/accounts/login/", {"login": "olga", "password": PASSWORD, "next": following})
    assert answer.status_code == 302 and answer.url == "/"
    for path in ("/i18n/setlang/", "/accounts/logout/"):
        answer = client.post(path, {"language": "en", "next": following})
        assert answer.status_code == 302 and "evil" not in answer.url and "javascript" not in answer.url


def test_a_host_that_is_not_ours_is_refused(client):
    assert client.get("/accounts/login/", headers={"Host": "evil.example"}).status_code == 400


def test_forms_without_the_token_are_refused():
    make_user("olga")
    strict = Client(enforce_csrf_checks=True)
    assert attempt(strict, "olga", PASSWORD).status_code == 403
    strict.force_login(User.objects.get())
    for path in ("/projects/new/", "/account/end-sessions/", "/i18n/setlang/", "/violations/waive/"):
        assert strict.post(path, {"language": "en"}).status_code == 403, path


COOKIES = """
import django; django.setup()
from django.conf import settings as s
print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SESSION_COOKIE_HTTPONLY, s.SESSION_COOKIE_SAMESITE)
"""


@pytest.mark.parametrize(("url", "secure"), [("https://x.example", "True True"), ("http://x.example", "False False")])
def test_cookies_are_secure_where_the_site_is(url, secure):
    done = subprocess.run(
        [sys.executable, "-c", COOKIES],
        cwd=ROOT,
        env={**os.environ, "STEPSCOPE_URL": url},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == f"{secure} True Lax", done.stderr


SIGN_UP = {"username": "nina", "email": "nina@example.com", "password1": PASSWORD, "password2": PASSWORD}


def test_nobody_signs_up_unless_the_operator_says_so(client):
    client.post("/accounts/signup/", SIGN_UP)
    assert not User.objects.exists()


def test_with_domains_an_account_waits_for_its_address_to_be_confirmed(client, settings):
    settings.STEPSCOPE_SIGNUP, settings.SIGNUP_DOMAINS = True, ["example.com"]
    settings.ACCOUNT_EMAIL_VERIFICATION = "mandatory"
    for email in ("nina@elsewhere.example", "nina@example.com.evil", "nina@sub.example.com"):
        client.post("/accounts/signup/", {**SIGN_UP, "email": email})
        assert not User.objects.exists(), email
    client.post("/accounts/signup/", SIGN_UP)
    assert User.objects.get().email == "nina@example.com" and not is_in(client)
    attempt(client, "nina", PASSWORD)
    assert not is_in(client)
    (link,) = [word for word in mail.outbox[0].body.split() if "/accounts/confirm-email/" in word]
    client.post("/" + link.split("/", 3)[3])
    attempt(client, "nina", PASSWORD)
    assert is_in(client)
