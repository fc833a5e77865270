"""`python -m analysis ...` in a child process under limits: what strangers sent can harm itself alone."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from dashboard.ingest import storage
from dashboard.ingest.errors import byte_text
from dashboard.ingest.nursery import Child, Nursery, ends_with

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
BAD_DUMP = 2
LONGEST_ERROR = 2_000
LONGEST_STAGE = 40
FULL_BYTES = 1 << 20
SMALL_BYTES = 32 << 20
"""Up to here a second thread of the analysis saves no time, and handing work to it costs a tenth of the processor's."""
Beat = Callable[[str], None]
"""Called every few seconds with the stage that the child tells: proves that the worker lives. Ends the child by
raising."""


class DigestFailed(Exception):
    """It cannot be analysed; the text is for the person who sent it."""


class ClaimLost(Exception):
    """The dump was replaced, or given to another worker, while this one was at it."""


def run_analysis(arguments: list[str], folder: Path, size: int, beat: Beat, work: str = "the analysis") -> None:
    """Run `python -m analysis ...` under limits of memory, processor and wall time. Raises DigestFailed; OSError where
    the disk is full, which is no fault of what was sent.

    `work` is what errors call it.
    """
    errors, stage = folder / "errors.txt", folder / "stage"
    arguments = [*arguments, "--stage", str(stage)]
    with _free_nursery() as nursery:
        child = _child(nursery, arguments, folder, size, errors)
        try:
            _wait(child, stage, beat, work)
        finally:
            child.kill()
    if child.returncode:
        reason = _reason(child.returncode, errors, work)
        if _is_full(folder, reason):
            raise OSError(errno.ENOSPC, "the server's disk is full")
        raise DigestFailed(reason)


@contextmanager
def _free_nursery() -> Iterator[Nursery | None]:
    """This process's nursery, started when there is none; None when another thread has it or it cannot start."""
    global _nursery
    if not _nursery_lock.acquire(blocking=False):
        yield None
        return
    try:
        if _nursery is None or not _nursery.usable or _nursery.cwd != settings.BASE_DIR:
            if _nursery is not None and _nursery.owner == os.getpid():
                _nursery.stop()
            command = [sys.executable, "-m", "analysis.nursery"]
            _nursery = Nursery(command, settings.BASE_DIR, _environment(storage.work_root()), ends_with(os.getpid()))
        yield _nursery if _nursery.usable else None
    finally:
        _nursery_lock.release()


_nursery: Nursery | None = None
_nursery_lock = threading.Lock()


@atexit.register
def _close_nursery() -> None:
    if _nursery is not None and _nursery.owner == os.getpid():
        _nursery.stop()


def _child(nursery: Nursery | None, arguments: list[str], folder: Path, size: int, errors: Path) -> Child | OwnChild:
    """From the nursery, whose imports are done; a process of its own where there is none."""
    memory, threads = settings.DIGEST_MEMORY_BYTES + size, _threads(size)
    seconds = settings.DIGEST_SECONDS * threads
    order = {"arguments": arguments, "folder": str(folder), "errors": str(errors), "memory": memory}
    if nursery and (child := nursery.start({**order, "seconds": seconds, "threads": threads})):
        return child
    with errors.open("wb") as stderr:
        return OwnChild(
            [sys.executable, "-m", "analysis", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd=settings.BASE_DIR,
            env=_environment(folder, threads),
            start_new_session=True,
            preexec_fn=_limits(memory, seconds, os.getpid()),
        )


class OwnChild(subprocess.Popen[bytes]):
    def kill(self) -> None:
        """End it and what it started, unless it has ended."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()


def _wait(child: Child | OwnChild, stage: Path, beat: Beat, work: str) -> None:
    started = time.monotonic()
    while True:
        try:
            child.wait(BEAT_SECONDS)
            return
        except subprocess.TimeoutExpired:
            if time.monotonic() - started > settings.DIGEST_SECONDS:
                raise DigestFailed(_too_slow(work)) from None
        beat(_told(stage))


def _told(stage: Path) -> str:
    try:
        return stage.read_text(errors="replace")[:LONGEST_STAGE]
    except FileNotFoundError:
        return ""


def _environment(folder: Path, threads: int = 1) -> dict[str, str]:
    """No secrets of the server for a process that reads what strangers sent."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV") if name in os.environ}
    return {**kept, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "POLARS_MAX_THREADS": str(threads)}


def _threads(size: int) -> int:
    return 1 if size <= SMALL_BYTES else max(1, min(4, os.cpu_count() or 1))


def _limits(memory: int, seconds: int, parent: int) -> Callable[[], None]:
    """What the child does to itself between fork and exec."""
    end_with_parent = ends_with(parent)

    def apply() -> None:
        end_with_parent()
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(10)

    return apply


def _reason(code: int, errors: Path, work: str) -> str:
    with errors.open("rb") as file:
        file.seek(max(0, errors.stat().st_size - 16_384))
        text = file.read().decode(errors="replace").replace("\0", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1][:LONGEST_ERROR] if lines else ""
    if code == BAD_DUMP and last:
        return last
    if _is_memory(code, text):
        return f"{work} needed more than {byte_text(settings.DIGEST_MEMORY_BYTES)} of memory and was stopped"
    if code == -signal.SIGXCPU:
        return _too_slow(work)
    logger.error("%s ended with %s: %s", work, code, text[-4_000:])
    return f"{work} stopped unexpectedly ({_code_text(code)}){': ' + last[:300] if last else ''}"


def _is_full(folder: Path, reason: str) -> bool:
    # The child's last words may not have found room either.
    return os.strerror(errno.ENOSPC) in reason or shutil.disk_usage(folder).free < FULL_BYTES


def _is_memory(code: int, text: str) -> bool:
    if code == -signal.SIGKILL:  # not by us: our own kills raise before this. The kernel's, when memory runs out
        return True
    hints: tuple[str, ...] = (
        "MemoryError",
        "memory allocation of",
        "Cannot allocate memory",
        "bad_alloc",
        "capacity overflow",
    )
    # No room for a thread's stack.
    hints += ("thread creation failed", "can't start new thread", "failed to spawn", "cannot allocate memory")
    return any(hint in text for hint in hints) or (code == -signal.SIGSEGV and "out of memory" in text.lower())


def _too_slow(work: str) -> str:
    return f"{work} took longer than {settings.DIGEST_SECONDS} s and was stopped"


def _code_text(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit {code}"
