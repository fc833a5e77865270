"""One address for MCP clients: POST a message, get its reply as JSON. Tokens as everywhere in the API."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from dashboard.accounts.models import Scope
from dashboard.ingest.auth import identify
from dashboard.ingest.errors import ApiError, error_response
from dashboard.mcp import protocol

MOST_BYTES = 1 << 20


@csrf_exempt  # the session cookie does not count here: `identify` wants a token
@require_POST
def mcp(request: HttpRequest) -> HttpResponse:
    """Answers 401 and 403 as the API does, 202 without a body to notifications."""
    try:
        if "Authorization" not in request.headers:
            raise ApiError(401, "bad_token", "send `Authorization: Bearer TOKEN` with a live token")
        caller = identify(request)
        caller.check_scope(Scope.READ)
        message = _message(request)
    except ApiError as error:
        return error_response(error)
    except ValueError:
        return JsonResponse(protocol.failure(None, protocol.PARSE, "the body is not JSON"), status=400)
    reply = protocol.answer(caller, message)
    if reply is None:
        return HttpResponse(status=202)
    return JsonResponse(reply, status=400 if reply.get("id") is None else 200)


def _message(request: HttpRequest) -> Any:
    if int(request.headers.get("Content-Length") or 0) > MOST_BYTES:
        raise ApiError(413, "body_too_large", "a message may have 1 MiB", limit=MOST_BYTES)
    try:
        return json.loads(request.body)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
