"""Makes the first owner, project and token of a new server, once, and writes them down for who started it."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from dashboard.accounts.models import DEMO, AgentToken, Member, Project, Role, Scope, User
from dashboard.env import env_bool

USERNAME = "admin"


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path, help="where to write url, username, password, token and project")

    def handle(self, *args: Any, path: Path, **options: Any) -> None:
        kept = read_access(path)
        write_access(path, {**(kept or new_access()), "url": settings.SITE_URL})


def read_access(path: Path) -> dict[str, Any] | None:
    """What an earlier start wrote, when it is of this database: its token must still be known."""
    try:
        access: dict[str, Any] = json.loads(path.read_text())
        public = str(access["token"]).split("_")[1]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    return access if AgentToken.objects.filter(public=public).exists() else None


@transaction.atomic
def new_access() -> dict[str, Any]:
    user, password = _first_owner()
    slug, name = (DEMO, "Demo") if env_bool("STEPSCOPE_DEMO", True) else ("first-project", "First project")
    project, made = Project.objects.get_or_create(slug=slug, defaults={"name": name})
    if made:
        Member.objects.create(project=project, user=user, role=Role.OWNER)
    _, token = AgentToken.objects.issue(project, "first token", [Scope.UPLOAD, Scope.READ], user)
    return {"url": "", "username": user.username, "password": password, "token": token, "project": project.slug}


def _first_owner() -> tuple[User, str | None]:
    # A password that is lost stays lost (`manage.py changepassword`): deleting a file must not open an account.
    known = User.objects.filter(is_superuser=True).order_by("pk").first()
    if known:
        return known, None
    password = secrets.token_urlsafe(12)
    return User.objects.create_superuser(USERNAME, "", password), password


def write_access(path: Path, access: dict[str, Any]) -> None:
    partial = path.with_name(path.name + ".new")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(access, file, indent=2)
        file.write("\n")
    partial.replace(path)
