"""Many small files in one request: all of them are stored, or none, whatever is wrong with one."""

from __future__ import annotations

import gzip
import hashlib

import pytest

from dashboard.ingest import contents, storage
from dashboard.ingest.models import Blob, Upload
from dashboard.runs.models import Dump
from tests.dashboard.api_client import ApiClient, error_of
from tests.factories import make_project, make_run, make_token

TABLE = b"".join(b"1,MatMul%d,MatMulV2,AI_CORE\n" % number for number in range(2000))
FILES = {
    "ASCEND_PROFILER_OUTPUT/kernel_details.csv": TABLE,
    "ASCEND_PROFILER_OUTPUT/step_trace_time.csv": b"Step,Computing\n1,2\n",
    "profiler_info_0.json": b"{}",
    "profiler_metadata.json": b"",
}


@pytest.fixture
def announced(api, project):
    return api.announce(make_run(project).pk, FILES)


@pytest.fixture
def dump_id(announced) -> int:
    return announced.json()["dump"]["id"]


def stored(data: bytes) -> bytes:
    return storage.blob_path(hashlib.sha256(data).hexdigest()).read_bytes()


def nothing_stored() -> bool:
    return not Blob.objects.exists() and not list(storage.incoming_folder().iterdir()) and not storage.stored_blobs()


def test_the_answer_to_an_announcement_says_what_may_come_at_once(announced):
    assert announced["Stepscope-Contents"] == "8388608,64"
    assert announced["Stepscope-Encodings"] == "gzip"


def test_all_files_of_a_rank_take_one_request(api, dump_id):
    answer = api.contents(dump_id, FILES.values())
    assert answer.status_code == 200
    assert answer.json()["dump"]["state"] == "receiving"
    assert [stored(data) for data in FILES.values()] == list(FILES.values())
    assert {blob.sha256: blob.size for blob in Blob.objects.all()} == {
        hashlib.sha256(data).hexdigest(): len(data) for data in FILES.values()
    }
    assert not list(storage.incoming_folder().iterdir())
    assert Dump.objects.get().progress == 1
    assert api.post(f"/dumps/{dump_id}/complete").status_code == 202


def test_contents_may_come_packed_in_any_order_and_in_parts(api, dump_id):
    small = [FILES["profiler_info_0.json"], FILES["ASCEND_PROFILER_OUTPUT/step_trace_time.csv"]]
    assert api.contents(dump_id, small).status_code == 200
    assert 0 < Dump.objects.get().progress < 1
    names = ",".join(hashlib.sha256(data).hexdigest() for data in (TABLE, b""))
    packed = {"Stepscope-Contents": names, "Content-Encoding": "gzip"}
    assert api.send_body(dump_id, gzip.compress(TABLE), **packed).status_code == 200
    assert api.post(f"/dumps/{dump_id}/complete").status_code == 202


def test_sending_them_twice_is_sending_them_once(api, dump_id):
    for _ in range(2):
        assert api.contents(dump_id, FILES.values()).status_code == 200
    assert Blob.objects.count() == len(FILES)
    assert stored(TABLE) == TABLE


def test_what_another_rank_sent_already_is_no_trouble(api, project, dump_id):
    api.contents(dump_id, [TABLE])
    other = api.announce(Dump.objects.get().capture.run_id, FILES, rank=1).json()
    assert [file["name"] for file in other["missing"]] == sorted(name for name in FILES if FILES[name] != TABLE)
    assert api.contents(other["dump"]["id"], FILES.values()).status_code == 200
    assert Blob.objects.count() == len(FILES)


def test_an_unfinished_upload_of_the_same_file_is_over(api, dump_id):
    address = api.begin(dump_id, "ASCEND_PROFILER_OUTPUT/kernel_details.csv", TABLE)["Location"]
    api.patch(address, 0, TABLE[:100])
    assert api.contents(dump_id, [TABLE]).status_code == 200
    assert not Upload.objects.exists()
    assert error_of(api.patch(address, 100, TABLE[100:])) == (404, "not_found")


@pytest.mark.django_db(transaction=True)
def test_the_bytes_of_an_unfinished_upload_go_with_it(api, dump_id):
    address = api.begin(dump_id, "ASCEND_PROFILER_OUTPUT/kernel_details.csv", TABLE)["Location"]
    api.patch(address, 0, TABLE[:100])
    assert api.contents(dump_id, [TABLE]).status_code == 200
    assert not list(storage.incoming_folder().iterdir())


def test_one_wrong_content_keeps_all_out_and_is_named(api, dump_id):
    names = ",".join(hashlib.sha256(data).hexdigest() for data in FILES.values())
    body = bytearray(b"".join(FILES.values()))
    body[len(TABLE) + 3] ^= 1
    answer = api.send_body(dump_id, bytes(body), **{"Stepscope-Contents": names})
    assert error_of(answer) == (460, "checksum")
    assert answer.json()["error"]["file"] == "ASCEND_PROFILER_OUTPUT/step_trace_time.csv"
    assert nothing_stored()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda body: body[:-1], (400, "bad_request")),
        (lambda body: body + b"!", (400, "bad_request")),
        (lambda body: b"", (400, "bad_request")),
    ],
    ids=["cut", "too long", "nothing"],
)
def test_a_body_of_another_length_keeps_all_out(api, dump_id, change, told):
    names = ",".join(hashlib.sha256(data).hexdigest() for data in FILES.values())
    body = change(b"".join(FILES.values()))
    assert error_of(api.send_body(dump_id, body, **{"Stepscope-Contents": names})) == told
    assert nothing_stored()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (gzip.compress(TABLE)[:-9], (460, "checksum")),
        (gzip.compress(TABLE) + b"more", (400, "bad_request")),
        (gzip.compress(bytes(50_000_000)), (413, "body_too_large")),
        (b"no gzip", (460, "checksum")),
    ],
    ids=["cut", "trailing", "bomb", "not gzip"],
)
def test_damaged_gzip_keeps_all_out(api, dump_id, body, told):
    names = {"Stepscope-Contents": hashlib.sha256(TABLE).hexdigest(), "Content-Encoding": "gzip"}
    assert error_of(api.send_body(dump_id, body, **names)) == told
    assert nothing_stored()


@pytest.mark.parametrize("names", ["", "x", "A" * 64, "a" * 64 + ";" + "b" * 64, ",".join(["a" * 64] * 2)])
def test_a_bad_list_of_contents_is_refused(api, dump_id, names):
    assert error_of(api.send_body(dump_id, b"", **{"Stepscope-Contents": names})) == (400, "bad_request")


def test_contents_that_nobody_announced_are_refused(api, dump_id):
    assert error_of(api.contents(dump_id, [b"something else"])) == (400, "bad_manifest")


def test_too_many_too_large_and_strangely_packed_contents_are_refused(api, project, dump_id, monkeypatch):
    assert error_of(api.contents(dump_id, FILES.values(), **{"Content-Encoding": "br"})) == (415, "content_type")
    monkeypatch.setattr(contents, "MOST_BYTES", len(TABLE))
    answer = api.contents(dump_id, FILES.values())
    assert error_of(answer) == (413, "body_too_large")
    assert answer.json()["error"]["limit"] == len(TABLE)
    many = {f"{number}.csv": b"%d" % number for number in range(contents.MOST_FILES + 1)}
    other = api.announce(make_run(project).pk, many).json()["dump"]["id"]
    assert error_of(api.contents(other, many.values())) == (413, "too_many_files")
    assert nothing_stored()


def test_a_body_beyond_what_any_request_may_have_is_refused(api, dump_id):
    answer = api.contents(dump_id, [TABLE, bytes(9 << 20)])
    assert error_of(answer)[0] in (400, 413)
    assert nothing_stored()


def test_a_full_disk_is_said_and_leaves_nothing(api, dump_id, settings):
    settings.MIN_FREE_BYTES = 1 << 60
    assert error_of(api.contents(dump_id, FILES.values())) == (507, "disk_full")
    assert nothing_stored()
    settings.MIN_FREE_BYTES = 0
    assert api.contents(dump_id, FILES.values()).status_code == 200


def test_a_dump_of_another_project_is_not_found(api, dump_id):
    stranger = ApiClient(make_token(make_project()))
    assert error_of(stranger.contents(dump_id, FILES.values())) == (404, "not_found")
    assert nothing_stored()
