"""What lies in an archive or folder that somebody sent, told by a process that may die of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.archives import is_archive, unpack
from analysis.dump import find_dumps
from analysis.errors import BadDump

if TYPE_CHECKING:
    from analysis.dump import RankDump


def find(path: Path, name: str, folder: Path, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Each dump under `path`, or in the archive that is all it holds, with where its files are and their sha256.

    An archive is unpacked into `folder` and stays there. Raises BadDump, which calls the whole `name`.
    """
    from analysis.devices import split

    tell("unpacking")
    files = list(islice((place for place in path.rglob("*") if place.is_file()), 2))
    tree = unpack(files[0], folder) if len(files) == 1 and is_archive(files[0]) else path
    tell("looking")
    try:
        held = find_dumps(tree)
        found = [dump for whole in held for dump in split(whole, alone=len(held) == 1)]
    except BadDump as error:
        if error.path != str(tree):
            raise
        raise BadDump(name, error.reason) from error
    return [_described(dump) for dump in found]


def _described(dump: RankDump) -> dict[str, Any]:
    return {
        "label": dump.label,
        "rank": dump.rank,
        "device_id": dump.device_id,
        "host": dump.host,
        "framework": dump.framework,
        "run_meta": dump.run_meta,
        "files": [_file(label, path) for label, path in sorted(dump.files.items())],
    }


def _file(label: str, path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": label, "path": str(path), "size": path.stat().st_size, "sha256": sha256}
