"""`manage.py up` as a process of its own, the way `make run` starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 120
PROCESSES = ("postgres", "valkey", "digester", "worker", "beat", "web")


class Up:
    """One `manage.py up` on a data folder."""

    def __init__(self, data: Path, port: int, **more: str) -> None:
        given = {
            "STEPSCOPE_DATA": str(data),
            "PORT": str(port),
            "STEPSCOPE_DEMO": "0",
            "STEPSCOPE_WORKERS": "1",
            **more,
        }
        kept = {name: text for name, text in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
        self.data, self.url, self.output = data, f"http://127.0.0.1:{port}", ""
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "up"],
            cwd=ROOT,
            env={**kept, **given},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + DEADLINE
        while text not in self.output:
            line = self.process.stdout.readline()
            self.output += line
            assert line and time.monotonic() < deadline, f"no {text!r} in:\n{self.output}"

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        self.output += self.process.communicate(timeout=DEADLINE)[0]
        return self.process.returncode

    def access(self) -> dict[str, str]:
        return dict(json.loads((self.data / "access.json").read_text()))

    def children(self) -> list[int]:
        return [pid for pid, _born in json.loads((self.data / "up.pids").read_text())]


@pytest.fixture
def data() -> Iterator[Path]:
    # Not pytest's folder: under root PostgreSQL runs as another user, who cannot pass through that.
    folder = Path(tempfile.mkdtemp(prefix="stepscope-up-"))
    folder.chmod(0o711)
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(data: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def make(port: int | None = None, **more: str) -> Up:
        started.append(Up(data, port or free_port(), **more))
        return started[-1]

    yield make
    for up in started:
        if up.process.poll() is None:
            up.end(signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str, token: str = "") -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def poll(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_comes_up_keeps_its_data_and_leaves_nobody_behind(start):
    up = start()
    up.wait_for("Ctrl-C stops it")
    access = up.access()
    assert set(access) == {"url", "username", "password", "token", "project"}
    assert access["url"] == up.url and access["token"] in up.output and access["password"] in up.output
    assert stat.S_IMODE((up.data / "access.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((up.data / "secret.key").stat().st_mode) == 0o600
    assert get(f"{up.url}/accounts/login/")[0] == 200
    assert get(f"{up.url}/api/v1/runs?project={access['project']}", access["token"])[0] == 200
    assert get(f"{up.url}/api/v1/runs?project={access['project']}", "sst_no_token")[0] == 401
    children = up.children()
    assert len(children) == len(PROCESSES)
    assert up.end() == 0
    assert [pid for pid in children if alive(pid)] == []

    again = start()
    again.wait_for("Ctrl-C stops it")
    assert again.access() == {**access, "url": again.url}
    assert get(f"{again.url}/api/v1/runs?project={access['project']}", access["token"])[0] == 200
    assert again.end(signal.SIGTERM) == 0


def test_a_dead_child_is_started_again_and_a_killed_parent_leaves_nothing_that_matters(start):
    up = start()
    up.wait_for("Ctrl-C stops it")
    before = up.children()
    web = before[PROCESSES.index("web")]
    os.kill(web, signal.SIGKILL)
    up.wait_for("web ended")
    poll(lambda: up.children()[PROCESSES.index("web")] != web and healthy(up))
    children = up.children()
    assert children[:2] == before[:2]
    assert up.end(signal.SIGKILL) != 0

    again = start(port=int(up.url.rsplit(":", 1)[1]))
    again.wait_for("Ctrl-C stops it")
    assert [pid for pid in children if alive(pid)] == []
    assert again.access() == up.access()
    assert again.end() == 0


def healthy(up: Up) -> bool:
    try:
        return get(f"{up.url}/healthz")[0] == 200
    except OSError:
        return False


def test_a_taken_port_is_said_before_anything_starts(start, data):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        up = start(port=taken.getsockname()[1])
        assert up.process.wait(DEADLINE) == 1
    said = up.process.stdout.read().strip().splitlines()
    assert len(said) == 1 and f"Port {up.url.rsplit(':', 1)[1]} on 127.0.0.1 is taken" in said[0]
    assert not (data / "pgdata").exists()


@pytest.mark.parametrize("port", ["0", "70000", "http", ""])
def test_a_port_that_is_none_is_said(start, port):
    up = start(PORT=port)
    assert up.process.wait(DEADLINE) == 1
    assert up.process.stdout.read().strip().endswith(f"not {port!r}")


def test_a_second_start_on_the_same_folder_is_refused(start):
    up = start()
    up.wait_for("Ctrl-C stops it")
    second = start()
    assert second.process.wait(DEADLINE) == 1
    assert "already runs on" in second.process.stdout.read()
    assert healthy(up)
    assert up.end() == 0


def test_ctrl_c_during_the_start_stops_what_has_started(start, data):
    up = start()
    poll(lambda: (data / "up.pids").exists() or up.process.poll() is not None)
    assert up.end() == 0
    assert not (data / "up.pids").exists()
    assert not (data / "pgdata" / "postmaster.pid").exists()
