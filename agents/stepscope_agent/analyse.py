"""Raw dumps into tables, on the host that made them: a process of its own, of lowest priority, one at a time.

Elsewhere it would lose the framework's events, so the server never does it. Raw data stay whatever comes of it.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from stepscope_agent.discover import MARKER, MSPROF_OUTPUT, OUTPUT, FoundDump, analysis_command, read_json
from stepscope_agent.errors import AgentError
from stepscope_agent.manifest import write_json

LOWEST_NICE = 19
LOG_TAIL = 2000
LOOK_S = 0.2
LONGEST_START_S = 60.0


def what_is_missing(python: str) -> str | None:
    """Why this Python can analyse nothing; None when it can. Raises AgentError where there is none."""
    import subprocess  # of watching agents only those that analyse need its memory

    look = "import importlib.util as u, sys; sys.exit(not any(map(u.find_spec, ('mindspore', 'torch_npu'))))"
    try:
        found = subprocess.call([python, "-c", look], stdin=subprocess.DEVNULL, timeout=LONGEST_START_S) == 0
    except (OSError, subprocess.SubprocessError) as exc:
        raise AgentError("--python %s cannot be run: %s" % (python, exc)) from exc
    return None if found else "%s has neither MindSpore nor torch_npu: name a Python that has with --python" % python


class Analysis:
    """One dump being analysed."""

    def __init__(self, dump: FoundDump, python: str, limit_s: float, log: str) -> None:
        self.dump = dump
        self.limit_s = limit_s
        self.log = log
        self.began = time.monotonic()
        os.makedirs(os.path.dirname(log) or ".", exist_ok=True)
        import subprocess  # of watching agents only those that analyse need its memory

        with open(log, "wb") as stream:
            self.process = subprocess.Popen(
                analysis_command(dump, python),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=_lowest,
                start_new_session=True,
            )

    def ended(self) -> bool:
        """Whether it is over; past its time it is ended."""
        if self.process.poll() is not None:
            return True
        if time.monotonic() - self.began > self.limit_s:
            self.stop()
            return True
        return False

    def wait(self) -> None:
        while not self.ended():
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """Ends it with the processes it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait()

    def conclude(self) -> str | None:
        """Marks the dump complete or failed; the reason when it failed."""
        reason = self._failure()
        marker: dict[str, Any] = read_json(os.path.join(self.dump.root, MARKER)) or {"schema": 1}
        marker.update(state="failed" if reason else "complete", reason=reason)
        marker["written_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            write_json(os.path.join(self.dump.root, MARKER), marker)
        except OSError as exc:
            return reason or "the marker cannot be written: %s" % exc.strerror
        return reason

    def _failure(self) -> str | None:
        if self.process.returncode == -signal.SIGKILL:
            return "the analysis was ended after %.0f s; the raw data are kept" % (time.monotonic() - self.began)
        tables = any(_filled(os.path.join(self.dump.root, name)) for name in (OUTPUT, MSPROF_OUTPUT))
        return None if tables and self.process.returncode == 0 else self._said()

    def _said(self) -> str:
        try:
            with open(self.log, "rb") as stream:
                lines = stream.read()[-LOG_TAIL:].decode("utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return "the analysis left no table (exit code %s): %s" % (self.process.returncode, lines[-1] if lines else "")


def _filled(folder: str) -> bool:
    try:
        return bool(os.listdir(folder))
    except OSError:
        return False


def _lowest() -> None:
    try:
        os.nice(LOWEST_NICE)
    except OSError:
        pass
