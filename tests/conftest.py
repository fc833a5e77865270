"""Fixtures for all tests. Services are started by tests/plugin.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("STEPSCOPE_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres: None, valkey: None) -> None:
    """pytest-django asks for this before it makes the test database."""


@pytest.fixture(scope="session")
def dumps() -> Path:
    """The folder of real dumps, for tests marked `real`."""
    return SHARED / "dumps"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {}
    if not (SHARED / "dumps").is_dir():
        reasons["real"] = f"no real dumps at {SHARED / 'dumps'}"
    # In CI a missing browser is a failure, not a reason to skip.
    if chromium() is None and os.environ.get("CI") != "true":
        reasons["browser"] = "no chromium on this machine; as root `make test` installs it"
    for item in items:
        for mark, reason in reasons.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def chromium() -> str | None:
    """Path of this machine's Chromium, for Playwright's `executable_path`."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
