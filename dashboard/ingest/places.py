"""Slow senders hold the threads they are read by: they may have many of a web process, for a while, and never all.

Without a limit a dozen agents behind a slow link, or one host that lost its network in the middle, would leave no
thread for anybody's page.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from dashboard.ingest.errors import ApiError

STALLED_SECONDS = 30.0
"""A sender of whom no byte came for this long is taken for gone."""
WAIT_SECONDS = 0.2
RETRY_SECONDS = 5
_places = threading.BoundedSemaphore(max(1, settings.WEB_THREADS - max(1, settings.WEB_THREADS // 4)))


class StalledSendersMiddleware:
    """Ends the wait for a body that does not come; gunicorn itself would wait for ever."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        connection = _connection(request)
        if connection is None or request.META.get("CONTENT_LENGTH") in (None, "", "0"):
            return self.get_response(request)
        before = connection.gettimeout()
        connection.settimeout(STALLED_SECONDS)
        try:
            return self.get_response(request)
        finally:
            with suppress(OSError):
                connection.settimeout(before)


@contextmanager
def place(request: HttpRequest) -> Iterator[None]:
    """One of the places for requests whose bodies may take long. Raises ApiError 429 when all are taken."""
    if not _places.acquire(timeout=WAIT_SECONDS):
        _stop_reading(request)
        message = "as many uploads as this server can take are under way; try again in a moment"
        raise ApiError(429, "slow_down", message, retry_after=RETRY_SECONDS)
    try:
        yield
    finally:
        _places.release()


def _stop_reading(request: HttpRequest) -> None:
    # Gunicorn reads the rest of a refused body, before it gives the thread back.
    if connection := _connection(request):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RD)


def _connection(request: HttpRequest) -> socket.socket | None:
    """The client's, where gunicorn is the server."""
    found = request.META.get("gunicorn.socket")
    return found if isinstance(found, socket.socket) else None
