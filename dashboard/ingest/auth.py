"""Who calls, and what they may do: an agent's token, or a signed-in person with the session cookie."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja.utils import check_csrf

from dashboard.accounts.models import AgentToken, Member, Project, Role, Scope, User
from dashboard.ingest import limits
from dashboard.ingest.errors import ApiError, NotFound, check_protocol
from dashboard.runs.models import Capture, Dump, Run

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
BULKY = ("entry", "source", "capture__report", "capture__run__config_text", "capture__run__meta")
"""Of a dump, up to megabytes that no call about its bytes needs."""
ROLES_THAT_SEND = (Role.OWNER, Role.MEMBER)


@dataclass(frozen=True)
class Caller:
    """One of the two is set. Every look-up starts from what this caller can reach."""

    token: AgentToken | None = None
    user: User | None = None

    def projects(self) -> QuerySet[Project]:
        if self.token is not None:
            return Project.objects.filter(pk=self.token.project_id)
        assert self.user is not None
        return Project.objects.visible_to(self.user)

    def runs(self) -> QuerySet[Run]:
        return Run.objects.filter(project__in=self.projects()).select_related("project")

    def captures(self) -> QuerySet[Capture]:
        return Capture.objects.filter(run__project__in=self.projects()).select_related("run__project")

    def dumps(self) -> QuerySet[Dump]:
        dumps = Dump.objects.filter(capture__run__project__in=self.projects())
        return dumps.select_related("capture__run__project").defer(*BULKY)

    def check_scope(self, scope: str) -> None:
        """Raise when the token lacks `scope`. A person's rights depend on the project: `check_role`."""
        if self.token is not None and scope not in self.token.scopes:
            raise ApiError(403, "scope", f"this token lacks the scope {scope}", scope=str(scope))

    def check_role(self, project: Project) -> None:
        """Raise when a signed-in person may look at `project` but not change it."""
        if self.user is None or self.user.is_superuser:
            return
        if not Member.objects.filter(project=project, user=self.user, role__in=ROLES_THAT_SEND).exists():
            raise ApiError(403, "scope", "viewers cannot send or change anything in this project", scope=Scope.UPLOAD)


def identify(request: HttpRequest) -> Caller:
    """The caller, or an ApiError: wrong protocol version, no or a bad token, too many calls, a forged form."""
    check_protocol(request)
    caller = _by_token(request) or _by_session(request)
    if caller is None:
        raise ApiError(401, "bad_token", "send `Authorization: Bearer TOKEN` with a live token")
    limits.count_call(f"t{caller.token.pk}" if caller.token else f"u{caller.user.pk if caller.user else 0}")
    return caller


def _by_token(request: HttpRequest) -> Caller | None:
    header = request.headers.get("Authorization")
    if header is None:
        return None
    kind, _, text = header.partition(" ")
    token = AgentToken.objects.find(text.strip()) if kind.lower() == "bearer" and "\0" not in text else None
    if token is None:
        raise ApiError(401, "bad_token", "the token is unknown, expired or revoked")
    token.touch()
    return Caller(token=token)


def _by_session(request: HttpRequest) -> Caller | None:
    user = request.user
    if not isinstance(user, User) or not user.is_active:
        return None
    if request.method not in SAFE_METHODS and check_csrf(request) is not None:
        raise ApiError(403, "csrf", "the X-CSRFToken header is missing or wrong; load the page again")
    return Caller(user=user)


def find_project(caller: Caller, slug: str) -> Project:
    project = caller.projects().filter(slug=slug).first()
    if project is None:
        raise NotFound("project")
    return project


def find_run(caller: Caller, run_id: int) -> Run:
    run = caller.runs().filter(pk=run_id).first()
    if run is None:
        raise NotFound("run")
    return run


def find_capture(caller: Caller, capture_id: int) -> Capture:
    capture = caller.captures().filter(pk=capture_id).first()
    if capture is None:
        raise NotFound("capture")
    return capture


def find_dump(caller: Caller, dump_id: int) -> Dump:
    dump = caller.dumps().filter(pk=dump_id).first()
    if dump is None:
        raise NotFound("dump")
    return dump
