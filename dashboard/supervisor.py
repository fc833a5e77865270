"""Keeps the programs of one machine running: restarts what dies, stops all in order, leaves no one behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dashboard.services import Service

FIRST_WAIT, LONGEST_WAIT, HEALTHY_SECONDS = 0.5, 30.0, 60.0
LOG_BYTES = 20 * 1024**2


class Refused(Exception):
    """Why we cannot start, in one line."""


@dataclass
class Child:
    """A service with when it last started and how long to wait before its next start."""

    service: Service
    started: float = 0.0
    wait: float = FIRST_WAIT
    due: float | None = None

    def keep(self, say: Callable[[str], None]) -> bool:
        """Start it when it has died and its wait is over; True when it was started."""
        now = time.monotonic()
        if self.service.running:
            return False
        if self.due is None:
            self.wait = FIRST_WAIT if now - self.started > HEALTHY_SECONDS else min(self.wait * 2, LONGEST_WAIT)
            self.due = now + self.wait
            say(f"{self.service.name} ended; starting it again in {self.wait:.0f} s. Its log: {self.service.log}")
        if now < self.due:
            return False
        self.started, self.due = now, None
        self.service.stop(0)  # what the dead one left in its process group
        self.service.start()
        return True


class Supervisor:
    """Services in the order they started; they stop in the opposite one."""

    def __init__(self, data: Path, say: Callable[[str], None]) -> None:
        self.children: list[Child] = []
        self.passing: list[Service] = []
        self.pids = data / "up.pids"
        self.say = say

    def add(self, service: Service) -> None:
        """Take over `service`, starting it when it does not run yet."""
        if not service.running:
            trim_log(service.log)
            service.start()
        self.children.append(Child(service, started=time.monotonic()))
        self.note()

    def add_passing(self, service: Service) -> None:
        """Start `service`, which ends by itself."""
        service.start()
        self.passing.append(service)
        self.note()

    def keep(self) -> None:
        """One look at all children."""
        started = [child for child in self.children if child.keep(self.say)]
        if started:
            self.note()

    def stop(self) -> None:
        for service in self.passing:
            service.stop(2)
        for child in reversed(self.children):
            child.service.stop()
        self.pids.unlink(missing_ok=True)

    def note(self) -> None:
        """Write down who runs, so that the next start finds what a killed one left."""
        services = [child.service for child in self.children] + self.passing
        pids = [service.process.pid for service in services if service.process is not None]
        text = json.dumps([[pid, born] for pid in pids if (born := born_at(pid))])
        partial = self.pids.with_suffix(".new")
        partial.write_text(text)
        partial.replace(self.pids)


def born_at(pid: int) -> str | None:
    """When process `pid` started, in the kernel's ticks; None when there is none. Tells a pid from its next user."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    return None


def stop_leftovers(data: Path, seconds: float = 10) -> None:
    """End what an earlier `up` on this folder, killed since, left running."""
    with suppress(OSError, ValueError, TypeError):
        left = [(pid, born) for pid, born in json.loads((data / "up.pids").read_text()) if born_at(pid) == born]
        for pid, _ in left:
            os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(born_at(pid) == born for pid, born in left):
            time.sleep(0.05)
        for pid, born in left:
            if born_at(pid) == born:
                os.killpg(pid, signal.SIGKILL)


@contextmanager
def only_one(data: Path) -> Iterator[None]:
    """Hold the data folder; refuse when another `up` holds it. The kernel lets go when we die."""
    data.mkdir(mode=0o711, parents=True, exist_ok=True)  # PostgreSQL may run as another user and passes through
    with (data / "up.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(f"Stepscope already runs on {data}") from error
        yield


def close_files(data: Path) -> None:
    """Let nobody else read logs and notes in the data folder: those to come, and those an older version left open."""
    os.umask(0o077)
    for path in (*data.glob("*"), *(data / "logs").glob("*")):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)


def check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError as error:
            raise Refused(f"Port {port} needs root. Choose another: PORT=8001 make run") from error
        except OSError as error:
            raise Refused(f"Port {port} on {host} is taken. Choose another: PORT=8001 make run") from error


def trim_log(log: Path) -> None:
    """Put a long log aside as `.1`, so that two of them are the most there is after a start."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))
