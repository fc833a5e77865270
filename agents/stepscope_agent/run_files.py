"""What concerns a whole run: its configuration, a comparison of layer outputs, the wish to be the reference."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Any, Callable, Sequence

from stepscope_agent import client, npus
from stepscope_agent.align import EVIDENCE, read_evidence
from stepscope_agent.arguments import arguments_of
from stepscope_agent.captures import key_of
from stepscope_agent.client import MINE_REFUSED
from stepscope_agent.control import JOB, RUN_FILE
from stepscope_agent.discover import read_json
from stepscope_agent.errors import AgentError, Refused
from stepscope_agent.folders import Folders, home_of, name_of
from stepscope_agent.run_config import config_among, read_config
from stepscope_agent.spool import SENT, Spool
from stepscope_agent.transport import Transport
from stepscope_agent.upload import of_the_run

TOP_OF_LOG = 1 << 20
"""Characters in which a job has printed its arguments, if it ever does."""


class RunFiles:
    """Looks for these files where trainings leave them: the watched folders, those right below, and beside dumps."""

    def __init__(
        self,
        http: Transport,
        project: str,
        run: str | None,
        folders: Folders,
        spool: Spool,
        tell: Callable[[str, str], None],
    ) -> None:
        self.http, self.project, self.run = http, project, run
        self.folders, self.spool, self.tell = folders, spool, tell
        self._beside: tuple[int, dict[str, str]] = (-1, {})

    def run_at(self, home: str) -> str:
        """The run whose callback writes into `home`: the agent's, the one the callback was told, or the folder's."""
        return str(self.run or self._told(home).get("run") or name_of(home))

    def send(self) -> None:
        """What came or changed. Raises Refused only where it is the agent who is refused."""
        beside = self._runs_of_dumps()
        homes = {home for home in beside if self.folders.ours(home)}.union(self.folders.homes())
        for home in sorted(homes):
            names = self.folders.ours(home)
            if RUN_FILE in names:
                self._send_one(os.path.join(home, RUN_FILE), self.run_at(home), self._send_wish)
            if JOB in names:
                self._send_one(os.path.join(home, JOB), self.run_at(home), self._send_job)
            left = [(EVIDENCE, self._send_evidence)] if EVIDENCE in names else []
            config = config_among(names)
            left += [(config, self._send_config)] if config else []
            for name, send in left:
                run = self._known_run(home, names, beside)
                if run is None:
                    self.tell(home, "%s waits: nothing tells yet which run it is of" % name)
                else:
                    self._send_one(os.path.join(home, name), run, send)

    def _runs_of_dumps(self) -> dict[str, str]:
        """The run of the newest dump sent from each folder; of a folder above, where all below it are of one run."""
        if self._beside[0] == self.spool.version:
            return self._beside[1]
        beside: dict[str, str] = {}
        above: dict[str, set[str]] = {}
        for root, row in self.spool.dumps.items():
            if row["state"] != SENT or not row.get("run"):
                continue
            home, run = home_of(root), str(row["run"])
            beside[home] = run
            for folder in self.folders.above(home):
                above.setdefault(folder, set()).add(run)
        shared = {folder: next(iter(runs)) for folder, runs in above.items() if len(runs) == 1}
        self._beside = self.spool.version, {**shared, **beside}
        return self._beside[1]

    def _known_run(self, home: str, names: Sequence[str], beside: dict[str, str]) -> str | None:
        """A comparison may be older than the training it is for: which run that is shows when it begins."""
        told = self.run or self._told(home).get("run") or beside.get(home)
        if told:
            return str(told)
        recorded = any(name.startswith("stepscope_steps_rank_") for name in names)
        return name_of(home) if recorded else None

    def _told(self, home: str) -> dict[str, Any]:
        return read_json(os.path.join(home, RUN_FILE)) if RUN_FILE in self.folders.ours(home) else {}

    def _send_one(
        self, path: str, run: str, send: Callable[[str, str], str | None], sign: list[int] | None = None
    ) -> None:
        """Once for each content and run; what the server will not have is told and left until it changes."""
        sign = sign or file_sign(path)
        known = self.spool.files.get(path, {})
        if sign is None or (known.get("sign"), known.get("run")) == (sign, run):
            return
        try:
            trouble = send(path, run)
        except Refused as exc:
            if exc.status in MINE_REFUSED:
                raise
            trouble = str(exc)
        if trouble:
            self.tell(path, trouble)
        self.spool.files[path] = {"sign": sign, "run": run, "error": trouble}

    def _send_evidence(self, path: str, run: str) -> str | None:
        evidence = read_evidence(path)
        if evidence is None:
            return "is not what `stepscope-agent align` writes"
        self._open_run(run, {"alignment": evidence})
        return None

    def _send_job(self, path: str, run: str) -> None:
        row = read_json(path)
        here = npus.run_facts() if row.get("host") == socket.gethostname() else {}
        told = {key: value for key, value in of_the_run(row).items() if value not in (None, "", {})}
        self._open_run(run, {**here, **told})

    def _send_config(self, path: str, run: str) -> str | None:
        try:
            config = read_config(path)
        except AgentError as exc:
            return str(exc)
        self._open_run(run, {}, config)
        return None

    def send_arguments(self, path: str, run: str) -> None:
        """What a Megatron or MindSpeed job printed at the top of its log, once; a configuration that was left counts
        more."""
        try:
            stat = os.stat(path)
            known = self.spool.files.get(path, {})
            if known.get("run") == run and known.get("sign") == [stat.st_ino] or self._has_config(run):
                return
            text = arguments_of(path, TOP_OF_LOG)
        except OSError:
            return  # the one who follows it says so
        if text is not None:
            self._send_one(path, run, partial(self._send_text, text), [stat.st_ino])
        elif stat.st_size > TOP_OF_LOG:
            self.spool.files[path] = {"sign": [stat.st_ino], "run": run, "error": None}

    def _send_text(self, text: str, path: str, run: str) -> str | None:
        self._open_run(run, {}, {"name": os.path.basename(path), "text": text})
        return None

    def _has_config(self, run: str) -> bool:
        rows = self.spool.files.items()
        return any(row.get("run") == run and config_among([os.path.basename(path)]) for path, row in rows)

    def _send_wish(self, path: str, run: str) -> str | None:
        if read_json(path).get("reference") is not True:
            return None
        if client.name_reference(self.http, self._open_run(run, {}), replace=False):
            return None
        return "%s is not made the reference: the project has another" % run

    def _open_run(self, run: str, meta: dict[str, Any], config: dict[str, str] | None = None) -> int:
        return int(client.open_run(self.http, self.project, key_of(run), run, meta, config)["id"])


def file_sign(path: str) -> list[int] | None:
    """Changes when the file is written anew; None where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]
