"""The sha256 of uploads on their way, kept by the process that writes them, so that the whole need not be read again.

An agent sends a file over one connection, so one process sees all of it. What is kept here is never needed: another
process, or this one after a restart, reads the file from its start.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

MOST = 256
"""Uploads that are remembered, those least lately written go first."""
Stamp = tuple[int, int, int]


@dataclass
class Seen:
    """The hash of a file's first bytes, up to what the file held when its stamp was taken."""

    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    stamp: Stamp | None = None

    def feed(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces, each hashed beside what is done with it: both leave Python to others meanwhile."""
        with ThreadPoolExecutor(1) as beside:
            before: Future[None] | None = None
            for piece in pieces:
                if before is not None:
                    before.result()  # no more than two pieces are in memory
                before = beside.submit(self.digest.update, piece)
                yield piece


_seen: OrderedDict[uuid.UUID, Seen] = OrderedDict()
_lock = threading.Lock()


def go_on(upload_id: uuid.UUID, path: Path, offset: int) -> Seen | None:
    """The hash of the file's bytes up to `offset`, to be fed with what follows; None when it is not known here.

    It is forgotten here: whoever has written what follows remembers it anew.
    """
    with _lock:
        seen = _seen.pop(upload_id, None)
    if offset == 0:
        return Seen()
    return seen if seen and seen.stamp and seen.stamp == stamp_of(path) and seen.stamp[1] == offset else None


def remember(upload_id: uuid.UUID, seen: Seen) -> None:
    """Call it when the bytes fed are on disk and counted."""
    with _lock:
        _seen[upload_id] = seen
        while len(_seen) > MOST:
            _seen.popitem(last=False)


def sha256_of(upload_id: uuid.UUID, path: Path) -> str | None:
    """The hash of the file as it is, which nobody else has touched; None when it is not known here."""
    with _lock:
        seen = _seen.pop(upload_id, None)
    return seen.digest.hexdigest() if seen and seen.stamp == stamp_of(path) else None


def stamp_of(path: Path) -> Stamp | None:
    """Changes when anybody writes the file. None when there is none."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
