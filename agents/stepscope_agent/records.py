"""Step records on disk: one JSON a line, appended; written seldom, lost at most since the last write.

A training may run for weeks at a thousand steps a second: a full file is set aside as `.1`, over the one before it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from typing import Any

from stepscope_agent.writer import Writer

EVERY_S = 2.0
MOST_WAITING = 100000
KEPT_FOR_DUMPS = 2000
FULL_BYTES = 16 * 1024 * 1024
"""Some 200 000 records."""
SET_ASIDE = ".1"


class RecordFile:
    """`dropped`: how many records were left out, the oldest first, since the file took none."""

    def __init__(self, path: str, writer: Writer) -> None:
        self.path = path
        self.recent: deque[str] = deque(maxlen=KEPT_FOR_DUMPS)
        self.dropped = 0
        self._writer = writer
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self._next_at = 0.0

    def add(self, record: dict[str, Any], now: float) -> None:
        """To memory alone; every other second the writer is told to fetch what is there."""
        line = json.dumps(record, separators=(",", ":"))
        self.recent.append(line)
        self.dropped += len(self._waiting) == MOST_WAITING
        self._waiting.append(line)
        if now >= self._next_at:
            self._next_at = now + self._writer.pause(self.path, EVERY_S)
            self.flush()

    def flush(self) -> None:
        self._writer.put(self.path, self._write)

    def _write(self) -> None:
        """A full disk loses these records and nothing else. The training may add some meanwhile."""
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if lines:
            self._append(lines)

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
