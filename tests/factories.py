"""One function per model, with defaults for all but what a test is about."""

from __future__ import annotations

import hashlib
from itertools import count
from typing import Any

from dashboard.accounts.models import AgentToken, Member, Project, Role, User
from dashboard.ingest.manifest import FileEntry, manifest_hash
from dashboard.runs.models import Capture, Dump, Run

numbers = count(1)


def make_user(username: str | None = None, **fields: Any) -> User:
    return User.objects.create_user(username or f"user{next(numbers)}", password="correct horse battery", **fields)


def make_project(slug: str | None = None, *, owner: User | None = None, **fields: Any) -> Project:
    slug = slug or f"project{next(numbers)}"
    project = Project.objects.create(slug=slug, name=fields.pop("name", slug), **fields)
    if owner is not None:
        make_member(project, owner, Role.OWNER)
    return project


def make_member(project: Project, user: User, role: str = Role.MEMBER) -> Member:
    return Member.objects.create(project=project, user=user, role=role)


def make_token(project: Project, scopes: tuple[str, ...] = ("upload", "read"), **fields: Any) -> str:
    """The text of a new token."""
    token, text = AgentToken.objects.issue(project, "test", list(scopes))
    AgentToken.objects.filter(pk=token.pk).update(**fields) if fields else None
    return text


def make_run(project: Project | None = None, **fields: Any) -> Run:
    key = fields.pop("key", f"run{next(numbers)}")
    return Run.objects.create(project=project or make_project(), key=key, name=fields.pop("name", key), **fields)


def make_capture(run: Run | None = None, **fields: Any) -> Capture:
    return Capture.objects.create(run=run or make_run(), key=fields.pop("key", f"step-{next(numbers)}"), **fields)


def make_dump(
    capture: Capture | None = None, *, rank: int = 0, contents: dict[str, bytes] | None = None, **fields: Any
) -> Dump:
    """A dump announced with files of these contents; nothing is stored."""
    files = entries(contents if contents is not None else {"ASCEND_PROFILER_OUTPUT/kernel_details.csv": b"x"})
    return Dump.objects.create(
        capture=capture or make_capture(),
        rank=rank,
        files=files,
        files_sha256=manifest_hash(files),
        size_bytes=sum(file["size"] for file in files),
        **fields,
    )


def entries(contents: dict[str, bytes]) -> list[FileEntry]:
    """The manifest of files with these contents."""
    return [
        FileEntry(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in sorted(contents.items())
    ]
