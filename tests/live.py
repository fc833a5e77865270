"""The whole product as real processes: PostgreSQL, Valkey, gunicorn, a Celery worker and beat on a folder of their own.

`live_product` is one for the session; tests that kill parts of it start their own with `live()`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dashboard.services import Service, free_port, start_postgres, start_valkey

ROOT = Path(__file__).resolve().parent.parent
PASSWORD = "correct horse battery staple"
T = TypeVar("T")
SET_UP = """
import json, sys, django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
if sys.argv[2] == "pages":
    call_command("collectstatic", verbosity=0, interactive=False)
from dashboard.accounts.models import AgentToken, Member, Project, Role, User
user = User.objects.create_superuser("admin", "admin@example.com", sys.argv[1])
project = Project.objects.create(slug="gpt", name="GPT")
Member.objects.create(project=project, user=user, role=Role.OWNER)
print(AgentToken.objects.issue(project, "live", ["upload", "read"], user)[1])
"""


def wait_for(condition: Callable[[], T], what: str, seconds: float = 60) -> T:
    """The first true value of `condition`; AssertionError naming `what` when none comes in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}")


class LiveProduct:
    """Running processes and what a client needs to talk to them: `url`, `project`, `token`, `username`, `password`."""

    project, username, password = "gpt", "admin", PASSWORD

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.postgres: Service | None = None
        self.valkey: Service | None = None
        self.extra = environment
        self.token = ""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self, *, pages: bool = False) -> LiveProduct:
        """Start everything; with `pages` also gather the static files that HTML pages name (takes a second or two)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data.mkdir(exist_ok=True)
        self.postgres = start_postgres(self.folder)
        self.valkey = start_valkey(self.folder)
        self.token = self.python(SET_UP, self.password, "pages" if pages else "").strip()
        for part in ("web", "worker", "beat"):
            self.start_part(part)
        return self.wait_until_up()

    def wait_until_up(self) -> LiveProduct:
        wait_for(self.is_up, "the web server", 120)
        return self

    def is_up(self) -> bool:
        with suppress(OSError):
            return bool(urllib.request.urlopen(f"{self.url}/healthz", timeout=5).status == 200)
        return False

    def environment(self) -> dict[str, str]:
        assert self.postgres is not None and self.valkey is not None
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.valkey.url,
            "SECRET_KEY": "only-for-tests-" + "x" * 40,
            "STEPSCOPE_DATA": str(self.data),
            "STEPSCOPE_URL": self.url,
            "STEPSCOPE_MIN_FREE_BYTES": "0",
            "STEPSCOPE_JUDGE_AFTER_SECONDS": "0",
            "STEPSCOPE_WEB_THREADS": "4",
            "PYTHONPATH": str(ROOT),
            **self.extra,
        }

    def python(self, code: str, *arguments: str) -> str:
        """Standard output of a program run with the product's settings."""
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], env=self.environment(), cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_part(self, part: str) -> None:
        """Start "web", "worker" or "beat"."""
        celery = [sys.executable, "-m", "celery", "-A", "dashboard.celery"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        commands = {
            "web": [sys.executable, "-m", "gunicorn", "dashboard.wsgi", "--bind", f"127.0.0.1:{self.port}"]
            + ["--workers", "2", "--threads", "4", "--worker-class", "gthread", "--graceful-timeout", "2"],
            "worker": [*celery, "worker", "--concurrency", "2", "--loglevel", "INFO", *quiet],
            "beat": [*celery, "beat", "--loglevel", "INFO", "-s", str(self.folder / "beat-schedule")],
        }
        with (self.folder / f"{part}.log").open("ab") as log:
            self.processes[part] = subprocess.Popen(
                commands[part], env=self.environment(), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, part: str) -> None:
        """kill -9 of a part with all its processes: "web", "worker", "beat", "valkey" or "postgres"."""
        services = {"valkey": self.valkey, "postgres": self.postgres}
        service = services.get(part)
        process = service.process if service else self.processes.pop(part)
        assert process is not None
        # PostgreSQL's children are in groups of their own.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        for child in children if part == "postgres" else ():
            with suppress(ProcessLookupError):
                os.kill(int(child), 9)

    def restart(self, part: str) -> None:
        """Start a killed part again, at the same address, with what it kept."""
        if part == "valkey":
            self.restart_valkey()
        elif part == "postgres":
            self.postgres = start_postgres(self.folder)
        else:
            self.start_part(part)

    def restart_valkey(self) -> None:
        """Start the killed Valkey again, at the same address, with what its file kept."""
        assert self.valkey is not None
        self.valkey = start_valkey(self.folder, int(self.valkey.url.rsplit(":", 1)[1].split("/")[0]))

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
        for service in (self.valkey, self.postgres):
            if service is not None:
                service.stop()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an API call with the token."""
        request = urllib.request.Request(
            f"{self.url}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def logs(self) -> str:
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in self.folder.glob("*.log")
        )


@contextmanager
def live(pages: bool = False, **environment: str) -> Iterator[LiveProduct]:
    """A running product in a folder of its own.

    Not under pytest's: another pytest closes that one to other users, and PostgreSQL runs as one where we are root.
    """
    folder = Path(tempfile.mkdtemp(prefix="stepscope-live-"))
    product = LiveProduct(folder, **environment)
    try:
        yield product.start(pages=pages)
    finally:
        product.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def live_product() -> Iterator[LiveProduct]:
    """A running product, shared by the session's tests: leave it as usable as you found it."""
    with live(pages=True) as product:
        yield product
