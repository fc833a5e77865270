"""Archives and folders that a person drops on a page."""

from __future__ import annotations

import io
import tarfile
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Role
from dashboard.ingest import archives, storage, tasks
from dashboard.ingest.models import ArchiveState, Blob, IncomingArchive, Upload
from dashboard.runs.models import Capture, Dump, DumpState, Run
from tests.dashboard.api_client import TUS, ApiClient, error_of, upload_metadata
from tests.dumps import dump_files, write_dump, write_job, zipped
from tests.factories import make_member, make_user


@pytest.fixture
def browser(project, data_root) -> ApiClient:
    """A signed-in member's browser, which has a session and no token."""
    user, client = make_user(), Client()
    make_member(project, user)
    client.force_login(user)
    return ApiClient(client=client)


def drop(browser: ApiClient, slug: str, contents: dict[str, bytes], **body: Any) -> IncomingArchive:
    """Announce and send the files, then let a worker unpack them."""
    files = [{"name": name, "size": len(data)} for name, data in contents.items()]
    answer = browser.post(f"/projects/{slug}/archives", {"run": "dropped", "files": files, **body}).json()["archive"]
    for name, data in contents.items():
        metadata = upload_metadata(archive=str(answer["id"]), name=name)
        headers = {**browser.headers, **TUS, "Upload-Length": str(len(data)), "Upload-Metadata": metadata}
        address = browser.client.post("/api/v1/files", headers=headers)["Location"]
        assert browser.patch(address, 0, data).status_code == 204
    assert browser.post(f"/archives/{answer['id']}/complete").json()["archive"]["state"] == "waiting"
    tasks.unpack_archive(answer["id"])
    return IncomingArchive.objects.get(pk=answer["id"])


def test_a_zip_of_a_dump_becomes_a_run_with_a_capture(browser, project, tmp_path):
    truth = write_dump(tmp_path, rank=0)
    data = zipped(truth.folder, tmp_path / "dump.zip").read_bytes()
    archive = drop(browser, project.slug, {"my dump (1).zip": data}, run_name="From the browser")
    assert (archive.state, archive.error) == (ArchiveState.DONE, "")
    run, dump = Run.objects.get(), Dump.objects.get()
    assert (run.key, run.name) == ("dropped", "From the browser")
    assert dump.state == DumpState.UPLOADED and archive.captures == [dump.capture_id]
    tasks.digest_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, dump.error) == (DumpState.DIGESTED, "")
    assert not Upload.objects.exists() and not storage.stored_incoming() and not storage.stored_work()
    shown = browser.get(f"/archives/{archive.pk}").json()["archive"]
    assert shown["captures"][0]["url"].endswith(f"/captures/{dump.capture_id}/")


def test_ranks_of_one_window_go_to_one_capture(browser, project, tmp_path):
    folder = tmp_path / "job"
    write_job(folder, steps=2, dp=2)
    archive = drop(browser, project.slug, {"job.zip": zipped(folder, tmp_path / "job.zip").read_bytes()})
    assert archive.state == ArchiveState.DONE
    assert sorted(Dump.objects.values_list("rank", flat=True)) == [0, 1]
    assert Capture.objects.count() == 1


def test_the_files_of_a_folder_are_taken_as_they_lay(browser, project, tmp_path):
    folder = write_dump(tmp_path, rank=0).folder
    contents = {f"{folder.name}/{name}": path.read_bytes() for name, path in dump_files(folder).items()}
    archive = drop(browser, project.slug, contents, capture="by-hand")
    assert archive.state == ArchiveState.DONE and Capture.objects.get().key == "by-hand"
    assert Blob.objects.count() == len(list(storage.stored_blobs())) > 0


def hostile_zip(name: str, data: bytes = b"x") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def link_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("kernel_details.csv")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    return file.getvalue()


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        ({"a": b"x", "a/kernel_details.csv": b"x"}, "a/kernel_details.csv: a part of it is a file's name too"),
        ({"cut.zip": b"PK\3\4 and no more"}, "cut.zip: archive is cut or damaged (File is not a zip file)"),
        ({"notes.md": b"x"}, "notes.md: holds no profiler files that are known"),
        ({"a.md": b"x", "b.md": b"y"}, "the folder: holds no profiler files that are known"),
    ],
)
def test_what_is_wrong_with_a_drop_is_said_by_the_names_people_gave(browser, project, contents, error):
    archive = drop(browser, project.slug, contents)
    assert (archive.state, archive.error) == (ArchiveState.FAILED, error)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("up.zip", hostile_zip("../../up.csv")),
        ("abs.zip", hostile_zip("/etc/cron.d/x")),
        ("link.tar.gz", link_tar()),
        ("bomb.zip", hostile_zip("kernel_details.csv", b"\0" * (100 << 20))),
        ("cut.zip", hostile_zip("kernel_details.csv", bytes(range(256)) * 99)[:-30]),
        ("none.zip", hostile_zip("readme.md")),
        ("text.zip", b"this is no archive"),
    ],
)
def test_a_bad_archive_fails_with_one_line_and_leaves_nothing(browser, project, name, data):
    archive = drop(browser, project.slug, {name: data})
    assert archive.state == ArchiveState.FAILED
    assert archive.error and "\n" not in archive.error and "/scratch/archive-" not in archive.error
    assert not Dump.objects.exists() and not Upload.objects.exists()
    assert not storage.stored_incoming() and not storage.stored_work()


@pytest.mark.parametrize("name", ["../a.csv", "/a.csv", "a//b.csv", "a\\b.csv", "C:/a.csv", ".", "a\n.csv", "x" * 256])
def test_names_that_could_leave_the_folder_are_refused(browser, project, name):
    response = browser.post(f"/projects/{project.slug}/archives", {"run": "r", "files": [{"name": name, "size": 1}]})
    assert error_of(response) == (400, "bad_name")


def test_limits_hold_for_archives(browser, project, settings):
    project.max_bytes = 100
    project.save()
    settings.MAX_FILE_BYTES = 90
    path, small = f"/projects/{project.slug}/archives", {"run": "r", "files": [{"name": "a.zip", "size": 60}]}
    assert error_of(browser.post(path, {"run": "r", "files": [{"name": "a.zip", "size": 91}]})) == (
        413,
        "file_too_large",
    )
    assert browser.post(path, small).status_code == 201
    assert error_of(browser.post(path, small)) == (413, "project_full")


def test_unpacking_is_a_childs_work_under_limits(browser, project, settings, tmp_path):
    data = zipped(write_dump(tmp_path, rank=0).folder, tmp_path / "dump.zip").read_bytes()
    settings.DIGEST_MEMORY_BYTES = 64 << 20
    archive = drop(browser, project.slug, {"dump.zip": data})
    assert archive.state == ArchiveState.FAILED
    assert archive.error == "unpacking needed more than 64.0 MB of memory and was stopped"
    assert not Dump.objects.exists() and not storage.stored_work()


def test_an_archive_that_another_worker_has_by_now_is_left_to_it(browser, project, tmp_path, monkeypatch):
    data = zipped(write_dump(tmp_path, rank=0).folder, tmp_path / "dump.zip").read_bytes()
    real = archives.run_analysis

    def slow(*arguments: Any) -> None:
        real(*arguments)
        IncomingArchive.objects.update(attempts=2)

    monkeypatch.setattr(archives, "run_analysis", slow)
    archive = drop(browser, project.slug, {"dump.zip": data})
    assert archive.state == ArchiveState.UNPACKING and not Dump.objects.exists()


def test_a_viewer_and_a_stranger_send_nothing(project, client):
    body = {"run": "r", "files": [{"name": "a.zip", "size": 1}]}
    user = make_user()
    client.force_login(user)
    assert error_of(ApiClient(client=client).post(f"/projects/{project.slug}/archives", body)) == (404, "not_found")
    make_member(project, user, Role.VIEWER)
    assert error_of(ApiClient(client=client).post(f"/projects/{project.slug}/archives", body)) == (403, "scope")


def test_tus_of_another_site_cannot_use_the_session(project, data_root):
    user, client = make_user(), Client(enforce_csrf_checks=True)
    make_member(project, user)
    client.force_login(user)
    headers = {**TUS, "Upload-Length": "1", "Upload-Metadata": upload_metadata(archive="1", name="a.zip")}
    assert error_of(client.post("/api/v1/files", headers=headers)) == (403, "csrf")


def test_an_archive_that_is_not_all_here_is_not_unpacked(browser, project):
    files = [{"name": "a.zip", "size": 1}]
    archive = browser.post(f"/projects/{project.slug}/archives", {"run": "r", "files": files}).json()["archive"]
    response = browser.post(f"/archives/{archive['id']}/complete")
    assert error_of(response) == (409, "incomplete")
    assert response.json()["missing"] == files


def test_an_archive_whose_worker_died_is_tried_as_often_as_allowed(project, data_root, settings):
    settings.DIGEST_ATTEMPTS = 3
    archive = IncomingArchive.objects.create(project=project, run_key="r", state=ArchiveState.WAITING)
    for attempt in (1, 2, 3):
        assert archives.claim(archive.pk)
        archives.release_dead(timedelta(minutes=1))
        archive.refresh_from_db()
        assert archive.state == ArchiveState.UNPACKING  # it may still live
        archives.release_dead(timedelta(0))
        archive.refresh_from_db()
        assert archive.state == (ArchiveState.WAITING if attempt < 3 else ArchiveState.FAILED)
    assert "3 attempts" in archive.error


def test_two_windows_of_a_rank_are_two_captures():
    from analysis.dump import RankDump

    def dump(rank: int, label: str, first: int | None = None) -> RankDump:
        meta = {} if first is None else {"window": {"first_step": first}}
        return RankDump(label, "mindspore", "text", rank, None, None, {"a": Path("a")}, run_meta=meta)

    found = [
        dump(0, "h_1_20260101120000123_ascend_ms"),
        dump(0, "h_1_20260101130000123_ascend_ms"),
        dump(1, "h_2_20260101120000456_ascend_ms"),
        dump(1, "x", first=100),
        dump(2, "no stamp"),
    ]
    stamps = ["20260101120000123", "20260101130000123", "20260101120000123", "step-100", "20260101120000123"]
    assert archives.capture_keys(found, "", "upload-1") == stamps
    assert archives.capture_keys(found[4:], "", "upload-1") == ["upload-1"]
    assert archives.capture_keys(found[:2], "given", "upload-1") == ["given", "given"]


ODD_METADATA = {
    "nul": ('"host": "a\\u0000b", "framework_version": "\\u0000", "note": "c\\u0000d"', []),
    "half a surrogate pair": ('"host": "\\ud800", "note\\udfff": "\\ud83d"', []),
    "beyond all numbers": ('"seed": 1e999, "parallel": {"dp": NaN}', []),
    "very deep": ('"note": ' + "[" * 100 + "]" * 100, ["the JSON is nested more than 50 deep"]),
}


@pytest.mark.parametrize("kind", ODD_METADATA)
def test_metadata_that_no_database_holds_does_not_keep_a_dump_out(browser, project, client, tmp_path, kind):
    odd, warnings = ODD_METADATA[kind]
    truth = write_dump(tmp_path, rank=0, dp=1, steps=1)
    files = {f"{truth.folder.name}/{name}": path.read_bytes() for name, path in dump_files(truth.folder).items()}
    files[f"{truth.folder.name}/stepscope_run.json"] = f'{{"schema": 1, "rank": 0, {odd}}}'.encode()
    archive = drop(browser, project.slug, files)
    assert (archive.state, archive.error) == (ArchiveState.DONE, "")
    assert archive.warnings == [f"stepscope_run.json is left out: {reason}" for reason in warnings]
    tasks.digest_dump(Dump.objects.get().pk)
    assert Dump.objects.get().error == ""
    assert browser.client.get(Run.objects.get().get_absolute_url()).status_code == 200
