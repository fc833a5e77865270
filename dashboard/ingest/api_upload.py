"""Calls that bring things in: runs, dumps, step records, archives."""

from __future__ import annotations

from typing import Annotated, Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import Path, Router, Status

from dashboard.accounts.models import Scope
from dashboard.ingest import archives, contents, intake, packed, steps
from dashboard.ingest.auth import Caller, find_dump, find_project, find_run
from dashboard.ingest.manifest import read_manifest
from dashboard.ingest.places import place
from dashboard.ingest.schemas import (
    AnnounceAnswer,
    ArchiveAnswer,
    ArchiveIn,
    DumpAnswer,
    DumpIn,
    ErrorAnswer,
    ReferenceIn,
    RunAnswer,
    RunIn,
    StepsIn,
    StoredAnswer,
)
from dashboard.runs.models import Dump, Run

router = Router()
Id = Annotated[int, Path(ge=1, le=2**63 - 1)]
ERRORS = {(400, 401, 403, 404, 409, 413, 426, 429, 507): ErrorAnswer}
Answer = Status[dict[str, Any]]


def caller_of(request: HttpRequest, scope: str) -> Caller:
    caller: Caller = request.auth  # type: ignore[attr-defined]
    caller.check_scope(scope)
    return caller


@router.post("/projects/{slug}/runs", response={(200, 201): RunAnswer, **ERRORS}, operation_id="make_run")
def make_run(request: HttpRequest, slug: str, body: RunIn) -> Answer:
    """Get the run of that key, or make it."""
    caller = caller_of(request, Scope.UPLOAD)
    project = find_project(caller, slug)
    caller.check_role(project)
    run, made = intake.get_or_make_run(project, body)
    return Status(201 if made else 200, {"run": run_json(run)})


@router.post("/runs/{run_id}/dumps", response={(200, 201): AnnounceAnswer, **ERRORS}, operation_id="announce_dump")
def announce_dump(request: HttpRequest, response: HttpResponse, run_id: Id, body: DumpIn) -> Answer:
    """Announce one rank's dump of one window; the answer says which files are missing."""
    response["Stepscope-Contents"] = f"{contents.MOST_BYTES},{contents.MOST_FILES}"
    response["Stepscope-Encodings"] = packed.ENCODINGS
    caller = caller_of(request, Scope.UPLOAD)
    run = find_run(caller, run_id)
    caller.check_role(run.project)
    dump, missing, made = intake.announce(run, body, read_manifest(body.files))
    return Status(201 if made else 200, {"dump": dump_json(dump), "missing": missing})


@router.post("/dumps/{dump_id}/contents", response={200: DumpAnswer, **ERRORS}, operation_id="send_contents")
def send_contents(request: HttpRequest, dump_id: Id) -> dict[str, Any]:
    """Whole contents of small files, one after another; the header Stepscope-Contents names their sha256."""
    dump = _dump(request, dump_id)
    hashes = request.headers.get("Stepscope-Contents", "")
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    with place(request):
        contents.take(dump, hashes, request.body, encoding)
    return {"dump": dump_json(dump)}


@router.post("/dumps/{dump_id}/complete", response={202: DumpAnswer, **ERRORS}, operation_id="complete_dump")
def complete_dump(request: HttpRequest, dump_id: Id) -> Answer:
    """All files are here: the dump waits for a worker."""
    return Status(202, {"dump": dump_json(intake.complete(_dump(request, dump_id)))})


@router.post("/dumps/{dump_id}/retry", response={202: DumpAnswer, **ERRORS}, operation_id="retry_dump")
def retry_dump(request: HttpRequest, dump_id: Id) -> Answer:
    """Put a failed dump back in the queue."""
    return Status(202, {"dump": dump_json(intake.retry(_dump(request, dump_id)))})


@router.post("/runs/{run_id}/steps", response={200: StoredAnswer, **ERRORS}, operation_id="store_steps")
def store_steps(request: HttpRequest, run_id: Id, body: StepsIn) -> dict[str, Any]:
    """Store step records of the training log or the callback."""
    caller = caller_of(request, Scope.UPLOAD)
    run = find_run(caller, run_id)
    caller.check_role(run.project)
    stored = steps.store_steps(run, body.source, [step.model_dump() for step in body.steps])
    if stored:
        intake.mark_newest_due(run)
    return {"stored": stored}


@router.post("/runs/{run_id}/reference", response={200: RunAnswer, **ERRORS}, operation_id="name_reference")
def name_reference(request: HttpRequest, run_id: Id, body: ReferenceIn) -> dict[str, Any]:
    """Compare loss and gradient norm of the project's other runs with this one's, step by step, from now on."""
    caller = caller_of(request, Scope.UPLOAD)
    run = find_run(caller, run_id)
    caller.check_role(run.project)
    intake.name_reference(run, replace=body.replace)
    return {"run": run_json(run)}


@router.post("/projects/{slug}/archives", response={201: ArchiveAnswer, **ERRORS}, operation_id="announce_archive")
def announce_archive(request: HttpRequest, slug: str, body: ArchiveIn) -> Answer:
    """Announce an archive, or the files of a folder, that a worker will look for dumps in. Send the bytes by tus."""
    caller = caller_of(request, Scope.UPLOAD)
    project = find_project(caller, slug)
    caller.check_role(project)
    return Status(201, {"archive": archives.as_json(archives.announce(project, caller.user, body))})


@router.post(
    "/archives/{archive_id}/complete", response={202: ArchiveAnswer, **ERRORS}, operation_id="complete_archive"
)
def complete_archive(request: HttpRequest, archive_id: Id) -> Answer:
    """All its files are here: the archive waits for a worker."""
    caller = caller_of(request, Scope.UPLOAD)
    archive = archives.find(caller, archive_id)
    caller.check_role(archive.project)
    return Status(202, {"archive": archives.as_json(archives.complete(archive))})


@router.get("/archives/{archive_id}", response={200: ArchiveAnswer, **ERRORS}, operation_id="get_archive")
def get_archive(request: HttpRequest, archive_id: Id) -> dict[str, Any]:
    caller: Caller = request.auth  # type: ignore[attr-defined]
    return {"archive": archives.as_json(archives.find(caller, archive_id))}


def _dump(request: HttpRequest, dump_id: int) -> Dump:
    caller = caller_of(request, Scope.UPLOAD)
    dump = find_dump(caller, dump_id)
    caller.check_role(dump.capture.run.project)
    return dump


def run_json(run: Run) -> dict[str, Any]:
    return {"id": run.pk, "key": run.key, "name": run.name, "url": settings.SITE_URL + run.get_absolute_url()}


def dump_json(dump: Dump) -> dict[str, Any]:
    capture = dump.capture
    return {
        "id": dump.pk,
        "state": dump.state,
        "rank": dump.rank,
        "progress": dump.progress,
        "error": dump.error or None,
        "attempts": dump.attempts,
        "capture": {
            "id": capture.pk,
            "key": capture.key,
            "state": capture.state,
            "url": settings.SITE_URL + capture.get_absolute_url(),
        },
    }
