"""What agents of earlier versions say, request by request as they wrote it, and what they read in the answers.

Agents stay on hosts long after a server was upgraded. Each writer below is one that shipped: requests are spelt out
here and not made by the agent of today, nor by the helpers of other tests, which follow the protocol as it grows.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client

from dashboard.hosts import requests
from dashboard.hosts.models import Agent
from dashboard.ingest import tasks
from dashboard.runs.models import Dump, DumpState, Run
from tests.dumps import dump_files, write_dump
from tests.factories import make_token, make_user

pytestmark = pytest.mark.django_db
AGENT = "1aa67b52ab31bbb3d5d1c3f5177f911a"
COMMON = {"Stepscope-Protocol": "1", "User-Agent": "stepscope-agent/0.1.0", "Accept": "application/json"}
TUS = {"Tus-Resumable": "1.0.0"}
STEP = {
    "step": 1, "loss": 10.1, "lr": 1e-05, "global_norm": 2.1, "step_time_ms": 763.0, "tflops_per_device": 62.2,
    "loss_scale": 65536.0, "overflow": False,
}  # fmt: skip


class Wire:
    """Sends requests with the headers that every agent sent."""

    def __init__(self, token: str) -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = {**COMMON, "Authorization": f"Bearer {token}"}

    def __call__(
        self, method: str, path: str, body: bytes = b"", kind: str = "", headers: dict[str, str] | None = None
    ) -> HttpResponse:
        return self.client.generic(method, path, body, kind, headers={**self.headers, **(headers or {})})

    def json(self, method: str, path: str, body: Any, status: int) -> Any:
        answer = self(method, f"/api/v1{path}", json.dumps(body).encode(), "application/json")
        assert answer.status_code == status, answer.content
        return answer.json()

    def bare(self, method: str, path: str, status: int) -> Any:
        """A call without a body has no type either."""
        answer = self(method, f"/api/v1{path}")
        assert answer.status_code == status, answer.content
        return answer.json()


@pytest.fixture
def wire(project, data_root) -> Wire:
    return Wire(make_token(project))


@pytest.fixture
def contents(tmp_path: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in dump_files(write_dump(tmp_path, rank=0).folder).items()}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def base64_of(data: bytes | str) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def register(wire: Wire, slug: str) -> int:
    """The first agents left secrets of a configuration as a bare ***, which is no YAML."""
    meta = {"framework": "mindspore", "framework_version": "2.7.1", "cann_version": "8.2.RC1", "world_size": 1}
    config = {"name": "c.yaml", "text": "model:\n  model_config:\n    num_layers: 2\nhub_token: ***\n"}
    body = {"key": "old", "name": "old", "meta": meta, "config": config}
    run = wire.json("POST", f"/projects/{slug}/runs", body, 201)["run"]
    assert wire.json("POST", f"/projects/{slug}/runs", {"key": "old", "name": "old"}, 200)["run"] == run
    assert run["key"] == "old" and run["url"].endswith(f"/runs/{run['id']}/")
    assert wire.json("POST", f"/runs/{run['id']}/steps", {"source": "log", "steps": [STEP]}, 200)["stored"] == 1
    return int(run["id"])


def announce(wire: Wire, run: int, contents: dict[str, bytes], status: int = 201) -> tuple[HttpResponse, list[bytes]]:
    """The answer, and the contents that it says are missing."""
    body = {
        "capture": "20260101120000000", "rank": 0, "replace": False, "world_size": 1, "device_id": 0, "host": "host01",
        "framework": "mindspore", "folder": "host01_4242_20260101120000000_ascend_ms",
        "captured_at": "2026-01-01T12:00:00Z",
        "files": [{"name": name, "size": len(data), "sha256": sha256(data)} for name, data in contents.items()],
    }  # fmt: skip
    answer = wire("POST", f"/api/v1/runs/{run}/dumps", json.dumps(body).encode(), "application/json")
    assert answer.status_code == status, answer.content
    known = {sha256(data): data for data in contents.values()}
    return answer, [known[row["sha256"]] for row in answer.json()["missing"]]


def create(wire: Wire, dump: int, contents: dict[str, bytes], data: bytes) -> HttpResponse:
    name = next(name for name, one in contents.items() if one == data)
    told = f"dump {base64_of(str(dump))},name {base64_of(name)},sha256 {base64_of(sha256(data))}"
    headers = {**TUS, "Upload-Length": str(len(data)), "Upload-Metadata": told}
    answer = wire("POST", "/api/v1/files", headers=headers)
    assert (answer.status_code, answer["Upload-Offset"]) == (201, "0")
    return answer


def patch(wire: Wire, place: str, data: bytes, offset: int = 0, packed: bool = False) -> None:
    headers = {**TUS, "Upload-Offset": str(offset), "Upload-Checksum": "sha256 " + base64_of(sha256_bytes(data))}
    if packed:
        headers["Content-Encoding"] = "gzip"
    body = gzip.compress(data) if packed else data
    answer = wire("PATCH", place, body, "application/offset+octet-stream", headers)
    assert (answer.status_code, answer["Upload-Offset"]) == (204, str(offset + len(data)))


def sha256_bytes(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def send_plain(wire: Wire, dump: HttpResponse, contents: dict[str, bytes], missing: list[bytes]) -> None:
    """The first agents asked how far an upload had got before each file, and sent it in pieces."""
    for data in missing:
        place = create(wire, dump.json()["dump"]["id"], contents, data)["Location"].removeprefix("http://testserver")
        asked = wire("HEAD", place, headers=TUS)
        assert (asked.status_code, asked["Upload-Offset"]) == (200, "0")
        half = len(data) // 2
        patch(wire, place, data[:half])
        patch(wire, place, data[half:], offset=half)


def send_packed(wire: Wire, dump: HttpResponse, contents: dict[str, bytes], missing: list[bytes]) -> None:
    """Then they packed what a server said that it takes packed."""
    for data in missing:
        answer = create(wire, dump.json()["dump"]["id"], contents, data)
        assert "gzip" in answer["Stepscope-Encodings"].split(",")
        patch(wire, answer["Location"].removeprefix("http://testserver"), data, packed=True)


def send_many(wire: Wire, dump: HttpResponse, contents: dict[str, bytes], missing: list[bytes]) -> None:
    """Then small files went many in one request, as far as the server said that one may hold."""
    size, files = map(int, dump["Stepscope-Contents"].split(","))
    assert len(missing) <= files and sum(map(len, missing)) <= size
    path = f"/api/v1/dumps/{dump.json()['dump']['id']}/contents"
    named = {"Stepscope-Contents": ",".join(map(sha256, missing))}
    answer = wire("POST", path, b"".join(missing), "application/octet-stream", named)
    assert answer.status_code == 200 and answer.json()["dump"]["state"] == "receiving"


@pytest.mark.parametrize("send", [send_plain, send_packed, send_many])
def test_a_dump_of_an_older_agent_arrives_and_is_analysed(wire, project, contents, send):
    run = register(wire, project.slug)
    answer, missing = announce(wire, run, contents)
    assert sorted(missing) == sorted(set(contents.values()))
    send(wire, answer, contents, missing)
    dump = answer.json()["dump"]["id"]
    assert wire.bare("POST", f"/dumps/{dump}/complete", 202)["dump"]["state"] == "uploaded"
    again, missing = announce(wire, run, contents, status=200)
    assert (again.json()["dump"]["id"], missing) == (dump, [])
    tasks.digest_dump(dump)
    assert Dump.objects.get().state == DumpState.DIGESTED
    assert wire.bare("GET", f"/dumps/{dump}", 200)["dump"]["state"] == "digested"
    capture = wire.bare("GET", f"/captures/{answer.json()['dump']['capture']['id']}", 200)["capture"]
    assert {"id", "key", "state", "url", "dumps", "metrics", "checklist"} <= set(capture)
    stored = Run.objects.get()
    assert stored.config_text.endswith('hub_token: "***"\n') and stored.config_fingerprint


def test_what_is_missing_at_the_end_is_named(wire, project, contents):
    answer, _ = announce(wire, register(wire, project.slug), contents)
    left = wire.bare("POST", f"/dumps/{answer.json()['dump']['id']}/complete", 409)
    assert left["error"]["code"] == "incomplete" and left["error"]["message"]
    assert {row["sha256"] for row in left["missing"]} == {sha256(data) for data in contents.values()}


def test_a_heartbeat_without_trouble_and_via_is_taken(wire, project):
    """The first that told how they were left both out."""
    register(wire, project.slug)
    beat = {"agent": AGENT, "host": "vm", "version": "0.1.0", "npus": [], "spool": {"sent": 1}}
    beat["runs"] = [{"key": "old", "step": 19}]
    answer = wire.json("POST", f"/projects/{project.slug}/agents", beat, 200)
    assert answer["every_s"] > 0 and answer["requests"] == []
    assert [(one.run.key, one.step) for one in Agent.objects.get().runs.all()] == [("old", 19)]
    asked = requests.ask(Run.objects.get(), make_user(), steps=2)
    (told,) = wire.json("POST", f"/projects/{project.slug}/agents", beat, 200)["requests"]
    assert told == {
        "id": asked.pk, "run_key": "old", "kind": "next", "first_step": None, "steps": 2, "ranks": None,
        "level": "Level1", "state": "requested", "lead_s": told["lead_s"],
    }  # fmt: skip
    body = {"agent": AGENT, "state": "accepted", "first_step": 40}
    settled = wire.json("POST", f"/capture-requests/{asked.pk}", body, 200)["request"]
    assert (settled["state"], settled["first_step"]) == ("accepted", 40)
    failed = {"agent": AGENT, "state": "failed", "reason": "this training runs no callback"}
    assert wire.json("POST", f"/capture-requests/{asked.pk}", failed, 200)["request"]["state"] == "failed"


def test_a_refusal_says_code_and_message(wire, project):
    wire.headers["Authorization"] = "Bearer sst_0123456789ab_nobody"
    error = wire.json("POST", f"/projects/{project.slug}/runs", {"key": "old"}, 401)["error"]
    assert error["code"] == "bad_token" and error["message"]
