"""One dump: bytes to entry, tables and rows, by a child process that can be killed without harm to anything else."""

from __future__ import annotations

import atexit
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from dashboard.ingest import storage
from dashboard.ingest.errors import byte_text
from dashboard.ingest.models import Blob
from dashboard.ingest.nursery import Child, Nursery, ends_with
from dashboard.ingest.steps import store_steps
from dashboard.runs.models import Capture, Dump, DumpState, RankStep
from dashboard.runs.rank_evidence import to_ns
from dashboard.runs.rollup import share_of_compute

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
BAD_DUMP = 2
LONGEST_ERROR = 2_000
MAX_ENTRY_BYTES = 64 << 20
EXPECTED_BYTES_A_SECOND = 40e6
"""Only for the progress bar."""
STEP_COLUMNS = (
    *("step_time", "computing", "communication", "communication_not_overlapped"),
    *("overlapped", "free", "bubble", "preparing"),
)


class DigestFailed(Exception):
    """The dump cannot be digested; the text is for the person who sent it."""


class ClaimLost(Exception):
    """The dump was replaced, or given to another worker, while this one was at it."""


@dataclass(frozen=True)
class Digest:
    entry: dict[str, Any]
    source: dict[str, Any]
    series: list[dict[str, Any]]


def digest(dump: Dump) -> None:
    """Digest a claimed dump. Raises DigestFailed for a bad one, ClaimLost when the result is no longer wanted."""
    with storage.work_folder(f"digest-{dump.pk}") as folder:
        out = folder / "out"
        out.mkdir()
        order = folder / "files.json"
        sent = {"folder": dump.folder, "rank": dump.rank, "device": dump.device_id}
        order.write_text(json.dumps({**sent, "files": _places(dump)}))
        run_analysis(["digest", "--files", str(order), "--out", str(out)], folder, dump.size_bytes, _beat(dump))
        result = _read_result(out / "entry.json")
        _check_rank(dump, result)
        (out / "entry.json").unlink()
        _store(dump, result, out)


def _places(dump: Dump) -> dict[str, str]:
    held = set(
        Blob.objects.filter(
            project=dump.capture.run.project_id, sha256__in=[file["sha256"] for file in dump.files]
        ).values_list("sha256", flat=True)
    )
    for file in dump.files:
        if file["sha256"] not in held:
            raise DigestFailed(f"{file['name']}: its bytes are no longer on the server; upload the dump again")
    return {file["name"]: str(storage.blob_path(file["sha256"])) for file in dump.files}


def _beat(dump: Dump) -> Callable[[float], None]:
    """Called with the share done: shows it, and proves that the worker lives."""

    def beat(progress: float) -> None:
        mine = Dump.objects.filter(pk=dump.pk, state=DumpState.DIGESTING, claimed_at=dump.claimed_at)
        if not mine.update(heartbeat=timezone.now(), progress=progress):
            raise ClaimLost

    return beat


def run_analysis(arguments: list[str], folder: Path, size: int, beat: Callable[[float], None]) -> None:
    """Run `python -m analysis ...` under limits of memory, processor and wall time. Raises DigestFailed."""
    errors = folder / "errors.txt"
    started = time.monotonic()
    with _free_nursery() as nursery:
        child = _child(nursery, arguments, folder, size, errors)
        try:
            _wait(child, started, size, beat)
        finally:
            child.kill()
    if child.returncode:
        raise DigestFailed(_reason(child.returncode, errors))


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
    memory, seconds = settings.DIGEST_MEMORY_BYTES + size, settings.DIGEST_SECONDS
    order = {"arguments": arguments, "folder": str(folder), "errors": str(errors), "memory": memory}
    if nursery and (child := nursery.start({**order, "seconds": seconds * _threads()})):
        return child
    with errors.open("wb") as stderr:
        return OwnChild(
            [sys.executable, "-m", "analysis", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd=settings.BASE_DIR,
            env=_environment(folder),
            start_new_session=True,
            preexec_fn=_limits(memory, seconds, os.getpid()),
        )


class OwnChild(subprocess.Popen[bytes]):
    def kill(self) -> None:
        """End it and what it started, unless it has ended."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()


def _wait(child: Child | OwnChild, started: float, size: int, beat: Callable[[float], None]) -> None:
    while True:
        try:
            child.wait(BEAT_SECONDS)
            return
        except subprocess.TimeoutExpired:
            elapsed = time.monotonic() - started
        if elapsed > settings.DIGEST_SECONDS:
            raise DigestFailed(_too_slow())
        beat(0.95 * (1 - exp(-elapsed / (1 + size / EXPECTED_BYTES_A_SECOND))))


def _environment(folder: Path) -> dict[str, str]:
    """No secrets of the server for a process that reads what strangers sent."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV") if name in os.environ}
    return {**kept, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "POLARS_MAX_THREADS": str(_threads())}


def _threads() -> int:
    return max(1, min(4, os.cpu_count() or 1))


def _limits(memory: int, seconds: int, parent: int) -> Callable[[], None]:
    """What the child does to itself between fork and exec."""
    end_with_parent = ends_with(parent)

    def apply() -> None:
        end_with_parent()
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        cpu = seconds * _threads()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(10)

    return apply


def _reason(code: int, errors: Path) -> str:
    with errors.open("rb") as file:
        file.seek(max(0, errors.stat().st_size - 16_384))
        text = file.read().decode(errors="replace").replace("\0", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1][:LONGEST_ERROR] if lines else ""
    if code == BAD_DUMP and last:
        return last
    if _is_memory(code, text):
        return f"the analysis needed more than {byte_text(settings.DIGEST_MEMORY_BYTES)} of memory and was stopped"
    if code == -signal.SIGXCPU:
        return _too_slow()
    logger.error("analysis ended with %s: %s", code, text[-4_000:])
    return f"the analysis stopped unexpectedly ({_code_text(code)}){': ' + last[:300] if last else ''}"


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


def _too_slow() -> str:
    return f"the analysis took longer than {settings.DIGEST_SECONDS} s and was stopped"


def _code_text(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def _read_result(path: Path) -> Digest:
    try:
        if path.stat().st_size > MAX_ENTRY_BYTES:
            raise DigestFailed(f"the summary of this dump is over {byte_text(MAX_ENTRY_BYTES)}")
        result = json.loads(path.read_bytes().replace(b"\\u0000", b"\\ufffd"))
        return Digest(result["entry"], result["source"], result.get("series") or [])
    except (OSError, ValueError, KeyError) as error:
        logger.exception("the analysis left no readable result")
        raise DigestFailed("the analysis ended without a result") from error


def _check_rank(dump: Dump, result: Digest) -> None:
    told = result.entry.get("rank")
    if told is not None and told != dump.rank:
        raise DigestFailed(f"the files are of rank {told}, but were sent as rank {dump.rank}")
    size = result.source.get("world_size")
    if size is not None and dump.rank >= size:
        raise DigestFailed(f"rank {dump.rank} cannot be: the files are of a job of {size} ranks")


def _store(dump: Dump, result: Digest, out: Path) -> None:
    """Tables in place first, then all rows in one transaction; the tables of an earlier digest go after the commit."""
    name = storage.new_frames_name(dump.pk)
    storage.publish_frames(out, name)
    try:
        with transaction.atomic():
            old = _take_back(dump)
            _write_rows(dump, result, name)
    except BaseException:
        storage.remove_frames(name)
        raise
    storage.remove_frames(old)


def _take_back(dump: Dump) -> str:
    """Lock the dump and make sure it is still ours. Gives the tables folder it had."""
    row = Dump.objects.select_for_update().filter(pk=dump.pk).values_list("state", "claimed_at", "frames").first()
    if row is None or row[:2] != (DumpState.DIGESTING, dump.claimed_at):
        raise ClaimLost
    return row[2]


def _write_rows(dump: Dump, result: Digest, frames: str) -> None:
    now = timezone.now()
    entry = {**result.entry, "rank": dump.rank}
    RankStep.objects.filter(dump=dump).delete()
    RankStep.objects.bulk_create(_rank_steps(dump, entry), batch_size=2_000)
    Dump.objects.filter(pk=dump.pk).update(
        state=DumpState.DIGESTED,
        progress=1,
        error="",
        digested_at=now,
        heartbeat=now,
        frames=frames,
        entry=entry,
        source=result.source,
        **_columns(dump, entry, result.source),
    )
    store_steps(dump.capture.run, "callback", result.series, update=False)
    _mark_due(dump)


def _mark_due(dump: Dump) -> None:
    # Last in the transaction, since it waits while the capture is being rolled up; never skipped, or the roll-up
    # under way would clear the flag of a result it has not seen.
    Capture.objects.filter(pk=dump.capture_id).update(rollup_due=True)


def _rank_steps(dump: Dump, entry: dict[str, Any]) -> list[RankStep]:
    return [
        RankStep(
            dump=dump,
            step=str(step.get("step"))[:40],
            position=position,
            source=str(step.get("source") or "")[:60],
            warmup=bool(step.get("warmup")),
            **{f"{name}_ns": to_ns(step.get(f"{name}_us")) for name in STEP_COLUMNS},
        )
        for position, step in enumerate(entry.get("steps") or [])
    ]


def _columns(dump: Dump, entry: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """What grids and lists sort by: medians over the judged steps, shares over the same steps."""
    from statistics import median

    from analysis.entries import device_ratio, judged_steps, step_time_us

    def middle(key: str) -> int | None:
        values = [step[key] for step in judged_steps(entry) if step.get(key) is not None]
        return to_ns(median(values)) if values else None

    return {
        "step_time_ns": to_ns(step_time_us(entry)),
        "computing_ns": middle("computing_us"),
        "communication_not_overlapped_ns": middle("communication_not_overlapped_us"),
        "free_ns": middle("free_us"),
        "device_ratio": device_ratio([entry]),
        "cast_ratio": share_of_compute([entry], "cast_us"),
        "host": str(dump.host or entry.get("host") or "")[:200],
        "device_id": dump.device_id if dump.device_id is not None else entry.get("device_id"),
        "framework": str(dump.framework or source.get("framework") or "")[:20],
    }


def mark_failed(dump: Dump, reason: str) -> None:
    """Store why, unless the dump was meanwhile replaced or taken by another worker."""
    with transaction.atomic():
        mine = Dump.objects.filter(pk=dump.pk, state=DumpState.DIGESTING, claimed_at=dump.claimed_at)
        text = reason.replace("\0", "").strip()[:LONGEST_ERROR]
        if mine.update(state=DumpState.FAILED, error=text, progress=F("progress"), heartbeat=timezone.now()):
            _mark_due(dump)
