"""What ends, what goes, and what must stay."""

from __future__ import annotations

import hashlib
import os
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from dashboard.accounts.models import Project, Retention, RetentionChange, Role
from dashboard.alerts.models import Alert
from dashboard.ingest import retention, storage
from dashboard.ingest.models import ArchiveState, Blob, IncomingArchive, Upload
from dashboard.runs.models import Capture, CaptureState, Dump, DumpState, Run
from tests.dashboard.api_client import ApiClient
from tests.factories import make_capture, make_dump, make_member, make_project, make_run, make_token, make_user

CONTENTS = {"kernel_details.csv": b"kernels", "step_trace_time.csv": b"steps"}


def days_ago(days: float) -> datetime:
    return timezone.now() - timedelta(days=days)


@pytest.fixture
def dump(api, project) -> Dump:
    """A dump all of whose files are here."""
    dump_id = api.announce(make_run(project).pk, CONTENTS).json()["dump"]["id"]
    api.send(dump_id, CONTENTS)
    return Dump.objects.get(pk=dump_id)


def project_of(dump: Dump) -> Project:
    return dump.capture.run.project


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
    assert retention.remove_old_uploads(project_of(dump), 30) == 0  # it still waits
    Dump.objects.update(state=DumpState.DIGESTED)
    assert retention.remove_old_uploads(project_of(dump), 0) == 0
    assert retention.remove_old_uploads(project_of(dump), 32) == 0
    assert retention.remove_old_uploads(project_of(dump), 30) == 2
    assert not Blob.objects.exists() and not storage.stored_blobs()


def test_content_of_two_projects_stays_until_both_are_done_with_it(api, dump):
    other = make_project()
    second = ApiClient(make_token(other))
    second.send(second.announce(make_run(other).pk, CONTENTS).json()["dump"]["id"], CONTENTS)
    Blob.objects.update(created=days_ago(31))
    Dump.objects.filter(pk=dump.pk).update(state=DumpState.DIGESTED)
    assert retention.remove_old_uploads(project_of(dump), 30) == 2
    assert retention.remove_old_uploads(other, 30) == 0  # its own still waits
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
    assert retention.remove_old_kernels(project_of(dump), 0) == 0
    assert retention.remove_old_kernels(project_of(dump), 182) == 0
    assert retention.remove_old_kernels(project_of(dump), 180) == 1
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


def old_capture(run: Run, days: float, **fields: Any) -> Capture:
    return make_capture(run, key=f"day-{days}", state=CaptureState.READY, captured_at=days_ago(days), **fields)


def kept_by(run: Run) -> list[str]:
    return sorted(run.captures.values_list("key", flat=True))


def test_whole_captures_go_but_the_newest_of_each_run(project, data_root):
    run = make_run(project, capture_count=3)
    for days in (100, 50, 40):
        old_capture(run, days)
    assert retention.remove_old_captures(project, 0) == 0
    assert retention.remove_old_captures(project, 30) == 2
    assert kept_by(run) == ["day-40"]
    run.refresh_from_db()
    assert run.capture_count == 1


def test_a_capture_takes_its_tables_and_the_files_that_nothing_else_lists(api, project, dump):
    shared = api.announce(dump.capture.run_id, {"step_trace_time.csv": b"steps"}, capture="another").json()["dump"][
        "id"
    ]
    folder = make_frames(dump)
    Dump.objects.update(state=DumpState.DIGESTED)
    Capture.objects.update(state=CaptureState.READY)
    Capture.objects.filter(pk=dump.capture_id).update(captured_at=days_ago(90))
    assert retention.remove_old_captures(project, 30) == 1
    assert not folder.exists() and [one.pk for one in Dump.objects.all()] == [shared]
    # "steps" is listed by the other dump as well.
    assert len(storage.stored_blobs()) == Blob.objects.count() == 1


@pytest.mark.parametrize("fields", [{"is_reference": True}, {"tags": ["baseline", "x"]}])
def test_references_and_baselines_keep_all_they_have(dump, fields):
    folder = make_frames(dump)
    old_capture(dump.capture.run, 90), old_capture(dump.capture.run, 80)
    Dump.objects.update(state=DumpState.DIGESTED, digested_at=days_ago(400))
    Blob.objects.update(created=days_ago(400))
    Run.objects.update(**fields)
    project, keep = project_of(dump), Retention(1, 1, 1)
    assert retention.removable(project, keep) == retention.Removable(0, 0, 0, 0)
    Project.objects.update(keep_uploads_days=1, keep_kernels_days=1, keep_captures_days=1)
    retention.remove_old()
    assert folder.exists() and len(storage.stored_blobs()) == 2 and Capture.objects.count() == 3


def test_captures_of_open_alerts_and_those_on_their_way_stay(project, data_root):
    run = make_run(project)
    alarming, waiting, plain, _newest = (old_capture(run, days) for days in (90, 80, 70, 60))
    alert = Alert.objects.create(project=project, capture=alarming, metric="mfu")
    make_dump(waiting, state=DumpState.UPLOADED)
    assert [one.pk for one in retention.old_captures(project, 30)] == [plain.pk]
    alert.decide("expected", "", make_user())
    assert set(retention.old_captures(project, 30)) == {alarming, plain}


def test_each_project_is_swept_by_its_own_answer(dump, settings):
    settings.KEEP_UPLOADS_DAYS = 30
    Dump.objects.update(state=DumpState.DIGESTED)
    Blob.objects.update(created=days_ago(40))
    project = project_of(dump)
    for own, left in ((0, 2), (50, 2), (None, 0)):
        Project.objects.filter(pk=project.pk).update(keep_uploads_days=own)
        retention.remove_old()
        assert Blob.objects.count() == left


def test_an_owner_sees_what_would_go_sets_it_and_the_change_stays_on_record(dump, client):
    Dump.objects.update(state=DumpState.DIGESTED, digested_at=days_ago(40))
    Blob.objects.update(created=days_ago(40))
    make_frames(dump)
    project, owner = project_of(dump), make_user("olga")
    make_member(project, owner, Role.OWNER)
    client.force_login(owner)
    address = f"/projects/{project.slug}/settings/retention/"
    days = {"keep_uploads_days": "30", "keep_kernels_days": "", "keep_captures_days": "0"}
    preview = client.get(f"{address}preview/", days).content.decode()
    assert "files 2 (12" in preview and "tables of kernels 0" in preview  # "kernels" and "steps": 12 bytes
    assert "tables of kernels 1" in client.get(f"{address}preview/", {"keep_kernels_days": "39"}).content.decode()
    assert Project.objects.get(pk=project.pk).keep_uploads_days is None
    client.post(address, days)
    project.refresh_from_db()
    assert project.retention == (30, 180, 0)
    change = RetentionChange.objects.get()
    assert (change.changed_by, [row[1:] for row in change.rows]) == (owner, [(None, 30), (None, 0)])
    client.post(address, days)
    assert RetentionChange.objects.count() == 1
    assert "olga" in client.get(f"/projects/{project.slug}/settings/").content.decode()


@pytest.mark.parametrize("text", ["-1", "36501", "many", "1e9"])
def test_days_that_are_none_are_refused(dump, client, text):
    project, owner = project_of(dump), make_user("olga")
    make_member(project, owner, Role.OWNER)
    client.force_login(owner)
    address = f"/projects/{project.slug}/settings/retention/"
    assert client.post(address, {"keep_uploads_days": text}).status_code == 422
    assert "A number of days" in client.get(f"{address}preview/", {"keep_uploads_days": text}).content.decode()
    assert not RetentionChange.objects.exists()


def test_bytes_that_no_dump_lists_go_after_their_time_also_where_all_is_kept(api, project, dump):
    project.keep_uploads_days = 0
    project.save()
    gone = api.announce(make_run(project, key="gone").pk, {"a.csv": b"left behind", **CONTENTS}).json()["dump"]["id"]
    api.send(gone, {"a.csv": b"left behind"})
    Dump.objects.filter(pk=gone).delete()
    Blob.objects.update(created=days_ago(2))
    retention.remove_old()
    assert Blob.objects.count() == 3
    assert retention.remove_unlisted(days_ago(3)) == 0
    assert retention.remove_unlisted(days_ago(1)) == 1
    assert {path.read_bytes() for path in storage.stored_blobs()} == set(CONTENTS.values())
    assert set(Blob.objects.values_list("sha256", flat=True)) == {path.name for path in storage.stored_blobs()}


def test_bytes_that_another_project_lists_stay_there_alone(api, project, dump):
    Dump.objects.all().delete()
    other = make_project()
    run = make_run(other)
    for blob in Blob.objects.all():
        Blob.objects.create(project=other, sha256=blob.sha256, size=blob.size)
    make_dump(make_capture(run), contents=CONTENTS)
    Blob.objects.update(created=days_ago(2))
    assert retention.remove_unlisted(days_ago(1)) == 2
    assert set(Blob.objects.values_list("project", flat=True)) == {other.pk}
    assert len(storage.stored_blobs()) == 2


def many_files(project, count: int) -> list[Blob]:
    """Contents of the project that no dump lists."""
    hashes = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(count)]
    for sha256 in hashes:
        storage.blob_path(sha256).parent.mkdir(parents=True, exist_ok=True)
        storage.blob_path(sha256).write_bytes(b"x")
    return Blob.objects.bulk_create(Blob(project=project, sha256=sha256, size=1) for sha256 in hashes)


@pytest.mark.parametrize("count", [3, 40])
def test_a_sweep_asks_as_often_for_many_contents_as_for_few(project, dump, count, django_assert_num_queries):
    many_files(project, count)
    Blob.objects.update(created=days_ago(2))
    # projects; which; of a part: rows, begin, locks, locked rows, still, uses, delete, end; begin, locks, rows, end
    with django_assert_num_queries(13):
        assert retention.remove_unlisted(days_ago(1)) == count
    assert len(storage.stored_blobs()) == len(CONTENTS) == Blob.objects.count()


@pytest.mark.parametrize("count", [3, 40])
def test_looking_for_strays_asks_as_often_for_many_files_as_for_few(project, dump, count, django_assert_num_queries):
    stays, goes = storage.new_frames_name(dump.pk), storage.new_frames_name(dump.pk)
    Dump.objects.filter(pk=dump.pk).update(frames=stays)
    for name in (stays, goes, *(storage.new_frames_name(10**9 + number) for number in range(count))):
        storage.frames_path(name).mkdir(parents=True)
    blobs = many_files(project, count)
    Blob.objects.filter(pk=blobs[0].pk).delete()
    with django_assert_num_queries(6):  # tables; contents; then begin, locks, contents, end
        assert retention.remove_strays(timezone.now() + timedelta(days=1)) == count + 2
    assert [path.name for path in storage.stored_frames()] == [stays]
    assert blobs[0].sha256 not in {path.name for path in storage.stored_blobs()}


def test_whether_a_dump_came_to_need_contents_is_found_by_indexes(project, data_root):
    """Not by reading what all dumps of the project list."""
    capture = make_capture(make_run(project))
    done = {"state": DumpState.DIGESTED, "digested_at": days_ago(9), "files": [{"name": "a", "size": 1, "sha256": "0"}]}
    Dump.objects.bulk_create(Dump(capture=capture, rank=rank, **done) for rank in range(5_000))
    make_dump(capture, rank=5_000)
    still = Blob.objects.filter(project=project, pk__in=[blob.pk for blob in many_files(project, 500)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE runs_dump, runs_capture, runs_run, ingest_blob")
    plan = still.extra(where=retention.NOT_LISTED_LATELY, params=[timezone.now()]).explain()
    assert "dumps_underway" in plan and "dumps_by_digest" in plan and "Seq Scan on runs_dump" not in plan


@pytest.mark.parametrize(
    "state", [DumpState.RECEIVING, DumpState.UPLOADED, DumpState.DIGESTING, DumpState.DIGESTED, DumpState.FAILED]
)
def test_contents_that_a_dump_came_to_list_after_a_sweep_looked_stay(project, data_root, monkeypatch, state):
    (blob,) = many_files(project, 1)
    Blob.objects.update(created=days_ago(2))
    real = retention.remove_blobs

    def later(still, blobs):
        make_dump(make_capture(make_run(project)), contents={"a.csv": b"0"}, state=state, digested_at=timezone.now())
        return real(still, blobs)

    monkeypatch.setattr(retention, "remove_blobs", later)
    assert retention.remove_unlisted(days_ago(1)) == 0
    assert Blob.objects.get() == blob and len(storage.stored_blobs()) == 1


def test_a_preview_counts_what_a_sweep_takes(project, dump):
    """Old contents of digested dumps, without those that a dump on its way, a baseline or a reference lists too."""
    names = {"gone": b"12", "shared": b"123", "of baseline": b"1234", "of reference": b"12345", "young": b"123456"}
    shas = {name: hashlib.sha256(content).hexdigest() for name, content in names.items()}
    Blob.objects.all().delete()
    for name, content in names.items():
        Blob.objects.create(project=project, sha256=shas[name], size=len(content))
    Blob.objects.exclude(sha256=shas["young"]).update(created=days_ago(31))
    done = make_capture(make_run(project, key="done"))
    make_dump(done, state=DumpState.DIGESTED, contents=names)
    make_dump(done, rank=1, state=DumpState.UPLOADED, contents={"x": names["shared"]})
    for name, fields in (("of baseline", {"tags": ["baseline"]}), ("of reference", {"is_reference": True})):
        capture = make_capture(make_run(project, key=name, **fields))
        make_dump(capture, state=DumpState.DIGESTED, contents={"x": names[name]})
    other = make_capture(make_run(make_project(), tags=["baseline"]))
    make_dump(other, state=DumpState.DIGESTED, contents={"x": names["gone"]})
    found = retention.removable(project, Retention(30, 0, 0))
    assert (found.files, found.bytes) == (1, 2)
    assert set(retention.old_uploads(project, 30).values_list("sha256", flat=True)) == {shas["gone"]}
    assert retention.removable(project, Retention(0, 0, 0)).files == 0
