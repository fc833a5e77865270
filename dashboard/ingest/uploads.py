"""What happens to an upload: begun, grown under a row lock, checked whole, made a blob, thrown away.

Order matters for crashes: bytes are on disk before the offset that counts them is committed, and a file has its final
name before the row that refers to it. So a row never promises bytes that are not there.

Order matters for locks too. Whoever needs several takes them so: project, contents, dump, uploads, blobs, capture. A
roll-up, which holds its capture all the while, waits for no dump.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from dashboard.accounts.models import Project
from dashboard.ingest import running, storage
from dashboard.ingest.auth import BULKY, Caller
from dashboard.ingest.errors import ApiError, NotFound
from dashboard.ingest.manifest import FileEntry
from dashboard.ingest.models import ArchiveState, Blob, IncomingArchive, Upload
from dashboard.runs.models import Dump, DumpState


def find(caller: Caller, upload_id: uuid.UUID) -> Upload:
    """The caller's upload. Raises 404 for one of another project, finished or thrown away."""
    upload = with_project(Upload.objects.filter(pk=upload_id)).first()
    if upload is None or not caller.projects().filter(pk=project_of(upload).pk).exists():
        raise NotFound("upload")
    caller.check_role(project_of(upload))
    return upload


def with_project(found: QuerySet[Upload]) -> QuerySet[Upload]:
    """Uploads with what `project_of` needs, without the bulk of it."""
    bulky = [f"dump__{name}" for name in BULKY]
    return found.select_related("dump__capture__run__project", "archive__project").defer(*bulky)


def project_of(upload: Upload) -> Project:
    if upload.dump is not None:
        return upload.dump.capture.run.project
    assert upload.archive is not None
    return upload.archive.project


def begin_dump_file(caller: Caller, dump_id: int, name: str, sha256: str, length: int) -> Upload:
    """The upload of a missing file: a new one, or the one that was interrupted."""
    dump = caller.dumps().filter(pk=dump_id).first()
    if dump is None:
        raise NotFound("dump")
    caller.check_role(dump.capture.run.project)
    wanted = {"name": name, "size": length, "sha256": sha256}
    if wanted not in dump.files:
        message = f"{name[:300]} of {length} bytes with this sha256 is not a file of dump {dump_id}"
        raise ApiError(400, "bad_manifest", message, file=name[:300])
    if Blob.objects.filter(project=dump.capture.run.project, sha256=sha256).exists():
        raise ApiError(409, "conflict", f"{name} is here already", file=name)
    return _begin(Upload(dump=dump, name=name, sha256=sha256, length=length))


def begin_archive_file(caller: Caller, archive_id: int, name: str, length: int) -> Upload:
    archive = IncomingArchive.objects.filter(pk=archive_id, project__in=caller.projects()).first()
    if archive is None:
        raise NotFound("archive")
    caller.check_role(archive.project)
    if archive.state != ArchiveState.RECEIVING:
        raise ApiError(409, "conflict", f"archive {archive_id} is {archive.state}, it takes no more files")
    if {"name": name, "size": length} not in archive.files:
        raise ApiError(400, "bad_manifest", f"{name[:300]} of {length} bytes was not announced", file=name[:300])
    return _begin(Upload(archive=archive, name=name, length=length))


def _begin(upload: Upload) -> Upload:
    storage.check_free(upload.length)
    key = (
        {"dump": upload.dump, "sha256": upload.sha256}
        if upload.dump
        else {"archive": upload.archive, "name": upload.name}
    )
    try:
        with transaction.atomic():
            upload.save(force_insert=True)
    except IntegrityError:
        upload = with_project(Upload.objects.filter(**key)).get()
    return finish(upload)


def append(upload: Upload, piece: bytes) -> int:
    """Write `piece` at the upload's offset and count it; the new offset. Raises 409 when another request was faster."""
    return append_all(upload, iter([piece]))


def append_all(upload: Upload, pieces: Iterator[bytes]) -> int:
    """Write all pieces and count them together or not at all; the new offset."""
    with transaction.atomic():
        row = Upload.objects.select_for_update(of=("self",)).filter(pk=upload.pk).first()
        if row is None:
            raise NotFound("upload")
        if row.offset != upload.offset:
            raise wrong_offset(row.offset)
        path = storage.incoming_path(row.pk)
        seen = running.go_on(row.pk, path, row.offset)
        offset = storage.write_at(path, row.offset, seen.feed(pieces) if seen else pieces)
        Upload.objects.filter(pk=row.pk).update(offset=offset, touched=timezone.now())
        if seen:
            seen.stamp = running.stamp_of(path)
            transaction.on_commit(lambda: running.remember(row.pk, seen))
    return offset


def wrong_offset(offset: int) -> ApiError:
    return ApiError(409, "offset", f"the upload is at {offset}", offset=offset)


def finish(upload: Upload) -> Upload:
    """Bring an upload to the state its bytes allow; safe to repeat after a crash anywhere.

    A whole file of a dump becomes a blob, and its upload ends. Raises 460, and throws the upload away, when the whole
    does not have the announced hash.
    An offset that the disk does not back (a restored backup) goes down to what is there.
    """
    path = storage.incoming_path(upload.pk)
    there = storage.size_of(path)
    if upload.dump is not None and upload.is_whole and not path.exists() and _is_kept(upload):
        _make_blob(upload)
        return upload
    if there < upload.offset:
        Upload.objects.filter(pk=upload.pk, offset=upload.offset).update(offset=there)
        upload.offset = there
    if upload.length == 0:
        storage.write_at(path, 0, [])
    if upload.is_whole and upload.dump is not None and _has_its_hash(upload):
        _make_blob(upload)
    return upload


def _has_its_hash(upload: Upload) -> bool:
    """False when another request was faster and gave the file its name. Raises 460 for other bytes than announced."""
    path = storage.incoming_path(upload.pk)
    try:
        known = running.sha256_of(upload.pk, path)
        same = storage.size_of(path) <= upload.length and (known or storage.sha256_of(path)) == upload.sha256
    except FileNotFoundError:
        return False
    if not same:
        discard(upload)
        message = f"{upload.name} does not have the announced sha256; send it again"
        raise ApiError(460, "checksum", message, file=upload.name)
    return True


def _is_kept(upload: Upload) -> bool:
    # Only whole, checked files ever get a blob's name, so this is the rename of a request that died before its commit.
    path = storage.blob_path(upload.sha256)
    return path.exists() and storage.size_of(path) == upload.length


def _make_blob(upload: Upload) -> None:
    """Give the file its final name, then the row; the lock keeps a clean-up of the same content away."""
    assert upload.dump is not None
    with transaction.atomic():
        lock_content(upload.sha256)
        _lock_dump(upload.dump)
        if not Upload.objects.select_for_update(of=("self",)).filter(pk=upload.pk).exists():
            return  # another request ended it: made the blob, or threw false bytes away, and then nothing is owed
        path = storage.incoming_path(upload.pk)
        if path.exists():
            storage.keep(path, upload.sha256)
        project = project_of(upload)
        Blob.objects.get_or_create(project=project, sha256=upload.sha256, defaults={"size": upload.length})
        Upload.objects.filter(pk=upload.pk).delete()
        _count_progress(upload.dump, project)


def keep_contents(dump: Dump, contents: Mapping[str, memoryview]) -> None:
    """Make blobs of whole contents of a dump's files, by their checked hashes: all of them, or none.

    An unfinished upload of one of them is over.
    """
    project = dump.capture.run.project
    with storage.set_aside(contents) as files, transaction.atomic():
        lock_contents(files)
        _lock_dump(dump)
        _end_uploads(dump, files)
        storage.keep_all(files)
        rows = [Blob(project=project, sha256=sha256, size=len(content)) for sha256, content in contents.items()]
        Blob.objects.bulk_create(rows, ignore_conflicts=True)
        _count_progress(dump, project)


def _lock_dump(dump: Dump) -> None:
    """Before its uploads: an announcement of other files locks the dump, then throws away uploads."""
    list(Dump.objects.select_for_update(no_key=True).filter(pk=dump.pk).order_by().values_list("pk"))


def _end_uploads(dump: Dump, hashes: Iterable[str]) -> None:
    ended = list(Upload.objects.filter(dump=dump, sha256__in=list(hashes)).values_list("pk", flat=True))
    if not ended:
        return
    Upload.objects.filter(pk__in=ended).delete()

    def remove() -> None:
        for upload in ended:
            storage.remove_incoming(upload)

    transaction.on_commit(remove)


def _count_progress(dump: Dump, project: Project) -> None:
    total = sum({file["sha256"]: file["size"] for file in dump.files}.values())
    waiting = sum(file["size"] for file in missing_of(dump, project))
    progress = 1 - waiting / total if total else 1.0
    receiving = Dump.objects.filter(pk=dump.pk, state=DumpState.RECEIVING)
    receiving.update(progress=progress, heartbeat=timezone.now())


def missing_of(dump: Dump, project: Project) -> list[FileEntry]:
    """The dump's files whose content the project has not sent, each content once."""
    hashes = {file["sha256"] for file in dump.files}
    held = set(Blob.objects.filter(project=project, sha256__in=hashes).values_list("sha256", flat=True))
    wanted: dict[str, FileEntry] = {file["sha256"]: file for file in reversed(dump.files) if file["sha256"] not in held}
    return sorted(wanted.values(), key=lambda file: file["name"])


def hold(dump: Dump, project: Project) -> None:
    """Until the transaction ends, no sweep takes away what is here of the dump's files."""
    held = Blob.objects.filter(project=project, sha256__in={file["sha256"] for file in dump.files})
    list(held.order_by("pk").select_for_update().values_list("pk"))


def check_sizes(files: Sequence[FileEntry], project: Project) -> None:
    """Raise ApiError 400 for a file that is announced with another size than its content here has."""
    rows = Blob.objects.filter(project=project, sha256__in={file["sha256"] for file in files})
    held = dict(rows.values_list("sha256", "size"))
    for file in files:
        size = held.get(file["sha256"], file["size"])
        if size != file["size"]:
            message = f"{file['name']}: the content with this sha256 has {size} bytes, not {file['size']}"
            raise ApiError(400, "bad_manifest", message, file=file["name"])


def discard(upload: Upload) -> None:
    """The row first: bytes without a row are swept, a row without bytes would promise them."""
    Upload.objects.filter(pk=upload.pk).delete()
    storage.remove_incoming(upload.pk)


def lock_content(sha256: str) -> None:
    """Until the transaction ends, nobody else gives or takes away this content's file."""
    lock_contents([sha256])


def lock_contents(hashes: Iterable[str]) -> None:
    """The same of several contents, in one order for all that lock several."""
    keys = sorted(int(sha256[:15], 16) for sha256 in hashes)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS key", [keys])
