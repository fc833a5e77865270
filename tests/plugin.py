"""Loaded before pytest-django: names the tests' own PostgreSQL and Valkey, each started on first use."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
FOLDER = Path(tempfile.mkdtemp(prefix="stepscope-tests-"))
OWN_POSTGRES = "DATABASE_URL" not in os.environ
OWN_VALKEY = "REDIS_URL" not in os.environ


def _prepare() -> None:
    # Fixed addresses known before anything runs, since Django reads its settings before the first fixture.
    password = secrets.token_urlsafe(16)
    for name in ("postgres.secret", "valkey.secret"):
        (FOLDER / name).write_text(password)
        (FOLDER / name).chmod(0o600)
    if OWN_POSTGRES:
        os.environ["DATABASE_URL"] = (
            f"postgres://stepscope:{quote(password)}@{quote(str(FOLDER / 'sockets'), safe='')}/stepscope"
        )
    if OWN_VALKEY:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]

        os.environ["REDIS_URL"] = f"redis://:{quote(password)}@127.0.0.1:{port}/0"
    os.environ.setdefault("STEPSCOPE_DATA", str(FOLDER / "data"))


_prepare()


@pytest.fixture(scope="session")
def postgres() -> Iterator[None]:
    """A real PostgreSQL at DATABASE_URL."""
    if not OWN_POSTGRES:
        yield
        return
    from dashboard.services import start_postgres

    service = start_postgres(FOLDER, durable=False)
    yield
    service.stop()


@pytest.fixture(scope="session")
def valkey() -> Iterator[None]:
    """A real Valkey at REDIS_URL."""
    if not OWN_VALKEY:
        yield
        return
    from dashboard.services import start_valkey

    service = start_valkey(FOLDER, int(os.environ["REDIS_URL"].rsplit(":", 1)[1].split("/")[0]))
    yield
    service.stop()


def pytest_unconfigure() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
