"""What the upload calls do: runs found or made, dumps announced, completed and put back. Every call may be repeated."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from dashboard.accounts.models import Project
from dashboard.ingest import devices, limits, queue, storage, uploads
from dashboard.ingest.auth import BULKY
from dashboard.ingest.errors import ApiError, byte_text
from dashboard.ingest.manifest import FileEntry, manifest_hash
from dashboard.ingest.masks import kept_config, masked_meta
from dashboard.ingest.models import Upload
from dashboard.ingest.schemas import ConfigIn, DumpIn, MetaIn, RunIn, WindowIn
from dashboard.runs import reference
from dashboard.runs.models import Capture, CaptureState, Dump, DumpState, Run

if TYPE_CHECKING:
    from analysis.config import ModelConfig

TEXT_COLUMNS = {
    "framework": 20,
    "framework_version": 60,
    "cann_version": 60,
    "soc": 40,
    "mode": 10,
    "jit_level": 10,
}
"""Their lengths: an over-long version is cut for the lists and whole in `meta`."""
SPLITS = ("dp", "tp", "pp", "cp", "ep")
REPLACEABLE = (DumpState.RECEIVING, DumpState.FAILED)
COMING = (DumpState.RECEIVING, DumpState.UPLOADED, DumpState.DIGESTING)


def get_or_make_run(project: Project, body: RunIn) -> tuple[Run, bool]:
    """The run of that key with what the body adds, and whether it was made."""
    told = without_secrets(body.config) if body.config else None
    config = read_config(told) if told else None
    with transaction.atomic():
        _, made = Run.objects.get_or_create(project=project, key=body.key, defaults={"name": body.name or body.key})
        run = Run.objects.select_for_update().get(project=project, key=body.key)
        before = (run.meta, run.config_name, run.config_text)
        if body.name:
            run.name = body.name
        if told and config:
            _set_config(run, told, config)
        if body.meta:
            merge_meta(run, body.meta)
        run.save()
    if not made and before != (run.meta, run.config_name, run.config_text):  # each rank's dump tells the same again
        mark_newest_due(run)  # apart: a roll-up locks the capture first and the run second
    return run, made


def name_reference(run: Run, *, replace: bool) -> None:
    """Make `run` the project's reference. Raises 409 when another is, unless it may be replaced."""
    try:
        reference.name(run, replace=replace)
    except reference.Taken as error:
        message = f"{error.key} is the project's reference run; it stays unless it may be replaced"
        raise ApiError(409, "conflict", message, reference=error.key) from error


def without_secrets(config: ConfigIn) -> ConfigIn:
    """What may be kept of a configuration. Raises ApiError naming the file for one that is too long."""
    if len(config.text.encode()) > settings.MAX_CONFIG_BYTES:
        limit = settings.MAX_CONFIG_BYTES
        message = f"{config.name}: a config may be {byte_text(limit)} at most"
        raise ApiError(413, "file_too_large", message, file=config.name, limit=limit)
    return ConfigIn(name=config.name, text=kept_config(config.name, config.text))


def read_config(config: ConfigIn) -> ModelConfig:
    """The run's configuration, read. Raises ApiError naming the file for what is none."""
    from analysis.config import read_config as read
    from analysis.errors import BadDump

    try:
        return read(config.text, config.name)
    except BadDump as error:
        raise ApiError(400, "bad_request", str(error), file=config.name) from error


def _set_config(run: Run, config: ConfigIn, model: ModelConfig) -> None:
    from analysis.config import fingerprint

    run.config_name, run.config_text = config.name, config.text
    run.model_name = _model_name(config, model)[:100]
    run.config_fingerprint = fingerprint(model)
    for split in SPLITS:  # what the job itself said (its meta) counts more than its file
        if getattr(run, split) is None or split not in (run.meta.get("parallel") or {}):
            setattr(run, split, getattr(model, split))


def _model_name(config: ConfigIn, model: ModelConfig) -> str:
    """What the config calls its model; else its family, else the file's own name."""
    from analysis.config import model_name

    text = model_name(config.text, config.name) or model.family or config.name.rsplit(".", 1)[0]
    return "".join(letter for letter in text if letter.isprintable())  # YAML can spell what PostgreSQL cannot hold


def merge_meta(run: Run, meta: MetaIn) -> None:
    """Keys given replace, keys not given (or null, which is unknown) stay."""
    given = masked_meta(meta.model_dump(exclude_none=True))
    parallel = {**(run.meta.get("parallel") or {}), **given.get("parallel", {})}
    run.meta = {**run.meta, **given, **({"parallel": parallel} if parallel else {})}
    _check_meta_size(run)
    for column, length in TEXT_COLUMNS.items():
        if column in given:
            setattr(run, column, given[column][:length])
    for column in ("sink", "world_size"):
        if column in given:
            setattr(run, column, given[column])
    for split in SPLITS:
        if split in parallel:
            setattr(run, split, parallel[split])


def _check_meta_size(run: Run) -> None:
    """Raise 413 for more than a page can show; calls add up, since keys that are not given stay."""
    size, limit = len(json.dumps(run.meta, ensure_ascii=False).encode()), settings.MAX_META_BYTES
    if size > limit:
        message = f"meta of {run.key} would be {byte_text(size)}; it may be {byte_text(limit)} at most"
        raise ApiError(413, "body_too_large", message, limit=limit)


def mark_newest_due(run: Run) -> None:
    """What the run was told changes how its newest capture is judged: MFU, checklist.

    One that is being summed up for the first time is no longer waited for by any digest, and may have read the run
    before this was told: it is summed up again. Found first and marked by their keys, since the roll-up under way
    changes their state before it lets go of them.
    """
    captures = Capture.objects.filter(run=run)
    newest = captures.filter(state=CaptureState.READY).order_by("-captured_at", "-id").values_list("pk", flat=True)[:1]
    done = (CaptureState.READY, CaptureState.FAILED)
    at_work = captures.filter(dumps__state=DumpState.DIGESTED).exclude(state__in=done).exclude(dumps__state__in=COMING)
    due = {*newest, *at_work.values_list("pk", flat=True)}
    Capture.objects.filter(pk__in=due).update(rollup_due=True)
    for capture_id in sorted(due):
        queue.send("dashboard.ingest.tasks.rollup_capture", capture_id)


def announce(run: Run, body: DumpIn, files: list[FileEntry]) -> tuple[Dump, list[FileEntry], bool]:
    """The dump of that capture and rank, the files still missing, and whether the dump is new.

    Raises ApiError 409 when another dump is there, 400 for a rank that cannot be, 413 where the project has no room.
    """
    with transaction.atomic():
        project = Project.objects.select_for_update(no_key=True).get(pk=run.project_id)
        capture, news = _capture_for(run, body)
        dump, made = _dump_for(capture, body, files)
        uploads.check_sizes(files, project)
        missing = uploads.missing_of(dump, project)
        if missing and dump.state == DumpState.FAILED:
            dump.state, dump.attempts, dump.error = DumpState.RECEIVING, 0, ""
        if dump.state == DumpState.RECEIVING:
            if not made:
                _describe(dump, body)
                dump.save()
            if missing:
                limits.check_project(project, sum(file["size"] for file in missing))
        if news:  # every rank of a thousand tells the same; last, as whoever stores a dump does
            Capture.objects.filter(pk=capture.pk).update(**news)
    if capture.state in (CaptureState.READY, CaptureState.FAILED) and dump.state == DumpState.RECEIVING:
        Capture.objects.filter(pk=capture.pk).update(state=CaptureState.RECEIVING)
    return dump, missing, made


def _capture_for(run: Run, body: DumpIn) -> tuple[Capture, dict[str, int]]:
    """The capture, and what the body tells of it that it does not know."""
    captured_at = _aware(body.captured_at) or timezone.now()
    captures = Capture.objects.defer("report")
    capture, _ = captures.get_or_create(run=run, key=body.capture, defaults={"captured_at": captured_at})
    if body.world_size is not None and body.rank >= body.world_size:
        raise ApiError(400, "bad_request", f"rank {body.rank} is not below world_size {body.world_size}")
    if body.world_size is not None and capture.world_size not in (None, body.world_size):
        message = (
            f"capture {capture.key} has world_size {capture.world_size}, this rank says {body.world_size}: "
            "it belongs to another run or window"
        )
        raise ApiError(409, "conflict", message)
    window = body.window or WindowIn()
    told = {"world_size": body.world_size, "first_step": window.first_step, "last_step": window.last_step}
    news = {name: value for name, value in told.items() if value is not None and value != getattr(capture, name)}
    for name, value in news.items():
        setattr(capture, name, value)
    return capture, news


def _aware(moment: datetime | None) -> datetime | None:
    if moment is None or not timezone.is_naive(moment):
        return moment
    return timezone.make_aware(moment, timezone.get_default_timezone())


def _dump_for(capture: Capture, body: DumpIn, files: list[FileEntry]) -> tuple[Dump, bool]:
    digest = manifest_hash(files)
    defaults = {"files": files, "files_sha256": digest, "size_bytes": sum(file["size"] for file in files)}
    dump, made = Dump.objects.defer("entry", "source").get_or_create(
        capture=capture, rank=body.rank, defaults={**defaults, **_told(body), "heartbeat": timezone.now()}
    )
    if made:
        return dump, True
    dump = Dump.objects.select_for_update().get(pk=dump.pk)
    if dump.files_sha256 == digest:
        return dump, False
    if dump.state not in REPLACEABLE and not body.replace and dump.origin_id is None:
        message = f"rank {dump.rank} of {capture.key} is {dump.state} with other files; `replace: true` replaces it"
        raise ApiError(409, "conflict", message)
    for name, value in defaults.items():
        setattr(dump, name, value)
    dump.state, dump.attempts, dump.progress, dump.error = DumpState.RECEIVING, 0, 0, ""
    dump.origin = None
    devices.remove(dump)
    _drop_uploads_not_in(dump, {file["sha256"] for file in files})
    return dump, False


def _drop_uploads_not_in(dump: Dump, hashes: set[str]) -> None:
    others = Upload.objects.filter(dump=dump).exclude(sha256__in=hashes)
    for upload_id in others.values_list("pk", flat=True):
        Upload.objects.filter(pk=upload_id).delete()
        transaction.on_commit(lambda gone=upload_id: storage.remove_incoming(gone))  # type: ignore[misc]


def _told(body: DumpIn) -> dict[str, Any]:
    told = {name: getattr(body, name) for name in ("device_id", "host", "folder", "framework")}
    return {name: value for name, value in told.items() if value is not None}


def _describe(dump: Dump, body: DumpIn) -> None:
    for name, value in _told(body).items():
        setattr(dump, name, value)
    dump.heartbeat = timezone.now()


def complete(dump: Dump) -> Dump:
    """The dump is here and waits for a worker. Raises 409 naming what is missing."""
    project = dump.capture.run.project
    for upload in uploads.with_project(Upload.objects.filter(dump=dump)):
        if upload.is_whole:
            uploads.finish(upload)
    with transaction.atomic():
        dump = _locked(dump)
        if dump.state != DumpState.RECEIVING:
            return dump
        uploads.hold(dump, project)
        missing = uploads.missing_of(dump, project)
        if missing:
            message = f"{len(missing)} of {len(dump.files)} files are missing, first {missing[0]['name']}"
            raise ApiError(409, "incomplete", message, beside={"missing": missing})
        dump.state, dump.uploaded_at, dump.progress = DumpState.UPLOADED, timezone.now(), 0
        dump.save(update_fields=["state", "uploaded_at", "progress"])
        _capture_digests(dump)
        queue.send("dashboard.ingest.tasks.digest_dump", dump.pk)
    return dump


def _locked(dump: Dump) -> Dump:
    whole = Dump.objects.select_related("capture__run__project").defer(*BULKY)
    return whole.select_for_update(of=("self",)).get(pk=dump.pk)


def _capture_digests(dump: Dump) -> None:
    if not Dump.objects.filter(capture=dump.capture_id, state=DumpState.RECEIVING).exists():
        Capture.objects.filter(pk=dump.capture_id).exclude(state=CaptureState.DIGESTING).update(
            state=CaptureState.DIGESTING
        )
        dump.capture.state = CaptureState.DIGESTING


def retry(dump: Dump) -> Dump:
    """Put a failed dump back in the queue. Raises 409 for one that has not failed or whose files are gone."""
    with transaction.atomic():
        dump = _locked(dump)
        if dump.state != DumpState.FAILED:
            raise ApiError(409, "conflict", f"the dump is {dump.state}; only a failed one can be tried again")
        uploads.hold(dump, dump.capture.run.project)
        missing = uploads.missing_of(dump, dump.capture.run.project)
        if missing:
            message = f"{len(missing)} of its files are no longer here; upload the dump again"
            raise ApiError(409, "incomplete", message, beside={"missing": missing})
        dump.state, dump.attempts, dump.progress, dump.error = DumpState.UPLOADED, 0, 0, ""
        dump.uploaded_at = timezone.now()
        dump.save(update_fields=["state", "attempts", "progress", "error", "uploaded_at"])
        _capture_digests(dump)
        queue.send("dashboard.ingest.tasks.digest_dump", dump.pk)
    return dump
