"""gzip on the wire: offsets and checksums are of plain bytes, and nothing beyond the announced length is unpacked."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import tracemalloc
import zlib

import pytest

from dashboard.ingest import packed, storage
from dashboard.ingest.errors import ApiError
from dashboard.ingest.models import Blob, Upload
from tests.dashboard.api_client import error_of
from tests.factories import make_run

NAME = "ASCEND_PROFILER_OUTPUT/kernel_details.csv"
DATA = b"".join(b"1,MatMul%d,MatMulV2,AI_CORE\n" % number for number in range(3000))
GZIP = {"Content-Encoding": "gzip"}


@pytest.fixture
def address(api, project) -> str:
    dump = api.announce(make_run(project).pk, {NAME: DATA}).json()["dump"]["id"]
    return api.begin(dump, NAME, DATA)["Location"]


def checked(plain: bytes) -> dict[str, str]:
    return {"Upload-Checksum": "sha256 " + base64.b64encode(hashlib.sha256(plain).digest()).decode()}


def test_the_server_says_that_it_takes_gzip(api, project):
    dump = api.announce(make_run(project).pk, {NAME: DATA}).json()["dump"]["id"]
    assert api.begin(dump, NAME, DATA)["Stepscope-Encodings"] == "gzip"
    assert api.client.options("/api/v1/files")["Stepscope-Encodings"] == "gzip"


def test_a_packed_body_counts_by_its_plain_bytes(api, address):
    answer = api.patch(address, 0, gzip.compress(DATA[:50_000], 1), **GZIP, **checked(DATA[:50_000]))
    assert (answer.status_code, answer["Upload-Offset"]) == (204, "50000")
    answer = api.patch(address, 50_000, DATA[50_000:60_000], **checked(DATA[50_000:60_000]))  # plain ones between
    assert (answer.status_code, answer["Upload-Offset"]) == (204, "60000")
    answer = api.patch(address, 60_000, gzip.compress(DATA[60_000:]), **GZIP, **checked(DATA[60_000:]))
    assert (answer.status_code, answer["Upload-Offset"]) == (204, str(len(DATA)))
    blob = Blob.objects.get()
    assert storage.blob_path(blob.sha256).read_bytes() == DATA
    assert blob.size == len(DATA)


def refused(api, address, body: bytes, plain: bytes, **headers: str):
    answer = api.patch(address, 0, body, **{**GZIP, **checked(plain), **headers})
    assert Upload.objects.get().offset == 0
    assert api.head(address)["Upload-Offset"] == "0"
    return error_of(answer)


def test_more_than_was_announced_is_refused_while_it_is_unpacked(api, address):
    bomb = gzip.compress(bytes(200_000_000), 9)
    assert len(bomb) < 200_000
    assert refused(api, address, bomb, b"") == (413, "body_too_large")


def test_a_body_too_long_to_be_honest_is_refused_unread(api, address):
    empty_blocks = b"\x00\x00\x00\xff\xff" * 100_000  # deflate that stands for nothing, at any length
    assert refused(api, address, gzip.compress(b"")[:10] + empty_blocks, b"") == (413, "body_too_large")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"no gzip at all", (460, "checksum")),
        (gzip.compress(DATA)[:-9], (460, "checksum")),
        (gzip.compress(DATA)[:-8] + bytes(8), (460, "checksum")),
        (gzip.compress(DATA[:-1]), (460, "checksum")),
        (gzip.compress(DATA) + b"more", (400, "bad_request")),
        (gzip.compress(DATA[:9]) + gzip.compress(DATA[9:]), (400, "bad_request")),
    ],
    ids=["not gzip", "cut", "wrong crc", "other bytes", "trailing", "two members"],
)
def test_damaged_bodies_leave_nothing(api, address, body, told):
    assert refused(api, address, body, DATA) == told


def test_a_packed_body_needs_a_checksum(api, address):
    assert error_of(api.patch(address, 0, gzip.compress(DATA), **GZIP)) == (400, "bad_request")


def test_other_encodings_are_refused(api, address):
    answer = api.patch(address, 0, DATA, **{"Content-Encoding": "br"}, **checked(DATA))
    assert error_of(answer) == (415, "content_type")


def test_noise_that_gzip_makes_longer_is_taken(api, project):
    noise = os.urandom(70_000)
    dump = api.announce(make_run(project).pk, {NAME: noise}).json()["dump"]["id"]
    address = api.begin(dump, NAME, noise)["Location"]
    body = gzip.compress(noise, 1)
    assert len(body) > len(noise)
    assert api.patch(address, 0, body, **GZIP, **checked(noise)).status_code == 204


def test_unpacking_holds_a_few_megabytes_whatever_comes_out():
    body = gzip.compress(bytes(300_000_000), 1)
    tracemalloc.start()
    total = sum(len(piece) for piece in packed.unpacked([body], 300_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 300_000_000
    assert peak < 40_000_000


@pytest.mark.parametrize("size", [0, 1, packed.PIECE - 1, packed.PIECE, packed.PIECE + 1, 2 * packed.PIECE])
def test_streams_that_end_at_a_piece_are_unpacked_whole(size):
    plain = (DATA * (size // len(DATA) + 1))[:size]
    body = gzip.compress(plain, 1)
    split = [body[begin : begin + 1000] for begin in range(0, len(body), 1000)]
    for pieces in ([body], split):
        assert b"".join(packed.unpacked(pieces, size)) == plain
    if size:
        with pytest.raises(ApiError) as refusal:
            list(packed.unpacked([body], size - 1))
        assert refusal.value.status == 413


def test_the_limit_of_a_body_fits_what_zlib_makes_of_noise():
    for size in (1, 1000, 1_000_000):
        noise = os.urandom(size)
        for level in (0, 1, 9):
            packer = zlib.compressobj(level, zlib.DEFLATED, 31)
            assert len(packer.compress(noise) + packer.flush()) <= packed.largest_body(size)
