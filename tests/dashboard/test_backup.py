"""A backup is made of a real database and restored into another."""

from __future__ import annotations

import os
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
    for name, text in {"blobs/ab/abc": "bytes", "frames/1-0/kernels.parquet": "rows", "logs/web.log": "log"}.items():
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
    assert files == {"blobs/ab/abc", "frames/1-0/kernels.parquet", "secret.key"}
    assert (tmp_path / "new/blobs/ab/abc").read_text() == "bytes"


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


def command(name: str, data: Path, folder: Path) -> None:
    environment = {key: text for key, text in os.environ.items() if key != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, "manage.py", name, str(folder)],
        cwd=ROOT,
        env={**environment, "STEPSCOPE_DATA": str(data)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


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
        command("backup", folder / "old", folder / "backup")
        command("restore", folder / "new", folder / "backup")
        service = start_postgres(folder / "new", durable=False)
        with psycopg.connect(postgres_url(folder / "new")) as database:
            assert database.execute("select number from kept").fetchone() == (42,)
        service.stop()
