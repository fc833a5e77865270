"""What ends, what goes, and what must stay."""

from __future__ import annotations

import os
import uuid
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from dashboard.ingest import retention, storage
from dashboard.ingest.models import ArchiveState, Blob, IncomingArchive, Upload
from dashboard.runs.models import Capture, Dump, DumpState
from tests.dashboard.api_client import ApiClient
from tests.factories import make_project, make_run, make_token

CONTENTS = {"kernel_details.csv": b"kernels", "step_trace_time.csv": b"steps"}


def days_ago(days: float) -> datetime:
    return timezone.now() - timedelta(days=days)


@pytest.fixture
def dump(api, project) -> Dump:
    """A dump all of whose files are here."""
    dump_id = api.announce(make_run(project).pk, CONTENTS).json()["dump"]["id"]
    api.send(dump_id, CONTENTS)
    return Dump.objects.get(pk=dump_id)


def test_an_upload_that_nobody_goes_on_with_fails_and_its_bytes_go(api, project, data_root):
    dump_id = api.announce(make_run(project).pk, CONTENTS).json()["dump"]["id"]
    api.patch(api.begin(dump_id, "kernel_details.csv", b"kernels")["Location"], 0, b"ker")
    Dump.objects.update(created=days_ago(2), heartbeat=days_ago(2))
    assert retention.end_abandoned(days_ago(1)) == 0  # its upload got bytes just now
    Upload.objects.update(touched=days_ago(2))
    assert retention.end_abandoned(days_ago(1)) == 1
    dump = Dump.objects.get()
    assert (dump.state, dump.error) == (DumpState.FAILED, "the upload was never finished: 2 of 2 files are missing")
    assert not Upload.objects.exists() and not storage.stored_incoming() and Capture.objects.get().rollup_due


def test_a_dump_that_was_abandoned_can_be_sent_after_all(api, project, data_root):
    run_id = make_run(project).pk
    api.announce(run_id, CONTENTS)
    Dump.objects.update(created=days_ago(2), heartbeat=days_ago(2))
    retention.end_abandoned(days_ago(1))
    again = api.announce(run_id, CONTENTS).json()["dump"]
    assert again["state"] == "receiving" and again["error"] is None
    api.send(again["id"], CONTENTS)
    assert api.post(f"/dumps/{again['id']}/complete").status_code == 202


def test_an_archive_that_nobody_goes_on_with_fails(project, data_root):
    IncomingArchive.objects.create(project=project, run_key="r", touched=days_ago(2))
    assert retention.end_abandoned(days_ago(1)) == 1
    assert IncomingArchive.objects.get().state == ArchiveState.FAILED


def test_sent_bytes_go_after_their_time_when_all_dumps_of_them_are_digested(dump):
    Blob.objects.update(created=days_ago(31))
    assert retention.remove_old_uploads(30) == 0  # it still waits
    Dump.objects.update(state=DumpState.DIGESTED)
    assert retention.remove_old_uploads(0) == 0
    assert retention.remove_old_uploads(32) == 0
    assert retention.remove_old_uploads(30) == 2
    assert not Blob.objects.exists() and not storage.stored_blobs()


def test_content_of_two_projects_stays_until_both_are_done_with_it(api, dump):
    other = make_project()
    second = ApiClient(make_token(other))
    second.send(second.announce(make_run(other).pk, CONTENTS).json()["dump"]["id"], CONTENTS)
    Blob.objects.update(created=days_ago(31))
    Dump.objects.filter(pk=dump.pk).update(state=DumpState.DIGESTED)
    assert retention.remove_old_uploads(30) == 2
    assert len(storage.stored_blobs()) == Blob.objects.count() == 2


def make_frames(dump: Dump) -> Path:
    name = storage.new_frames_name(dump.pk)
    with storage.work_folder("test") as folder:
        (folder / "out").mkdir()
        (folder / "out" / "kernels.parquet").write_bytes(b"rows")
        storage.publish_frames(folder / "out", name)
    Dump.objects.filter(pk=dump.pk).update(frames=name)
    return storage.frames_path(name)


def test_tables_go_after_their_time_and_rows_stay(dump):
    folder = make_frames(dump)
    Dump.objects.update(state=DumpState.DIGESTED, digested_at=days_ago(181))
    assert retention.remove_old_kernels(0) == 0
    assert retention.remove_old_kernels(182) == 0
    assert retention.remove_old_kernels(180) == 1
    assert not folder.exists() and Dump.objects.get().frames == ""


def test_files_without_a_row_go_and_those_with_one_stay(api, project, dump):
    frames = make_frames(dump)
    stray_frames = storage.frames_path(storage.new_frames_name(999))
    stray_frames.mkdir()
    stray_upload, stray_blob = storage.incoming_path(uuid.uuid4()), storage.blob_path("0" * 64)
    stray_blob.parent.mkdir()
    for path in (stray_upload, stray_blob):
        path.write_bytes(b"x")
    dead_work = frames.parent.parent / "scratch" / "digest-1-dead"
    dead_work.mkdir()
    strays = [stray_frames, stray_upload, stray_blob, dead_work]
    assert retention.remove_strays(days_ago(1)) == 0  # too young to tell
    for path in [*strays, frames, *storage.stored_blobs()]:
        os.utime(path, (0, 0))
    assert retention.remove_strays(days_ago(1)) == 4
    assert not any(path.exists() for path in strays)
    assert frames.is_dir() and len(storage.stored_blobs()) == 2
