"""Who signs in with what: one hash for every attempt, and mistakes that somebody has put right forgotten."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

from allauth.account.auth_backends import AuthenticationBackend
from allauth.account.internal.userkit import filter_users_by_email, get_user_by_username
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest

from dashboard.accounts.models import User

WINDOW_SECONDS = 1_800
MOST_FORGIVEN = 3
"""Mistakes of one name, from one address, that a sign-in puts right: what a person mistypes, and no more guesses than
that."""
MOST_A_MINUTE = 300
"""Attempts from one address, right ones included: a whole office, at ten seconds of hashing."""


class PasswordBackend(AuthenticationBackend):  # type: ignore[misc]
    """By username or e-mail address and password.

    Each attempt hashes once, be the name known or not: its time tells nobody which names there are. Two backends one
    after the other hashed twice, and three times for an e-mail address of somebody here.
    """

    def _authenticate(self, request: HttpRequest | None, **credentials: Any) -> User | None:
        found = (self._check_password(user, credentials["password"]) for user in _named(credentials))
        return next(filter(None, found), None)


def _named(credentials: dict[str, Any]) -> list[User]:
    """Who may be meant: one person, or several who gave the same address."""
    users = []
    if name := credentials.get("username"):
        exact = User.objects.filter(username=name).first()
        users = [
            exact or get_user_by_username(name),
            *filter_users_by_email(name, prefer_verified=True, for_login=True),
        ]
    if email := credentials.get("email"):
        users += filter_users_by_email(email, prefer_verified=True, for_login=True)
    return list({user.pk: user for user in users if user is not None}.values())


def name_of(request: HttpRequest, credentials: dict[str, Any] | None) -> str | None:
    """What attempts of one name are counted under: names differ by more than capitals, and fit into a column."""
    name = (credentials or {}).get("username") or request.POST.get("login")
    return None if name is None else str(name).lower()[:255]


class Attempts:
    """How often was tried, by address and by name; counted by single steps of Valkey, since many come at once."""

    def __init__(self, address: str, name: str) -> None:
        who = hashlib.sha256(name.lower().encode()).hexdigest()
        self._minute = f"sign-ins:{address}"
        self._failed = {
            f"failed:a:{address}": settings.ADDRESS_LOGIN_FAILURES,
            f"failed:n:{who}": 10 * settings.LOGIN_FAILURES,
        }
        self._mistakes = f"mistakes:{address}:{who}"

    def begin(self) -> bool:
        """Count an attempt, as a failed one until `succeeded`; False when it is one too many."""
        if _more(self._minute, 60) > MOST_A_MINUTE:
            return False
        counts = [(_more(key, WINDOW_SECONDS), most) for key, most in self._failed.items()]
        if all(count <= most for count, most in counts):
            _more(self._mistakes, WINDOW_SECONDS)
            return True
        self._take_back(1)
        return False

    def succeeded(self) -> None:
        """It was no failure, and mistakes of that name from that address before it were no guesses."""
        self._take_back(min(cache.get(self._mistakes, 1), 1 + MOST_FORGIVEN))
        cache.delete(self._mistakes)

    def _take_back(self, count: int) -> None:
        for key in self._failed:
            with suppress(ValueError):  # its window has ended
                cache.decr(key, count)


def _more(key: str, seconds: int) -> int:
    cache.add(key, 0, seconds)
    try:
        return int(cache.incr(key))
    except ValueError:  # its window ended just now
        return 1
