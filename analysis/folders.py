"""What lies in a folder of dumps: real files and folders. Links to folders are not followed, pipes are never opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from analysis import names
from analysis.errors import BadDump

KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))


def entries(folder: Path) -> tuple[list[str], list[str]]:
    """Names of real folders, and of everything else. Links are not followed: a loop of them would never end."""
    folders: list[str] = []
    others: list[str] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    except OSError as error:
        raise BadDump(str(folder), f"cannot be read: {error.strerror or error}") from error
    return sorted(folders), sorted(others)


def files_under(root: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Path], list[str]]:
    """Label -> path of every wanted file, and a line for each that has a dump file's name and is no file."""
    files: dict[str, Path] = {}
    odd: list[str] = []
    for folder, inside, others in os.walk(root):
        for name in sorted((*inside, *others)):
            path = Path(folder) / name
            label = path.relative_to(root).as_posix()
            if not wanted(label):
                continue
            if name in others and path.is_file():
                files[label] = path
            elif names.kind_of(names.base_name(name)) and names.is_dump_file(label):
                odd.append(f"{label}: {what(path)}")
        inside[:] = sorted(name for name in inside if not (Path(folder) / name).is_symlink())
    return files, odd


def what(path: Path) -> str:
    """Why this is no file that can be read, told without opening it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "is a link to nothing" if path.is_symlink() else "cannot be looked at"
    kind = next((words for is_kind, words in KINDS if is_kind(mode)), "a device")
    return f"is {kind}, not a file"
