"""What the watching agent knows of each dump and log, kept on disk over restarts.

Bytes are not copied: a dump stays where the profiler put it until the server has it, so the spool cannot fill a disk.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Iterator, TextIO

from stepscope_agent.discover import read_json
from stepscope_agent.errors import AgentError
from stepscope_agent.manifest import write_pieces

LOCK = "watch.lock"
SENT, FAILED, SKIPPED, WAITING, SENDING = "sent", "failed", "skipped", "waiting", "sending"
MOST_ROWS = 20000
_SHARED = frozenset(("capture", "error", "kind", "run", "stamp", "state", "url"))
_ON_THE_WAY = frozenset(("again_at", "raw", "seen", "seen_at", "sign", "tries"))


class Spool:
    """One row a dump: state, tries, error, capture key. One a log file: how far it was read. One a file of a whole run
    (`run_files.py`): what of it was sent, to which run."""

    def __init__(self, path: str) -> None:
        self.path = path
        known = read_json(path)
        self._words: dict[str, str] = {}
        self.dumps = {root: self._compact(row) for root, row in _rows(known.get("dumps")).items() if row.get("state")}
        self.logs: dict[str, dict[str, Any]] = _rows(known.get("logs"))
        self.files: dict[str, dict[str, Any]] = _rows(known.get("files"))
        self.agent: dict[str, Any] = known["agent"] if isinstance(known.get("agent"), dict) else {}
        self.version = 0
        """Another number whenever a row of a dump was changed."""
        self._saved: tuple[int, int] = (-1, 0)
        self._counts: tuple[int, dict[str, int]] = (-1, {})

    def put(self, root: str, state: str, **more: Any) -> None:
        row = self.dumps.pop(root, {})
        if row.get("state") != state:
            row["since"] = int(time.time())
        row.update(more, state=state)
        self.dumps[root] = self._compact(row)
        self.version += 1

    def _compact(self, row: dict[str, Any]) -> dict[str, Any]:
        """What is unknown is not kept, nor, once a dump has arrived, what led there; words that rows share, once."""
        done = row["state"] == SENT
        return {
            name: self._words.setdefault(value, value) if name in _SHARED and type(value) is str else value
            for name, value in row.items()
            if value is not None and not (done and name in _ON_THE_WAY)
        }

    def settled(self, root: str) -> bool:
        return self.dumps.get(root, {}).get("state") == SENT

    def counts(self) -> dict[str, int]:
        """How many dumps are in each state."""
        if self._counts[0] != self.version:
            found: dict[str, int] = {}
            for row in self.dumps.values():
                found[row["state"]] = found.get(row["state"], 0) + 1
            self._counts = self.version, found
        return self._counts[1]

    def forget_missing(self) -> None:
        """Drops what is gone from the disk, and the oldest beyond the limit."""
        self._words.clear()
        rows = [(root, row) for root, row in self.dumps.items() if os.path.isdir(root)][-MOST_ROWS:]
        if len(rows) < len(self.dumps):
            self.dumps = dict(rows)
            self.version += 1
        self.logs = {path: row for path, row in self.logs.items() if os.path.exists(path)}
        self.files = {path: row for path, row in self.files.items() if os.path.exists(path)}

    def save(self) -> None:
        """Writes what changed since the last time. A full disk costs the memory of this look, not the watching."""
        few = json.dumps({"agent": self.agent, "logs": self.logs, "files": self.files})
        now = self.version, hash(few)
        if now == self._saved:
            return
        try:
            write_pieces(self.path, self._pieces(few))
            self._saved = now
        except OSError:
            pass

    def _pieces(self, few: str) -> Iterator[str]:
        """Row by row: the text of thousands at once would be most of the agent's memory."""
        yield few[:-1] + ', "dumps": {'
        between = ""
        for root, row in self.dumps.items():
            yield "%s%s: %s" % (between, json.dumps(root), json.dumps(row))
            between = ", "
        yield "}}"


def hold(folder: str) -> TextIO | None:
    """Keeps a second agent of the same memory away until what is returned is closed or the process ends.

    None where the file system knows no locks. Raises AgentError when another holds it.
    """
    import fcntl

    try:
        os.makedirs(folder, exist_ok=True)
        stream = open(os.path.join(folder, LOCK), "a")  # noqa: SIM115 - it is open as long as it is held
    except OSError:
        return None
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        text = "another agent has its memory in %s: end it, or give this one a STEPSCOPE_STATE of its own"
        raise AgentError(text % folder) from None
    except OSError:
        pass
    return stream


def is_held(folder: str) -> bool:
    """Whether an agent has its memory here now."""
    try:
        stream = hold(folder)
    except AgentError:
        return True
    if stream is not None:
        stream.close()
    return False


def _rows(value: Any) -> dict[str, dict[str, Any]]:
    rows = value.items() if isinstance(value, dict) else ()
    return {
        str(key): row
        for key, row in rows
        if isinstance(row, dict) and (row.get("state") or "offset" in row or "sign" in row)
    }
