"""A disk that is really full: a small file system of its own under the data folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dashboard.ingest import sweeps, tasks
from dashboard.runs.models import Dump, DumpState
from tests.dashboard.api_client import ApiClient, error_of
from tests.dumps import dump_files, write_dump
from tests.factories import make_run

SMALL, LARGE = "size=4m", "size=64m"
KERNELS = "ASCEND_PROFILER_OUTPUT/kernel_details.csv"
NO_CHECK = -(1 << 40)
"""Of STEPSCOPE_MIN_FREE_BYTES: nothing is refused before it is written, as when others take the last bytes."""


def mount(folder: Path, options: str) -> bool:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    return done.returncode == 0


@pytest.fixture
def grow(data_root: Path) -> Iterator[Callable[[], object]]:
    """The data folder is a disk of 4 MiB; call it for one of 64."""
    data_root.mkdir(parents=True)
    if not mount(data_root, SMALL):
        pytest.skip("a file system of its own can be mounted by root only")
    try:
        yield lambda: mount(data_root, f"remount,{LARGE}")
    finally:
        subprocess.run(["umount", "--lazy", str(data_root)], check=True)


def contents_of(folder: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in dump_files(folder).items()}


def test_an_upload_that_finds_the_disk_full_goes_on_when_there_is_room(project, api: ApiClient, grow, settings):
    settings.MIN_FREE_BYTES = NO_CHECK
    data = b"x" * (6 << 20)
    dump = api.announce(make_run(project).pk, {KERNELS: data}).json()["dump"]["id"]
    address = api.begin(dump, KERNELS, data)["Location"]
    assert api.patch(address, 0, data[: 2 << 20]).status_code == 204
    assert error_of(api.patch(address, 2 << 20, data[2 << 20 :])) == (507, "disk_full")
    offset = int(api.head(address)["Upload-Offset"])
    assert offset >= 2 << 20  # what was acknowledged before is kept; whole pieces that found room may be too
    grow()
    assert api.patch(address, offset, data[offset:]).status_code == 204
    assert api.post(f"/dumps/{dump}/complete").status_code == 202


def test_contents_that_find_the_disk_full_leave_nothing_and_come_again(
    project, api: ApiClient, grow, data_root, settings
):
    settings.MIN_FREE_BYTES = NO_CHECK
    contents = {KERNELS: b"x" * (3 << 20), "profiler_info_0.json": b"y" * (2 << 20)}
    dump = api.announce(make_run(project).pk, contents).json()["dump"]["id"]
    assert error_of(api.contents(dump, contents.values())) == (507, "disk_full")
    assert not [path for path in data_root.rglob("*") if path.is_file()]
    grow()
    assert api.contents(dump, contents.values()).status_code == 200
    assert api.post(f"/dumps/{dump}/complete").status_code == 202


def test_a_digest_that_finds_the_disk_full_is_made_again(project, api: ApiClient, grow, data_root, tmp_path, settings):
    settings.MIN_FREE_BYTES = NO_CHECK
    contents = contents_of(write_dump(tmp_path / "made", rank=0, steps=2).folder)
    answer: dict[str, Any] = api.announce(make_run(project).pk, contents).json()
    dump = Dump.objects.get(pk=answer["dump"]["id"])
    api.send(dump.pk, {file["name"]: contents[file["name"]] for file in answer["missing"]})
    assert api.post(f"/dumps/{dump.pk}/complete").status_code == 202
    fill(data_root / "filler")
    settings.DIGEST_ATTEMPTS = 2
    for _ in range(3):  # more often than attempts are allowed
        tasks.digest_dump(dump.pk)
        dump.refresh_from_db()
        assert dump.state == DumpState.DIGESTING
        assert "disk is full" in dump.error or "No space left" in dump.error
        assert sweeps.release_dead(timedelta(0)) == 1
    grow()
    tasks.digest_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, dump.error, dump.attempts) == (DumpState.DIGESTED, "", 1)


def fill(path: Path) -> None:
    """Take all but some blocks of the disk: enough for a folder and a list of files, not for tables."""
    free = os.statvfs(path.parent)
    path.write_bytes(b"x" * (free.f_bavail * free.f_frsize - (24 << 10)))
