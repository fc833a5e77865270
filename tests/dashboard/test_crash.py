"""kill -9 of each part at the worst moment; started again, the dump still arrives."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError
from tusclient.uploader import Uploader

from tests.dashboard.api_client import upload_metadata
from tests.dumps import dump_files, write_dump
from tests.factories import entries
from tests.live import LiveProduct, live, wait_for

pytestmark = pytest.mark.timeout(300)
BYTES = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
KERNELS = "ASCEND_PROFILER_OUTPUT/kernel_details.csv"
steps = count(2)


@pytest.fixture(scope="module")
def product() -> Iterator[LiveProduct]:
    with live(STEPSCOPE_SWEEP_SECONDS="3") as product:
        yield product


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dump unlike those of the other tests, or the server would hold its files already."""
    return write_dump(tmp_path, rank=0, steps=next(steps)).folder


class Sender:
    """One dump sent with tuspy, a client that is not ours."""

    def __init__(self, product: LiveProduct, key: str, folder: Path) -> None:
        self.product = product
        self.files = dump_files(folder)
        status, answer = product.call("POST", "/projects/gpt/runs", {"key": key})
        assert status in (200, 201)
        manifest = entries({name: path.read_bytes() for name, path in self.files.items()})
        self.body = {"capture": "step-1", "rank": 0, "files": manifest}
        self.address = f"/runs/{answer['run']['id']}/dumps"
        self.status, self.answer = product.call("POST", self.address, self.body)
        self.dump = self.answer["dump"]["id"]
        self.capture = self.answer["dump"]["capture"]["id"]

    def uploader(self, name: str, chunk: int = 1 << 20, url: str | None = None) -> Uploader:
        metadata = {"dump": str(self.dump), "name": name, "sha256": sha256(self.files[name])}
        client = TusClient(f"{self.product.url}/api/v1/files", headers=self.bearer)
        path = str(self.files[name])
        return client.uploader(path, metadata=metadata, chunk_size=chunk, url=url, upload_checksum=True)

    def missing(self) -> list[dict[str, Any]]:
        """The files that the server does not hold, asked for again."""
        found: list[dict[str, Any]] = self.product.call("POST", self.address, self.body)[1]["missing"]
        return found

    def send_all(self) -> None:
        for file in self.answer["missing"]:
            self.uploader(file["name"]).upload()

    def contents(self, names: list[str]) -> int:
        """Send these files in one request; the status."""
        body = b"".join(self.files[name].read_bytes() for name in names)
        headers = {**self.bearer, "Stepscope-Contents": self.hashes(names)}
        request = urllib.request.Request(self.contents_url, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)

    def hashes(self, names: list[str]) -> str:
        return ",".join(sha256(self.files[name]) for name in names)

    @property
    def contents_url(self) -> str:
        return f"{self.product.url}/api/v1/dumps/{self.dump}/contents"

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.product.token}"}

    def send_part(self, method: str, url: str, name: str, sent: int, **headers: str) -> None:
        """A request whose connection is cut when `sent` bytes of the file in its body have left."""
        connection = self.request(method, url, name, sent, **headers)
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

    def start(self, name: str, sent: int) -> http.client.HTTPConnection:
        """A connection over which only `sent` bytes of a file have left so far, in a request of contents."""
        return self.request("POST", self.contents_url, name, sent, **{"Stepscope-Contents": self.hashes([name])})

    def request(self, method: str, url: str, name: str, sent: int, **headers: str) -> http.client.HTTPConnection:
        data = self.files[name].read_bytes()
        connection = http.client.HTTPConnection("127.0.0.1", self.product.port)
        connection.putrequest(method, "/" + url.split("/", 3)[3])
        for key, value in {**self.bearer, "Content-Length": str(len(data)), **headers}.items():
            connection.putheader(key, value)
        connection.endheaders()
        connection.send(data[:sent])
        return connection

    def complete(self) -> int:
        return self.product.call("POST", f"/dumps/{self.dump}/complete")[0]

    def state(self) -> dict[str, Any]:
        status, answer = self.product.call("GET", f"/dumps/{self.dump}")
        return answer["dump"] if status == 200 else {"state": ""}

    def wait(self, *states: str, seconds: float = 120) -> dict[str, Any]:
        wait_for(lambda: self.state()["state"] in states, f"{states}; {self.state()}", seconds)
        return self.state()

    def wait_ready(self) -> None:
        def ready() -> bool:
            return self.product.call("GET", f"/captures/{self.capture}")[1]["capture"]["state"] == "ready"

        wait_for(ready, "the capture", 60)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_dump_goes_from_tuspy_to_a_capture_that_is_ready(product, folder):
    sender = Sender(product, "plain", folder)
    sender.send_all()
    assert sender.complete() == 202
    assert sender.wait("digested", "failed")["error"] is None
    sender.wait_ready()
    _, report = product.call("GET", f"/captures/{sender.capture}/report")
    assert report["ranks"][0]["rank"] == 0


def test_the_web_server_is_killed_between_and_during_pieces(product, folder):
    sender = Sender(product, "web", folder)
    uploader = sender.uploader(KERNELS, chunk=4096)
    uploader.upload_chunk()
    address, counted = uploader.url, uploader.offset
    rest = Thread(target=lambda: _until_cut(uploader))
    rest.start()
    product.kill("web")
    rest.join()
    product.start_part("web")
    product.wait_until_up()
    found = sender.uploader(KERNELS).create_url()
    resumed = sender.uploader(KERNELS, url=found)
    assert found == address and resumed.offset >= counted  # what was acknowledged is still there
    resumed.upload()
    sender.answer["missing"] = [file for file in sender.answer["missing"] if file["name"] != KERNELS]
    sender.send_all()
    assert sender.complete() == 202
    assert sender.wait("digested", "failed")["error"] is None


def _until_cut(uploader: Uploader) -> None:
    with suppress(TusCommunicationError, OSError):
        uploader.upload()


def test_a_creation_with_upload_is_cut_and_the_web_server_killed(product, folder):
    sender = Sender(product, "creation", folder)
    length, named = sender.files[KERNELS].stat().st_size, sha256(sender.files[KERNELS])
    metadata = upload_metadata(dump=str(sender.dump), name=KERNELS, sha256=named)
    headers = {"Upload-Length": str(length), "Upload-Metadata": metadata, **BYTES}
    sender.send_part("POST", f"{product.url}/api/v1/files", KERNELS, 1000, **headers)
    uploader = sender.uploader(KERNELS)
    uploader.set_url(uploader.create_url())
    wait_for(lambda: uploader.get_offset() == 1000, "the thousand bytes that came")
    product.kill("web")
    product.start_part("web")
    product.wait_until_up()
    resumed = sender.uploader(KERNELS, url=uploader.url)
    assert resumed.offset == 1000
    resumed.upload()
    assert KERNELS not in [file["name"] for file in sender.missing()]


def test_contents_that_were_acknowledged_outlive_every_part_and_cut_ones_leave_nothing(product, folder):
    sender = Sender(product, "contents", folder)
    names = [file["name"] for file in sender.answer["missing"]]
    sender.start(KERNELS, sent=1000).close()
    assert sender.contents([name for name in names if name != KERNELS]) == 200
    product.kill("web")
    product.kill("postgres")
    product.restart("postgres")
    product.start_part("web")
    product.wait_until_up()
    assert [file["name"] for file in sender.missing()] == [KERNELS]
    assert sender.contents([KERNELS]) == 200
    assert sender.complete() == 202
    assert sender.wait("digested", "failed")["error"] is None


def test_the_web_server_is_killed_right_after_complete_was_answered(product, folder):
    sender = Sender(product, "acknowledged", folder)
    product.kill("worker")
    sender.send_all()
    assert sender.complete() == 202
    product.kill("web")
    product.start_part("web")
    product.start_part("worker")
    product.wait_until_up()
    assert sender.wait("digested", "failed")["error"] is None


def test_the_worker_is_killed_while_it_digests(product, folder):
    sender = Sender(product, "worker", folder)
    sender.send_all()
    assert sender.complete() == 202
    sender.wait("digesting", "digested")
    product.kill("worker")
    product.start_part("worker")
    state = sender.wait("digested", "failed")
    assert state["error"] is None
    sender.wait_ready()


def test_valkey_is_away_when_a_dump_is_completed_and_loses_all_it_had(product, folder):
    sender = Sender(product, "valkey", folder)
    sender.send_all()
    product.kill("valkey")
    assert sender.complete() == 202
    assert sender.state()["state"] == "uploaded"
    shutil.rmtree(product.folder / "valkey")
    product.restart_valkey()
    assert sender.wait("digested", "failed")["error"] is None
    sender.wait_ready()


def test_postgresql_is_killed_in_the_middle_of_an_upload_and_keeps_what_was_acknowledged(product, folder):
    sender = Sender(product, "postgres", folder)
    uploader = sender.uploader(KERNELS, chunk=4096)
    uploader.upload_chunk()
    counted = uploader.offset
    product.kill("postgres")
    with pytest.raises((TusCommunicationError, OSError)):
        uploader.upload_chunk()
    product.restart("postgres")
    product.wait_until_up()
    resumed = sender.uploader(KERNELS, url=uploader.url)
    assert resumed.offset == counted
    send_until_taken(sender)
    assert sender.wait("digested", "failed")["error"] is None


def send_until_taken(sender: Sender) -> None:
    """As an agent does: whatever fails is tried again, from where the server says it is."""

    def taken() -> bool:
        with suppress(TusCommunicationError, OSError, ValueError, KeyError):
            if small := [file["name"] for file in sender.missing() if file["name"] != KERNELS]:
                sender.contents(small)
            for file in sender.missing():
                address = sender.uploader(file["name"]).create_url()
                sender.uploader(file["name"], chunk=64 << 10, url=address).upload()
            return sender.complete() == 202
        return False

    wait_for(taken, "the dump to be taken", 120)


PARTS = ("web", "worker", "beat", "valkey", "postgres")


@pytest.mark.parametrize("seed", [1, 2])
def test_parts_killed_at_random_moments_lose_nothing(product, folder, seed):
    chance = Random(seed)
    sender = Sender(product, f"random-{seed}", folder)

    # What is killed is started again here: services end with the thread that started them.
    with ThreadPoolExecutor(1) as other:
        sending = other.submit(send_until_taken, sender)
        for part in chance.sample(PARTS, 3):
            time.sleep(chance.uniform(0.0, 2.0))  # the moment is what is random; nothing waits for it
            product.kill(part)
            time.sleep(chance.uniform(0.0, 0.5))
            product.restart(part)
        sending.result()
    product.wait_until_up()
    state = sender.wait("digested", "failed")
    assert (state["state"], state["error"]) == ("digested", None)
    sender.wait_ready()


def test_a_hostile_dump_fails_alone(product, folder, tmp_path):
    bomb = tmp_path / "bomb"
    (bomb / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
    with gzip.open(bomb / (KERNELS + ".gz"), "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(b"a" * (1 << 20))
    hostile, good = Sender(product, "hostile", bomb), Sender(product, "good", folder)
    for sender in (hostile, good):
        sender.send_all()
        assert sender.complete() == 202
    assert good.wait("digested", "failed")["error"] is None
    failed = hostile.wait("digested", "failed")
    assert failed["state"] == "failed" and "\n" not in failed["error"]
    assert product.is_up()


def test_a_body_that_is_cut_keeps_what_came(product, folder):
    sender = Sender(product, "cut", folder)
    uploader = sender.uploader(KERNELS)
    uploader.set_url(uploader.create_url())
    sender.send_part("PATCH", uploader.url, KERNELS, 1000, **BYTES, **{"Upload-Offset": "0"})
    wait_for(lambda: uploader.get_offset() == 1000, "the thousand bytes that came")
    uploader.offset = 1000
    uploader.upload()


def test_senders_that_stall_leave_threads_for_others(product, folder):
    sender = Sender(product, "stalled", folder)
    stalled = [sender.start(KERNELS, sent=100) for _ in range(12)]  # the server has eight threads
    try:
        wait_for(product.is_up, "a page while senders stall")
        wait_for(lambda: any(answer_of(connection) == (429, "5") for connection in stalled), "one told to come again")
        fast = Sender(product, "fast", folder)
        send_until_taken(fast)
    finally:
        for connection in stalled:
            connection.close()
    assert fast.wait("digested", "failed")["error"] is None


def answer_of(connection: http.client.HTTPConnection) -> tuple[int, str | None] | None:
    """Status and Retry-After, when it was answered by now; a connection that was cut instead has none."""
    if connection.sock is None:
        return None
    connection.sock.settimeout(0.5)
    try:
        answer = connection.getresponse()
        return answer.status, answer.headers["Retry-After"]
    except (OSError, http.client.HTTPException):
        return None


def test_no_part_is_reachable_without_a_token(product):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{product.url}/api/v1/runs")
    assert refused.value.code == 401
    refused.value.close()
