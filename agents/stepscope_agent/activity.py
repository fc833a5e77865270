"""Which trainings are under way below the watched folders, how far they are and how a window can be asked of them."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Sequence

from stepscope_agent.captures import key_of
from stepscope_agent.control import STATUS_NAME
from stepscope_agent.discover import read_json
from stepscope_agent.folders import Folders, name_of

QUIET_S = 120.0
"""A training that gave no sign for so long (or ten steps, when they are longer) is over."""
DYNAMIC_CONFIG = "profiler_config.json"


class Training:
    """One run in hand."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.step: int | None = None
        self.step_time_s: float | None = None
        self.outputs: list[str] = []  # of its callback, where a control file is looked for
        self.statuses: list[dict[str, Any]] = []
        self.dynamic: str | None = None  # the file that DynamicProfilerMonitor looks at

    @property
    def key(self) -> str:
        return key_of(self.run)

    @property
    def via(self) -> str | None:
        """How a window can be had; another profiler makes the callback stand aside."""
        if any(not row.get("off") and not row.get("stranger") for row in self.statuses):
            return "callback"
        return "dynamic" if self.dynamic else None

    def row(self) -> dict[str, Any]:
        told = {"key": self.key, "step": self.step, "via": self.via}
        return {name: value for name, value in told.items() if value is not None}


class Activity:
    """Remembers when each sign changed, by our own clock: file times may be of another host whose clock is wrong."""

    def __init__(self, folders: Folders, run: str | None, clock: Callable[[], float]) -> None:
        self.folders, self.run, self.clock = folders, run, clock
        self._signs: dict[str, tuple[Any, float, bool]] = {}
        self._logs: dict[str, tuple[int, float | None]] = {}
        # Of statuses that are over: the file's sign, and the run that ended.
        self._still: dict[str, tuple[int, str | None]] = {}

    def note_records(self, run: str, records: Sequence[dict[str, Any]]) -> None:
        """What step records of a log or a callback tell."""
        last = max(records, key=lambda record: int(record["step"]))
        of_pace = records if run in self._logs else records[1:]  # the first step compiles
        times = [record["step_time_ms"] for record in of_pace if isinstance(record.get("step_time_ms"), (int, float))]
        typical = sorted(times)[len(times) // 2] / 1e3 if times else self._logs.get(run, (0, None))[1]
        self._logs[run] = (int(last["step"]), typical)

    def trainings(self) -> list[Training]:
        """Those that live, by name."""
        found: dict[str, Training] = {}
        ended: set[str] = set()
        homes = self.folders.homes()
        paths = [(home, os.path.join(home, name)) for home in homes for name in self._statuses(home)]
        for home, path in paths:
            self._add_status(found, ended, home, path)
        for run in list(self._logs):
            if run not in ended or run in found:
                self._add_log(found, run)
        for home in homes:
            config, run = os.path.join(home, DYNAMIC_CONFIG), self._run_of(home)
            if run in found and DYNAMIC_CONFIG in self.folders.ours(home):
                found[run].dynamic = config
        self._forget_all_but({path for _, path in paths})
        return [found[run] for run in sorted(found)]

    def _statuses(self, home: str) -> list[str]:
        return list(filter(STATUS_NAME.match, self.folders.ours(home)))

    def _forget_all_but(self, paths: set[str]) -> None:
        """What is known of statuses that are gone; a host is watched for months."""
        self._still = {path: row for path, row in self._still.items() if path in paths}
        self._signs = {name: row for name, row in self._signs.items() if name in paths or name[4:] in self._logs}

    def _run_of(self, home: str, told: Any = None) -> str:
        return str(self.run or told or name_of(home))

    def _add_log(self, found: dict[str, Training], run: str) -> None:
        step, seconds = self._logs[run]
        if not self._lives("log:" + run, step, seconds, time.time()):
            del self._logs[run]  # records that come again make it live again
            return
        training = found.setdefault(run, Training(run))
        training.step = max(step, training.step or 0)
        training.step_time_s = training.step_time_s or seconds

    def _add_status(self, found: dict[str, Training], ended: set[str], home: str, path: str) -> None:
        """What a callback's status tells. One that is over is not read again before it changes."""
        sign, over = _sign(path), self._still.get(path)
        if over is None or over[0] != sign:
            self._still.pop(path, None)
            row = read_json(path)
            run = self._run_of(home, row.get("run"))
            if self._add_living(found, home, path, row, run):
                return
            over = self._still[path] = sign, run if row.get("ended") else None
        if over[1] is not None:
            ended.add(over[1])

    def _add_living(self, found: dict[str, Training], home: str, path: str, row: dict[str, Any], run: str) -> bool:
        step, seconds = row.get("step"), row.get("step_time_ms")
        seconds = seconds / 1e3 if isinstance(seconds, (int, float)) else None
        if row.get("ended") or type(step) is not int:
            self._signs.pop(path, None)
            return False
        if not self._lives(path, (row.get("pid"), step), seconds, _mtime(path)):
            return False
        training = found.setdefault(run, Training(run))
        training.statuses.append(row)
        training.step = max(step, training.step or 0)
        training.step_time_s = max(seconds or 0.0, training.step_time_s or 0.0) or None
        if home not in training.outputs:
            training.outputs.append(home)
        return True

    def _lives(self, name: str, sign: Any, step_time_s: float | None, written: float) -> bool:
        known = self._signs.get(name)
        if known is None:
            self._signs[name] = (sign, self.clock(), abs(time.time() - written) < QUIET_S)
        elif known[0] != sign:
            self._signs[name] = (sign, self.clock(), True)
        _, since, moved = self._signs[name]
        return moved and self.clock() - since < max(QUIET_S, 10.0 * (step_time_s or 0.0))


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _sign(path: str) -> int:
    try:
        stat = os.stat(path)
    except OSError:
        return 0
    return hash((stat.st_mtime_ns, stat.st_ino, stat.st_size))
