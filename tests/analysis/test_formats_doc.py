"""docs/formats.md names every file that a profiler leaves: as read, or as not read and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.analysis.formats import READERS, file_of
from tests.conftest import SHARED

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
NAMES = {re.sub(r"_[NDM](?=[_.])", "_N", name.rsplit("/", 1)[-1]) for name in re.findall(r"`([^`]+\.\w+)`", TEXT)}
NO_OUTPUT = ("README", "INDEX", ".yaml", ".db-shm", ".db-wal", ".log")


def told(name: str) -> bool:
    """Whether a pattern of the page fits: `N` stands for numbers, `*` for anything."""
    patterns = (re.escape(each).replace("_N", r"(_\w+)*?_\d+").replace(r"\*", ".*") for each in NAMES)
    return any(re.fullmatch(pattern, name) for pattern in patterns)


@pytest.mark.parametrize("name", {file_of(name) for name in READERS})
def test_every_file_a_reader_knows_is_listed(name: str):
    assert told(name)


@pytest.mark.real
def test_every_file_of_every_real_dump_is_listed():
    files = [path for path in (SHARED / "dumps").rglob("*") if path.is_file()]
    outputs = [path for path in files if not any(end in path.name for end in NO_OUTPUT)]
    raw = re.compile(r".+\.slice_\d+(\.done)?|start_info|.+\.op_range")
    loose = {
        "training-logs",
        "mindformers-yaml",
        "hpm-ascend910-ms1x",
        "expect",
    }  # logs, configs, renamed framework_raw
    unknown = {path.name for path in outputs if not loose & set(path.parts) and not raw.fullmatch(path.name)}
    unknown -= {"test.csv"}  # a kernel table under a name of its own
    assert sorted(name for name in unknown if not told(name)) == []
