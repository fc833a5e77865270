"""Copies the database and the files it names to a folder, and brings them back.

The database goes first: files are never changed once it names them, so that a later copy of them holds all it needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dashboard.env import env_secret
from dashboard.services import postgres_program, postgres_url, start_postgres
from dashboard.supervisor import Refused, only_one

DATABASE, FOLDERS, SECRETS = "database.dump", ("blobs", "frames"), ("secret.key", "access.json")


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
    partial.rename(target / DATABASE)  # whole only when everything is


def restore(source: Path, data: Path) -> None:
    """Bring a backup into an empty database and data folder. Refused with the reason when it cannot be."""
    if not (source / DATABASE).exists():
        raise Refused(f"{source} holds no whole backup: {DATABASE} is missing")
    taken = [name for name in FOLDERS if (data / name).exists() and any((data / name).iterdir())]
    if taken:
        raise Refused(f"{data} is in use: {taken[0]} is not empty")
    data.mkdir(mode=0o711, parents=True, exist_ok=True)
    with database_of(data) as url:
        if _tables(url):
            raise Refused("the database is not empty")
        _run(
            "pg_restore",
            "--no-owner",
            "--exit-on-error",
            "--single-transaction",
            "--dbname",
            url,
            str(source / DATABASE),
        )
    for name in FOLDERS:
        copy_tree(source / name, data / name)
    for name in SECRETS:
        if (source / name).exists() and not (data / name).exists():
            shutil.copy2(source / name, data / name)


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
    done = subprocess.run([postgres_program(program), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{program} failed: {done.stderr.strip()[-500:]}")
