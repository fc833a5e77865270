"""Text leaves gzipped where the browser takes it; `manage.py up` has no proxy in front that would do it."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

PACKED = ("text/", "application/json")


class PackTextMiddleware(GZipMiddleware):
    """Files as they were sent go out as they are: they are large, and mostly packed already.

    Against BREACH (a page whose length tells of a secret in it): the only secret in pages that also repeat what the
    address says is the CSRF token, which Django masks anew each time, and Django adds noise to the length.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if not response.get("Content-Type", "").startswith(PACKED):
            return response
        return super().process_response(request, response)
