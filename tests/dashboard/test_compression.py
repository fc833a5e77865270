"""What leaves gzipped, and what does not."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from django.http import FileResponse, HttpResponse
from django.test import Client, RequestFactory

from dashboard.compression import PackTextMiddleware
from dashboard.runs.models import Run
from tests.factories import make_project, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    user = make_user()
    project = make_project("llm", owner=user)
    Run.objects.bulk_create(Run(project=project, key=f"r{n}", name=f"run {n}") for n in range(60))
    client = Client(headers={"accept-encoding": "gzip"})
    client.force_login(user)
    return client


def test_a_page_leaves_gzipped_and_says_on_what_that_depends(client):
    response = client.get("/projects/llm/runs/")
    page = gzip.decompress(response.content)
    assert response["Content-Encoding"] == "gzip" and "Accept-Encoding" in response["Vary"]
    assert len(response.content) < len(page) / 5
    assert b"run 59" in page


def test_a_file_that_streams_is_packed_as_it_goes(client):
    response = client.get("/projects/llm/runs.csv")
    assert response["Content-Encoding"] == "gzip"
    assert gzip.decompress(b"".join(response.streaming_content)).count(b"\r\n") == 61


def test_who_does_not_ask_for_gzip_gets_none(client):
    response = client.get("/projects/llm/runs/", headers={"accept-encoding": "identity"})
    assert not response.has_header("Content-Encoding") and b"run 59" in response.content


@pytest.mark.parametrize("kind, packed", [("application/json", True), ("text/html; charset=utf-8", True),
                                          ("application/octet-stream", False), ("image/png", False)])  # fmt: skip
def test_only_text_is_packed(kind: str, packed: bool):
    request = RequestFactory(headers={"accept-encoding": "gzip"}).get("/")
    answered: Any = PackTextMiddleware(lambda _request: HttpResponse(b"a" * 1000, content_type=kind))(request)
    assert answered.has_header("Content-Encoding") == packed


def test_a_raw_file_keeps_its_length(tmp_path):
    (tmp_path / "kernels").write_bytes(b"a" * 1000)
    request = RequestFactory(headers={"accept-encoding": "gzip"}).get("/")

    def file(_request: object) -> FileResponse:
        return FileResponse((tmp_path / "kernels").open("rb"), content_type="application/octet-stream")

    answered: Any = PackTextMiddleware(file)(request)
    assert answered["Content-Length"] == "1000" and b"".join(answered.streaming_content) == b"a" * 1000
