"""Which trainings are under way below the watched folders, how far they are and how a window can be asked of them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from stepscope_agent.captures import key_of
from stepscope_agent.control import STATUS_NAME
from stepscope_agent.discover import read_json
from stepscope_agent.folders import Folders, name_of

QUIET_S = 120.0
"""A training that gave no sign for so long (or ten steps, when they are longer) is over."""
DYNAMIC_CONFIG = "profiler_config.json"


@dataclass
class Training:
    """One run in hand."""

    run: str
    step: int | None = None
    step_time_s: float | None = None
    outputs: list[str] = field(default_factory=list)  # of its callback, where a control file is looked for
    statuses: list[dict[str, Any]] = field(default_factory=list)
    dynamic: str | None = None  # the file that DynamicProfilerMonitor looks at

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

    def note_records(self, run: str, records: Sequence[dict[str, Any]]) -> None:
        """What step records of a log or a callback tell."""
        last = max(records, key=lambda record: int(record["step"]))
        times = [record["step_time_ms"] for record in records if isinstance(record.get("step_time_ms"), (int, float))]
        typical = sorted(times)[len(times) // 2] / 1e3 if times else self._logs.get(run, (0, None))[1]
        self._logs[run] = (int(last["step"]), typical)

    def trainings(self) -> list[Training]:
        """Those that live, by name."""
        found: dict[str, Training] = {}
        ended: set[str] = set()
        for home in self.folders.homes():
            self._add_callback(found, ended, home)
        for run, (step, seconds) in self._logs.items():
            if (run in ended and run not in found) or not self._lives("log:" + run, step, seconds, time.time()):
                continue
            training = found.setdefault(run, Training(run))
            training.step = max(step, training.step or 0)
            training.step_time_s = training.step_time_s or seconds
        for home in self.folders.homes():
            config, run = os.path.join(home, DYNAMIC_CONFIG), self._run_of(home)
            if run in found and DYNAMIC_CONFIG in self.folders.listed(home)[0]:
                found[run].dynamic = config
        return [found[run] for run in sorted(found)]

    def _run_of(self, home: str, told: Any = None) -> str:
        return str(self.run or told or name_of(home))

    def _add_callback(self, found: dict[str, Training], ended: set[str], home: str) -> None:
        for name in filter(STATUS_NAME.match, self.folders.listed(home)[0]):
            path = os.path.join(home, name)
            row = read_json(path)
            step, seconds = row.get("step"), row.get("step_time_ms")
            seconds = seconds / 1e3 if isinstance(seconds, (int, float)) else None
            run = self._run_of(home, row.get("run"))
            if row.get("ended"):
                ended.add(run)
            if row.get("ended") or type(step) is not int:
                self._signs.pop(path, None)
                continue
            if not self._lives(path, (row.get("pid"), step), seconds, _mtime(path)):
                continue
            training = found.setdefault(run, Training(run))
            training.statuses.append(row)
            training.step = max(step, training.step or 0)
            training.step_time_s = max(seconds or 0.0, training.step_time_s or 0.0) or None
            if home not in training.outputs:
                training.outputs.append(home)

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
