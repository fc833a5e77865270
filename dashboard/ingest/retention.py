"""What ends and what goes: uploads never finished, bytes past their keep, files that no row refers to."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Count, QuerySet, Sum
from django.db.models.expressions import RawSQL
from django.utils import timezone

from dashboard.accounts.models import Project, Retention
from dashboard.ingest import storage, uploads
from dashboard.ingest.models import ArchiveState, Blob, IncomingArchive, Upload
from dashboard.runs.models import Capture, Dump, DumpState, Run

T = TypeVar("T")
BASELINE_TAG = "baseline"
"""Runs with this tag and reference runs keep all they have, as long as they are one."""

# A join, since a list of a million hashes is beyond what NOT IN keeps in memory: it is walked for each blob then.
NO_DUMP = """
    NOT EXISTS (
        SELECT FROM runs_dump d JOIN runs_capture c ON c.id = d.capture_id JOIN runs_run r ON r.id = c.run_id,
            jsonb_array_elements(d.files) file
        WHERE r.project_id = ingest_blob.project_id AND file->>'sha256' = ingest_blob.sha256 AND {which})
"""
WHO_NEEDS = ("d.state <> 'digested'", "(r.is_reference OR r.tags @> %s::varchar[])")
"""Asked apart: neither reads the files of all dumps."""
NOT_NEEDED = [NO_DUMP.format(which=which) for which in WHO_NEEDS]
SENT = """
    SELECT file->>'sha256'
    FROM runs_dump d JOIN runs_capture c ON c.id = d.capture_id JOIN runs_run r ON r.id = c.run_id,
        jsonb_array_elements(d.files) file
    WHERE r.project_id = %s AND {which}
"""
NEEDED = f"sha256 IN ({' UNION '.join(SENT.format(which=which) for which in WHO_NEEDS)})"
NOT_LISTED = [NO_DUMP.format(which="true")]
# Files of a dump change while it is announced, never later: who lists one now and did not when a sweep looked is on its
# way, or was digested since. Both are found by an index, where all manifests of a project take seconds.
NOT_LISTED_LATELY = [NO_DUMP.format(which=which) for which in ("d.state <> 'digested'", "d.digested_at >= %s")]
CLOCKS = timedelta(hours=1)
"""By how much the clocks of hosts may differ."""
# One walk along an index over a project's captures: a look for a newer one at each takes three times as long.
OLD = """
    SELECT id FROM (
        SELECT c.id, c.state, c.captured_at,
            max(c.captured_at) FILTER (WHERE c.state = 'ready') OVER (PARTITION BY c.run_id) AS newest
        FROM runs_capture c JOIN runs_run r ON r.id = c.run_id
        WHERE r.project_id = %s AND NOT r.is_reference AND NOT r.tags @> %s::varchar[]
    ) found
    WHERE state IN ('ready', 'failed') AND captured_at < newest AND captured_at < %s
        AND NOT EXISTS (
            SELECT FROM runs_dump WHERE capture_id = found.id AND runs_dump.state NOT IN ('digested', 'failed'))
        AND NOT EXISTS (SELECT FROM alerts_alert WHERE capture_id = found.id AND alerts_alert.state = 'open')
"""
BATCH = 1_000
LOOKED_UP = 5_000
FILES = 500
"""Removed at a time: each is a lock in memory that PostgreSQL shares among all."""


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


def remove_old() -> None:
    """Remove what is past its keep, by each project's own answer."""
    for project in Project.objects.order_by("pk"):
        keep = project.retention
        remove_old_captures(project, keep.captures)
        remove_old_uploads(project, keep.uploads)
        remove_old_kernels(project, keep.kernels)


@dataclass(frozen=True)
class Removable:
    """What a sweep would remove of a project now."""

    files: int
    bytes: int
    tables: int
    captures: int


def removable(project: Project, keep: Retention) -> Removable:
    """What `remove_old` would take under `keep`; whole captures count with their tables once more."""
    files, size = _old_bytes(project, keep.uploads)
    return Removable(
        files=files,
        bytes=size,
        tables=old_kernels(project, keep.kernels).count(),
        captures=old_captures(project, keep.captures).count(),
    )


def _old_bytes(project: Project, days: int) -> tuple[int, int]:
    """Count and size of `old_uploads`: all old ones, from an index alone, less the few that are needed. Sorting out
    each of a million takes seconds."""
    if days <= 0:
        return 0, 0
    old = Blob.objects.filter(project=project, created__lt=_before(days))
    needed = old.extra(where=[NEEDED], params=[project.pk, project.pk, [BASELINE_TAG]])
    totals = {"files": Count("*"), "bytes": Sum("size", default=0)}
    every, less = old.aggregate(**totals), needed.aggregate(**totals)
    return every["files"] - less["files"], every["bytes"] - less["bytes"]


def _before(days: int) -> datetime:
    return timezone.now() - timedelta(days=days)


def old_uploads(project: Project, days: int) -> QuerySet[Blob]:
    """Sent bytes older than `days` whose dumps are all digested and of no reference or baseline. 0 keeps everything."""
    if days <= 0:
        return Blob.objects.none()
    old = Blob.objects.filter(project=project, created__lt=_before(days))
    return old.extra(where=NOT_NEEDED, params=[[BASELINE_TAG]])


def old_kernels(project: Project, days: int) -> QuerySet[Dump]:
    """Dumps digested more than `days` ago that still have tables; none of references and baselines. 0 keeps all."""
    if days <= 0:
        return Dump.objects.none()
    runs = _sweepable(project)
    old = Dump.objects.filter(capture__run__in=runs, digested_at__lt=_before(days), state=DumpState.DIGESTED)
    return old.exclude(frames="")


def old_captures(project: Project, days: int) -> QuerySet[Capture]:
    """Captures of more than `days` ago that may go. 0 keeps all.

    What stays: a run's newest one, what is still on its way, what an open alert is about, references and baselines.
    """
    if days <= 0:
        return Capture.objects.none()
    return Capture.objects.filter(pk__in=RawSQL(OLD, [project.pk, [BASELINE_TAG], _before(days)]))


def _sweepable(project: Project) -> QuerySet[Run]:
    return Run.objects.filter(project=project, is_reference=False).exclude(tags__contains=[BASELINE_TAG])


def remove_old_uploads(project: Project, days: int) -> int:
    """Remove sent bytes, some at a time: what a dump came to need meanwhile stays."""
    return _remove_all(old_uploads(project, days))


def remove_old_captures(project: Project, days: int) -> int:
    """Remove whole captures with their rows, tables and the files that no other capture of the project lists."""
    removed = 0
    while ids := list(old_captures(project, days).order_by("pk").values_list("pk", flat=True)[:BATCH]):
        dumps = _delete_captures(project, days, ids)
        for frames, _files in dumps:
            storage.remove_frames(frames)
        sent = {file["sha256"] for _frames, files in dumps for file in files}
        _remove_unlisted(project, _unlisted(project).filter(sha256__in=sent))
        removed += len(ids)
    return removed


def remove_unlisted(before: datetime) -> int:
    """Remove bytes older than `before` that no dump of their project lists: sent while their dump was deleted, or of
    a dump that was replaced."""
    projects = Project.objects.order_by("pk")
    return sum(_remove_unlisted(project, _unlisted(project).filter(created__lt=before)) for project in projects)


def _remove_unlisted(project: Project, going: QuerySet[Blob]) -> int:
    lately = [timezone.now() - CLOCKS]
    return _remove_all(going, Blob.objects.filter(project=project).extra(where=NOT_LISTED_LATELY, params=lately))


def _unlisted(project: Project) -> QuerySet[Blob]:
    return Blob.objects.filter(project=project).extra(where=NOT_LISTED)


def _remove_all(going: QuerySet[Blob], still: QuerySet[Blob] | None = None) -> int:
    """Some at a time; which they are is worked out once, since that reads what all dumps list. `still`: those that no
    dump came to need since, where that is told by less."""
    keys = list(going.order_by("pk").values_list("pk", flat=True))
    rest = going if still is None else still
    return sum(remove_blobs(rest, list(Blob.objects.filter(pk__in=part))) for part in _parts(keys, FILES))


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def remove_blobs(going: QuerySet[Blob], blobs: list[Blob]) -> int:
    """Remove those of the blobs that are still among the `going`; how many.

    The rows first: a kill between the two leaves files without a row, which are swept, never a row without its file.
    """
    with transaction.atomic():
        uploads.lock_contents(blob.sha256 for blob in blobs)
        # Locked, none can be what a dump is completed with meanwhile; one that just was is no longer going.
        list(Blob.objects.filter(pk__in=[blob.pk for blob in blobs]).order_by("pk").select_for_update())
        gone = list(going.filter(pk__in=[blob.pk for blob in blobs]))
        Blob.objects.filter(pk__in=[blob.pk for blob in gone]).delete()
    _remove_stray_blobs([blob.sha256 for blob in gone])
    return len(gone)


@transaction.atomic
def _delete_captures(project: Project, days: int, ids: list[int]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Delete those of the captures that may still go; the tables and files of their dumps."""
    # Locked, none takes another dump; one that just did is no longer among those that may go. Dumps first, as always.
    list(Dump.objects.filter(capture__in=ids).order_by("pk").select_for_update().values_list("pk"))
    list(Capture.objects.filter(pk__in=ids).order_by("pk").select_for_update().values_list("pk"))
    going = Capture.objects.filter(
        pk__in=list(old_captures(project, days).filter(pk__in=ids).values_list("pk", flat=True))
    )
    dumps = list(Dump.objects.filter(capture__in=going).values_list("frames", "files"))
    runs = list(going.values_list("run", flat=True).distinct())
    going.delete()
    for run in Run.objects.filter(pk__in=runs).only("pk"):
        Run.objects.filter(pk=run.pk).update(capture_count=run.captures.count())
    return dumps


def remove_old_kernels(project: Project, days: int) -> int:
    """Remove the tables of dumps digested more than `days` ago; their rows and reports stay."""
    removed = 0
    for pk, name in old_kernels(project, days).values_list("pk", "frames"):
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
    for part in _parts(_older(storage.stored_frames(), limit), LOOKED_UP):
        for name in _frames_of_nobody([path.name for path in part]):
            storage.remove_frames(name)
            removed += 1
    for path in _older(storage.stored_work(), limit):
        storage.remove_work(path)
        removed += 1
    for part in _parts(_older(storage.stored_blobs(), limit), LOOKED_UP):
        removed += _remove_stray_blobs(list(_blobs_of_nobody([path.name for path in part])))
    return removed


def _frames_of_nobody(names: Sequence[str]) -> set[str]:
    """Those that no dump has. The name begins with the dump's key: tables are found by no other index."""
    dumps = {int(name.partition("-")[0]) for name in names}
    return set(names) - set(Dump.objects.filter(pk__in=dumps).values_list("frames", flat=True))


def _blobs_of_nobody(hashes: Sequence[str]) -> set[str]:
    return set(hashes) - set(Blob.objects.filter(sha256__in=hashes).values_list("sha256", flat=True))


def _remove_stray_blobs(hashes: Sequence[str]) -> int:
    """Remove the files of contents that no project has, looked at anew under their locks."""
    removed = 0
    for part in _parts(hashes, FILES):
        with transaction.atomic():
            uploads.lock_contents(part)
            strays = _blobs_of_nobody(part)
            for sha256 in strays:
                storage.remove_blob(sha256)
        removed += len(strays)
    return removed


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
