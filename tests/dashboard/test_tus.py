"""tus, call by call: offsets, checksums, resuming, ending, and what a crash at each point leaves."""

from __future__ import annotations

import base64
import gzip
import hashlib
import uuid

import pytest

from dashboard.ingest import storage, uploads
from dashboard.ingest.models import Blob, Upload
from tests.dashboard.api_client import TUS, ApiClient, error_of, metadata_of, path_of, upload_metadata
from tests.factories import make_project, make_run, make_token

NAME = "ASCEND_PROFILER_OUTPUT/kernel_details.csv"
DATA = bytes(range(256)) * 40


@pytest.fixture
def dump_id(api, project) -> int:
    return api.announce(make_run(project).pk, {NAME: DATA}).json()["dump"]["id"]


@pytest.fixture
def address(api, dump_id) -> str:
    return api.begin(dump_id, NAME, DATA)["Location"]


def stored(data: bytes = DATA) -> bytes:
    return storage.blob_path(hashlib.sha256(data).hexdigest()).read_bytes()


def part() -> bytes:
    return storage.incoming_path(Upload.objects.get().pk).read_bytes()


def checksum(data: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm} {base64.b64encode(hashlib.new(algorithm, data).digest()).decode()}"


def test_the_server_says_what_it_speaks(api):
    response = api.client.options("/api/v1/files")
    assert response.status_code == 204
    assert response["Tus-Version"] == "1.0.0"
    assert response["Tus-Extension"] == "creation,creation-with-upload,checksum,termination"
    assert response["Tus-Checksum-Algorithm"] == "sha256,sha1"
    assert int(response["Tus-Max-Size"]) > 0


def test_a_file_sent_in_pieces_becomes_a_blob(api, address):
    response = api.patch(address, 0, DATA[:100], **{"Upload-Checksum": checksum(DATA[:100])})
    assert (response.status_code, response["Upload-Offset"]) == (204, "100")
    head = api.head(address)
    assert (head["Upload-Offset"], head["Upload-Length"], head["Cache-Control"]) == ("100", str(len(DATA)), "no-store")
    rest = DATA[100:]
    assert api.patch(address, 100, rest, **{"Upload-Checksum": checksum(rest, "sha1")}).status_code == 204
    assert stored() == DATA
    assert not Upload.objects.exists() and Blob.objects.get().size == len(DATA)


def test_the_same_file_again_is_the_same_upload(api, dump_id, address):
    api.patch(address, 0, DATA[:7])
    again = api.begin(dump_id, NAME, DATA)
    assert (again.status_code, again["Location"], again["Upload-Offset"]) == (201, address, "7")


def test_an_empty_file_is_whole_when_it_is_made(api, project):
    dump = api.announce(make_run(project).pk, {NAME: b""}).json()["dump"]["id"]
    assert api.begin(dump, NAME, b"").status_code == 201
    assert stored(b"") == b""
    assert api.post(f"/dumps/{dump}/complete").status_code == 202


def test_a_wrong_offset_is_told_the_right_one(api, address):
    api.patch(address, 0, DATA[:10])
    response = api.patch(address, 5, DATA[5:20])
    assert error_of(response) == (409, "offset")
    assert response.json()["error"]["offset"] == 10
    assert part() == DATA[:10]


def test_a_body_that_fails_its_checksum_leaves_nothing(api, address):
    api.patch(address, 0, DATA[:10])
    assert error_of(api.patch(address, 10, b"zzzz", **{"Upload-Checksum": checksum(b"yyyy")})) == (460, "checksum")
    assert api.head(address)["Upload-Offset"] == "10"
    assert part() == DATA[:10]


def test_a_whole_that_lies_about_its_hash_is_thrown_away(api, dump_id, address):
    assert error_of(api.patch(address, 0, DATA[::-1])) == (460, "checksum")
    assert error_of(ApiClient.get(api, f"/files/{uuid.uuid4()}"))[0] in (404, 405)
    assert not Upload.objects.exists() and not Blob.objects.exists()
    assert not list(storage.incoming_folder().iterdir())
    api.send(dump_id, {NAME: DATA})
    assert stored() == DATA


def test_more_bytes_than_announced_are_refused(api, address):
    assert error_of(api.patch(address, 0, DATA + b"!")) == (400, "bad_request")
    assert api.head(address)["Upload-Offset"] == "0"


@pytest.mark.parametrize("change", [{"length": 1}, {"sha256": "f" * 64}])
def test_only_files_of_the_manifest_are_taken(api, dump_id, change):
    assert error_of(api.begin(dump_id, NAME, DATA, **change)) == (400, "bad_manifest")


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "dump",
        "dump !!!,name !!!",
        upload_metadata(dump="1", name=NAME),
        upload_metadata(dump="x", name=NAME, sha256="0" * 64),
        upload_metadata(dump="9" * 30, name=NAME, sha256="0" * 64),
    ],
)
def test_bad_upload_metadata_is_refused(api, dump_id, metadata):
    headers = {**api.headers, **TUS, "Upload-Length": "5", "Upload-Metadata": metadata}
    assert error_of(api.client.post("/api/v1/files", headers=headers)) == (400, "bad_request")


@pytest.mark.parametrize("length", ["", "-1", "x", "9" * 40, "٣"])
def test_a_bad_length_is_refused(api, dump_id, length):
    headers = {**api.headers, **TUS, "Upload-Length": length, "Upload-Metadata": ""}
    assert error_of(api.client.post("/api/v1/files", headers=headers))[0] == 400


def test_another_content_type_and_another_tus_version_are_refused(api, address):
    headers = {**api.headers, **TUS, "Upload-Offset": "0"}
    wrong = api.client.patch(path_of(address), DATA, content_type="application/octet-stream", headers=headers)
    assert error_of(wrong) == (415, "content_type")
    assert error_of(api.patch(address, 0, DATA, **{"Tus-Resumable": "0.2.2"}))[0] == 412


def test_an_ended_upload_is_gone_with_its_bytes(api, address):
    api.patch(address, 0, DATA[:10])
    assert api.delete(address).status_code == 204
    assert error_of(api.patch(address, 10, DATA[10:])) == (404, "not_found")
    assert not list(storage.incoming_folder().iterdir())


def test_an_upload_of_another_project_is_not_found(api, address):
    stranger = ApiClient(make_token(make_project()))
    assert error_of(stranger.patch(address, 0, DATA)) == (404, "not_found")
    assert stranger.head(address).status_code == stranger.delete(address).status_code == 404


def test_a_full_disk_is_said_and_leaves_nothing_half_written(api, dump_id, address, settings):
    api.patch(address, 0, DATA[:10])
    settings.MIN_FREE_BYTES = 1 << 60
    assert error_of(api.patch(address, 10, DATA[10:])) == (507, "disk_full")
    assert error_of(api.patch(address, 10, DATA[10:], **{"Upload-Checksum": checksum(DATA[10:])})) == (507, "disk_full")
    assert part() == DATA[:10]
    settings.MIN_FREE_BYTES = 0
    assert api.patch(address, 10, DATA[10:]).status_code == 204
    assert stored() == DATA


# Creation with upload: the first bytes come with the request that begins.


def test_a_small_file_takes_one_request(api, dump_id):
    answer = api.begin(dump_id, NAME, DATA, body=DATA, headers={"Upload-Checksum": checksum(DATA)})
    assert (answer.status_code, answer["Upload-Offset"]) == (201, str(len(DATA)))
    assert answer["Location"]
    assert stored() == DATA and not Upload.objects.exists()
    assert api.post(f"/dumps/{dump_id}/complete").status_code == 202


def test_the_first_bytes_may_come_with_the_creation_and_the_others_later(api, dump_id):
    answer = api.begin(dump_id, NAME, DATA, body=DATA[:100])
    assert (answer.status_code, answer["Upload-Offset"]) == (201, "100")
    assert api.patch(answer["Location"], 100, DATA[100:]).status_code == 204
    assert stored() == DATA


def test_a_creation_cut_in_the_middle_keeps_what_came_and_goes_on(api, dump_id):
    answer = api.begin(dump_id, NAME, DATA, body=DATA, arrives=50)
    assert answer["Upload-Offset"] == "50"
    again = api.begin(dump_id, NAME, DATA, body=DATA)  # a client that never saw the answer
    assert (again.status_code, again["Location"], again["Upload-Offset"]) == (201, answer["Location"], "50")
    assert part() == DATA[:50]  # the body began at 0, and is not taken
    assert api.patch(answer["Location"], 50, DATA[50:]).status_code == 204
    assert stored() == DATA


def test_a_creation_whose_bytes_fail_their_checksum_leaves_an_empty_upload(api, dump_id):
    refused = api.begin(dump_id, NAME, DATA, body=b"z" * 9, headers={"Upload-Checksum": checksum(b"y" * 9)})
    assert error_of(refused) == (460, "checksum")
    cut = api.begin(dump_id, NAME, DATA, body=DATA, arrives=50, headers={"Upload-Checksum": checksum(DATA)})
    assert error_of(cut) == (460, "checksum")
    answer = api.begin(dump_id, NAME, DATA)
    assert answer["Upload-Offset"] == "0"
    assert api.patch(answer["Location"], 0, DATA).status_code == 204


def test_a_creation_with_another_whole_than_announced_leaves_nothing(api, dump_id):
    assert error_of(api.begin(dump_id, NAME, DATA, body=DATA[::-1])) == (460, "checksum")
    assert not Upload.objects.exists() and not Blob.objects.exists()
    assert not list(storage.incoming_folder().iterdir())


def test_a_creation_with_more_bytes_than_announced_is_refused(api, dump_id):
    assert error_of(api.begin(dump_id, NAME, DATA, body=DATA + b"!")) == (400, "bad_request")
    assert api.begin(dump_id, NAME, DATA)["Upload-Offset"] == "0"


def test_a_packed_body_of_a_creation_counts_by_its_plain_bytes(api, dump_id):
    headers = {"Content-Encoding": "gzip", "Upload-Checksum": checksum(DATA[:5000])}
    answer = api.begin(dump_id, NAME, DATA, body=gzip.compress(DATA[:5000]), headers=headers)
    assert (answer.status_code, answer["Upload-Offset"]) == (201, "5000")
    assert api.patch(answer["Location"], 5000, DATA[5000:]).status_code == 204
    assert stored() == DATA


def test_an_empty_file_with_the_type_of_an_upload_is_whole_at_once(api, project):
    dump = api.announce(make_run(project).pk, {NAME: b""}).json()["dump"]["id"]
    assert api.begin(dump, NAME, b"", body=b"").status_code == 201
    assert stored(b"") == b""


def test_a_body_of_another_type_is_not_taken_with_a_creation(api, dump_id):
    headers = {
        **api.headers,
        **TUS,
        "Upload-Length": str(len(DATA)),
        "Upload-Metadata": metadata_of(dump_id, NAME, DATA),
    }
    answer = api.client.post("/api/v1/files", DATA, content_type="application/octet-stream", headers=headers)
    assert (answer.status_code, answer["Upload-Offset"]) == (201, "0")


# What a process that dies at one point leaves, and that the next call mends it.


def test_bytes_written_but_not_counted_are_written_again(api, address):
    api.patch(address, 0, DATA[:10])
    with storage.incoming_path(Upload.objects.get().pk).open("ab") as file:
        file.write(b"uncounted bytes, longer than what follows")
    api.patch(address, 10, DATA[10:20])
    assert part() == DATA[:20]


def test_a_whole_file_that_was_not_checked_yet_is_finished_by_any_call(api, dump_id, address):
    upload = Upload.objects.get()
    storage.write_at(storage.incoming_path(upload.pk), 0, [DATA])
    Upload.objects.update(offset=len(DATA))
    assert api.post(f"/dumps/{dump_id}/complete").status_code == 202
    assert stored() == DATA


def test_a_file_that_has_its_name_but_no_row_is_found(api, dump_id, address):
    upload = Upload.objects.get()
    storage.write_at(storage.incoming_path(upload.pk), 0, [DATA])
    Upload.objects.update(offset=len(DATA))
    storage.keep(storage.incoming_path(upload.pk), upload.sha256)
    assert api.head(address)["Upload-Offset"] == str(len(DATA))
    assert Blob.objects.count() == 1 and not Upload.objects.exists()


def test_an_offset_that_the_disk_does_not_back_goes_down(api, address):
    api.patch(address, 0, DATA[:100])
    storage.incoming_path(Upload.objects.get().pk).write_bytes(DATA[:40])
    assert api.head(address)["Upload-Offset"] == "40"
    assert api.patch(address, 40, DATA[40:]).status_code == 204
    assert stored() == DATA


def test_of_two_writers_at_one_offset_one_is_told_to_ask_again(api, address):
    first, second = Upload.objects.get(), Upload.objects.get()
    assert uploads.append(first, DATA[:10]) == 10
    with pytest.raises(uploads.ApiError) as refused:
        uploads.append(second, b"other bytes")
    assert (refused.value.status, refused.value.detail["offset"]) == (409, 10)
    assert part() == DATA[:10]


def test_bytes_that_only_another_project_sent_are_never_taken_for_ones_own(api, project, dump_id, address):
    Blob.objects.create(project=make_project(), sha256=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
    storage.write_at(storage.incoming_path(Upload.objects.get().pk), 0, [DATA])
    storage.keep(storage.incoming_path(Upload.objects.get().pk), hashlib.sha256(DATA).hexdigest())
    Upload.objects.update(offset=len(DATA))
    seen = Upload.objects.select_related("dump__capture__run__project").get()
    uploads.discard(seen)  # another request found that the bytes were false, after this one had looked at the row
    uploads.finish(seen)
    assert not Blob.objects.filter(project=project).exists()
