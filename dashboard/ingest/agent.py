"""The agent as one file, for training hosts: they get it from the server they will send to."""

from __future__ import annotations

import hashlib
import runpy
from functools import lru_cache

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import condition, require_safe

NAME = "stepscope-agent.pyz"


@lru_cache(maxsize=1)
def agent_archive() -> bytes:
    """The bytes of stepscope-agent.pyz, made of this server's own sources once a process. Raises FileNotFoundError."""
    archive: bytes = runpy.run_path(str(settings.BASE_DIR / "agents" / "build.py"))["archive"]()
    return archive


def _tag(request: HttpRequest) -> str | None:
    try:
        return f'"{hashlib.sha256(agent_archive()).hexdigest()}"'
    except FileNotFoundError:
        return None


@require_safe
@condition(etag_func=_tag)
def agent_pyz(request: HttpRequest) -> HttpResponse:
    """For anybody who reaches the server: the file is the product's own code and holds no address, name or secret.

    A training host then needs a token for sending only, and none on the command line that fetches the agent.
    """
    try:
        archive = agent_archive()
    except FileNotFoundError as error:
        raise Http404 from error
    response = HttpResponse(archive, content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{NAME}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response
