"""Archives and folders sent from the browser: announced, received by tus, unpacked by a worker into dumps."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone
from pydantic import ValidationError

from dashboard.accounts.models import Project, User
from dashboard.ingest import intake, limits, queue, storage, uploads
from dashboard.ingest.auth import Caller
from dashboard.ingest.bodies import check_body
from dashboard.ingest.child import ClaimLost, DigestFailed, run_analysis
from dashboard.ingest.errors import ApiError, NotFound
from dashboard.ingest.manifest import FileEntry, check_name, read_manifest
from dashboard.ingest.models import ArchiveState, Blob, IncomingArchive, Upload
from dashboard.ingest.schemas import ArchiveIn, ConfigIn, DumpIn, FileIn, MetaIn, RunIn, WindowIn
from dashboard.ingest.sweeps import silent
from dashboard.runs.models import Capture, Run

logger = logging.getLogger(__name__)

UNPACK = "dashboard.ingest.tasks.unpack_archive"
MAX_FILES = 20_000
STAMP = re.compile(r"_(\d{14,17})_ascend_(?:pt|ms)")


def announce(project: Project, user: User | None, body: ArchiveIn) -> IncomingArchive:
    """Reserve room for the files. Raises ApiError for bad names, too many or too large files, a bad config."""
    files = [{"name": file.name, "size": file.size} for file in body.files]
    if len(files) > MAX_FILES:
        raise ApiError(413, "too_many_files", f"{len(files)} files; {MAX_FILES} at most", limit=MAX_FILES)
    if len({file.name for file in body.files}) < len(files):
        raise ApiError(400, "bad_manifest", "a file is listed twice")
    for file in body.files:
        _safe_parts(file.name)
        limits.check_file(file.name, file.size)
    limits.check_dump([file.size for file in body.files])
    config = intake.without_secrets(body.config) if body.config else None
    if config:
        intake.read_config(config)
    with transaction.atomic():
        project = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        archive = IncomingArchive.objects.create(
            project=project,
            user=user,
            run_key=body.run,
            run_name=body.run_name or "",
            capture_key=body.capture or "",
            config_name=config.name if config else "",
            config_text=config.text if config else "",
            files=files,
            size_bytes=sum(file.size for file in body.files),
        )
        limits.check_project(project, archive.size_bytes)
    return archive


def find(caller: Caller, archive_id: int) -> IncomingArchive:
    archive = (
        IncomingArchive.objects.select_related("project").filter(pk=archive_id, project__in=caller.projects()).first()
    )
    if archive is None:
        raise NotFound("archive")
    return archive


def as_json(archive: IncomingArchive) -> dict[str, Any]:
    captures = Capture.objects.filter(pk__in=archive.captures).only("key", "state").order_by("id")
    return {
        "id": archive.pk,
        "state": archive.state,
        "error": archive.error or None,
        "warnings": archive.warnings,
        "files": archive.files if archive.state == ArchiveState.RECEIVING else [],
        "captures": [
            {"id": row.pk, "key": row.key, "state": row.state, "url": settings.SITE_URL + row.get_absolute_url()}
            for row in captures
        ],
    }


def complete(archive: IncomingArchive) -> IncomingArchive:
    """The archive is here and waits for a worker. Raises 409 naming what is missing."""
    with transaction.atomic():
        archive = IncomingArchive.objects.select_for_update().get(pk=archive.pk)
        if archive.state != ArchiveState.RECEIVING:
            return archive
        whole = set(Upload.objects.filter(archive=archive, offset=F("length")).values_list("name", flat=True))
        missing = [file for file in archive.files if file["name"] not in whole]
        if missing:
            message = f"{len(missing)} of {len(archive.files)} files are missing, first {missing[0]['name']}"
            raise ApiError(409, "incomplete", message, beside={"missing": missing})
        archive.state, archive.touched = ArchiveState.WAITING, timezone.now()
        archive.save(update_fields=["state", "touched"])
        queue.send(UNPACK, archive.pk)
    return archive


def claim(archive_id: int) -> bool:
    waiting = IncomingArchive.objects.filter(pk=archive_id, state=ArchiveState.WAITING)
    return bool(waiting.update(state=ArchiveState.UNPACKING, attempts=F("attempts") + 1, touched=Now(), error=""))


def unpack(archive_id: int) -> None:
    """Make dumps of a waiting archive. What is wrong with it stands in its `error` afterwards."""
    if not claim(archive_id):
        return
    archive = IncomingArchive.objects.select_related("project").get(pk=archive_id)
    try:
        with storage.work_folder(f"archive-{archive.pk}") as folder:
            _make_dumps(archive, folder)
    except DigestFailed as error:
        _end(archive, ArchiveState.FAILED, _plain(str(error)))
    except ApiError as error:
        _end(archive, ArchiveState.FAILED, error.message)
    except ClaimLost:
        logger.info("archive %s was taken back while it was unpacked", archive_id)
    else:
        _end(archive, ArchiveState.DONE if archive.captures else ArchiveState.FAILED, archive.error)


def _plain(text: str) -> str:
    """A message without the place of the scratch folder, which tells a person nothing."""
    return re.sub(r"/\S*/scratch/archive-\d+-[0-9a-f]{12}/?", "", text)[:2_000] or text[:2_000]


def _end(archive: IncomingArchive, state: str, error: str) -> None:
    archive.state, archive.error, archive.touched = state, error, timezone.now()
    archive.save(update_fields=["state", "error", "touched", "warnings", "captures"])
    for upload in Upload.objects.filter(archive=archive):
        uploads.discard(upload)


def _beat(archive: IncomingArchive) -> None:
    """Proves that the worker lives. Raises ClaimLost when another has it by now."""
    mine = IncomingArchive.objects.filter(pk=archive.pk, state=ArchiveState.UNPACKING, attempts=archive.attempts)
    if not mine.update(touched=Now()):
        raise ClaimLost


def _make_dumps(archive: IncomingArchive, folder: Path) -> None:
    found = _found(archive, folder)
    if len(found) > 1:
        archive.warnings += [f"{dump.label}: its rank is not known" for dump in found if dump.rank is None]
        found = [dump for dump in found if dump.rank is not None]
    run = _run_of(archive, found)
    keys = capture_keys(found, archive.capture_key, f"upload-{archive.pk}")
    for dump, key in zip(found, keys, strict=True):
        _beat(archive)
        _take(archive, run, dump, key)
    archive.error = "" if archive.captures else "; ".join(archive.warnings)[:2_000]


@dataclass(frozen=True)
class FoundDump:
    """A dump in what was sent, as the child that looked tells; `files` are {name, path, size, sha256}."""

    label: str
    rank: int | None
    device_id: int | None
    host: str | None
    framework: str | None
    run_meta: dict[str, Any]
    files: list[dict[str, Any]]


def _found(archive: IncomingArchive, folder: Path) -> list[FoundDump]:
    """The dumps in what was sent. Unpacking and reading is a child's work: it may die of it, and nothing else does."""
    sent, out = folder / "sent", folder / "found"
    for made in (sent, out):
        made.mkdir()
    _lay_out(archive, sent)
    name = archive.files[0]["name"] if len(archive.files) == 1 else "the folder"
    arguments = ["find", f"--path={sent}", f"--name={name}", f"--out={out}"]
    run_analysis(arguments, folder, 0, lambda _stage: _beat(archive), "unpacking")
    return [FoundDump(**row) for row in json.loads((out / "found.json").read_bytes())]


def _lay_out(archive: IncomingArchive, tree: Path) -> None:
    """What was sent, in a folder as it lay there."""
    for upload in Upload.objects.filter(archive=archive):
        place = tree.joinpath(*_safe_parts(upload.name))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ApiError(400, "bad_name", f"{upload.name}: a part of it is a file's name too") from error
        if place.exists():
            raise ApiError(400, "bad_name", f"{upload.name} is there twice")
        os.link(storage.incoming_path(upload.pk), place)


def _safe_parts(name: str) -> list[str]:
    """The parts of a relative path, each fit for a file name. Raises ApiError for what could leave the folder."""
    parts = name.split("/")
    for part in parts:
        odd = any(ord(letter) < 32 or letter in "\\:\x7f" for letter in part)
        if part in ("", ".", "..") or odd or len(part.encode()) > 255:
            raise ApiError(400, "bad_name", f"{name[:300]!r} is not a relative path", file=name[:300])
    return parts


def _run_of(archive: IncomingArchive, found: Sequence[FoundDump]) -> Run:
    told = next((dump.run_meta for dump in found if dump.run_meta), {})
    meta = {key: value for key, value in told.items() if key not in ("schema", "rank", "device_id", "host", "window")}
    config = ConfigIn(name=archive.config_name, text=archive.config_text) if archive.config_text else None
    body = RunIn(key=archive.run_key, name=archive.run_name or None, config=config)
    try:
        check_body(meta)
        body.meta = MetaIn.model_validate(meta) if meta else None
    except (ApiError, ValidationError) as error:
        archive.warnings.append(f"stepscope_run.json is left out: {_why(error)}")
    return intake.get_or_make_run(archive.project, body)[0]


def capture_keys(dumps: Sequence[FoundDump], given: str, otherwise: str) -> list[str]:
    """The capture of each dump: as given, else its window's first step, else the time in folder names (the k-th dump
    of each rank is of the k-th window), else `otherwise`."""
    if given:
        return [given] * len(dumps)
    turns: dict[int | None, int] = {}
    stamps: dict[int, str] = {}
    places: list[tuple[str | None, int]] = []
    for dump in dumps:
        window = dump.run_meta.get("window")
        first = window.get("first_step") if isinstance(window, dict) else None
        turn = turns.get(dump.rank, 0)
        if not isinstance(first, int):
            turns[dump.rank] = turn + 1
            match = STAMP.search(dump.label)
            stamps[turn] = min(stamps.get(turn, "9"), match.group(1) if match else "9")
        places.append((f"step-{first}" if isinstance(first, int) else None, turn))
    fallback = {
        turn: stamp if stamp != "9" else (f"{otherwise}-{turn + 1}" if turn else otherwise)
        for turn, stamp in stamps.items()
    }
    return [key or fallback[turn] for key, turn in places]


def _take(archive: IncomingArchive, run: Run, dump: FoundDump, key: str) -> None:
    """Announce one dump and give it its bytes; what stands against it becomes a warning, the others go on."""
    try:
        files, places = _files_of(dump)
        window = dump.run_meta.get("window")
        body = DumpIn(
            capture=key,
            rank=dump.rank or 0,
            host=dump.host,
            device_id=dump.device_id,
            framework=dump.framework,
            folder=dump.label[:300],
            window=WindowIn.model_validate(window) if isinstance(window, dict) else None,
            files=[FileIn(**file) for file in files],
        )
        row, missing, _ = intake.announce(run, body, read_manifest(body.files))
        for file in missing:
            _keep(archive.project, places[file["name"]], file["sha256"])
        row = intake.complete(row)
    except (ApiError, ValidationError) as error:
        archive.warnings.append(f"{dump.label or 'dump'}: {_why(error)}")
        return
    if row.capture_id not in archive.captures:
        archive.captures.append(row.capture_id)


def _why(error: ApiError | ValidationError) -> str:
    return error.message if isinstance(error, ApiError) else error.errors()[0]["msg"]


def _files_of(dump: FoundDump) -> tuple[list[FileEntry], dict[str, Path]]:
    files, places = [], {}
    for file in dump.files:
        try:
            check_name(file["name"])
        except ApiError:
            continue
        files.append(FileEntry(name=file["name"], size=file["size"], sha256=file["sha256"]))
        places[file["name"]] = Path(file["path"])
    return files, places


def _keep(project: Project, path: Path, sha256: str) -> None:
    """Make a blob of a file in the work folder."""
    storage.sync_file(path)
    with transaction.atomic():
        uploads.lock_content(sha256)
        size = path.stat().st_size
        storage.keep_copy(path, sha256)
        Blob.objects.get_or_create(project=project, sha256=sha256, defaults={"size": size})


def release_dead(age: timedelta) -> int:
    """Archives whose worker gave no sign for `age`, or whose message was lost, are sent again, as often as allowed."""
    sent = 0
    states = (ArchiveState.UNPACKING, ArchiveState.WAITING)
    for archive in IncomingArchive.objects.filter(silent("touched", age), state__in=states):
        same = IncomingArchive.objects.filter(pk=archive.pk, state=archive.state, touched=archive.touched)
        if archive.attempts >= settings.DIGEST_ATTEMPTS:
            error = f"given up after {archive.attempts} attempts: the worker ended while it was unpacked"
            same.update(state=ArchiveState.FAILED, error=error)
        elif same.update(state=ArchiveState.WAITING, touched=Now()):
            sent += queue.send_now(UNPACK, archive.pk)
    return sent
