"""Many small files in one request: a rank has a dozen of them, and each by itself costs more in calls than in bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from dashboard.ingest import packed, uploads
from dashboard.ingest.errors import ApiError, byte_text
from dashboard.ingest.manifest import SHA256
from dashboard.runs.models import Dump

MOST_BYTES = 8 << 20
"""Plain bytes of one request: it waits in memory until all of it is known to be right."""
MOST_FILES = 64
"""What their hashes take fits into one header."""


def take(dump: Dump, hashes: str, body: bytes, encoding: str) -> None:
    """Store the contents in `body`, which stand one after another in the order of `hashes`, a list with commas.

    All or none of them: raises ApiError 400 for contents that are not the dump's, 413 for too many, 415 for an unknown
    encoding, 460 when a content does not have its hash, 507 where the disk is full.
    """
    sizes = _sizes(dump, hashes)
    plain = memoryview(_plain(body, sum(size for _, size in sizes), encoding))
    contents = dict(_split(sizes, plain))
    for sha256, content in contents.items():
        if hashlib.sha256(content).hexdigest() != sha256:
            name = next(file["name"] for file in dump.files if file["sha256"] == sha256)
            raise ApiError(460, "checksum", f"{name} does not have the announced sha256; send it again", file=name)
    uploads.keep_contents(dump, contents)


def _sizes(dump: Dump, hashes: str) -> list[tuple[str, int]]:
    """(hash, announced size) of each content that is to come."""
    wanted = [sha256.strip() for sha256 in hashes.split(",")]
    if not all(SHA256.fullmatch(sha256) for sha256 in wanted) or len(set(wanted)) < len(wanted):
        raise ApiError(400, "bad_request", "Stepscope-Contents is not a list of different sha256, with commas")
    if len(wanted) > MOST_FILES:
        raise ApiError(413, "too_many_files", f"{len(wanted)} contents; {MOST_FILES} at most at once", limit=MOST_FILES)
    known = {file["sha256"]: file["size"] for file in dump.files}
    for sha256 in wanted:
        if sha256 not in known:
            raise ApiError(400, "bad_manifest", f"no file of dump {dump.pk} has the sha256 {sha256}")
    sizes = [(sha256, known[sha256]) for sha256 in wanted]
    total = sum(size for _, size in sizes)
    if total > MOST_BYTES:
        message = f"{byte_text(total)} of contents; {byte_text(MOST_BYTES)} at most at once, send larger ones by tus"
        raise ApiError(413, "body_too_large", message, limit=MOST_BYTES)
    return sizes


def _plain(body: bytes, size: int, encoding: str) -> bytes:
    """The body without its encoding, of this very size."""
    if encoding == packed.ENCODINGS:
        packed.check_size(len(body), size)
        body = b"".join(packed.unpacked([body], size))
    elif encoding != "identity":
        raise ApiError(415, "content_type", f"Content-Encoding: only {packed.ENCODINGS} is known here")
    if len(body) != size:
        raise ApiError(400, "bad_request", f"{len(body)} bytes sent; the contents named have {size}")
    return body


def _split(sizes: Sequence[tuple[str, int]], plain: memoryview) -> Iterator[tuple[str, memoryview]]:
    begin = 0
    for sha256, size in sizes:
        yield sha256, plain[begin : begin + size]
        begin += size
