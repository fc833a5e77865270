"""Step records on disk: one JSON a line, appended; written seldom, lost at most since the last write."""

from __future__ import annotations

import json
import os
from collections import deque
from typing import Any

EVERY_RECORDS, EVERY_S = 50, 10.0
KEPT_FOR_DUMPS = 2000


class RecordFile:
    def __init__(self, path: str) -> None:
        self.path = path
        self.recent: deque[str] = deque(maxlen=KEPT_FOR_DUMPS)
        self._waiting: list[str] = []
        self._written_at = 0.0

    def add(self, record: dict[str, Any], now: float) -> None:
        line = json.dumps(record, separators=(",", ":"))
        self.recent.append(line)
        self._waiting.append(line)
        if len(self._waiting) >= EVERY_RECORDS or now - self._written_at >= EVERY_S:
            self.flush(now)

    def flush(self, now: float) -> None:
        """A full disk loses these records and nothing else."""
        lines, self._waiting, self._written_at = self._waiting, [], now
        if not lines:
            return
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as stream:
                stream.write("\n".join(lines) + "\n")
        except OSError:
            pass

    def copy_to(self, path: str) -> None:
        """The latest records, for a dump that travels alone."""
        with open(path, "w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in self.recent)
