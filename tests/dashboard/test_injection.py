"""Names that people and dumps bring, wherever they are shown, exported or logged."""

from __future__ import annotations

import csv
import io
import logging

import pytest
from django.test import Client

from dashboard.accounts.models import Member, Project, Role, User
from dashboard.alerts.models import Channel
from dashboard.hosts.models import Agent
from dashboard.runs.models import CaptureState, ChecklistResult, DumpState, Run
from tests.dashboard import page_data
from tests.factories import make_capture, make_dump

pytestmark = pytest.mark.django_db
EVIL = "</script><img src=x onerror=alert(1)>\"'&"
SPOKEN = "<img src=x"


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="gpt", name=f"P {EVIL}")


@pytest.fixture
def owner(project) -> Client:
    user = User.objects.create(username="olga")
    Member.objects.create(project=project, user=user, role=Role.OWNER)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def run(project) -> Run:
    """A run in which everything that has a name has a bad one."""
    entry = page_data.entry()
    for row in entry["op_types"]:
        row["type"] = EVIL
    for part in entry["layers"]["parts"]:
        for block in part["blocks"]:
            block["block"] = EVIL
    entry["facts"]["top_kernels"] = [
        {"name": EVIL, "type": EVIL, "input_shapes": EVIL, "duration_us": 1.0, "share": 0.1}
    ]
    checklist = [page_data.item("dtype_cast", "fail", advice=EVIL, evidence=[{"file": EVIL, "kernel": EVIL}])]
    report = {
        "checklist": {"items": checklist, "passed": 0, "failed": 1, "unknown": 0},
        "warnings": [EVIL],
        "missing": [],
    }
    names = {"name": EVIL, "model_name": EVIL, "framework_version": EVIL[:40], "tags": [EVIL[:40]], "config_text": EVIL}
    made = Run.objects.create(
        project=project, key="run", config_name=EVIL, meta={"command": EVIL, "env": {EVIL: EVIL}}, **names
    )
    capture = make_capture(
        made, state=CaptureState.READY, report=report, mfu=0.4, step_time_ns=10**9, cann_version=EVIL[:40]
    )
    make_dump(capture, state=DumpState.DIGESTED, entry=entry, host=EVIL, folder=EVIL)
    ChecklistResult.objects.create(
        capture=capture, run=made, item="dtype_cast", status="fail", summary=EVIL, latest=True
    )
    Agent.objects.create(
        project=project, uid="a", host=EVIL, trouble=EVIL, version=EVIL[:40], npus=[{"id": 0, "chip": EVIL}]
    )
    return made


def test_names_are_text_on_every_page(owner, project, run):
    capture = run.captures.get().pk
    mail = Channel.objects.create(project=project, name=EVIL, url="mailto://u:p@mail.example.com?to=x@example.com")
    pages = (
        "/",
        "/projects/gpt/runs/",
        "/projects/gpt/trends/",
        f"/runs/{run.pk}/",
        f"/captures/{capture}/",
        "/search/?q=img",
    )
    more = (
        f"/captures/{capture}/ranks/",
        f"/captures/{capture}/ranks/0/",
        f"/compare/?captures={capture}",
        "/violations/",
    )
    rest = (
        "/projects/gpt/hosts/",
        "/projects/gpt/settings/",
        "/projects/gpt/rules/",
        "/projects/gpt/channels/",
        f"/projects/gpt/channels/{mail.pk}/weekly/",
        "/alerts/",
    )
    for address in (*pages, *more, *rest, "/account/", f"/search/?q={EVIL}"):
        answer = owner.get(address)
        assert answer.status_code == 200, address
        assert SPOKEN not in answer.content.decode(), address
        assert "script-src 'self'" in answer["Content-Security-Policy"], address


def test_charts_are_json_and_nothing_a_browser_would_run(owner, project, run):
    capture = run.captures.get().pk
    for address in (
        "/projects/gpt/trends/mfu/chart/",
        f"/captures/{capture}/charts/memory/",
        f"/captures/{capture}/charts/layers/",
    ):
        answer = owner.get(address)
        assert answer["Content-Type"].startswith("application/json"), address
        assert answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "＝1+1", '=HYPERLINK("http://evil")']
)
def test_a_table_program_takes_no_name_for_a_formula(owner, project, name):
    run = Run.objects.create(project=project, key="run", name=name, model_name=name, tags=[name])
    make_capture(run, state=CaptureState.READY)
    rows = list(csv.reader(io.StringIO(owner.get("/projects/gpt/runs.csv").getvalue().decode().lstrip("\ufeff"))))
    cells = [cell for row in rows for cell in row]
    assert any(name.strip() in cell for cell in cells)
    assert not [
        cell
        for cell in cells
        if cell.lstrip().startswith(("=", "+", "@", "＝")) or (cell[:1] == "-" and not number(cell))
    ]


def number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "path", ["/nothing/%0a2026-01-01 INFO root forged", "/nothing/%0d%0aforged", "/projects/%1b[31m/runs/"]
)
def test_a_client_writes_no_lines_of_its_own_into_the_log(owner, caplog, path):
    with caplog.at_level(logging.INFO):
        owner.get(path)
        owner.post("/accounts/login/", {"login": "a\n2026-01-01 INFO root forged", "password": "x\nforged"})
    assert caplog.records
    for record in caplog.records:
        assert not any(sign in record.getMessage() for sign in "\n\r\x1b"), record.getMessage()
