"""Single sign-on against a small but real OpenID Connect provider on loopback."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.core.cache import cache

from dashboard.accounts.adapter import refusal
from dashboard.accounts.models import User

pytestmark = pytest.mark.django_db
CLIENT, SECRET = "stepscope", "the client's secret"


class Provider(ThreadingHTTPServer):
    """Discovery, authorize, token, jwks and userinfo. `claims` is who signs in; `key` signs."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.claims, self.codes, self.spoil = {}, {}, {}

    def configuration(self):
        paths = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
        found = {f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in paths.items()}
        return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks", **found}

    def id_token(self, nonce):
        now = int(time.time())
        body = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, **self.claims, **self.spoil}
        return jwt.encode({**body, **({"nonce": nonce} if nonce else {})}, self.key, "RS256", headers={"kid": "1"})


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        address = urlsplit(self.path)
        if address.path == "/.well-known/openid-configuration":
            self.answer(self.server.configuration())
        elif address.path == "/authorize":
            self.authorize(dict(parse_qsl(address.query)))
        elif address.path == "/jwks":
            public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.server.key.public_key()))
            self.answer({"keys": [{**public, "kid": "1", "use": "sig", "alg": "RS256"}]})
        elif address.path == "/userinfo" and self.headers["Authorization"] == "Bearer access":
            self.answer(self.server.claims)
        else:
            self.send_error(404)

    def authorize(self, asked):
        assert asked["client_id"] == CLIENT and "openid" in asked["scope"].split()
        self.server.codes["code"] = asked
        self.send_response(302)
        self.send_header("Location", f"{asked['redirect_uri']}?{urlencode({'code': 'code', 'state': asked['state']})}")
        self.end_headers()

    def do_POST(self):
        sent = {
            name: values[0]
            for name, values in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()
        }
        asked = self.server.codes.pop(sent.get("code"), None)
        if asked is None or not self.knows_client(sent) or not proves(asked, sent):
            self.send_error(400)
            return
        token = self.server.id_token(asked.get("nonce"))
        self.answer({"access_token": "access", "token_type": "Bearer", "id_token": token})

    def knows_client(self, sent):
        basic = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        return sent.get("client_secret") == SECRET or self.headers["Authorization"] == basic

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args):
        pass


def proves(asked, sent):
    """PKCE: who brings the code is who asked for it."""
    digest = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args):
        return None


@pytest.fixture
def provider(settings):
    cache.clear()
    server = Provider()
    server.claims = {"sub": "42", "email": "nina@example.com", "email_verified": True, "preferred_username": "nina"}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    settings.OIDC_ISSUER = server.issuer
    settings.OIDC_APP = {
        **settings.OIDC_APP,
        "name": "Team sign-on",
        "client_id": CLIENT,
        "secret": SECRET,
        "settings": {"server_url": server.issuer, "oauth_pkce_enabled": True},
    }
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": [settings.OIDC_APP], "SCOPE": ["openid", "email"]}}
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def sign_in(client, **extra):
    """Press the button, let the provider send us back, follow; the answer to the callback."""
    away = html.unescape(client.post("/accounts/oidc/sso/login/", extra).content.decode())
    url = re.search(r'content="0;url=([^"]+)"', away)[1]
    try:
        urllib.request.build_opener(Stay).open(url)
    except urllib.error.HTTPError as answer:
        back = urlsplit(answer.headers["Location"])
    return client.get(f"{back.path}?{back.query}")


def signed_in_as(client):
    found = client.session.get("_auth_user_id")
    return User.objects.get(pk=found) if found else None


def test_the_button_stands_on_the_sign_in_page(client, provider):
    assert "Sign in with Team sign-on" in client.get("/accounts/login/").content.decode()


def test_who_the_provider_vouches_for_gets_an_account_and_comes_back_to_it(client, provider):
    assert sign_in(client).status_code == 302
    nina = signed_in_as(client)
    assert (nina.username, nina.email, nina.is_staff, nina.is_superuser) == ("nina", "nina@example.com", False, False)
    assert not nina.has_usable_password()
    client.logout()
    sign_in(client)
    assert signed_in_as(client) == nina and User.objects.count() == 1
    page = client.get("/account/").content.decode()
    assert "You sign in by single sign-on." in page


def test_someone_of_the_same_name_is_somebody_else(client, provider):
    local = User.objects.create_user("nina", "nina@elsewhere.example", "correct horse battery")
    sign_in(client)
    assert signed_in_as(client) != local


def test_an_address_that_belongs_to_a_local_account_takes_it_over_neither(client, provider):
    local = User.objects.create_user("old", "nina@example.com", "correct horse battery")
    sign_in(client)
    assert signed_in_as(client) != local


@pytest.mark.parametrize(
    "claims",
    [{"email": "eve@example.com.evil"}, {"email_verified": False}, {"email": None}, {"email_verified": "false"}],
)
def test_only_verified_addresses_of_the_domain_come_in(client, provider, settings, claims):
    settings.OIDC_DOMAINS = ["example.com"]
    provider.claims |= claims
    answer = sign_in(client)
    assert answer.status_code == 403 and "verified e-mail address at example.com" in answer.content.decode()
    assert signed_in_as(client) is None and not User.objects.exists()


def test_who_left_the_group_stays_out_from_the_next_sign_in_on(client, provider, settings):
    settings.OIDC_GROUPS = ["train", "ops"]
    provider.claims["groups"] = ["ops", "other"]
    sign_in(client)
    assert signed_in_as(client) is not None
    client.logout()
    provider.claims["groups"] = ["other"]
    assert sign_in(client).status_code == 403
    assert signed_in_as(client) is None


@pytest.mark.parametrize("spoil", [{"aud": "another client"}, {"iss": "https://evil.example"}, {"exp": 1}])
def test_a_token_for_somebody_else_or_of_yesterday_is_not_believed(client, provider, spoil):
    provider.spoil = spoil
    sign_in(client)
    assert signed_in_as(client) is None and not User.objects.exists()


def test_an_answer_nobody_asked_for_is_not_believed(client, provider):
    client.get("/accounts/oidc/sso/login/callback/?code=code&state=made-up")
    assert signed_in_as(client) is None


def test_a_wrong_secret_ends_in_a_page_not_in_an_error(client, provider, settings):
    settings.OIDC_APP["secret"] = "wrong"
    answer = sign_in(client)
    assert answer.status_code in (200, 401, 403) and signed_in_as(client) is None


def test_sign_in_by_a_link_alone_asks_first(client, provider):
    assert client.get("/accounts/oidc/sso/login/").status_code == 200


def test_nobody_is_led_to_another_site_after_signing_in(client, provider):
    assert sign_in(client, next="https://evil.example/").url == "/"


def test_the_way_there_is_no_redirect_of_a_form(client, provider):
    # A browser would hold it against `form-action 'self'` and stop.
    answer = client.post("/accounts/oidc/sso/login/")
    assert answer.status_code == 200 and "form-action 'self'" in answer["Content-Security-Policy"]


def test_without_an_issuer_there_is_no_such_door(client):
    assert client.post("/accounts/oidc/sso/login/").status_code == 404


def test_rules_read_what_they_are_given_and_nothing_like_it(settings):
    settings.OIDC_DOMAINS, settings.OIDC_GROUPS, settings.OIDC_GROUPS_CLAIM = [], ["train"], "roles"
    assert refusal({"roles": ["train"]}) is None
    for roles in ("train", ["trainer"], {"train": 1}, None):
        assert refusal({"roles": roles}) is not None
