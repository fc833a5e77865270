"""Stretches of a file on their way: the next is read, hashed and packed in a thread while the one before travels."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Tuple

from stepscope_agent.errors import FileChanged
from stepscope_agent.manifest import FileEntry

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

SMALLEST_CHUNK, LARGEST_CHUNK = 4 * 1024 * 1024, 16 * 1024 * 1024
WORTH_PACKING = 0.9
"""A stretch that gzip does not make smaller than this share goes plain, and so does the rest of its file."""
_Place = Tuple[int, int, bool]  # offset, plain bytes, packed


class Chunk(NamedTuple):
    size: int  # plain bytes
    body: bytes
    packed: bool
    checksum: str  # of the plain bytes, as the protocol writes it


class Chunks:
    """One file's chunks, two in memory at a time. Raises FileChanged when the file is not what was announced."""

    def __init__(self, entry: FileEntry) -> None:
        self.entry = entry
        self.worth_packing = True
        self._stream = _opened(entry)
        self._pool: ThreadPoolExecutor | None = None
        self._coming: tuple[_Place, Future[Chunk]] | None = None

    def __enter__(self) -> Chunks:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._stream.close()

    def take(self, offset: int, size: int, packed: bool) -> Chunk:
        place, (coming, self._coming) = (offset, size, packed), (self._coming, None)
        if coming is not None:
            chunk = coming[1].result() if coming[0] == place else None
            coming[1].exception()  # the stream is free from here on
            if chunk is not None:
                return chunk
        return self._made(place)

    def prepare(self, offset: int, size: int, packed: bool) -> None:
        """Begins with the chunk that will probably be taken next."""
        if offset >= self.entry.size:
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # a host of small dumps never needs its memory

            self._pool = ThreadPoolExecutor(max_workers=1)
        place = (offset, size, packed)
        self._coming = place, self._pool.submit(self._made, place)

    def _made(self, place: _Place) -> Chunk:
        offset, size, pack = place
        plain = _read(self._stream, self.entry, offset, size)
        checksum = "sha256 " + base64.b64encode(hashlib.sha256(plain).digest()).decode("ascii")
        if pack and self.worth_packing:
            packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
            body = packer.compress(plain) + packer.flush()
            self.worth_packing = len(body) < WORTH_PACKING * len(plain)
            if self.worth_packing:
                return Chunk(len(plain), body, True, checksum)
        return Chunk(len(plain), plain, False, checksum)


def whole_file(entry: FileEntry) -> bytes:
    """All bytes of a small file. Raises FileChanged when it has not the announced size."""
    with _opened(entry) as stream:
        return _read(stream, entry, 0, entry.size)


def _opened(entry: FileEntry) -> BinaryIO:
    try:
        return open(entry.path, "rb")
    except OSError as exc:
        raise FileChanged("%s can no longer be read: %s" % (entry.path, exc.strerror)) from exc


def _read(stream: BinaryIO, entry: FileEntry, offset: int, size: int) -> bytes:
    try:
        stream.seek(offset)
        data = stream.read(min(size, entry.size - offset))
        grown = os.fstat(stream.fileno()).st_size != entry.size
    except OSError as exc:
        raise FileChanged("%s can no longer be read: %s" % (entry.path, exc.strerror)) from exc
    if grown or len(data) < min(size, entry.size - offset):
        raise FileChanged("%s changed size while it was being sent" % entry.path)
    return data
