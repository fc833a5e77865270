"""A backup is made of a real database and restored into another."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from dashboard.backup import back_up, restore
from dashboard.runs.models import Capture
from dashboard.services import postgres_url, start_postgres
from dashboard.supervisor import Refused
from tests.factories import make_capture, make_project, make_run, make_user

ROOT = Path(settings.BASE_DIR)
SHA256 = hashlib.sha256(b"bytes").hexdigest()
BLOB, TABLE = f"blobs/{SHA256[:2]}/{SHA256}", "frames/1-0123456789ab/kernels.parquet"


def url_of(database: str) -> str:
    parts = urlsplit(os.environ["DATABASE_URL"])
    return urlunsplit(parts._replace(path=f"/{database}"))


@pytest.fixture
def empty_database(transactional_db):
    """The address of a database beside the tests' own, with nothing in it."""
    with psycopg.connect(url_of("postgres"), autocommit=True) as server:
        server.execute("drop database if exists restored")
        server.execute("create database restored")
    yield url_of("restored")
    with psycopg.connect(url_of("postgres"), autocommit=True) as server:
        server.execute("drop database restored with (force)")


def data_folder(path: Path) -> Path:
    for name, text in {BLOB: "bytes", TABLE: "rows", "logs/web.log": "log"}.items():
        (path / name).parent.mkdir(parents=True)
        (path / name).write_text(text)
    (path / "secret.key").write_text("key")
    return path


def test_what_was_backed_up_is_there_after_a_restore(empty_database, monkeypatch, tmp_path):
    owner = make_user("olga")
    make_capture(make_run(make_project("gpt", owner=owner), key="run", name="名字"), key="step-7", mfu=0.41)
    data = data_folder(tmp_path / "data")
    monkeypatch.setenv("DATABASE_URL", url_of(connection.settings_dict["NAME"]))
    back_up(data, tmp_path / "backup")
    Capture.objects.all().delete()  # what happens later is not in it

    monkeypatch.setenv("DATABASE_URL", empty_database)
    restore(tmp_path / "backup", tmp_path / "new")
    with psycopg.connect(empty_database) as found:
        sql = "select r.name, c.key, c.mfu from runs_capture c join runs_run r on r.id = c.run_id"
        assert found.execute(sql).fetchall() == [("名字", "step-7", 0.41)]
        assert found.execute("select password from accounts_user").fetchone() == (owner.password,)
        # The next row gets the next number: sequences came along.
        assert found.execute("select last_value >= (select max(id) from runs_run) from runs_run_id_seq").fetchone() == (
            True,
        )
    files = {str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert files == {BLOB, TABLE, "secret.key", "demo.loaded"}  # the last: the next start adds no demo
    assert (tmp_path / "new" / BLOB).read_text() == "bytes"


def test_nothing_is_written_over(empty_database, monkeypatch, tmp_path):
    data = data_folder(tmp_path / "data")
    monkeypatch.setenv("DATABASE_URL", url_of(connection.settings_dict["NAME"]))
    back_up(data, tmp_path / "backup")
    with pytest.raises(Refused, match="is not empty"):
        back_up(data, tmp_path / "backup")
    with pytest.raises(Refused, match="is in use"):
        restore(tmp_path / "backup", data)
    with pytest.raises(Refused, match="the database is not empty"):
        restore(tmp_path / "backup", tmp_path / "new")


def test_a_backup_that_was_cut_short_is_not_taken_for_one(tmp_path, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", url_of("there-is-no-such-database"))
    with pytest.raises(Refused, match="pg_dump failed"):
        back_up(data_folder(tmp_path / "data"), tmp_path / "backup")
    with pytest.raises(Refused, match="holds no whole backup"):
        restore(tmp_path / "backup", tmp_path / "new")


@pytest.fixture
def backup(empty_database, monkeypatch, tmp_path) -> Path:
    """A whole backup; DATABASE_URL then names an empty database."""
    make_run(make_project("gpt"), key="run")
    monkeypatch.setenv("DATABASE_URL", url_of(connection.settings_dict["NAME"]))
    back_up(data_folder(tmp_path / "data"), tmp_path / "backup")
    monkeypatch.setenv("DATABASE_URL", empty_database)
    return tmp_path / "backup"


def replace_by_link(path: Path, target: Path) -> None:
    if path.is_dir():
        path.rename(path.with_name("moved"))
    else:
        path.unlink()
    path.symlink_to(target)


def rename_in_contents(backup: Path, place: str) -> None:
    contents = json.loads((backup / "contents.json").read_text())
    contents[place] = contents.pop(TABLE)
    (backup / "contents.json").write_text(json.dumps(contents))


def rewrite(path: Path, data: bytes) -> None:
    path.unlink()  # a hard link of the data folder's own
    path.write_bytes(data)


TAMPERED = {
    "a sent file of other bytes": (lambda backup: rewrite(backup / BLOB, b"evil!"), f"{SHA256} was changed"),
    "a table of other bytes": (lambda backup: rewrite(backup / TABLE, b"evil"), "kernels.parquet was changed"),
    "another database": (lambda backup: rewrite(backup / "database.dump", b"PGDMP"), "database.dump was changed"),
    "another key": (lambda backup: rewrite(backup / "secret.key", b"mine"), "secret.key was changed"),
    "a missing file": (lambda backup: (backup / BLOB).unlink(), f"{SHA256} is missing"),
    "a file more": (lambda backup: (backup / "frames/1-0123456789ab/x.so").write_bytes(b"x"), "x.so is not of this"),
    "a link for a file": (lambda backup: replace_by_link(backup / TABLE, Path("/etc/passwd")), "parquet is a link"),
    "a link for a folder": (lambda backup: replace_by_link(backup / "blobs", Path("/etc")), "blobs is a link"),
    "a pipe": (lambda backup: ((backup / TABLE).unlink(), os.mkfifo(backup / TABLE)), "parquet is no file"),
    "a place outside": (lambda backup: rename_in_contents(backup, "frames/../../evil"), "which no backup holds"),
    "an absolute place": (lambda backup: rename_in_contents(backup, "/etc/cron.d/evil"), "which no backup holds"),
    "a place of no backup": (lambda backup: rename_in_contents(backup, "static/app.js"), "which no backup holds"),
    "a name of another hash": (lambda backup: rename_in_contents(backup, f"blobs/aa/{'a' * 64}"), "another hash"),
    "contents cut short": (lambda backup: (backup / "contents.json").write_text('{"da'), "is not JSON"),
    "contents of another kind": (lambda backup: (backup / "contents.json").write_text("[]"), "does not name"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_backup_is_refused_by_the_name_of_the_file_and_leaves_nothing(backup, tmp_path, what):
    tamper, words = TAMPERED[what]
    tamper(backup)
    with pytest.raises(Refused, match=words):
        restore(backup, tmp_path / "new")
    assert not list((tmp_path / "new").glob("*"))
    assert not (tmp_path / "evil").exists()
    with psycopg.connect(os.environ["DATABASE_URL"]) as database:
        assert database.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone() == (0,)


def test_a_backup_without_its_files_restores_the_numbers(backup, tmp_path):
    shutil.rmtree(backup / "blobs")
    shutil.rmtree(backup / "frames")
    restore(backup, tmp_path / "new")
    with psycopg.connect(os.environ["DATABASE_URL"]) as database:
        assert database.execute("select key from runs_run").fetchall() == [("run",)]


def test_what_is_restored_shares_no_file_with_the_backup(backup, tmp_path):
    restore(backup, tmp_path / "new")
    assert (tmp_path / "new" / BLOB).stat().st_nlink == 1
    for place in (BLOB, "blobs", "frames"):
        assert (tmp_path / "new" / place).stat().st_mode & 0o077 == 0


def test_the_database_in_a_backup_can_be_read_by_its_owner_alone(monkeypatch, transactional_db, tmp_path):
    (tmp_path / "backup").mkdir(mode=0o755)
    monkeypatch.setenv("DATABASE_URL", url_of(connection.settings_dict["NAME"]))
    back_up(data_folder(tmp_path / "data"), tmp_path / "backup")
    assert (tmp_path / "backup" / "database.dump").stat().st_mode & 0o077 == 0


def test_two_that_migrate_at_once_take_turns(empty_database):
    environment = {**os.environ, "DATABASE_URL": empty_database}
    line = [sys.executable, "manage.py", "migrate", "--no-input"]
    both = [subprocess.Popen(line, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    ends = [(one.communicate(timeout=180), one.returncode) for one in both]
    assert [code for _, code in ends] == [0, 0], ends
    assert sorted("No migrations to apply" in out for (out, _), _ in ends) == [False, True]


def command(name: str, data: Path, *arguments: str) -> str:
    environment = {key: text for key, text in os.environ.items() if key != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, "manage.py", name, *arguments],
        cwd=ROOT,
        env={**environment, "STEPSCOPE_DATA": str(data)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_database_of_a_data_folder_is_started_for_it_when_nothing_runs(monkeypatch):
    # Not under pytest's folder: another user, whom PostgreSQL runs as where we are root, may not pass through there.
    with tempfile.TemporaryDirectory(prefix="stepscope-backup-") as text:
        folder = Path(text)
        for name in ("old", "new"):
            (folder / name).mkdir()
        service = start_postgres(folder / "old", durable=False)
        with psycopg.connect(service.url, autocommit=True) as database:
            database.execute("create table kept as select 42 as number")
        service.stop()
        command("backup", folder / "old", str(folder / "backup"))
        command("restore", folder / "new", str(folder / "backup"))
        service = start_postgres(folder / "new", durable=False)
        with psycopg.connect(postgres_url(folder / "new")) as database:
            assert database.execute("select number from kept").fetchone() == (42,)
        # Any other command reaches the database that runs there as well.
        assert "class Kept(" in command("inspectdb", folder / "new", "kept")
        service.stop()
