"""Which files of a dump go up: the protocol's allow-list, their size and hash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from typing import Callable, Iterable, Iterator, NamedTuple

from stepscope_agent.discover import MSPROF_OUTPUT, OUTPUT, FoundDump, legacy_file_of

LONGEST_NAME = 300
CLUSTER_OUTPUT = "cluster_analysis_output"
BLOCK = 1024 * 1024
CACHE_ROWS = 20000

_TOP_NAMES = re.compile(
    r"^(?:profiler_info(?:_\d+)?\.json|profiler_metadata\.json|stepscope_run\.json|stepscope_steps\.jsonl|\.complete\.json)"
    r"(?:\.gz)?$"
)
_DATA = re.compile(r"^[^/]+\.(?:csv|json|db|txt)(?:\.gz)?$")
_FOLDERS = re.compile(
    r"^(?:ASCEND_PROFILER_OUTPUT|FRAMEWORK|profiler|mindstudio_profiler_output|PROF_[^/]+/mindstudio_profiler_output"
    r"|PROF_[^/]+/device_\d+/timeline)$"
)
_CLUSTER = re.compile(r"^cluster_analysis_output/[^/]+\.(?:csv|json|db)(?:\.gz)?$")
_DEVICE_INFO = re.compile(r"^PROF_[^/]+/device_\d+/info\.json[^/]*$")
_OURS = re.compile(r"^stepscope_(?:control|status_rank_\d+)\.json$")
_TRACE = re.compile(r"(?:^|/)(?:trace_view|msprof_\d+)\.json(?:\.gz)?$")


class FileEntry(NamedTuple):
    name: str  # label in the manifest, `/` between parts
    path: str
    size: int
    sha256: str

    def row(self) -> dict[str, object]:
        return {"name": self.name, "size": self.size, "sha256": self.sha256}


def allowed(name: str) -> bool:
    """Whether the protocol takes a file of this name."""
    parts = name.split("/")
    if len(name) > LONGEST_NAME or any(part in ("", ".", "..") for part in parts):
        return False
    if "\\" in name or ":" in name or any(_odd(ord(letter)) for letter in name):
        return False
    if _DEVICE_INFO.match(name) or _CLUSTER.match(name):
        return True
    folder, _, last = name.rpartition("/")
    if not folder:
        return bool(_TOP_NAMES.match(last) or _DATA.match(last))
    return bool(_FOLDERS.match(folder) and _DATA.match(last))


def _odd(code: int) -> bool:
    """Control characters, and the halves that stand for bytes of a name that is not UTF-8."""
    return code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000


def names_of(dump: FoundDump, with_trace: bool = False) -> list[tuple[str, str]]:
    """(label, path) of each file to send. The trace stays here unless asked for or all there is."""
    files = [(dump.prefix + name, path) for name, path in _candidates(dump) if allowed(dump.prefix + name)]
    if any(name.startswith(OUTPUT + "/") for name, _ in files):  # PROF_ holds the same again
        files = [row for row in files if not row[0].startswith("PROF_") or _DEVICE_INFO.match(row[0])]
    without = [row for row in files if not _TRACE.search(row[0])]
    own = [row for row in without if not _CLUSTER.match(row[0])]
    told = [row for row in own if row[0].startswith("FRAMEWORK/") or not _TOP_NAMES.match(row[0])]
    return files if with_trace or not told else without


def entries_of(
    dump: FoundDump,
    with_trace: bool = False,
    hashed: Callable[[str], str] | None = None,
    left_out: type[OSError] = OSError,
) -> tuple[list[FileEntry], list[str]]:
    """The manifest, and a line for each file that cannot be read. Raises what is not of the kind `left_out`."""
    entries, troubles = [], []
    for name, path in names_of(dump, with_trace):
        try:
            size = os.stat(path).st_size
            entries.append(FileEntry(name, path, size, (hashed or sha256_of)(path)))
        except left_out as exc:
            troubles.append("%s: %s" % (path, exc.strerror or exc))
    return entries, troubles


def _candidates(dump: FoundDump) -> Iterator[tuple[str, str]]:
    """Relative names with their paths; links that leave the dump are not followed."""
    if dump.only_file:
        yield dump.only_file, os.path.join(dump.root, dump.only_file)
        return
    if dump.kind in ("ascend_pt", "ascend_ms", "bare"):  # msprof-analyze leaves what it found of all ranks beside them
        beside = os.path.join(os.path.dirname(dump.root), CLUSTER_OUTPUT)
        for name in _names(beside):
            if os.path.isfile(os.path.join(beside, name)) and not os.path.islink(os.path.join(beside, name)):
                yield CLUSTER_OUTPUT + "/" + name, os.path.join(beside, name)
    home = os.path.realpath(dump.root) + os.sep
    for relative in _folders(dump):
        folder = os.path.join(dump.root, relative)
        for name in _names(folder):
            path = os.path.join(folder, name)
            if dump.kind == "bare" and not relative and not _TOP_NAMES.match(name):
                continue  # the folder above a bare output is somebody else's
            if dump.kind == "legacy" and not legacy_file_of(name, dump.rank):
                continue
            if _OURS.match(name):
                continue
            if os.path.isfile(path) and os.path.realpath(path).startswith(home):
                yield (relative + "/" if relative else "") + name, path


def _folders(dump: FoundDump) -> list[str]:
    folders = ["", OUTPUT, "FRAMEWORK", MSPROF_OUTPUT]
    profs = [""] if dump.prefix.startswith("PROF_") else [n + "/" for n in _names(dump.root) if n.startswith("PROF_")]
    for prof in profs:
        folders.append(prof + MSPROF_OUTPUT)
        for device in _names(os.path.join(dump.root, prof)):
            if re.match(r"^device_\d+$", device):
                folders += [prof + device, prof + device + "/timeline"]
    return sorted(set(folders))


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


class HashCache:
    """Hashes of files that did not change since, over restarts. Losing it costs time, nothing else."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._rows: dict[str, list[object]] = {}
        self._changed = False
        try:
            with open(path, encoding="utf-8") as stream:
                rows = json.load(stream)
            self._rows = rows if isinstance(rows, dict) else {}
        except (OSError, ValueError):
            pass

    def sha256(self, path: str) -> str:
        stat = os.stat(path)
        stamp: list[object] = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        row = self._rows.get(path)
        if isinstance(row, list) and row[:3] == stamp and len(row) == 4 and isinstance(row[3], str):
            return row[3]
        digest = sha256_of(path)
        self._rows.pop(path, None)
        self._rows[path] = stamp + [digest]
        self._changed = True
        return digest

    def forget(self, paths: Iterable[str]) -> None:
        """Of files that nobody will ask for again."""
        for path in paths:
            self._changed |= self._rows.pop(path, None) is not None

    def save(self) -> None:
        if not self._changed:
            return
        rows = dict(list(self._rows.items())[-CACHE_ROWS:])
        try:
            write_json(self.path, rows)
            self._changed = False
        except OSError:
            pass


def write_json(path: str, value: object) -> None:
    """All of it or nothing. `dumps` is ten times as fast as `dump`, which does without the C encoder."""
    write_text(path, json.dumps(value))


def write_text(path: str, text: str) -> None:
    write_pieces(path, (text,))


def write_pieces(path: str, pieces: Iterable[str]) -> None:
    """All of it or nothing: a reader never sees half a file. Who may read it the umask says: training and agent read
    each other's files, and are often different users."""
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, ".stepscope-%s" % os.urandom(16).hex())
    try:
        with open(temporary, "x", encoding="utf-8") as stream:
            stream.writelines(pieces)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # a signal may come when it has its final name already
            os.unlink(temporary)
        raise


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
