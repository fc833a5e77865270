"""Senders that are slow or gone hold a thread for a while, and never all threads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from dashboard.ingest import places
from dashboard.ingest.errors import ApiError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def request_over(connection: socket.socket, body: bytes = b"abc") -> HttpRequest:
    return RequestFactory().post("/", body, content_type="text/plain", **{"gunicorn.socket": connection})


def test_a_body_that_does_not_come_is_not_waited_for_without_end(ends, monkeypatch):
    monkeypatch.setattr(places, "STALLED_SECONDS", 0.05)
    ours, theirs = ends

    def read(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.META["gunicorn.socket"].recv(1))

    theirs.send(b"a")
    assert places.StalledSendersMiddleware(read)(request_over(ours)).content == b"a"
    with pytest.raises(TimeoutError):
        places.StalledSendersMiddleware(read)(request_over(ours))
    assert ours.gettimeout() is None  # as gunicorn had it


def test_a_request_without_a_body_is_left_alone(ends):
    waits = []
    answer = places.StalledSendersMiddleware(
        lambda request: HttpResponse(waits.append(request.META["gunicorn.socket"].gettimeout()) or b"")
    )
    answer(request_over(ends[0], b""))
    assert waits == [None]


def test_when_all_places_are_taken_one_more_is_told_to_wait_and_no_longer_read(ends):
    ours, theirs = ends
    with ExitStack() as taken:
        while places._places._value:
            taken.enter_context(places.place(RequestFactory().post("/")))
        with pytest.raises(ApiError) as refused, places.place(request_over(ours)):
            pass
    assert (refused.value.status, refused.value.code, refused.value.detail) == (429, "slow_down", {"retry_after": 5})
    assert ours.recv(1) == b""
    ours.send(b"told")
    assert theirs.recv(4) == b"told"
    with places.place(request_over(ours)):
        pass


def test_some_threads_are_never_for_bodies(settings):
    assert 0 < places._places._initial_value < settings.WEB_THREADS
