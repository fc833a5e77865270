"""A person's own page: how they sign in, and where they are signed in."""

from __future__ import annotations

from allauth.socialaccount.providers.openid_connect import views as openid_connect
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import signed_in
from dashboard.accounts.models import Member


@login_required
@require_GET
def account(request: HttpRequest) -> HttpResponse:
    user = signed_in(request.user)
    context = {
        "memberships": Member.objects.filter(user=user).select_related("project").order_by("project__name"),
        "sessions": UserSession.objects.purge_and_list(user),
        "sso": settings.OIDC_APP["name"] if settings.OIDC_ISSUER else "",
    }
    return render(request, "accounts/account.html", context)


@login_required
@require_POST
def end_sessions(request: HttpRequest) -> HttpResponse:
    """Sign out everywhere but here."""
    others = UserSession.objects.filter(user=signed_in(request.user)).exclude(session_key=request.session.session_key)
    for session in others:
        session.end()
    messages.success(request, _("You are signed out everywhere else."))
    return redirect("accounts:account")


@never_cache
def sso_login(request: HttpRequest, provider_id: str) -> HttpResponse:
    """On to the sign-on service, by a page that leads there.

    Browsers hold the whole chain of redirects after a form against the page's policy, which lets forms go nowhere else.
    """
    response: HttpResponse = openid_connect.login(request, provider_id)
    if not isinstance(response, HttpResponseRedirect) or response.url.startswith("/"):
        return response
    return render(request, "account/onward.html", {"url": response.url})
