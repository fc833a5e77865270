"""Captures of a hand-made series, and a real HTTP server that takes notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dashboard.accounts.models import Member, Project, Role, User
from dashboard.alerts.evaluate import evaluate
from dashboard.alerts.models import Alert, Channel, Delivery
from dashboard.runs.models import Capture, CaptureState, Run
from tests.factories import make_dump

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="gpt", name="GPT")


@pytest.fixture
def member(project) -> User:
    user = User.objects.create_user("mia")
    Member.objects.create(project=project, user=user, role=Role.MEMBER)
    return user


@pytest.fixture
def owner(project) -> User:
    user = User.objects.create_user("olga")
    Member.objects.create(project=project, user=user, role=Role.OWNER)
    return user


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent in `got`; `answers` holds the statuses it gives first, `answering` is cleared to keep
    senders waiting."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[Any] = []
        self.answers: list[int] = []
        self.location = ""
        self.answering = threading.Event()
        self.answering.set()
        self.url = f"json://127.0.0.1:{self.server_port}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(json.loads(body))
        self.server.answering.wait(60)
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def notice_server() -> Iterator[Receiver]:
    """A real HTTP server on loopback."""
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    """A server for notices, which may go to loopback for this test."""
    settings.NOTICE_LOOPBACK_ALLOWED = True
    with notice_server() as server:
        yield server


def capture(project: Project, day: int, run: str = "run", steps_us: tuple[float, ...] = (), **fields: Any) -> Capture:
    """A ready capture of `day`, comparable with the others unless told otherwise; its one rank has these steps."""
    row, _ = Run.objects.get_or_create(project=project, key=run, defaults={"name": run})
    values = {"world_size": 8, "config_fingerprint": "7b", "peak_tflops": 353.9, "peak_dtype": "bf16", **fields}
    values.setdefault("state", CaptureState.READY)
    made = Capture.objects.create(run=row, key=f"step-{day}", captured_at=START + timedelta(days=day), **values)
    if steps_us:
        make_dump(made, entry={"rank": 0, "steps": [{"step_time_us": time, "free_us": 0.0} for time in steps_us]})
    return made


def look(one: Capture) -> list[Alert]:
    return evaluate(one, lambda delivery_id: None)


def series(project: Project, **values: list[float]) -> list[list[str]]:
    """Evaluates one capture per value in turn; what each raised."""
    (name, numbers), found = next(iter(values.items())), []
    for day, number in enumerate(numbers):
        found.append([alert.metric for alert in look(capture(project, day, run=f"run-{day}", **{name: number}))])
    return found


def make_delivery(channel: Channel, *alerts: Alert, **fields: Any) -> Delivery:
    made = Delivery.objects.create(channel=channel, **fields)
    made.alerts.set(alerts)
    return made
