"""Who may see and change a project. What someone may not see looks like what is not there: 404."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Member, Project, Role, User

Viewer = User | AnonymousUser


def signed_in(user: Viewer) -> User:
    """The person behind a request; 404 for nobody, so that a view that forgot its decorator leaks nothing."""
    if not isinstance(user, User) or not user.is_active:
        raise Http404
    return user


def get_project_or_404(user: Viewer, slug: str) -> Project:
    return get_object_or_404(Project.objects.visible_to(signed_in(user)), slug=slug)


def role_in(user: Viewer, project: Project) -> str | None:
    """The person's role in the project; a superuser owns all of them."""
    person = signed_in(user)
    if person.is_superuser:
        return Role.OWNER
    return Member.objects.filter(project=project, user=person).values_list("role", flat=True).first()


def require_role(user: Viewer, project: Project, *roles: str) -> None:
    """404 for a stranger, 403 for a member whose role is none of `roles`."""
    role = role_in(user, project)
    if role is None:
        raise Http404
    if role not in roles:
        raise PermissionDenied


def get_owned_project_or_404(user: Viewer, slug: str) -> Project:
    """The project, for its owners: 404 for a stranger, 403 for its other members."""
    project = get_project_or_404(user, slug)
    require_role(user, project, Role.OWNER)
    return project
