"""The agent's word to the server, every half minute: how it is; and what people ask of the trainings it sees."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import urllib.parse
from typing import Any, Callable

from stepscope_agent import __version__, client, npus
from stepscope_agent.activity import Activity
from stepscope_agent.captures import shown
from stepscope_agent.requests import Requests
from stepscope_agent.spool import FAILED, Spool
from stepscope_agent.transport import Transport

EVERY_S, LONGEST_S = 30.0, 600.0
NPUS_EVERY_S = 600.0
BUSY_S = 2.0
MOST_RUNS = 500


class Heartbeat:
    def __init__(
        self,
        project: str,
        http: Transport,
        spool: Spool,
        activity: Activity,
        analyse: bool,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.project, self.http, self.spool, self.activity, self.clock = project, http, spool, activity, clock
        self.agent = identity(spool)
        self.requests = Requests(http, spool, self.agent, analyse, tell)
        self._next = 0.0
        self._npus: list[dict[str, Any]] = []
        self._npus_at: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a capture is being made: then it pays to look often."""
        return bool(self.requests.jobs)

    def beat(self) -> None:
        """Tells, when it is time, and looks after the requests in hand.

        Raises Unreachable, and Refused where token or project are wrong, which shows before there is anything to send.
        """
        if self.clock() < self._next and not self.busy:
            return
        trainings = self.activity.trainings()
        if self.clock() >= self._next:
            answer = client.heartbeat(self.http, urllib.parse.quote(self.project, safe=""), self._word(trainings))
            self._next = self.clock() + EVERY_S
            if answer is None:
                return
            every = answer.get("every_s")
            if isinstance(every, (int, float)):
                self._next = self.clock() + max(1.0, min(float(every), LONGEST_S))
            asked = [row for row in answer.get("requests") or [] if isinstance(row, dict)]
            self.requests.take(asked, trainings)
        self.requests.follow(trainings)

    def _word(self, trainings: Any) -> dict[str, Any]:
        if self._npus_at is None or self.clock() - self._npus_at > NPUS_EVERY_S:
            self._npus, self._npus_at = npus.npus(), self.clock()
        word = {
            "agent": self.agent,
            "host": socket.gethostname()[:200] or "unknown",
            "version": __version__,
            "driver": npus.driver_version(),
            "npus": self._npus,
            "spool": self.spool.counts(),
            "trouble": self._trouble(),
            "runs": [training.row() for training in trainings[:MOST_RUNS]],
        }
        return {name: value for name, value in word.items() if value is not None}

    def _trouble(self) -> str | None:
        """The last thing that went wrong and still is."""
        told = self.spool.agent.get("trouble")
        if told:
            return str(told)[:2000]
        spool = self.spool
        failed = [(path, row) for rows in (spool.files, spool.logs) for path, row in rows.items() if row.get("error")]
        failed += [(root, row) for root, row in spool.dumps.items() if row["state"] == FAILED]
        if not failed:
            return None
        path, row = failed[-1]
        return shown("%s: %s" % (os.path.basename(path), row.get("error")))[:2000]


def identity(spool: Spool) -> str:
    """Stays when the host is renamed; two hosts that share a home folder, and so a spool, have their own."""
    own = spool.agent.get("id")
    if not isinstance(own, str) or len(own) != 32:
        own = spool.agent["id"] = os.urandom(16).hex()
        spool.save()
    return hashlib.sha256((own + _machine()).encode("utf-8")).hexdigest()[:32]


def _machine() -> str:
    try:
        with open("/etc/machine-id", encoding="ascii") as stream:
            return stream.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""
