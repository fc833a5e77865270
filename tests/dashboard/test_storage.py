"""Paths are made of our own ids alone; what is written is on disk or not there at all."""

from __future__ import annotations

import pytest

from dashboard.ingest import storage
from dashboard.ingest.errors import ApiError

pytestmark = pytest.mark.usefixtures("data_root")


@pytest.mark.parametrize("text", ["", "..", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n", "/" + "a" * 63])
def test_only_a_hash_names_a_blob(text):
    with pytest.raises(ValueError, match="not a sha256"):
        storage.blob_path(text)


@pytest.mark.parametrize("text", ["", "..", "1-" + "a" * 11, "1-" + "a" * 12 + "/..", "x-" + "a" * 12])
def test_only_our_own_names_name_tables(text):
    with pytest.raises(ValueError, match="not a frames folder"):
        storage.frames_path(text)
    with pytest.raises(ValueError, match="not a table"):
        storage.table_path(storage.new_frames_name(1), "../kernels")


def test_writing_cuts_what_was_not_counted(data_root):
    path = storage.incoming_folder() / "x"
    storage.write_at(path, 0, [b"abcdef"])
    storage.write_at(path, 3, [b"X"])
    assert path.read_bytes() == b"abcX"


def test_a_device_that_fills_up_leaves_the_file_at_its_offset(data_root):
    # A write limit of the process stands in for a full device: the kernel refuses bytes in the middle of a write.
    import errno
    import resource
    import signal

    path = storage.incoming_folder() / "x"
    storage.write_at(path, 0, [b"a" * 1000])
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        with pytest.raises((OSError, ApiError)) as refused:
            storage.write_at(path, 1000, [b"b" * 10_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert getattr(refused.value, "errno", errno.EFBIG) == errno.EFBIG
    assert path.read_bytes() == b"a" * 1000


def test_a_work_folder_is_gone_whatever_happens(data_root):
    with pytest.raises(RuntimeError), storage.work_folder("x") as folder:
        (folder / "deep").mkdir()
        raise RuntimeError
    assert storage.stored_work() == []
