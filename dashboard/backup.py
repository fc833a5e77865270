"""Copies the database and the files it names to a folder, and brings them back.

The database goes first: files are never changed once it names them, so that a later copy of them holds all it needs.
`contents.json` names every file of a backup with its hash, and is written last. A restore takes what it names and
nothing else: plain files of that hash, at places where a backup has some. It cannot tell who wrote a backup.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dashboard.env import env_secret
from dashboard.services import DEMO_LOADED, postgres_program, postgres_url, start_postgres
from dashboard.supervisor import Refused, only_one

DATABASE, FOLDERS, SECRETS = "database.dump", ("blobs", "frames"), ("secret.key", "access.json")
CONTENTS = "contents.json"
PLACE = re.compile(
    r"(database\.dump|secret\.key|access\.json|blobs/[0-9a-f]{2}/[0-9a-f]{64}|frames/\d+-[0-9a-f]{12}/\w[\w.-]*)"
)
SHA256 = re.compile(r"[0-9a-f]{64}")
PIECE = 1 << 20


@contextmanager
def database_of(data: Path) -> Iterator[str]:
    """The address of the database in use: DATABASE_URL, or the one kept in `data`, started when it is not running."""
    url = env_secret("DATABASE_URL")
    if url:
        yield url
        return
    try:
        with only_one(data):
            service = start_postgres(data)
            try:
                yield service.url
            finally:
                service.stop()
    except Refused:  # `manage.py up` runs on this folder, and so does its database
        yield postgres_url(data)


def back_up(data: Path, target: Path) -> None:
    """Write a backup to `target`, which must not hold anything yet. Refused with the reason when it cannot be."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise Refused(f"{target} is not empty")
    partial = target / f"{DATABASE}.part"
    with database_of(data) as url:
        _run("pg_dump", "--format=custom", "--no-owner", "--file", str(partial), "--dbname", url)
    for name in FOLDERS:
        copy_tree(data / name, target / name)
    for name in SECRETS:
        if (data / name).exists():
            shutil.copy2(data / name, target / name)
    contents = {place: hash_of(target, place) for place in places(target)}
    contents[DATABASE] = sha256_of(partial)
    (target / f"{CONTENTS}.part").write_text(json.dumps(contents, indent=0, sort_keys=True))
    partial.rename(target / DATABASE)
    (target / f"{CONTENTS}.part").rename(target / CONTENTS)  # whole only when everything is


def places(folder: Path) -> Iterator[str]:
    """The files of a backup but for its database, as names below `folder`."""
    for name in FOLDERS:
        for path in sorted((folder / name).rglob("*")):
            if path.is_symlink() or not path.is_dir():
                yield path.relative_to(folder).as_posix()
    yield from (name for name in SECRETS if (folder / name).exists())


def hash_of(folder: Path, place: str) -> str:
    # Sent files are named by their hash: reading them all again would take as long as sending them did.
    return place.rsplit("/", 1)[-1] if place.startswith("blobs/") else sha256_of(folder / place)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def restore(source: Path, data: Path) -> None:
    """Bring a backup into an empty database and data folder. Refused with the reason when it cannot be.

    Then nothing is left of it: files come first, and go again when one is not what the backup says or the database
    is not taken.
    """
    contents = read_contents(source)
    taken = [name for name in FOLDERS if (data / name).exists() and any((data / name).iterdir())]
    if taken:
        raise Refused(f"{data} is in use: {taken[0]} is not empty")
    data.mkdir(mode=0o711, parents=True, exist_ok=True)
    with database_of(data) as url, tempfile.TemporaryDirectory(prefix="restore-", dir=data) as text:
        if _tables(url):
            raise Refused("the database is not empty")
        work = Path(text)
        for name in FOLDERS:
            (work / name).mkdir(mode=0o700)
        for place, sha256 in contents.items():
            take(source, place, sha256, work / place)
        _run(
            "pg_restore",
            "--no-owner",
            "--exit-on-error",
            "--single-transaction",
            "--dbname",
            url,
            str(work / DATABASE),
        )
        for name in (*FOLDERS, *SECRETS):
            if (work / name).is_dir() or (work / name).exists() and not (data / name).exists():
                (work / name).replace(data / name)
        (data / DEMO_LOADED).touch()  # the next start would add the demo's runs to a team's own


def read_contents(source: Path) -> dict[str, str]:
    """Place -> hash of all there is to restore. A folder that was left out of the backup as a whole is left out."""
    if not (source / CONTENTS).exists():
        raise Refused(f"{source} holds no whole backup: {CONTENTS} is missing")
    try:
        contents = json.loads((source / CONTENTS).read_text())
    except ValueError as error:
        raise Refused(f"{source / CONTENTS} is not JSON: {error}") from error
    if not isinstance(contents, dict) or DATABASE not in contents:
        raise Refused(f"{source / CONTENTS} does not name {DATABASE}")
    for place, sha256 in contents.items():
        if not PLACE.fullmatch(place) or not SHA256.fullmatch(str(sha256)):
            raise Refused(f"{source / CONTENTS} names {place[:200]!r}, which no backup holds")
        if place.startswith("blobs/") and place != f"blobs/{sha256[:2]}/{sha256}":
            raise Refused(f"{source / CONTENTS} gives {place} another hash than its name")
    linked = next((name for name in FOLDERS if (source / name).is_symlink()), None)
    if linked is not None:
        raise Refused(f"{source / linked} is a link: a backup holds none")
    extra = next((place for place in places(source) if place not in contents), None)
    if extra is not None:
        raise Refused(f"{source / extra} is not of this backup: {CONTENTS} does not name it")
    absent = tuple(f"{name}/" for name in FOLDERS if not (source / name).exists())
    return {place: sha256 for place, sha256 in contents.items() if not place.startswith(absent)}


def take(source: Path, place: str, sha256: str, target: Path) -> None:
    """Copy one file of a backup, itself no link and below none, and refuse it when it has another hash."""
    here = source
    for part in Path(place).parts:
        here = here / part
        if here.is_symlink():
            raise Refused(f"{here} is a link: a backup holds none")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with open(here, "rb", opener=_open_plain) as file, open(target, "wb", opener=_open_private) as copy:
            while piece := file.read(PIECE):
                digest.update(piece)
                copy.write(piece)
    except FileNotFoundError as error:
        raise Refused(f"{here} is missing") from error
    if digest.hexdigest() != sha256:
        raise Refused(f"{here} was changed after the backup: its hash is not the one that {CONTENTS} names")


def _open_plain(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"{path} is no file")
    return descriptor


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def copy_tree(source: Path, target: Path) -> None:
    """The same files under `target`: as links where one disk holds both, since these files are never changed."""
    for folder, _names, files in os.walk(source):
        there = target / Path(folder).relative_to(source)
        there.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in files:
            link_or_copy(Path(folder) / name, there / name)


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        return  # retention took it meanwhile
    except OSError:
        shutil.copy2(source, target)


def _tables(url: str) -> bool:
    import psycopg

    with psycopg.connect(url) as connection:
        found = connection.execute("select 1 from pg_tables where schemaname = 'public' limit 1")
        return found.fetchone() is not None


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run([postgres_program(program), *arguments], capture_output=True, text=True, umask=0o077)
    if done.returncode:
        raise Refused(f"{program} failed: {done.stderr.strip()[-500:]}")
