"""What tests of the machine side need: a data folder of their own, a project and a client with its token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import translation

from dashboard.accounts.models import Project
from tests.dashboard.api_client import ApiClient
from tests.factories import make_project, make_token


@pytest.fixture
def data_root(tmp_path: Path, settings: Any) -> Path:
    """An empty DATA_ROOT; blobs and frames of other tests are not in it."""
    settings.DATA_ROOT = tmp_path / "data"
    settings.MIN_FREE_BYTES = 0
    return tmp_path / "data"


@pytest.fixture
def project(db: None) -> Project:
    cache.clear()
    return make_project()


@pytest.fixture
def api(project: Project, data_root: Path) -> ApiClient:
    return ApiClient(make_token(project))


@pytest.fixture(autouse=True)
def _english_again() -> Iterator[None]:
    """The language of a test's last request does not reach the next test."""
    yield
    translation.deactivate()
