"""gzip on the wire: a PATCH body that is unpacked while it is read, never beyond what was announced."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from dashboard.ingest.errors import ApiError, byte_text

ENCODINGS = "gzip"
"""What Content-Encoding of a PATCH may be; told in the header Stepscope-Encodings."""
PIECE = 4 << 20
DEFLATE_RATIO = 1032
"""Most plain bytes that a byte of deflate can stand for."""
_GZIP = 16 + zlib.MAX_WBITS


def largest_body(room: int) -> int:
    """More bytes than this cannot be an honest gzip of `room` bytes: even noise grows by less."""
    return room + room // 1000 + 65_536


def unpacked(pieces: Iterable[bytes], room: int) -> Iterator[bytes]:
    """Plain bytes of the gzip stream in `pieces`, 4 MiB at a time at most.

    Raises ApiError: 413 as soon as more than `room` bytes come out, 400 for anything behind the stream, 460 for bytes
    that are no gzip or end too early.
    """
    stream = zlib.decompressobj(_GZIP)
    for piece in pieces:
        waiting = piece
        while True:
            try:
                plain = stream.decompress(waiting, min(PIECE, room + 1))
            except zlib.error as error:
                raise ApiError(460, "checksum", "the bytes of this request are no gzip; send them again") from error
            if len(plain) > room:
                raise ApiError(413, "body_too_large", "more bytes come out of this gzip than were announced")
            room -= len(plain)
            if plain:
                yield plain
            waiting = stream.unconsumed_tail
            if not waiting and not plain:
                break
        if stream.unused_data:
            raise ApiError(400, "bad_request", "there are bytes behind the gzip stream")
    if not stream.eof:
        raise ApiError(460, "checksum", "the gzip stream of this request ends too early; send it again")


def check_size(size: int, room: int) -> None:
    """Raise 413 for a body too long to be a gzip of what is still missing."""
    if size > largest_body(room):
        message = f"{byte_text(size)} cannot be a gzip of the {byte_text(room)} still missing"
        raise ApiError(413, "body_too_large", message, limit=largest_body(room))
