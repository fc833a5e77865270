"""tus 1.0 (core, creation, creation-with-upload, checksum, termination): bytes of announced files, always resumable."""

from __future__ import annotations

import base64
import binascii
import hashlib
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import IO

from django.conf import settings
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from dashboard.accounts.models import Scope
from dashboard.ingest import packed, storage, uploads
from dashboard.ingest.auth import Caller, identify
from dashboard.ingest.errors import ApiError, add_headers, error_response
from dashboard.ingest.models import Upload
from dashboard.ingest.places import place

VERSION = "1.0.0"
EXTENSIONS = "creation,creation-with-upload,checksum,termination"
ALGORITHMS = ("sha256", "sha1")
PIECE = 4 << 20
"""Bytes written, synced and counted at a time: what a cut connection may lose."""
BLOCK = 1 << 20
IN_MEMORY = 4 * PIECE
"""A body up to this waits in memory for its checksum; the agent sends no more at once."""
CONTENT_TYPE = "application/offset+octet-stream"
View = Callable[..., HttpResponse]


def tus_view(view: View) -> View:
    """Errors in the API's shape, tus headers on every answer. CSRF is checked with the session, in `identify`."""

    @csrf_exempt
    @wraps(view)
    def wrapped(request: HttpRequest, **kwargs: object) -> HttpResponse:
        try:
            response = view(request, **kwargs)
        except ApiError as error:
            response = error_response(error)
        add_headers(response)
        response["Tus-Resumable"] = VERSION
        return response

    return wrapped


@tus_view
def files(request: HttpRequest) -> HttpResponse:
    """OPTIONS says what is spoken; POST begins, or finds again, an upload, and may bring its first bytes."""
    if request.method == "OPTIONS":
        return _options()
    if request.method != "POST":
        return _not_allowed("OPTIONS, POST")
    caller = _caller(request)
    length, metadata = _length(request), _metadata(request.headers.get("Upload-Metadata", ""))
    upload = _begin(caller, length, metadata)
    if request.content_type == CONTENT_TYPE and not upload.offset and length:
        with place(request):
            upload = _take_body(request, upload)
    response = HttpResponse(status=201)
    response["Location"] = f"{settings.SITE_URL}/api/v1/files/{upload.pk}"
    response["Upload-Offset"] = str(upload.offset)
    response["Stepscope-Encodings"] = packed.ENCODINGS
    return response


@tus_view
def file(request: HttpRequest, upload_id: uuid.UUID) -> HttpResponse:
    """HEAD, PATCH and DELETE of one upload. X-HTTP-Method-Override serves clients behind proxies that know no PATCH."""
    method = request.headers.get("X-HTTP-Method-Override", request.method or "").upper()
    if request.method == "OPTIONS":
        return _options()
    if request.method != "POST" and method != request.method or method not in ("HEAD", "PATCH", "DELETE"):
        return _not_allowed("OPTIONS, HEAD, PATCH, DELETE")
    caller = _caller(request)
    upload = uploads.find(caller, upload_id)
    if method == "HEAD":
        return _head(upload)
    if method == "PATCH":
        return _patch(request, upload)
    uploads.discard(upload)
    return HttpResponse(status=204)


def _options() -> HttpResponse:
    response = HttpResponse(status=204)
    response["Tus-Version"] = VERSION
    response["Tus-Extension"] = EXTENSIONS
    response["Tus-Checksum-Algorithm"] = ",".join(ALGORITHMS)
    response["Tus-Max-Size"] = str(settings.MAX_FILE_BYTES)
    response["Stepscope-Encodings"] = packed.ENCODINGS
    return response


def _not_allowed(allowed: str) -> HttpResponse:
    response = error_response(ApiError(405, "method", f"allowed here: {allowed}"))
    response["Allow"] = allowed
    return response


def _caller(request: HttpRequest) -> Caller:
    caller = identify(request)
    caller.check_scope(Scope.UPLOAD)
    if request.headers.get("Tus-Resumable") != VERSION:
        error = ApiError(412, "protocol", f"send `Tus-Resumable: {VERSION}`")
        raise error
    return caller


def _length(request: HttpRequest) -> int:
    length = _number(request, "Upload-Length")
    if length > settings.MAX_FILE_BYTES:
        from dashboard.ingest.limits import check_file

        check_file("the file", length)
    return length


def _number(request: HttpRequest, header: str) -> int:
    text = request.headers.get(header, "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ApiError(400, "bad_request", f"{header} is missing or not a number of bytes")
    return int(text)


def _metadata(header: str) -> dict[str, str]:
    pairs = {}
    for pair in header.split(","):
        key, _, value = pair.strip().partition(" ")
        try:
            pairs[key] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ApiError(400, "bad_request", f"Upload-Metadata {key[:40]!r} is not base64 of UTF-8") from error
    return pairs


def _begin(caller: Caller, length: int, metadata: dict[str, str]) -> Upload:
    if "archive" in metadata:
        return uploads.begin_archive_file(caller, _id(metadata, "archive"), metadata.get("name", ""), length)
    for key in ("dump", "name", "sha256"):
        if key not in metadata:
            raise ApiError(400, "bad_request", f"Upload-Metadata lacks {key}")
    return uploads.begin_dump_file(caller, _id(metadata, "dump"), metadata["name"], metadata["sha256"].lower(), length)


def _id(metadata: dict[str, str], key: str) -> int:
    text = metadata[key]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ApiError(400, "bad_request", f"Upload-Metadata {key} is not an id")
    return int(text)


def _head(upload: Upload) -> HttpResponse:
    upload = uploads.finish(upload)
    response = HttpResponse(status=200)
    response["Upload-Offset"] = str(upload.offset)
    response["Upload-Length"] = str(upload.length)
    response["Cache-Control"] = "no-store"
    return response


def _patch(request: HttpRequest, upload: Upload) -> HttpResponse:
    if request.content_type != CONTENT_TYPE:
        raise ApiError(415, "content_type", f"send the bytes as {CONTENT_TYPE}")
    if _number(request, "Upload-Offset") != upload.offset:
        raise uploads.wrong_offset(upload.offset)
    with place(request):
        upload = _take_body(request, upload)
    response = HttpResponse(status=204)
    response["Upload-Offset"] = str(upload.offset)
    return response


def _take_body(request: HttpRequest, upload: Upload) -> Upload:
    """The upload with the body's bytes at its end."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", packed.ENCODINGS):
        raise ApiError(415, "content_type", f"Content-Encoding: only {packed.ENCODINGS} is known here")
    size, checksum = _number(request, "Content-Length"), request.headers.get("Upload-Checksum")
    if encoding == packed.ENCODINGS:
        _append_packed(request, upload, size, checksum)
    elif upload.offset + size > upload.length:
        message = f"{upload.name}: {upload.offset + size} bytes sent of {upload.length} announced"
        raise ApiError(400, "bad_request", message)
    elif checksum is None:
        for piece in _pieces(request, size):
            upload.offset = uploads.append(upload, piece)
    else:
        storage.check_free(size)
        _append_checked(upload, _blocks(request, size), checksum)
    return uploads.finish(upload)


def _append_packed(request: HttpRequest, upload: Upload, size: int, checksum: str | None) -> None:
    """A gzip body. Its checksum, over the plain bytes, is a must: a cut stream says nothing of how far it is right."""
    room = upload.length - upload.offset
    if checksum is None:
        raise ApiError(400, "bad_request", "a gzip body needs Upload-Checksum, over the plain bytes")
    packed.check_size(size, room)
    storage.check_free(min(room, size * packed.DEFLATE_RATIO))
    _append_checked(upload, packed.unpacked(_blocks(request, size), room), checksum)


def _append_checked(upload: Upload, pieces: Iterator[bytes], checksum: str) -> None:
    with _checked_body(pieces, checksum) as body:
        upload.offset = uploads.append_all(upload, body)


def _pieces(request: HttpRequest, size: int) -> Iterator[bytes]:
    """The body in pieces, each to be counted by itself."""
    piece = bytearray()
    for block in _blocks(request, size):
        piece += block
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _blocks(request: HttpRequest, size: int) -> Iterator[bytes]:
    """The body as it comes. A cut connection ends it: what came is kept, the sender will ask how far it got."""
    while size > 0:
        try:
            block = request.read(min(BLOCK, size))
        except (UnreadablePostError, OSError):
            return
        if not block:
            return
        size -= len(block)
        yield block


@contextmanager
def _checked_body(pieces: Iterator[bytes], header: str) -> Iterator[Iterator[bytes]]:
    """All pieces again, set aside until their checksum was known to be right: a wrong one leaves nothing behind."""
    algorithm, _, value = header.partition(" ")
    if algorithm not in ALGORITHMS:
        raise ApiError(400, "bad_request", f"Upload-Checksum: only {' and '.join(ALGORITHMS)} are known here")
    digest = hashlib.new(algorithm)
    with _Aside() as aside:
        for piece in pieces:
            digest.update(piece)
            aside.put(piece)
        if base64.b64encode(digest.digest()).decode() != value.strip():
            message = "the bytes of this request do not have the announced checksum; send them again"
            raise ApiError(460, "checksum", message)
        yield aside.pieces()


class _Aside(ExitStack):
    """Pieces in memory as they came, on disk when they are too many."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[bytes] = []
        self._size = 0
        self._file: IO[bytes] | None = None

    def put(self, piece: bytes) -> None:
        self._held.append(piece)
        self._size += len(piece)
        if self._size > IN_MEMORY:
            if self._file is None:
                self._file = self.enter_context(tempfile.TemporaryFile(dir=storage.incoming_folder()))  # noqa: SIM115
            self._file.writelines(self._held)
            self._held.clear()

    def pieces(self) -> Iterator[bytes]:
        if self._file:
            self._file.seek(0)
            yield from iter(partial(self._file.read, PIECE), b"")
        yield from self._held
