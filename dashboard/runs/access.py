"""Who may see what. A thing that someone may not see looks like one that is not there: 404."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404

from dashboard.accounts.access import Viewer, get_project_or_404, require_role, role_in, signed_in
from dashboard.accounts.models import Role
from dashboard.runs.models import Capture, Dump, Run

__all__ = [
    "CHANGERS", "Viewer", "get_capture_or_404", "get_dump_or_404", "get_project_or_404", "get_run_or_404",
    "require_role", "role_in", "signed_in", "swept_is_404", "visible_runs",
]  # fmt: skip
CHANGERS = (Role.OWNER, Role.MEMBER)
Params = ParamSpec("Params")
Answer = TypeVar("Answer")


def swept_is_404(
    view: Callable[Concatenate[HttpRequest, Params], Answer],
) -> Callable[Concatenate[HttpRequest, Params], Answer]:
    """For views that read kept files: a sweep may take them away between the look for them and the reading."""

    @wraps(view)
    def answer(request: HttpRequest, /, *args: Params.args, **kwargs: Params.kwargs) -> Answer:
        try:
            return view(request, *args, **kwargs)
        except FileNotFoundError as error:
            raise Http404 from error

    return answer


def get_run_or_404(user: Viewer, run_id: int) -> Run:
    """The run with its project."""
    return get_object_or_404(visible_runs(user), pk=run_id)


def visible_runs(user: Viewer) -> QuerySet[Run]:
    """Runs that the person may see, each with its project."""
    return Run.objects.visible_to(signed_in(user)).select_related("project")


def get_capture_or_404(user: Viewer, capture_id: int) -> Capture:
    """The capture with its run and project."""
    captures = Capture.objects.visible_to(signed_in(user)).select_related("run__project")
    return get_object_or_404(captures, pk=capture_id)


def get_dump_or_404(user: Viewer, capture_id: int, rank: int) -> Dump:
    """One rank's dump with its capture, run and project."""
    visible = Capture.objects.visible_to(signed_in(user))
    dumps = Dump.objects.filter(capture__in=visible).select_related("capture__run__project")
    return get_object_or_404(dumps, capture_id=capture_id, rank=rank)
