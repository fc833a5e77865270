"""Step records on disk: one JSON a line, appended; written seldom, lost at most since the last write.

A training may run for weeks at a thousand steps a second: a full file is set aside as `.1`, over the one before it.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import Any

EVERY_S = 2.0
MOST_SHARE, LONGEST_PAUSE_S = 0.01, 600.0
MOST_WAITING = 100000
KEPT_FOR_DUMPS = 2000
FULL_BYTES = 16 * 1024 * 1024
"""Some 200 000 records."""
SET_ASIDE = ".1"


def pause_after(seconds: float, usual: float) -> float:
    """How long to leave a file system alone that took `seconds`: the training waits for it 1 % of its time at most."""
    return min(max(usual, seconds / MOST_SHARE), LONGEST_PAUSE_S)


class RecordFile:
    def __init__(self, path: str) -> None:
        self.path = path
        self.recent: deque[str] = deque(maxlen=KEPT_FOR_DUMPS)
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self._next_at = 0.0

    def add(self, record: dict[str, Any], now: float) -> None:
        line = json.dumps(record, separators=(",", ":"))
        self.recent.append(line)
        self._waiting.append(line)
        if now >= self._next_at:
            self.flush(now)

    def flush(self, now: float) -> None:
        """A full disk loses these records and nothing else."""
        lines = list(self._waiting)
        self._waiting.clear()
        began = time.perf_counter()
        if lines:
            self._append(lines)
        self._next_at = now + pause_after(time.perf_counter() - began, EVERY_S)

    def _append(self, lines: list[str]) -> None:
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as stream:
                stream.write("\n".join(lines) + "\n")
                size = stream.tell()
            if size >= FULL_BYTES:
                os.replace(self.path, self.path + SET_ASIDE)
        except OSError:
            pass

    def copy_to(self, path: str) -> None:
        """The latest records, for a dump that travels alone."""
        with open(path, "w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in self.recent)
