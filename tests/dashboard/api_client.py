"""The upload protocol spoken by hand through Django's test client: what an agent does, call by call."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from io import BytesIO
from typing import Any

from django.http import HttpResponse
from django.test import Client

from tests.factories import entries

TUS = {"Tus-Resumable": "1.0.0"}
BYTES = "application/offset+octet-stream"


class ApiClient:
    def __init__(self, token: str | None = None, client: Client | None = None) -> None:
        self.client = client or Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **query: Any) -> HttpResponse:
        return self.client.get(f"/api/v1{path}", query, headers=self.headers)

    def post(self, path: str, body: Any = None, **headers: str) -> HttpResponse:
        data = body if isinstance(body, str | bytes) else json.dumps(body)
        return self.client.post(
            f"/api/v1{path}", data, content_type="application/json", headers={**self.headers, **headers}
        )

    def run(self, slug: str, key: str = "run", **body: Any) -> Any:
        return self.post(f"/projects/{slug}/runs", {"key": key, **body}).json()["run"]

    def announce(self, run_id: int, contents: dict[str, bytes], **body: Any) -> HttpResponse:
        body = {"capture": "step-1", "rank": 0, "files": entries(contents), **body}
        return self.post(f"/runs/{run_id}/dumps", body)

    def begin(self, dump_id: int, name: str, data: bytes, **changes: Any) -> HttpResponse:
        """Create an upload; `body` comes with the request, or its first bytes, when only so many of them arrive."""
        metadata = metadata_of(dump_id, name, data, **{key: changes[key] for key in ("sha256",) if key in changes})
        length = changes.get("length", len(data))
        headers = {**self.headers, **TUS, "Upload-Length": str(length), "Upload-Metadata": metadata}
        if "body" not in changes:
            return self.client.post("/api/v1/files", headers=headers)
        headers.update(changes.get("headers", {}))
        body: bytes = changes["body"]
        cut = {"wsgi.input": BytesIO(body[: changes["arrives"]])} if "arrives" in changes else {}
        return self.client.post("/api/v1/files", body, content_type=BYTES, headers=headers, **cut)

    def contents(self, dump_id: int, contents: Iterable[bytes], **headers: str) -> HttpResponse:
        """Whole contents in one request."""
        parts = list(contents)
        named = {"Stepscope-Contents": ",".join(hashlib.sha256(part).hexdigest() for part in parts)}
        return self.send_body(dump_id, b"".join(parts), **{**named, **headers})

    def send_body(self, dump_id: int, body: bytes, **headers: str) -> HttpResponse:
        return self.client.post(
            f"/api/v1/dumps/{dump_id}/contents",
            body,
            content_type="application/octet-stream",
            headers={**self.headers, **headers},
        )

    def patch(self, address: str, offset: int, data: bytes, **headers: str) -> HttpResponse:
        headers = {**self.headers, **TUS, "Upload-Offset": str(offset), **headers}
        return self.client.patch(path_of(address), data, content_type=BYTES, headers=headers)

    def head(self, address: str) -> HttpResponse:
        return self.client.head(path_of(address), headers={**self.headers, **TUS})

    def delete(self, address: str) -> HttpResponse:
        return self.client.delete(path_of(address), headers={**self.headers, **TUS})

    def send(self, dump_id: int, contents: dict[str, bytes]) -> None:
        """Bring every file of a dump."""
        for name, data in contents.items():
            address = self.begin(dump_id, name, data)["Location"]
            if data:
                assert self.patch(address, 0, data).status_code == 204


def metadata_of(dump_id: int, name: str, data: bytes, sha256: str | None = None) -> str:
    return upload_metadata(dump=str(dump_id), name=name, sha256=sha256 or hashlib.sha256(data).hexdigest())


def upload_metadata(**pairs: str) -> str:
    return ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in pairs.items())


def path_of(address: str) -> str:
    return "/" + address.split("/", 3)[3]


def error_of(response: HttpResponse) -> tuple[int, str]:
    """Status and code of a refusal, after checking that it has the one shape."""
    body = json.loads(response.content)
    assert set(body["error"]) >= {"code", "message"} and body["error"]["message"]
    assert response["Stepscope-Protocol"] == "1"
    return response.status_code, body["error"]["code"]
