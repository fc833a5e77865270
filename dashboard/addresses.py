"""Addresses that can name nothing: PostgreSQL holds no NUL, so a page that looked one up would break."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse

OWN_ANSWERS = "/api/v1/"
"""The API refuses them itself, in its own shape."""


class RefuseNulMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        holds_nul = "\0" in request.path_info or "%00" in request.META.get("QUERY_STRING", "")
        if holds_nul and not request.path_info.startswith(OWN_ANSWERS):
            raise BadRequest("the address holds a NUL character")
        return self.get_response(request)
