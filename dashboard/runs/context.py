"""What every page's frame shows: projects to switch to, open alerts, the theme. Queried only by pages that draw it."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, FilteredRelation, Q
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import SimpleLazyObject

from dashboard.accounts.models import Project, User

THEMES = ("light", "dark")
MAX_PROJECTS = 200


def shell(request: HttpRequest) -> dict[str, Any]:
    theme = request.COOKIES.get("theme", "")
    match = request.resolver_match
    frame: dict[str, Any] = {
        "shell_theme": theme if theme in THEMES else "",
        "shell_page": match.url_name if match else "",
        "search_text": request.GET.get("q", "") if match and match.url_name == "search" else "",
    }
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return frame
    projects: Any = SimpleLazyObject(lambda: visible_projects(user))
    frame["shell_projects"] = projects
    frame["shell_project"] = SimpleLazyObject(lambda: _current(request, projects))
    frame["shell_alerts"] = SimpleLazyObject(lambda: sum(project.open_alerts for project in projects))
    frame["shell_links"] = Links(frame)
    return frame


def visible_projects(user: User) -> list[Any]:
    """The person's projects, each with how many alerts are open."""
    # A condition on the join: past alerts, of which there are many, are not read.
    opened = FilteredRelation("alerts", condition=Q(alerts__state="open"))
    projects = Project.objects.visible_to(user).annotate(opened=opened).annotate(open_alerts=Count("opened"))
    return list(projects[:MAX_PROJECTS])


def _current(request: HttpRequest, projects: list[Any]) -> Project | None:
    """The project a page is about: named by the view, or by its address, or the only one there is."""
    named: Project | None = getattr(request, "shell_project", None)
    if named is not None:
        return named
    match = request.resolver_match
    if match and (slug := match.kwargs.get("slug")):
        return next((project for project in projects if project.slug == slug), None)
    return projects[0] if len(projects) == 1 else None


class Links:
    """Addresses of pages that other apps serve; None for one that is not installed."""

    def __init__(self, frame: dict[str, Any]) -> None:
        self.frame = frame

    def __getitem__(self, name: str) -> str | None:
        target, with_project = LINKS[name]
        project = self.frame["shell_project"]
        if with_project and not project:
            return None
        try:
            return reverse(target, args=[project.slug] if with_project else [])
        except NoReverseMatch:
            return None


LINKS = {
    "alerts": ("alerts:inbox", False),
    "project_new": ("accounts:project_new", False),
    "upload": ("ingest:browser_upload", True),
    "project_settings": ("accounts:project_settings", True),
}
