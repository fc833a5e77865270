"""Where bytes live. No other module builds a path under DATA_ROOT, and no client's text is ever part of one."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from dashboard.ingest.errors import ApiError, byte_text

BLOCK = 1 << 20
SHA256 = re.compile(r"[0-9a-f]{64}")
FRAMES = re.compile(r"\d+-[0-9a-f]{12}")


def incoming_path(upload_id: uuid.UUID) -> Path:
    return _folder("incoming") / upload_id.hex


def blob_path(sha256: str) -> Path:
    if not SHA256.fullmatch(sha256):
        raise ValueError(f"not a sha256: {sha256[:80]!r}")
    return _root() / "blobs" / sha256[:2] / sha256


def frames_path(name: str) -> Path:
    """The folder of a digest's Parquet files, by `Dump.frames`."""
    if not FRAMES.fullmatch(name):
        raise ValueError(f"not a frames folder: {name[:80]!r}")
    return _root() / "frames" / name


def table_path(name: str, table: str) -> Path:
    if not re.fullmatch(r"[a-z_]{1,40}", table):
        raise ValueError(f"not a table: {table[:80]!r}")
    return frames_path(name) / f"{table}.parquet"


def incoming_folder() -> Path:
    return _folder("incoming")


def new_frames_name(dump_id: int) -> str:
    return f"{dump_id}-{uuid.uuid4().hex[:12]}"


@contextmanager
def work_folder(prefix: str) -> Iterator[Path]:
    """A folder on the same file system, gone afterwards whatever happens."""
    folder = _folder("scratch") / f"{prefix}-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def work_root() -> Path:
    """Where the folders of `work_folder` are."""
    return _folder("scratch")


def size_of(path: Path) -> int:
    """Bytes there, 0 when there is no such file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def write_at(path: Path, offset: int, pieces: Iterable[bytes]) -> int:
    """Make `pieces` the file's end, from `offset` on, on disk before this returns its new size.

    What lies beyond `offset` was never acknowledged (a crash between write and commit) and goes first. On a full disk
    the file is back at `offset` and ApiError 507 is raised.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    end = offset
    try:
        os.ftruncate(descriptor, offset)
        for piece in pieces:
            check_free(len(piece))
            _write_all(descriptor, end, piece)
            end += len(piece)
        os.fsync(descriptor)
        if offset == 0:
            sync_folder(path.parent)
    except (OSError, ApiError) as error:
        os.ftruncate(descriptor, offset)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full() from error
        raise
    finally:
        os.close(descriptor)
    return end


def _write_all(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def check_free(size: int) -> None:
    """Raise 507 when `size` bytes more would leave less than MIN_FREE_BYTES on the disk."""
    if shutil.disk_usage(_root()).free - size < settings.MIN_FREE_BYTES:
        raise disk_full()


def disk_full() -> ApiError:
    message = f"the server's disk is full ({byte_text(settings.MIN_FREE_BYTES)} must stay free); try later"
    return ApiError(507, "disk_full", message, limit=settings.MIN_FREE_BYTES)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep(source: Path, sha256: str) -> None:
    """Make a whole, checked file the blob of its hash; on disk under that name before this returns."""
    keep_all({sha256: source})


def keep_all(sources: Mapping[str, Path]) -> None:
    """Make whole, checked files the blobs of their hashes; on disk under those names before this returns."""
    folders = set()
    for sha256, source in sources.items():
        target = blob_path(sha256)
        if not target.parent.is_dir():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folders.add(target.parent.parent)
        os.replace(source, target)
        folders.add(target.parent)
    for folder in folders:
        sync_folder(folder)


@contextmanager
def set_aside(contents: Mapping[str, memoryview]) -> Iterator[dict[str, Path]]:
    """Files with these contents, by their hashes, on disk; those not kept meanwhile are gone afterwards.

    Raises ApiError 507 on a full disk.
    """
    paths = {sha256: incoming_path(uuid.uuid4()) for sha256 in contents}
    check_free(sum(len(content) for content in contents.values()))
    try:
        for sha256, content in contents.items():
            write_new(paths[sha256], content)
        yield paths
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


def write_new(path: Path, content: memoryview) -> None:
    """A new file with this content; its bytes, not yet its name, are on disk before this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _write_all(descriptor, 0, content)
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full() from error
        raise
    finally:
        os.close(descriptor)


def keep_copy(source: Path, sha256: str) -> None:
    """Make a checked file the blob of its hash by a second name; the first stays. The caller has synced its bytes."""
    spare = incoming_folder() / uuid.uuid4().hex
    os.link(source, spare)
    keep(spare, sha256)


def publish_frames(source: Path, name: str) -> None:
    """Move a finished folder of Parquet files to its place, on disk before this returns."""
    target = frames_path(name)
    _folder("frames")
    for path in source.iterdir():
        sync_file(path)
    sync_folder(source)
    os.replace(source, target)
    sync_folder(target.parent)


def remove_frames(name: str) -> None:
    if name:
        shutil.rmtree(frames_path(name), ignore_errors=True)


def remove_incoming(upload_id: uuid.UUID) -> None:
    incoming_path(upload_id).unlink(missing_ok=True)


def remove_blob(sha256: str) -> None:
    blob_path(sha256).unlink(missing_ok=True)


def stored_frames() -> list[Path]:
    return [path for path in _folder("frames").iterdir() if FRAMES.fullmatch(path.name)]


def stored_incoming() -> list[Path]:
    return list(_folder("incoming").iterdir())


def stored_work() -> list[Path]:
    return list(_folder("scratch").iterdir())


def remove_work(path: Path) -> None:
    """Remove a work folder that a killed worker left."""
    if path.parent == _root() / "scratch":
        shutil.rmtree(path, ignore_errors=True)


def stored_blobs() -> list[Path]:
    return [path for path in _folder("blobs").glob("??/*") if SHA256.fullmatch(path.name)]


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Names in a folder are on disk only once the folder itself is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _root() -> Path:
    root = Path(settings.DATA_ROOT)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root


def _folder(name: str) -> Path:
    folder = _root() / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
