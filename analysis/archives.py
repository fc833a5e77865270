"""Archives from strangers: every member is looked at before a byte of it is written."""

from __future__ import annotations

import lzma
import posixpath
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from analysis.errors import BadDump

MAX_MEMBERS = 50_000
"""Files and folders: a capture of a thousand ranks has twelve thousand."""
MAX_DEPTH = 64
"""Folders above a file: each is made, and costs room that no size counts."""
MAX_BYTES = 64 << 30
MAX_RATIO = 200
"""Unpacked size against the archive's own; text dumps pack about 10 to 30 times."""
FREE_BYTES = 64 << 20
"""Below this no ratio is asked: a small file of zeros is no bomb."""
BLOCK = 1 << 20
MAX_HEADER_BYTES = 1 << 20
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError),
    *(ValueError, struct.error, OverflowError, RecursionError),
)
"""What tarfile, zipfile and what they call raise for numbers, text and chains of headers that cannot be."""
TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


def is_archive(path: Path) -> bool:
    """Whether the file is a zip or a (packed) tar, told by its content. A plain gzip of one file is not."""
    return _is_zip(path) or _is_tar(path)


def _is_zip(path: Path) -> bool:
    return zipfile.is_zipfile(path) or path.name.endswith(".zip")  # a cut one has lost the end that tells it


def _is_tar(path: Path) -> bool:
    try:
        with tarfile.open(path, tarinfo=_Header) as archive:
            return archive.next() is not None
    except (*DAMAGED, OSError):
        return path.name.endswith(TAR_ENDINGS)


class _Header(tarfile.TarInfo):
    """Long names and attributes come in headers that tarfile reads whole into memory, whatever their size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in EXTENDED and not 0 <= header.size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header


@contextmanager
def unpacked(path: Path, within: Path | None = None) -> Iterator[Path]:
    """A temporary folder (in `within`) holding the archive's files. Raises BadDump as `unpack` does."""
    with tempfile.TemporaryDirectory(prefix="stepscope-", dir=within) as folder:
        yield unpack(path, Path(folder))


def unpack(path: Path, folder: Path) -> Path:
    """Write the archive's files to a folder in `folder`, and give that. Raises BadDump naming archive and member for
    anything unfit."""
    target = folder / path.name.split(".")[0]
    target.mkdir()
    budget = _Budget(path)
    try:
        if _is_zip(path):
            _unzip(path, target, budget)
        else:
            _untar(path, target, budget)
    except DAMAGED as error:
        raise BadDump(path.name, f"archive is cut or damaged ({str(error)[:120] or type(error).__name__})") from error
    except RuntimeError as error:  # zipfile says so for encrypted members
        raise BadDump(path.name, f"archive cannot be read ({str(error)[:120]})") from error
    except OSError as error:
        raise BadDump(path.name, f"archive cannot be unpacked ({error.strerror or str(error)[:120]})") from error
    return target


class _Budget:
    """How much more may be unpacked. Counts bytes that come out, never sizes that an archive claims."""

    def __init__(self, path: Path) -> None:
        self.archive = path.name
        self.members = 0
        self.folders: set[str] = set()
        self.written = 0
        self.limit = min(MAX_BYTES, max(FREE_BYTES, path.stat().st_size * MAX_RATIO))

    def member(self, name: str) -> None:
        self.members += 1
        if not name:
            raise BadDump(self.archive, "a member has no name")
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in name:
            raise BadDump(self.archive, f"member {name!r} points outside the archive")
        if len(parts) > MAX_DEPTH:
            raise BadDump(self.archive, f"member {name[:80]!r} lies more than {MAX_DEPTH} folders deep")
        self._count_folders(posixpath.dirname(posixpath.normpath(name)))
        self.check_members(self.members + len(self.folders))

    def _count_folders(self, folder: str) -> None:
        """Folders that only the names of files tell of are made too."""
        while folder and folder not in self.folders:
            self.folders.add(folder)
            folder = posixpath.dirname(folder)

    def check_members(self, count: int) -> None:
        if count > MAX_MEMBERS:
            raise BadDump(self.archive, f"holds more than {MAX_MEMBERS} members")

    def take(self, size: int, name: str) -> None:
        self.written += size
        if self.written > self.limit:
            raise BadDump(
                self.archive, f"member {name!r} unpacks past the limit of {self.limit >> 20} MiB: refused as a bomb"
            )


def _unzip(path: Path, target: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        budget.check_members(len(members))  # a zip says it at once, a tar only as it goes
        for member in members:
            budget.member(member.filename)
            mode = member.external_attr >> 16
            if mode & 0o170000 not in (0, 0o100000, 0o040000):
                raise BadDump(path.name, f"member {member.filename!r} is a link or device: refused")
            if not member.is_dir():
                with archive.open(member) as source:
                    _write(source, _place(target, member.filename, path), member.filename, budget)


def _untar(path: Path, target: Path, budget: _Budget) -> None:
    with tarfile.open(path, tarinfo=_Header) as archive:
        for member in archive:
            member.name = _readable(member.name)
            budget.member(member.name)
            if not (member.isreg() or member.isdir()):
                raise BadDump(path.name, f"member {member.name!r} is a link or device: refused")
            source = archive.extractfile(member) if member.isreg() else None
            if source is not None:
                with source:
                    _write(source, _place(target, member.name, path), member.name, budget)


def _readable(name: str) -> str:
    """The name with a mark for each byte that is no UTF-8: no report could hold such bytes."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _place(target: Path, name: str, path: Path) -> Path:
    place = target / posixpath.normpath(name)
    if place.exists():
        raise BadDump(path.name, f"member {name!r} is there twice")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _write(source: IO[bytes], place: Path, name: str, budget: _Budget) -> None:
    with place.open("xb") as file:
        while block := source.read(BLOCK):
            budget.take(len(block), name)
            file.write(block)
