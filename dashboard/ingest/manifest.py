"""The file list of a dump, as announced: names are labels of an allow-list, never paths."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, TypedDict

from dashboard.ingest import limits
from dashboard.ingest.errors import ApiError

LONGEST_NAME = 300
MAX_SIZE = 1 << 62
SHA256 = re.compile(r"[0-9a-f]{64}")
TOP_NAMES = re.compile(
    r"(?:profiler_info(?:_\d+)?\.json|profiler_metadata\.json|stepscope_run\.json|stepscope_steps\.jsonl|\.complete\.json)"
    r"(?:\.gz)?"
)
DATA_NAME = re.compile(r"[^/]+\.(?:csv|json|db|txt)(?:\.gz)?")
DATA_FOLDERS = re.compile(
    r"ASCEND_PROFILER_OUTPUT|FRAMEWORK|profiler|mindstudio_profiler_output"
    r"|PROF_[^/]+/(?:mindstudio_profiler_output|device_\d+/timeline)"
)
DEVICE_INFO = re.compile(r"PROF_[^/]+/device_\d+/info\.json[^/]*")
CLUSTER_NAME = re.compile(r"cluster_analysis_output/[^/]+\.(?:csv|json|db)(?:\.gz)?")


class FileEntry(TypedDict):
    name: str
    size: int
    sha256: str


def read_manifest(rows: Iterable[Any]) -> list[FileEntry]:
    """The announced files, sorted by name. Raises ApiError for a name, size, hash or number of files not taken."""
    files = sorted((_entry(row) for row in rows), key=lambda file: file["name"])
    if not files:
        raise ApiError(400, "bad_manifest", "files is empty: a dump has at least one file")
    limits.check_file_count(len(files))
    for before, after in zip(files, files[1:], strict=False):
        if before["name"] == after["name"]:
            raise ApiError(400, "bad_manifest", f"{after['name']} is listed twice", file=after["name"])
    _check_sizes_agree(files)
    for file in files:
        limits.check_file(file["name"], file["size"])
    limits.check_dump([file["size"] for file in files])
    return files


def check_name(name: str) -> None:
    """Raise ApiError 400 `bad_name` unless the protocol takes a file of this name."""
    reason = _bad_path(name) or (None if _is_listed(name) else "is not a file that a dump may hold")
    if reason:
        shown = name[:LONGEST_NAME]
        raise ApiError(400, "bad_name", f"{shown!r} {reason}", file=shown)


def manifest_hash(files: Iterable[FileEntry]) -> str:
    """One hash over a sorted manifest: tells a repeated announcement from another dump."""
    rows = [[file["name"], file["size"], file["sha256"]] for file in files]
    return hashlib.sha256(json.dumps(rows, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


def _entry(row: Any) -> FileEntry:
    check_name(row.name)
    if not SHA256.fullmatch(row.sha256):
        raise ApiError(400, "bad_manifest", f"sha256 of {row.name} is not 64 hex digits", file=row.name)
    if not 0 <= row.size < MAX_SIZE:
        raise ApiError(400, "bad_manifest", f"size of {row.name} is not a size", file=row.name)
    return FileEntry(name=row.name, size=row.size, sha256=row.sha256)


def _bad_path(name: str) -> str | None:
    if len(name) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} characters"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "has an empty, '.' or '..' part"
    if "\\" in name or ":" in name or any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in name):
        return "holds a backslash, a colon or a control character"
    return None


def _is_listed(name: str) -> bool:
    if DEVICE_INFO.fullmatch(name) or CLUSTER_NAME.fullmatch(name):
        return True
    folder, _, last = name.rpartition("/")
    if not folder:
        return bool(TOP_NAMES.fullmatch(last) or DATA_NAME.fullmatch(last))
    return bool(DATA_FOLDERS.fullmatch(folder) and DATA_NAME.fullmatch(last))


def _check_sizes_agree(files: Iterable[FileEntry]) -> None:
    sizes: dict[str, FileEntry] = {}
    for file in files:
        other = sizes.setdefault(file["sha256"], file)
        if other["size"] != file["size"]:
            message = f"{other['name']} and {file['name']} have one sha256 but different sizes"
            raise ApiError(400, "bad_manifest", message, file=file["name"])
