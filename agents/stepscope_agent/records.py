"""Step records on disk: one JSON a line, appended; written seldom, lost at most since the last write.

A training may run for weeks at a thousand steps a second: a full file is set aside as `.1`, over the one before it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from typing import Any

EVERY_RECORDS, SOONEST_S, EVERY_S = 50, 1.0, 10.0
"""Written when so many wait or after 10 s, but at most once a second: the file may be on NFS."""
KEPT_FOR_DUMPS = 2000
FULL_BYTES = 16 * 1024 * 1024
"""Some 200 000 records."""
SET_ASIDE = ".1"


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
        since = now - self._written_at
        if since >= EVERY_S or (since >= SOONEST_S and len(self._waiting) >= EVERY_RECORDS):
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
                size = stream.tell()
            if size >= FULL_BYTES:
                os.replace(self.path, self.path + SET_ASIDE)
        except OSError:
            pass

    def copy_to(self, path: str) -> None:
        """The latest records, for a dump that travels alone."""
        with open(path, "w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in self.recent)
