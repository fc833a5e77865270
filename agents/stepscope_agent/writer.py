"""File work of a training, done in a thread of its own: a file system that hangs holds up nobody else."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable

Job = Callable[[], object]
MOST_SHARE, LONGEST_PAUSE_S = 0.01, 600.0


def pause_after(seconds: float, usual: float) -> float:
    """How long to leave a file system alone that took `seconds`: one that is slow is so for others too."""
    return min(max(usual, seconds / MOST_SHARE), LONGEST_PAUSE_S)


class Writer:
    """Does jobs in the order they were put; of those that wait under one name only the latest. So the queue is as short
    as there are names, however long a job takes.

    `say` is told of errors, which go no further. The process ends without waiting for jobs: see `flush`. A process
    forked off begins with no jobs and a thread of its own, and none before it puts one.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._done: dict[str, tuple[float, float]] = {}  # when, and how long it took
        self._round: tuple[str, float, Job] | None = None
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._jobs: dict[str, Job] = {}
        self._thread: threading.Thread | None = None
        self._since: float | None = None  # when the job at work began
        self._hangs = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Writer, (self._say,)  # a callback may be copied or sent to the processes that train

    def put(self, name: str, job: Job) -> None:
        """Returns at once. `job` runs in the other thread."""
        self._look_for_fork()
        with self._changed:
            self._jobs.pop(name, None)  # to the end, behind what was put since
            self._jobs[name] = job
            self._start()
            self._changed.notify_all()

    def every(self, usual_s: float, name: str, job: Job) -> None:
        """Puts `job` now, and again whenever it was done `usual_s` ago, until `rest`. Only one at a time."""
        self._look_for_fork()
        with self._changed:
            self._round = (name, usual_s, job)
            self.put(name, job)

    def rest(self) -> None:
        self._round = None

    def flush(self, timeout_s: float) -> bool:
        """Waits until all jobs are done, at most so long; whether they are.

        For a job that was waited for in vain nobody waits again.
        """
        self._look_for_fork()
        with self._changed:
            done = self._changed.wait_for(self._idle, 0 if self._hangs else timeout_s)
            self._hangs = not done
        return done

    def pause(self, name: str, usual: float) -> float:
        """Seconds to leave between two jobs of this name: `usual`, more where the last one took long."""
        return pause_after(self._done.get(name, (0.0, 0.0))[1], usual)

    def hangs(self, longest_s: float) -> bool:
        """Whether the job at work takes longer than that."""
        since = self._since
        return since is not None and time.perf_counter() - since > longest_s

    def _look_for_fork(self) -> None:
        """The thread stayed with the parent, and it may have held the lock when the process was forked."""
        if self._process != os.getpid():
            self._begin()

    def _idle(self) -> bool:
        return not self._jobs and self._since is None

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._work, name="stepscope-writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, now or ever: jobs wait
            return
        self._thread = thread

    def _work(self) -> None:
        while True:
            name, job = self._next()
            began = time.perf_counter()
            try:
                job()
            except Exception as exc:
                self._say("%s: %s; the training goes on" % (type(exc).__name__, exc))
            del job
            with self._changed:
                now = time.perf_counter()
                self._done[name] = now, now - began
                self._since, self._hangs = None, False
                self._changed.notify_all()

    def _next(self) -> tuple[str, Job]:
        with self._changed:
            while not self._changed.wait_for(lambda: self._jobs, self._until_round()):
                if self._round is not None:
                    self._jobs[self._round[0]] = self._round[2]
            name = next(iter(self._jobs))
            self._since = time.perf_counter()
            return name, self._jobs.pop(name)

    def _until_round(self) -> float | None:
        current = self._round
        if current is None:
            return None
        name, usual_s, _ = current
        return max(0.0, self._done.get(name, (0.0, 0.0))[0] + self.pause(name, usual_s) - time.perf_counter())
