"""Fixtures for all tests. Services are started by tests/plugin.py."""

from __future__ import annotations

import os
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
    if (SHARED / "dumps").is_dir():
        return
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.skip(reason=f"no real dumps at {SHARED / 'dumps'}"))
