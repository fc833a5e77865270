"""What a hostile person with an account may try on addresses and forms: the answer is one of ours, never a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tests.dashboard.test_matrix import OPERATIONS, PAGES, World, world

__all__ = ["world"]
pytestmark = pytest.mark.django_db
PARAMETERS = (
    *("page", "order", "q", "tag", "fails", "archived", "columns", "cards", "model", "captures", "runs", "run", "of"),
    *("value", "align", "alert", "state", "project", "mine", "item", "waived", "metric", "rank", "step", "layer"),
    *("block", "type", "begin", "end", "buckets", "v", "row", "lane", "at", "by", "kind", "name", "query", "note"),
    *("assignee", "owner", "reason", "expires", "change", "new_tag", "all", "url", "language", "person", "role"),
    *("scopes", "days", "keep_uploads_days", "peak_tflops", "steps", "which", "level", "first_step", "tags", "next"),
    *("mfu-enabled", "mfu-effect", "mfu-limit", "mfu-least_devices", "against", "from", "to", "view", "sort"),
)
EVIL = (
    *("9" * 400, "-1", "0", "1e309", "NaN", "-Infinity", "٣", "²", "a" * 5000, "'; DROP TABLE x; --", "(a+)+$"),
    *(
        "[",
        "../../../../etc/passwd",
        ",,,",
        "1,x,3",
        "%",
        "_%",
        "\\",
        "{{ 7 }}",
        "//evil.example",
        "\u202e\ud83d\ude00",
    ),
    *("9999-12-31", "0000-00-00", "true", "graph\r\nSet-Cookie: a=b", "18446744073709551616", "9223372036854775808"),
)


def form(value: str) -> dict[str, str]:
    return dict.fromkeys(PARAMETERS, value.encode("utf-16", "surrogatepass").decode("utf-16"))


def client_of(world: World, name: str) -> Client:
    client = Client()  # an exception in a view fails the test
    client.force_login(world.people[PAGES[name].roles[-1]])
    return client


@pytest.mark.parametrize("name", sorted(name for name, page in PAGES.items() if not page.public))
def test_no_parameter_breaks_a_page(world, name: str):
    page, client = PAGES[name], client_of(world, name)
    address = reverse(name, args=page.arguments(world))
    call = client.get if page.method == "GET" else client.post
    for value in EVIL:
        answer: Any = call(address, form(value))
        assert answer.status_code < 500, value
        for header in ("Location", "Set-Cookie", "Content-Disposition"):
            assert "evil.example" not in answer.get(header, "") and "\n" not in answer.get(header, ""), value
    for raw in (b"%ff%fe", b"%00", b"%ed%a0%80"):
        query = b"&".join(one.encode() + b"=" + raw for one in PARAMETERS).decode()
        assert client.get(f"{address}?{query}").status_code in (200, 302, 400, 404, 405, 409), raw


NUMBERS = (0, 2**31, 2**63, 10**30)


@pytest.mark.parametrize("number", NUMBERS)
def test_no_number_in_an_address_breaks_a_page(world, number: int):
    client = Client()
    client.force_login(world.people["owner"])
    for name, page in PAGES.items():
        arguments = [number if isinstance(one, int) else one for one in page.arguments(world)]
        if arguments != page.arguments(world):
            call = client.get if page.method == "GET" else client.post
            assert call(reverse(name, args=arguments), page.data(world)).status_code in (302, 404), name


RAW = (
    "1e308",
    "-1e308",
    "1e309",
    "NaN",
    "9" * 400,
    "null",
    "true",
    '"\\u0000"',
    '"\\ud800"',
    "[]",
    "{}",
    '"x"',
    "[[[[]]]]",
)
KEYS = (
    *("key", "name", "steps", "files", "rank", "world_size", "state", "note", "capture", "meta", "config", "host"),
    *("npus", "agent", "runs", "first_step", "window", "parallel", "captured_at", "device_id", "loss"),
)


@pytest.mark.parametrize("name", sorted(name for name, one in OPERATIONS.items() if one.body is not None))
def test_no_body_breaks_the_api(world, name: str):
    operation, client = OPERATIONS[name], Client()
    headers = {"Authorization": f"Bearer {world.texts['right']}"}
    address = "/api/v1" + operation.path(world)
    known = {key: json.dumps(value) for key, value in (operation.body or {}).items()}
    for raw in RAW:
        bodies = [raw, *(_object({**known, key: raw}) for key in {*KEYS, *known})]
        bodies += [_object({**known, "steps": f'[{{"step": 1, "loss": {raw}, "step_time_ms": {raw}}}]'})]
        for body in bodies:
            answer = client.generic("POST", address, body, content_type="application/json", headers=headers)
            assert answer.status_code < 500, body[:200]


def _object(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}"


def test_steps_at_the_edge_of_numbers_are_drawn(world):
    """What the API takes, the pages show: sums of such values leave the range of a float."""
    client = Client()
    headers = {"Authorization": f"Bearer {world.texts['right']}"}
    steps = [{"step": step, "loss": 1.7e308, "step_time_ms": 9e9, "global_norm": -1.7e308} for step in range(4000)]
    answer = client.post(
        f"/api/v1/runs/{world.run.pk}/steps", {"steps": steps}, content_type="application/json", headers=headers
    )
    assert answer.status_code == 200, answer.content
    client.force_login(world.people["viewer"])
    for field in ("loss", "norm", "step_time"):
        assert client.get(reverse("runs:run_chart", args=[world.run.pk, field])).status_code == 200, field
    assert client.get(reverse("runs:run", args=[world.run.pk])).status_code == 200


@pytest.mark.parametrize(
    "following", ["runs:home", "https://evil.example/", "//evil.example", "javascript:alert(1)", "/\\evil.example"]
)
def test_an_answer_leads_to_an_address_of_ours(world, following: str):
    client = Client()
    client.force_login(world.people["member"])
    answer = client.post(f"/alerts/{world.alert.pk}/decide/", {"state": "open", "next": following})
    assert answer["Location"] == reverse("alerts:inbox")
