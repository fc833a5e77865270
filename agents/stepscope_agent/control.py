"""The two small files through which agent and callback talk in the callback's output folder. No network, no locks.

`stepscope_control.json` holds a window that somebody asked for; `stepscope_status_rank_N.json` how far each rank is.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import Any, NamedTuple

from stepscope_agent.discover import read_json
from stepscope_agent.writer import Writer

CONTROL = "stepscope_control.json"
STATUS = "stepscope_status_rank_%d.json"
RUN_FILE = "stepscope_run.json"
"""Which run this folder is of; beside a dump, all about the run."""
JOB = "stepscope_job.json"
"""What the first rank knows of the run when the training begins, long before its first dump may come."""
STATUS_NAME = re.compile(r"^stepscope_status_rank_(\d+)\.json$")
LOOK_S = 2.0
STATUS_S = 5.0
LEVELS = ("Level0", "Level1", "Level2")
WAITING, COLLECTING, DONE, FAILED, NOT_ASKED = "waiting", "collecting", "done", "failed", "not asked"


class Wish(NamedTuple):
    """Training steps `first_step` to `first_step + steps - 1`, asked for by request `request`."""

    request: int
    first_step: int
    steps: int
    ranks: Any = None  # None: the callback's own choice; "all"; a list of ranks
    level: str = "Level1"

    def row(self) -> dict[str, Any]:
        return dict(self._asdict(), schema=1)


def wish_of(row: dict[str, Any]) -> Wish | None:
    """The wish of a control file; None for anything else."""
    numbers = [row.get(name) for name in ("request", "first_step", "steps")]
    if not all(type(number) is int and number > 0 for number in numbers):
        return None
    ranks = row.get("ranks")
    if not (ranks is None or ranks == "all" or (isinstance(ranks, list) and all(type(r) is int for r in ranks))):
        return None
    level = row.get("level")
    return Wish(numbers[0], numbers[1], numbers[2], ranks, level if level in LEVELS else "Level1")  # type: ignore[arg-type]


class ControlFile:
    """Has the writer look for a wish every two seconds, and when told to, with a single stat.

    `news` holds what the file said each time it came, changed or went (None), for the training to take.
    """

    def __init__(self, folder: str, writer: Writer) -> None:
        self.path = os.path.join(folder, CONTROL)
        self.news: deque[Wish | None] = deque()
        self._begun = False
        self._seen: tuple[int, int, int] | None = None
        self._writer = writer
        writer.every(LOOK_S, self.path, self._look)

    def look(self) -> None:
        self._writer.put(self.path, self._look)

    def _look(self) -> None:
        stamp = self._stamp()
        if self._begun and stamp != self._seen:
            self.news.append(wish_of(read_json(self.path)) if stamp else None)
        self._begun, self._seen = True, stamp  # what lay there at first was meant for another training

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = os.stat(self.path)
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size
