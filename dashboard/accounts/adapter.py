"""Who may sign up and sign in: nobody new, unless the operator says so."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.core.internal.ratelimit import get_ip
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest
from django.shortcuts import render
from django.utils.translation import gettext as _

from dashboard.accounts import sign_in
from dashboard.accounts.models import User


def client_ip(request: HttpRequest) -> str | None:
    """Who calls: the address that the proxy in front names, where there is one (STEPSCOPE_BEHIND_PROXY)."""
    # The proxy writes the last entry; what stands before it is what the caller claims.
    forwarded = request.headers.get("X-Forwarded-For", "") if settings.BEHIND_PROXY else ""
    return forwarded.rpartition(",")[2].strip() or request.META.get("REMOTE_ADDR") or None


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return bool(settings.STEPSCOPE_SIGNUP)

    def get_client_ip(self, request: HttpRequest) -> str:
        found = client_ip(request)
        if found is None:
            raise PermissionDenied("this connection has no address")
        return found

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        """Whose name and password these are. What somebody mistyped before counts no longer: an office that shares an
        address must not be locked out by all who come on a Monday."""
        attempts = sign_in.Attempts(get_ip(request), credentials.get("username") or "")
        if not attempts.begin():
            raise self.validation_error("too_many_login_attempts")
        user: User | None = super().authenticate(request, **credentials)
        if user is not None:
            attempts.succeeded()
        return user

    def clean_email(self, email: str) -> str:
        """With STEPSCOPE_SIGNUP_DOMAINS, an address of one of them; that it is theirs is verified by a message."""
        email = str(super().clean_email(email))
        if settings.STEPSCOPE_SIGNUP and settings.SIGNUP_DOMAINS and domain_of(email) not in settings.SIGNUP_DOMAINS:
            allowed = ", ".join(settings.SIGNUP_DOMAINS)
            raise ValidationError(_("Accounts here are for addresses at %(domains)s.") % {"domains": allowed})
        return email


class SocialAccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        # Who the provider knows and the operator's rules let in gets an account: see pre_social_login.
        return True

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """At each sign-in: who has left the group or the domain stays out."""
        claims = sociallogin.account.extra_data
        problem = refusal({**claims, **(claims.get("userinfo") or {}), **(claims.get("id_token") or {})})
        if problem:
            raise ImmediateHttpResponse(render(request, "account/refused.html", {"problem": problem}, status=403))


def domain_of(email: str) -> str:
    return email.rpartition("@")[2].lower()


def refusal(claims: dict[str, Any]) -> str | None:
    """Why someone with these claims may not come in; None when they may."""
    if settings.OIDC_DOMAINS:
        email = str(claims.get("email") or "")
        if claims.get("email_verified") is not True or domain_of(email) not in settings.OIDC_DOMAINS:
            return _("This needs a verified e-mail address at %(domains)s.") % {
                "domains": ", ".join(settings.OIDC_DOMAINS)
            }
    groups = claims.get(settings.OIDC_GROUPS_CLAIM)
    member_of = set(map(str, groups)) if isinstance(groups, list) else set()
    if settings.OIDC_GROUPS and not member_of & set(settings.OIDC_GROUPS):
        return _("Your account at the sign-on service is in none of the groups that may use this server.")
    return None
