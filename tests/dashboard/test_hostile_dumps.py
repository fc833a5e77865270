"""Dumps whose cells are made to do harm: whatever the digest takes, every page, chart and answer must bear."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.ingest import tasks
from dashboard.runs import rollup
from dashboard.runs.models import DumpState, Run
from tests.dashboard.test_digest import KERNELS, contents_of, upload
from tests.dumps import write_dump
from tests.factories import make_member, make_run, make_user

TEXTS = (
    *("<script>alert(1)</script>", "=HYPERLINK(1)", "../../etc/passwd", "\x7f\x1b[31m", "__proto__", "a" * 100_000),
    *("Default/" + "x/" * 3000 + "MatMul-op1", "{{ 7*7 }}", "%s%s%n", "'); DROP TABLE runs_run; --", "\u202ex", ""),
)
LEAVES = (float("nan"), float("inf"), 1e308, -1, 10**400, None, [], {}, "x" * 50_000, "\ud800", True)
NUMBERS = ("NaN", "inf", "-inf", "1e308", "-1e308", "1e-320", "9" * 400, "-0", "0x10", "1,5", "9223372036854775807",
           "9223372036854775808", "-9223372036854775809", "-1", "", "N/A", "٣")  # fmt: skip
CHARTS = ("waterfall", "steps", "layers", "memory", "ranks", "roofline", "transfers")
MOST_BYTES = 4 << 20
PLACES = ("", "operators/", "operators/?by=name", "operators/?by=shape", "ranks/", "ranks/0/", "ranks/0/?q=alert",
          "ranks/0/timeline/", "ranks/0/timeline/boxes/", "ranks/0/timeline/sums/", "ranks/0/timeline/find/?q=a",
          "ranks/0/timeline/kernel/?row=0", *(f"charts/{name}/" for name in CHARTS))  # fmt: skip


def spoiled(table: bytes, chance: random.Random, share: float) -> bytes:
    """The table with some of its cells made hostile."""
    rows = list(csv.reader(io.StringIO(table.decode())))
    for row in rows[1:]:
        for column in range(len(row)):
            if chance.random() < share:
                row[column] = chance.choice(NUMBERS if chance.random() < 0.6 else TEXTS)
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()


def spoiled_json(value: Any, chance: random.Random, share: float) -> Any:
    """The value with some of its leaves made hostile."""
    if isinstance(value, dict):
        return {
            (chance.choice(TEXTS)[:300] if chance.random() < share / 10 else key): spoiled_json(part, chance, share)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [spoiled_json(part, chance, share) for part in value]
    if chance.random() < share:
        return chance.choice(LEAVES)
    return value


def never(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def run(project) -> Run:
    return make_run(project)


@pytest.mark.parametrize("seed", range(6))
def test_no_cell_of_a_dump_breaks_what_shows_it(api, project, run, tmp_path: Path, client: Client, seed: int):
    chance, share = random.Random(seed), (0.002, 0.02, 0.2)[seed % 3]
    contents = contents_of(write_dump(tmp_path, rank=0, steps=2).folder)
    for name, data in contents.items():
        if name.endswith(".csv") and (seed > 2 or name == KERNELS):
            contents[name] = spoiled(data, chance, share)
        elif name.endswith(".json") and seed > 2:
            contents[name] = json.dumps(spoiled_json(json.loads(data), chance, share)).encode()
    dump = upload(api, run.pk, contents)
    tasks.digest_dump(dump.pk)
    dump.refresh_from_db()
    assert dump.state == DumpState.DIGESTED or (dump.state == DumpState.FAILED and "unexpectedly" not in dump.error)
    rollup.rollup(dump.capture_id)
    person = make_user("reader")
    make_member(project, person)
    client.force_login(person)
    addresses = [f"/captures/{dump.capture_id}/{place}" for place in PLACES]
    addresses += [f"/projects/{project.slug}/{page}/" for page in ("runs", "trends")]
    addresses += [f"/runs/{run.pk}/", "/", "/violations/", f"/compare/?captures={dump.capture_id},{dump.capture_id}"]
    addresses += [f"/api/v1/captures/{dump.capture_id}", f"/api/v1/captures/{dump.capture_id}/report"]
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code in (200, 404), address
        assert len(answer.content) < MOST_BYTES, (address, len(answer.content))
        if answer["Content-Type"].startswith("application/json"):
            json.loads(answer.content, parse_constant=never)
        else:
            assert b"<script>alert" not in answer.content, address
    trace = client.get(f"/captures/{dump.capture_id}/ranks/0/trace.json")
    if trace.status_code == 200:
        json.loads(b"".join(trace.streaming_content), parse_constant=never)
