"""Step records on their way: logs and the callback's record files are followed and sent as they grow."""

from __future__ import annotations

import glob
import os
import re
import time
from typing import Any, Callable, Sequence

from stepscope_agent import client
from stepscope_agent.activity import Activity
from stepscope_agent.captures import key_of
from stepscope_agent.client import MINE_REFUSED
from stepscope_agent.errors import Refused
from stepscope_agent.folders import Folders
from stepscope_agent.run_files import RunFiles
from stepscope_agent.spool import Spool
from stepscope_agent.tail import Tail
from stepscope_agent.transport import Transport

RETRY_REFUSED_S = 3600.0
BAD_RECORDS = (400, 422)
LONGEST_S = 5.0
"""So long one log may hold up the rest in one look: of 20 GB that nobody read yet the end comes later."""
PACKED = (".gz", ".xz", ".bz2", ".zst", ".zip")
MOST_FILES = 20000
LINKS_S = 60.0
BEGINNING = 65536
"""Bytes of a record file that show whether its rank knows losses."""
_RECORD_FILE = re.compile(r"^stepscope_steps_rank_(\d+)\.jsonl$")


class Follower:
    def __init__(
        self,
        http: Transport,
        project: str,
        patterns: Sequence[str],
        run_files: RunFiles,
        activity: Activity,
        folders: Folders,
        spool: Spool,
        tell: Callable[[str, str], None],
    ) -> None:
        self.http, self.project, self.patterns = http, project, patterns
        self.run_files, self.activity = run_files, activity
        self.folders, self.spool, self.tell = folders, spool, tell
        self._globbed: dict[str, tuple[list[str], list[str], float]] = {}
        self._with_loss: dict[str, int] = {}  # by record file: -1 when it knows losses, else as far as none is known

    def send(self) -> None:
        """What was added to each file. Raises Refused only where it is the agent who is refused."""
        for path, run in self._files():
            row = self.spool.logs.setdefault(path, {"offset": 0})
            if is_ahead(row.get("again_at")):
                continue
            try:
                self._send_file(path, run, row)
            except Refused as exc:
                if exc.status in MINE_REFUSED:
                    raise
                row.update(error=str(exc), again_at=time.time() + RETRY_REFUSED_S)
                self.tell(path, str(exc))

    def _send_file(self, path: str, run: str, row: dict[str, Any]) -> None:
        tail, begin = Tail(path, row), time.monotonic()
        if not path.endswith(".jsonl") and not tail.still():
            self.run_files.send_arguments(path, run)
        while not tail.still():
            before = dict(row)
            records = tail.read()
            if records:
                told = client.open_run(self.http, self.project, key_of(run), run, {}, None)
                self._send_records(path, int(told["id"]), records)
                self.activity.note_records(run, records)
            tail.keep()
            if row == before or time.monotonic() - begin > LONGEST_S:
                break

    def _send_records(self, path: str, run_id: int, records: Sequence[dict[str, Any]]) -> None:
        """All the server takes; one that it refuses is found by halves, told and left out."""
        try:
            client.send_steps(self.http, run_id, "callback" if path.endswith(".jsonl") else "log", records)
        except Refused as exc:
            if exc.status not in BAD_RECORDS:
                raise
            if len(records) == 1:
                self.tell(path, "step %s is left out: %s" % (records[0].get("step"), exc))
                return
            middle = len(records) // 2
            self._send_records(path, run_id, records[:middle])
            self._send_records(path, run_id, records[middle:])

    def _files(self) -> list[tuple[str, str]]:
        """Logs asked for, and one rank's record file of our callback in each watched folder, with their runs."""
        found = []
        for gone in list(self._with_loss)[:-MOST_FILES]:
            del self._with_loss[gone]
        for pattern in self.patterns:
            for path in self._matching(pattern):
                if path.endswith(PACKED):
                    self.tell(path, "is packed, and what is packed does not grow: give it to `upload --log` once")
                    continue
                folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
                found.append((os.path.abspath(path), self.run_files.run or folder))
        for home in self.folders.homes():
            records = self._record_file(home)
            if records:
                found.append((records, self.run_files.run_at(home)))
        return found

    def _matching(self, pattern: str) -> list[str]:
        """Resolving links takes many calls of the system: done when a name came or went, and now and then."""
        names = sorted(glob.glob(pattern, recursive=True))
        known, logs, at = self._globbed.get(pattern, ([], [], 0.0))
        if names != known or time.monotonic() - at > LINKS_S:
            logs = _without_twins(names)
            self._globbed[pattern] = names, logs, time.monotonic()
        return logs

    def _record_file(self, folder: str) -> str | None:
        """Of the lowest rank that knows losses; with pipeline stages only ranks of the last do."""
        matches = map(_RECORD_FILE.match, self.folders.ours(folder))
        ranks = sorted((int(match.group(1)), match.group(0)) for match in matches if match)
        paths = [os.path.join(folder, name) for _, name in ranks]
        return next(filter(self._knows_loss, paths), paths[0] if paths else None)

    def _knows_loss(self, path: str) -> bool:
        """Read once as far as it goes, and again when there is more of its beginning."""
        read = self._with_loss.pop(path, 0)
        if read >= 0 and read != min(_size(path), BEGINNING):
            read = _read_without_loss(path)
        self._with_loss[path] = read
        return read < 0


def _without_twins(paths: Sequence[str]) -> list[str]:
    """Each file once, however many links lead to it: `latest` is beside the log it stands for; real names go first."""
    known: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: (os.path.realpath(path) != os.path.abspath(path), path)):
        known.setdefault(os.path.realpath(path), path)
    return sorted(known.values())


def is_ahead(moment: Any) -> bool:
    """Whether a pause that ends then is still on. One longer than any is of a clock that was set back."""
    return 0 < float(moment or 0) - time.time() <= RETRY_REFUSED_S


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read_without_loss(path: str) -> int:
    """How much of a file's beginning holds no loss; -1 where one is found."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(BEGINNING)
    except OSError:
        return 0
    return -1 if b'"loss"' in data else len(data)
