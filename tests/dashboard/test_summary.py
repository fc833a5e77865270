"""Captures and comparisons as Markdown that is pasted into a ticket."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from dashboard.runs.models import Capture, Run
from tests.dashboard.page_data import filled_project
from tests.factories import make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def captures(client: Client):
    user = make_user("alice")
    client.force_login(user)
    return filled_project(user)[1]


def summary_of(client: Client, address: str) -> list[str]:
    client.cookies["django_language"] = "en"
    return str(client.get(address).context["summary"]).replace("\u202f", " ").splitlines()


def test_a_captures_summary_says_verdict_numbers_failures_and_what_to_fix_first(client, captures):
    shown = captures[0]
    lines = summary_of(client, f"/captures/{shown.pk}/")
    assert lines[0] == f"**{shown.run.name} / {shown.key}**"
    assert lines[2] == "Scheduling bound. A step takes 1.00 ms; the device works 70.0 % of it."
    assert lines[3] == "llama2_7b · Ascend910B3 × 8 · PYNATIVE · CANN 8.2"
    # Exposed communication is not known of it, and has no column.
    assert lines[5:8] == [
        "| MFU | Step time | Device ratio | Cast share | Peak memory |",
        "| --- | --- | --- | --- | --- |",
        "| 20.0 % | 1.00 ms | 70.0 % | 10.0 % | 1.00 GiB |",
    ]
    assert lines[9:12] == [
        "Checklist: 1/3",
        "- ❌ Uniform dtype: dtype_cast is fail.",
        "- ❌ Graph mode and sink: graph_sink is fail.",
    ]
    assert lines[13:16] == ["Fix first:", "1. Graph mode and sink −200 µs: Do it.", "2. Uniform dtype −30.0 µs: Do it."]
    assert re.fullmatch(rf"http://testserver/captures/{shown.pk}/", lines[-1])


def test_a_checklist_that_was_not_judged_is_unknown_and_not_0(client, captures):
    Capture.objects.filter(pk=captures[0].pk).update(checklist_passed=None)
    assert "Checklist: unknown" in summary_of(client, f"/captures/{captures[0].pk}/")


def test_a_comparisons_summary_says_what_changed_beside_the_metrics(client, captures):
    Run.objects.filter(pk=captures[0].run_id).update(name="a | b")
    address = f"/compare/?captures={captures[0].pk},{captures[2].pk}"
    lines = summary_of(client, address)
    assert lines[0] == "**Step time fell by 20.0 %, from 1.00 ms to 800 µs.**"
    assert lines[2] == f"- A: a \\| b / {captures[0].key}"
    assert "| Step time | 1.00 ms | 800 µs (−20.0 %) |" in lines and "| MFU | 20.0 % | 40.0 % (+20.0 pts) |" in lines
    changes = lines[lines.index("What changed (A → B):") + 1 :]
    assert "- CANN: `8.2` → `8.3`" in changes and "- mode: `pynative` → `graph`" in changes
    assert lines[-1] == f"http://testserver{address}"


def test_names_and_values_that_are_markdown_are_pasted_as_they_stand(client, captures):
    one, other = captures[0], captures[2]
    Run.objects.filter(pk=one.run_id).update(name="![x](https://e/p) <img> `a` @all\r# b\\")
    Run.objects.filter(pk=one.run_id).update(cann_version="8`2 @all\n# c")
    Run.objects.filter(pk=other.run_id).update(cann_version="8.3")
    name = r"!\[x\](https://e/p) \<img> \`a\` ＠all # b\\"
    lines = summary_of(client, f"/compare/?captures={one.pk},{other.pk}")
    assert lines[2] == f"- A: {name} / {one.key}"
    assert "- CANN: `8'2 @all # c` → `8.3`" in lines
    assert summary_of(client, f"/captures/{one.pk}/")[0] == f"**{name} / {one.key}**"
