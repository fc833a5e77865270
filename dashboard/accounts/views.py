"""Pages on which people make projects, let others in and hand out tokens."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.accounts.access import get_owned_project_or_404, get_project_or_404, role_in, signed_in
from dashboard.accounts.forms import MemberForm, ProjectForm, RetentionForm, SettingsForm, TokenForm
from dashboard.accounts.models import AgentToken, Member, Project, Role


@login_required
@require_http_methods(["GET", "POST"])
def project_new(request: HttpRequest) -> HttpResponse:
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with transaction.atomic():
            project = form.save()
            Member.objects.create(project=project, user=signed_in(request.user), role=Role.OWNER)
        messages.success(request, _("The project is there. Make a token for its first agent."))
        return redirect("accounts:project_settings", project.slug)
    return render(request, "accounts/project_new.html", {"form": form}, status=422 if form.errors else 200)


@login_required
@require_GET
def project_settings(request: HttpRequest, slug: str) -> HttpResponse:
    return _page(request, get_project_or_404(request.user, slug))


@login_required
@require_POST
def project_edit(request: HttpRequest, slug: str) -> HttpResponse:
    project = get_owned_project_or_404(request.user, slug)
    form = SettingsForm(request.POST, instance=project)
    if not form.is_valid():
        return _page(request, get_project_or_404(request.user, slug), settings_form=form)
    form.save()
    messages.success(request, _("Saved."))
    return _back(project)


@login_required
@require_POST
def retention_edit(request: HttpRequest, slug: str) -> HttpResponse:
    project = get_owned_project_or_404(request.user, slug)
    form = RetentionForm(request.POST, instance=project)
    if not form.is_valid():
        return _page(request, get_project_or_404(request.user, slug), retention_form=form)
    form.save_by(signed_in(request.user))
    messages.success(request, _("Saved."))
    return _back(project, "retention")


@login_required
@require_POST
def member_add(request: HttpRequest, slug: str) -> HttpResponse:
    project = get_owned_project_or_404(request.user, slug)
    form = MemberForm(project, request.POST)
    if not form.is_valid():
        return _page(request, project, member_form=form)
    try:
        with transaction.atomic():
            Member.objects.create(project=project, user=form.cleaned_data["person"], role=form.cleaned_data["role"])
    except IntegrityError:
        form.add_error("person", _("This person is a member already."))
        return _page(request, project, member_form=form)
    messages.success(request, _("%(person)s was added.") % {"person": form.cleaned_data["person"]})
    return _back(project, "members")


@login_required
@require_POST
def member_role(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    project = get_owned_project_or_404(request.user, slug)
    role = request.POST.get("role", "")
    with transaction.atomic():
        member = _locked_member(project, member_id)
        if role not in Role.values:
            messages.error(request, _("There is no such role."))
        elif role != Role.OWNER and _is_last_owner(project, member):
            messages.error(request, _("A project keeps at least one owner."))
        else:
            member.role = role
            member.save(update_fields=["role"])
            messages.success(request, _("Saved."))
    return _back(project, "members")


@login_required
@require_POST
def member_remove(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    """Owners remove anyone; everyone may leave."""
    project = get_project_or_404(request.user, slug)
    own = Member.objects.filter(pk=member_id, project=project, user=signed_in(request.user)).exists()
    if not own:
        project = get_owned_project_or_404(request.user, slug)
    with transaction.atomic():
        member = _locked_member(project, member_id)
        if _is_last_owner(project, member):
            messages.error(request, _("A project keeps at least one owner."))
            return _back(project, "members")
        member.delete()
    messages.success(request, _("%(person)s was removed.") % {"person": member.user})
    return redirect("/") if own else _back(project, "members")


@login_required
@require_POST
@never_cache
def token_new(request: HttpRequest, slug: str) -> HttpResponse:
    """Shows the token in the answer itself: it is kept nowhere, so there is nothing to show it from later."""
    project = get_owned_project_or_404(request.user, slug)
    form = TokenForm(request.POST)
    if not form.is_valid():
        return _page(request, project, token_form=form)
    token, text = form.issue(project, signed_in(request.user))
    return _page(request, project, new_token=token, new_token_text=text)


@login_required
@require_POST
def token_revoke(request: HttpRequest, slug: str, token_id: int) -> HttpResponse:
    project = get_owned_project_or_404(request.user, slug)
    token = get_object_or_404(AgentToken, pk=token_id, project=project)
    AgentToken.objects.filter(pk=token.pk, revoked=None).update(revoked=timezone.now())
    messages.success(request, _("The token %(name)s is revoked.") % {"name": token.name})
    return _back(project, "tokens")


def _page(request: HttpRequest, project: Project, **context: Any) -> HttpResponse:
    bound = [form for form in context.values() if getattr(form, "errors", None)]
    page = {
        "project": project,
        "role": role_in(request.user, project),
        "is_owner": role_in(request.user, project) == Role.OWNER,
        "roles": Role.choices,
        "members": project.members.select_related("user").order_by("user__username"),
        "tokens": project.tokens.select_related("created_by"),
        "reference": project.runs.filter(is_reference=True).only("pk", "name").first(),
        "retention": project.retention,
        "retention_form": RetentionForm(instance=project),
        "retention_changes": project.retention_changes.select_related("changed_by")[:10],
        "settings_form": SettingsForm(instance=project),
        "member_form": MemberForm(project),
        "token_form": TokenForm(),
        "site_url": request.build_absolute_uri("/").rstrip("/"),
        **context,
    }
    return render(request, "accounts/project_settings.html", page, status=422 if bound else 200)


def _back(project: Project, part: str = "") -> HttpResponse:
    address = reverse("accounts:project_settings", args=[project.slug])
    return redirect(f"{address}#{part}" if part else address)


def _locked_member(project: Project, member_id: int) -> Member:
    # Two owners who remove each other at once must not both succeed: the project's row is their turnstile.
    Project.objects.select_for_update().get(pk=project.pk)
    return get_object_or_404(Member.objects.select_related("user"), pk=member_id, project=project)


def _is_last_owner(project: Project, member: Member) -> bool:
    owners = project.members.filter(role=Role.OWNER)
    return member.role == Role.OWNER and not owners.exclude(pk=member.pk).exists()
