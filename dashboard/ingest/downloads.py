"""The files of a dump as they were sent, while their bytes are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.models import User
from dashboard.ingest import storage
from dashboard.ingest.auth import Caller, find_dump
from dashboard.ingest.errors import NotFound
from dashboard.ingest.models import Blob
from dashboard.runs.access import swept_is_404
from dashboard.runs.models import Dump

GZIP = b"\x1f\x8b"
BYTES = "application/octet-stream"


@login_required
@require_GET
def dump_files(request: HttpRequest, dump_id: int) -> HttpResponse:
    """The list that a step's page shows: each file with its size, as a link while it is still kept."""
    dump = _dump(request, dump_id)
    return render(request, "ingest/_dump_files.html", {"dump": dump, "files": list(_rows(dump))})


@login_required
@require_GET
@swept_is_404
def dump_file(request: HttpRequest, dump_id: int, position: int) -> FileResponse:
    """One file of a dump by its position in the manifest. 404 once its bytes are removed."""
    dump = _dump(request, dump_id)
    rows = list(_rows(dump))
    path = rows[position]["path"] if position < len(rows) else None
    if path is None:
        raise Http404
    file = path.open("rb")
    packed = file.read(2) == GZIP
    file.seek(0)
    # The browser must neither guess a type nor run what an agent sent.
    response = FileResponse(
        file, as_attachment=True, filename=safe_name(rows[position]["name"], packed), content_type=BYTES
    )
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "private, no-store"
    return response


def safe_name(label: str, packed: bool = False) -> str:
    """A file name of a label's last part, in plain letters; a packed file that does not say so gets `.gz`."""
    name = re.sub(r"[^\w.() -]", "_", label.rsplit("/", 1)[-1], flags=re.ASCII).lstrip(".") or "file"
    return f"{name}.gz" if packed and not name.endswith((".gz", ".tgz")) else name


def _dump(request: HttpRequest, dump_id: int) -> Dump:
    assert isinstance(request.user, User)
    try:
        return find_dump(Caller(user=request.user), dump_id)
    except NotFound as error:
        raise Http404 from error


def _rows(dump: Dump) -> Iterator[dict[str, Any]]:
    """Files in the order of the manifest; `path` is null for those that are kept no more."""
    hashes = [file["sha256"] for file in dump.files]
    kept = set(
        Blob.objects.filter(project=dump.capture.run.project, sha256__in=hashes).values_list("sha256", flat=True)
    )
    for position, file in enumerate(dump.files):
        path: Path | None = storage.blob_path(file["sha256"]) if file["sha256"] in kept else None
        is_there = path is not None and path.is_file()
        yield {"position": position, "name": file["name"], "size": file["size"], "path": path if is_there else None}
