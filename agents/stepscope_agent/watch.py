"""The daemon: finds new dumps by polling, waits until they are whole, sends them, follows logs. Prints nothing.

Polling, because NFS and Lustre send no events. Nothing here may disturb the training: low priority, own process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import sys
import time
from typing import Any, Callable, NamedTuple, Sequence

from stepscope_agent import claims, client, upload
from stepscope_agent.activity import Activity
from stepscope_agent.analyse import Analysis
from stepscope_agent.captures import Windows, capture_keys, key_of
from stepscope_agent.client import MINE_REFUSED
from stepscope_agent.discover import (
    EMPTY,
    RAW,
    FoundDump,
    analysis_has_ended,
    described,
    results_sign,
    signature,
)
from stepscope_agent.discover import FAILED as BROKEN
from stepscope_agent.errors import AgentError, FileChanged, Refused, TimedOut, Unreachable
from stepscope_agent.folders import Folders, is_part_of_a_run
from stepscope_agent.follow import RETRY_REFUSED_S, Follower, is_ahead
from stepscope_agent.ground import Ground
from stepscope_agent.heartbeat import BUSY_S, Heartbeat
from stepscope_agent.manifest import HashCache, entries_of
from stepscope_agent.run_files import RunFiles
from stepscope_agent.spool import FAILED as NOT_SENT
from stepscope_agent.spool import SENDING, SENT, SKIPPED, WAITING, Spool
from stepscope_agent.transport import Transport

SHORT_QUIET_S = 15.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 10.0, 600.0
RETRY_READING_S = 60.0
TIDY_S = 300.0
MOST_TRIES = 5
MOST_SAID = 5000
IDLE_NICE = 10
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


class Plan(NamedTuple):
    """What to watch."""

    folders: Sequence[str]
    server: str
    project: str
    run: str | None = None
    logs: Sequence[str] = ()
    poll_s: float = 10.0
    quiet_s: float = 120.0
    with_trace: bool = False
    analyse: bool = False
    python: str = sys.executable
    analyse_limit_s: float = 7200.0
    state: str = "."


class Watcher:
    """`wall` is kept over restarts, which a monotonic clock is not."""

    def __init__(
        self,
        plan: Plan,
        http: Transport,
        spool: Spool,
        cache: HashCache,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.plan, self.http, self.spool, self.cache = plan, http, spool, cache
        self.tell, self.clock, self.wall = tell, clock, wall
        self._quiet: dict[str, tuple[list[int], float]] = {}
        self._said: dict[str, str] = {}
        self._met: set[str] = set()  # dumps whose windows are counted
        self._analysis: Analysis | None = None
        self._not_before = self._tidied = 0.0
        self._failures = 0
        self.trouble: AgentError | None = None  # with the server, at the last look
        self._worked = False  # whether the last look took memory
        self.windows = Windows(os.path.join(plan.state, "windows.json"))
        self.folders = Folders(plan.folders, self.clock)
        self.activity = Activity(self.folders, plan.run, self.clock)
        self.ground = Ground(self.folders, self._rests, self.spool.settled)
        common = (self.folders, self.spool, self._tell_once)
        self.run_files = RunFiles(self.http, plan.project, plan.run, *common)
        self.follower = Follower(self.http, plan.project, plan.logs, self.run_files, self.activity, *common)
        self.heartbeat = Heartbeat(
            plan.project, self.http, self.spool, self.activity, plan.analyse, self.tell, self.clock
        )

    def run_forever(self, sleep: Callable[[float], None] = time.sleep) -> None:
        while True:
            self.once()
            if self._worked:
                give_back_memory()
            pause = min(self.plan.poll_s, BUSY_S) if self.heartbeat.busy else self.plan.poll_s
            sleep(max(pause, self._not_before - self.clock()) * (0.9 + 0.2 * random.random()))

    def once(self) -> int:
        """One look at folders and logs; how many dumps arrived."""
        arrived, self._worked = 0, False
        self.folders.forget()
        try:
            ready = self._ready()
            if self.clock() >= self._not_before:
                self.follower.send()
                self.heartbeat.beat()
                self._worked = bool(ready)
                for dump, key in ready:
                    arrived += self._send(dump, key)
                self.run_files.send()
                self._failures, self.trouble = 0, None
                self.spool.agent.pop("trouble", None)
                self.heartbeat.beat()
        except (Unreachable, TimedOut, Refused) as exc:
            self._step_back(exc)
        self._tidy()
        self.cache.save()
        self.windows.save()
        self.spool.save()
        self.folders.forget()
        return arrived

    def _tidy(self) -> None:
        """Forgets what is gone from the disk: where folders changed, and now and then anyhow."""
        now = self.clock()
        if not self.folders.moved and now - self._tidied < TIDY_S:
            return
        self.folders.moved, self._tidied = False, now
        self.spool.forget_missing()
        self.folders.sweep()
        self._quiet = {root: row for root, row in self._quiet.items() if root in self.spool.dumps}
        for about in list(self._said)[:-MOST_SAID]:
            del self._said[about]

    def last_look(self, seconds: float) -> None:
        """What is whole by now, for so long at most: with the training this host may be over too, as a pod is."""
        self.http.close()  # whatever was under way on it
        self.http.deadline = self.clock() + seconds
        self._not_before = 0.0
        self.once()

    def finish_analyses(self) -> None:
        """Waits until no raw dump is left to analyse, for a single pass."""
        while self._analysis is not None:
            self._analysis.wait()
            self.once()

    def close(self) -> None:
        if self._analysis is not None:
            self._analysis.stop()
            claims.release(self._analysis.dump.root)

    def _analyse(self, found: Sequence[FoundDump]) -> None:
        """Looks after the analysis under way, else begins the next; one at a time."""
        if self._analysis is not None:
            if not self._analysis.ended():
                return
            done, self._analysis = self._analysis, None
            reason = done.conclude()
            claims.release(done.dump.root)
            if reason:
                self._skip(done.dump, reason)
        for dump in found:
            rest = dump.marker.get("state") == RAW or self._rested(dump)
            known = self.spool.dumps.get(dump.root, {})
            failed = known.get("state") == SKIPPED and not known.get("raw")
            if dump.state != RAW or dump.kind == "slices" or failed or not rest:
                continue
            if claims.claim(dump.root, self.plan.server, self.plan.project):
                self.spool.put(dump.root, WAITING, error="being analysed", request=dump.request)
                log = os.path.join(self.plan.state, "analyse.log")
                try:
                    self._analysis = Analysis(dump, self.plan.python, self.plan.analyse_limit_s, log)
                except OSError as exc:
                    claims.release(dump.root)
                    self._skip(dump, "cannot be analysed: %s: %s" % (exc.filename, exc.strerror))
                    continue
                return

    def _step_back(self, exc: AgentError) -> None:
        """The server as a whole is in trouble, or refuses us: wait, longer each time, for hours if it must be."""
        self._failures, self.trouble = self._failures + 1, exc
        longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._failures - 1, 10))
        self._not_before = self.clock() + longest * (0.5 + 0.5 * random.random())
        self.spool.agent["trouble"] = str(exc)
        self._tell_once("server", str(exc))

    def _ready(self) -> list[tuple[FoundDump, str]]:
        """Dumps that are whole and not sent yet, with their capture keys."""
        found = [_light(described(dump, time.time())) for dump in self.ground.dumps()]
        found = [dump for dump in found if not self._is_sent(dump)]
        if self.plan.analyse:
            self._analyse(found)
        whole = [dump for dump in found if self._is_whole(dump)]
        roots = {dump.root for dump in found}
        keys = self._keys(found) if whole or not roots <= self._met else {}
        self._met = roots
        return [(dump, keys[dump]) for dump in whole]

    def _keys(self, found: Sequence[FoundDump]) -> dict[FoundDump, str]:
        """Capture keys; a window whose first ranks went up under a key keeps it."""
        known = list(found) + self._resting()
        keys = capture_keys(known, counts=self.windows.counts(known, self._run_of))
        used = {key: str(self.spool.dumps[d.root]["capture"]) for d, key in keys.items() if self._has_key(d)}
        return {dump: used.get(key, key) for dump, key in keys.items()}

    def _resting(self) -> list[FoundDump]:
        """What is known of dumps that rest, without another look at them."""
        return [
            FoundDump(
                root,
                row["kind"],
                rank=row.get("rank"),
                stamp=row.get("stamp"),
                first_step=row.get("first_step"),
                request=row.get("request"),
                world_size=row.get("world_size"),
                profiler_steps=tuple(row["steps"]) if row.get("steps") else None,
            )
            for root, row in self.spool.dumps.items()
            if row.get("kind") and self._rests(root)
        ]

    def _has_key(self, dump: FoundDump) -> bool:
        return bool(self.spool.dumps.get(dump.root, {}).get("capture"))

    def _is_sent(self, dump: FoundDump) -> bool:
        """Whether the server has it, from us before a restart or from another agent; the spool then knows its key."""
        if not claims.sent_to(dump.root, self.plan.server, self.plan.project):
            return False
        known = self.spool.dumps.get(dump.root, {}).get("capture")
        told = {"rank": dump.rank, "capture": claims.capture_of(dump.root) or known, **_told(dump)}
        self.spool.put(dump.root, SENT, by="another agent", error=None, **told)
        return True

    def _rests(self, root: str) -> bool:
        """Whether nothing is to be done about a dump now, so that it need not even be looked into."""
        row = self.spool.dumps.get(root, {})
        if row.get("state") in (NOT_SENT, SKIPPED):
            if row.get("sign") != results_sign(root):
                return False
            if row["state"] == SKIPPED:
                return not (row.get("raw") and self.plan.analyse)
            if int(row.get("tries") or 0) >= MOST_TRIES:
                return True
            return is_ahead(row.get("again_at"))
        return self.spool.settled(root)

    def _is_whole(self, dump: FoundDump) -> bool:
        if dump.state in (RAW, EMPTY, BROKEN):
            if dump.state == BROKEN or (dump.state == RAW and not self.plan.analyse):
                self._skip(dump, dump.reason, raw=dump.state == RAW)
            return False
        if self._analysis is not None and self._analysis.dump.root == dump.root:
            return False
        if dump.marker.get("state"):
            return True
        return self._rested(dump)

    def _rested(self, dump: FoundDump) -> bool:
        """Whether nothing was written to the dump for long enough, by our own clock."""
        seen = signature(dump)
        known, since = self._quiet.get(dump.root) or self._quiet_before(dump.root)
        if known != seen:
            since = self.clock()
            told = {"seen": seen, "seen_at": int(self.wall())}
            self.spool.put(dump.root, WAITING, error="still being written", request=dump.request, **told)
        self._quiet[dump.root] = (seen, since)
        needed = min(self.plan.quiet_s, SHORT_QUIET_S) if analysis_has_ended(dump) else self.plan.quiet_s
        return self.clock() - since >= needed

    def _quiet_before(self, root: str) -> tuple[list[int], float]:
        """What an agent before this one saw of a dump, and when by our own clock; a later clock counts as now."""
        row = self.spool.dumps.get(root, {})
        if not row.get("seen"):
            return [], 0.0
        return row["seen"], self.clock() - max(0.0, self.wall() - float(row.get("seen_at") or 0))

    def _send(self, dump: FoundDump, key: str) -> int:
        rank = dump.rank
        if rank is None:
            self._skip(dump, "nothing tells its rank; name its folder rank_N")
            return 0
        if not claims.claim(dump.root, self.plan.server, self.plan.project):
            self.spool.put(dump.root, WAITING, error="another agent has it in hand")
            return 0
        self.spool.put(dump.root, SENDING, capture=key, rank=rank, **_told(dump))
        self.spool.save()
        try:
            self._send_claimed(dump, key, rank)
        except (Unreachable, TimedOut):
            self.spool.put(dump.root, WAITING, error="the server is not reachable")
            claims.release(dump.root)
            raise
        except (FileChanged, Refused, OSError) as exc:
            claims.release(dump.root)
            if isinstance(exc, Refused) and exc.status in MINE_REFUSED:
                self.spool.put(dump.root, WAITING, error=str(exc))
                raise
            self._note_failure(dump, exc)
            return 0
        self._quiet.pop(dump.root, None)
        return 1

    def _send_claimed(self, light: FoundDump, key: str, rank: int) -> None:
        dump = described(light, time.time())
        # What may not be read stays out; what a file system cannot give now (a stale handle, I/O) has to wait.
        files, troubles = entries_of(dump, self.plan.with_trace, self.cache.sha256, PermissionError)
        for trouble in troubles:
            self._tell_once(dump.root, "cannot read %s" % trouble)
        if not files:
            self._skip(dump, troubles[0] if troubles else "holds no file that may be sent")
            claims.release(dump.root)
            return
        item = upload.Planned(dump, key, rank, files)
        name = self._run_of(dump)
        meta = {**upload.hardware([item]), **upload.run_meta([item])}
        run = client.open_run(self.http, self.plan.project, key_of(name), name, meta, None)

        def progress(count: int) -> None:
            claims.refresh(dump.root)
            with contextlib.suppress(Unreachable):  # sending has more patience
                self.heartbeat.beat()

        answer = client.send_dump(self.http, int(run["id"]), item.payload(False), files, progress)
        claims.mark_sent(dump.root, self.plan.server, self.plan.project, key_of(name), key)
        self.cache.forget(entry.path for entry in files)
        url = (answer.get("capture") or {}).get("url")
        error = "cannot read %s" % troubles[0] if troubles else None
        self.spool.put(dump.root, SENT, capture=key, rank=rank, url=url, error=error, bytes=item.size, run=name)
        if dump.request is not None:
            self.heartbeat.requests.arrived(dump.request)
        self.tell("sent %s: %s" % (dump.root, url))

    def _run_of(self, dump: FoundDump) -> str:
        """The run's name: given, told by the callback, or the folder below the watched one."""
        told = dump.run_meta.get("run")
        if self.plan.run or told:
            return str(self.plan.run or told)
        for top in self.folders.tops:
            if dump.root.startswith(top + os.sep):
                first = os.path.relpath(dump.root, top).split(os.sep)[0]
                ours = first == dump.folder or is_part_of_a_run(first)
                return os.path.basename(top) if ours else first
        return dump.folder

    def _note_failure(self, dump: FoundDump, exc: Exception) -> None:
        known, sign = self.spool.dumps.get(dump.root, {}), results_sign(dump.root)
        tries = int(known.get("tries") or 0) if known.get("sign") == sign else 0
        tries += isinstance(exc, Refused)  # a file system may be away for as long as it likes
        pause = (
            RETRY_REFUSED_S if isinstance(exc, Refused) else 0.0 if isinstance(exc, FileChanged) else RETRY_READING_S
        )
        error = upload.trouble_with(dump, exc)
        self.spool.put(dump.root, NOT_SENT, error=error, tries=tries, sign=sign, again_at=time.time() + pause)
        self._quiet.pop(dump.root, None)
        self._tell_once(dump.root, error)

    def _skip(self, dump: FoundDump, reason: str, raw: bool = False) -> None:
        """`raw`: with --analyse something could be done about it."""
        sign = results_sign(dump.root)
        self.spool.put(dump.root, SKIPPED, error=reason, request=dump.request, sign=sign, raw=raw)
        self._tell_once(dump.root, reason)

    def _tell_once(self, about: str, text: str) -> None:
        if self._said.get(about) != text:
            self._said[about] = text
            self.tell("%s: %s" % (about, text) if about != "server" else text)


def _light(dump: FoundDump) -> FoundDump:
    """Without what only sending it needs: a thousand may be found at once."""
    run_meta = {name: dump.run_meta[name] for name in ("run",) if name in dump.run_meta}
    marker = {name: dump.marker[name] for name in ("state",) if name in dump.marker}
    return dump._replace(info={}, metadata={}, run_meta=run_meta, marker=marker)


def _told(dump: FoundDump) -> dict[str, Any]:
    """What its key hangs on, for the spool."""
    return {
        "kind": dump.kind,
        "stamp": dump.stamp,
        "first_step": dump.first_step,
        "request": dump.request,
        "world_size": dump.world_size,
        "steps": dump.profiler_steps,
    }


def give_back_memory() -> None:
    """What sending took, to the system: glibc keeps it otherwise, for hours in which there is nothing to do."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass


def step_down() -> None:
    """Lowest priority for processor and disk: the training comes first."""
    try:
        os.nice(IDLE_NICE)
        number = _IOPRIO_SET.get(os.uname().machine)
        if number is not None and os.name == "posix":
            ctypes.CDLL(None).syscall(number, 1, 0, 3 << 13)  # this process, idle class
    except (OSError, AttributeError):
        pass
