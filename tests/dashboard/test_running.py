"""The hash kept of an upload on its way is that of the bytes on disk, or is not used."""

from __future__ import annotations

import hashlib
import uuid

import pytest

from dashboard.ingest import running, storage
from dashboard.ingest.models import Blob, Upload
from tests.dashboard.api_client import error_of
from tests.factories import make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("data_root")]
NAME, DATA = "kernel_details.csv", bytes(range(256)) * 40


@pytest.fixture
def address(api, project) -> str:
    dump = api.announce(make_run(project).pk, {NAME: DATA}).json()["dump"]["id"]
    return api.begin(dump, NAME, DATA)["Location"]


def path():
    return storage.incoming_path(Upload.objects.get().pk)


@pytest.fixture
def read_again(monkeypatch) -> list[str]:
    """Names of the files whose hash was taken by reading them."""
    names: list[str] = []
    real = storage.sha256_of
    monkeypatch.setattr(storage, "sha256_of", lambda path: names.append(path.name) or real(path))
    return names


def test_a_file_whose_bytes_all_passed_here_is_not_read_again(api, address, read_again):
    for begin in range(0, len(DATA), 1000):
        assert api.patch(address, begin, DATA[begin : begin + 1000]).status_code == 204
    assert storage.blob_path(hashlib.sha256(DATA).hexdigest()).read_bytes() == DATA
    assert not read_again


def test_false_bytes_are_found_without_reading_them_again(api, address, read_again):
    api.patch(address, 0, DATA[:1000])
    assert error_of(api.patch(address, 1000, DATA[1000:][::-1])) == (460, "checksum")
    assert not read_again and not Blob.objects.exists()


def test_after_a_restart_the_file_is_read(api, address, read_again):
    api.patch(address, 0, DATA[:1000])
    running._seen.clear()
    api.patch(address, 1000, DATA[1000:])
    assert len(read_again) == 1 and Blob.objects.count() == 1


def test_bytes_that_another_process_wrote_are_read(api, address, read_again):
    api.patch(address, 0, DATA[:1000])
    storage.write_at(path(), 1000, [DATA[1000:2000]])
    Upload.objects.update(offset=2000)
    api.patch(address, 2000, DATA[2000:])
    assert len(read_again) == 1 and Blob.objects.count() == 1


def test_bytes_altered_on_disk_are_not_taken_for_what_was_sent(api, address):
    api.patch(address, 0, DATA[:1000])
    storage.write_at(path(), 0, [DATA[:1000][::-1]])
    assert error_of(api.patch(address, 1000, DATA[1000:])) == (460, "checksum")
    assert not Blob.objects.exists()


def test_a_write_that_was_not_counted_is_forgotten(tmp_path):
    file, key = tmp_path / "x", uuid.uuid4()
    seen = running.go_on(key, file, 0)
    assert seen is not None
    storage.write_at(file, 0, seen.feed([b"abc"]))  # and the process dies before it counts them
    assert running.go_on(key, file, 3) is None
    assert running.sha256_of(key, file) is None


def test_only_the_newest_uploads_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "MOST", 2)
    keys = [uuid.uuid4() for _ in range(3)]
    for key in keys:
        seen = running.go_on(key, tmp_path / key.hex, 0)
        assert seen is not None
        storage.write_at(tmp_path / key.hex, 0, seen.feed([b"abc"]))
        seen.stamp = running.stamp_of(tmp_path / key.hex)
        running.remember(key, seen)
    known = [running.sha256_of(key, tmp_path / key.hex) for key in keys]
    assert known == [None, *[hashlib.sha256(b"abc").hexdigest()] * 2]
