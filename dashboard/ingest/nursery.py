"""This process's `analysis.nursery`: children for digests that need no second for their imports."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

START_SECONDS = 60.0


def ends_with(parent: int) -> Callable[[], None]:
    """For preexec_fn: a process that is killed takes its child along."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def apply() -> None:
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return apply


class Child:
    """A forked child, with the part of subprocess.Popen that a digest needs."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.nursery, self.pid = nursery, pid
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            answer = self.nursery.answer(timeout)
            # A nursery that is gone was killed, and its child with it.
            self.returncode = -signal.SIGKILL if answer is None else int(answer["code"])
        return self.returncode

    def kill(self) -> None:
        """End it and what it started, unless it has ended."""
        if self.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self.nursery.stop()


class Nursery:
    """A running nursery. It ends with the process that started it."""

    def __init__(self, command: list[str], cwd: Path, env: Mapping[str, str], preexec: Callable[[], None]) -> None:
        self.owner, self.cwd = os.getpid(), cwd
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=env,
            bufsize=0,
            start_new_session=True,
            preexec_fn=preexec,
        )
        self.ready = bool((self.answer(START_SECONDS) or {}).get("ready"))

    @property
    def usable(self) -> bool:
        """Not one that this process inherited by a fork, and alive."""
        return self.ready and self.owner == os.getpid() and self.process.poll() is None

    def start(self, order: Mapping[str, Any]) -> Child | None:
        """A child that carries out the order; None when the nursery is gone."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            if answer := self.answer(START_SECONDS):
                return Child(self, int(answer["pid"]))
        self.stop()
        return None

    def answer(self, timeout: float) -> dict[str, Any] | None:
        """The next line; None when it is gone. Raises subprocess.TimeoutExpired."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("nursery", timeout)
        line = self.process.stdout.readline()
        try:
            return dict(json.loads(line)) if line else None
        except ValueError:
            return None

    def stop(self) -> None:
        self.ready = False
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
