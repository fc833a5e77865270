"""What ends and what goes: uploads never finished, bytes past their keep, files that no row refers to."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from pathlib import Path

from django.db import transaction
from django.utils import timezone

from dashboard.ingest import storage, uploads
from dashboard.ingest.models import ArchiveState, Blob, IncomingArchive, Upload
from dashboard.runs.models import Capture, Dump, DumpState

NEEDED = """
    SELECT file->>'sha256' FROM runs_dump d JOIN runs_capture c ON c.id = d.capture_id
        JOIN runs_run r ON r.id = c.run_id, jsonb_array_elements(d.files) file
    WHERE d.state <> 'digested' AND r.project_id = ingest_blob.project_id
"""


def end_abandoned(before: datetime) -> int:
    """Fail dumps and archives that got no byte since `before`, and drop their unfinished uploads."""
    waiting = Dump.objects.filter(state=DumpState.RECEIVING, created__lt=before).exclude(heartbeat__gte=before)
    ended = 0
    for dump in waiting.exclude(uploads__touched__gte=before).select_related("capture__run__project"):
        ended += _end_dump(dump)
    archives = IncomingArchive.objects.filter(state=ArchiveState.RECEIVING, touched__lt=before)
    for archive in archives.exclude(uploads__touched__gte=before):
        same = IncomingArchive.objects.filter(pk=archive.pk, state=ArchiveState.RECEIVING)
        ended += same.update(state=ArchiveState.FAILED, error="the upload was never finished")
    stale = Upload.objects.filter(touched__lt=before).exclude(archive__state__in=IncomingArchive.PENDING)
    for upload in stale:
        uploads.discard(upload)
    return ended


def _end_dump(dump: Dump) -> int:
    missing = uploads.missing_of(dump, dump.capture.run.project)
    reason = f"the upload was never finished: {len(missing)} of {len(dump.files)} files are missing"
    with transaction.atomic():
        same = Dump.objects.filter(pk=dump.pk, state=DumpState.RECEIVING)
        ended = same.update(state=DumpState.FAILED, error=reason)
        if ended:
            Capture.objects.filter(pk=dump.capture_id).update(rollup_due=True)
    return ended


def remove_old_uploads(days: int) -> int:
    """Remove sent bytes older than `days` whose dumps are all digested. 0 keeps everything."""
    if days <= 0:
        return 0
    old = Blob.objects.filter(created__lt=timezone.now() - timedelta(days=days))
    removable = old.extra(where=[f"sha256 NOT IN ({NEEDED})"])
    return sum(_remove_blob(blob) for blob in removable.iterator(chunk_size=500))


def _remove_blob(blob: Blob) -> bool:
    with transaction.atomic():
        uploads.lock_content(blob.sha256)
        blob.delete()
        if not Blob.objects.filter(sha256=blob.sha256).exists():
            storage.remove_blob(blob.sha256)
    return True


def remove_old_kernels(days: int) -> int:
    """Remove the tables of dumps digested more than `days` ago; their rows and reports stay. 0 keeps everything."""
    if days <= 0:
        return 0
    old = Dump.objects.filter(digested_at__lt=timezone.now() - timedelta(days=days), state=DumpState.DIGESTED)
    removed = 0
    for pk, name in old.exclude(frames="").values_list("pk", "frames"):
        if Dump.objects.filter(pk=pk, frames=name).update(frames=""):
            storage.remove_frames(name)
            removed += 1
    return removed


def remove_strays(before: datetime) -> int:
    """Remove files older than `before` that no row refers to: of deleted projects, of killed workers."""
    limit, removed = before.timestamp(), 0
    for path in _older(storage.stored_incoming(), limit):
        upload_id = _uuid(path.name)
        if upload_id is None or not Upload.objects.filter(pk=upload_id).exists():
            path.unlink(missing_ok=True)
            removed += 1
    for path in _older(storage.stored_frames(), limit):
        if not Dump.objects.filter(frames=path.name).exists():
            storage.remove_frames(path.name)
            removed += 1
    for path in _older(storage.stored_work(), limit):
        storage.remove_work(path)
        removed += 1
    return removed + sum(_remove_stray_blob(path.name) for path in _older(storage.stored_blobs(), limit))


def _remove_stray_blob(sha256: str) -> bool:
    with transaction.atomic():
        uploads.lock_content(sha256)
        stray = not Blob.objects.filter(sha256=sha256).exists()
        if stray:
            storage.remove_blob(sha256)
    return stray


def _older(paths: list[Path], limit: float) -> list[Path]:
    return [path for path in paths if _changed(path) < limit]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _uuid(name: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(hex=name)
    except ValueError:
        return None
