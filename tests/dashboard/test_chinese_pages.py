"""A capture's page holds no English sentence for a Chinese reader, whatever its dump made the analysis say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from analysis.dump import find_dumps
from analysis.rank import read_rank
from analysis.report import capture_report
from dashboard.accounts.models import User
from dashboard.runs.models import CaptureState, ChecklistResult, DumpState
from tests.conftest import SHARED
from tests.dashboard.page_data import ready_capture
from tests.dumps import write_job
from tests.factories import make_capture, make_dump, make_project, make_run, make_user

pytestmark = pytest.mark.django_db
SENTENCE = re.compile(r"(?:\b[A-Za-z][a-z]+\b[ ,.;:]+){4,}")
"""Five words in a row; names of files, switches and operators are shorter."""


class Texts(HTMLParser):
    """What a page shows, without scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.found.append(" ".join(data.split()))


def page_of(folder: Path) -> list[str]:
    """The texts of the Chinese page of a capture with these dumps."""
    ranks = [read_rank(dump) for dump in find_dumps(folder)[:2]]
    report: dict[str, Any] = capture_report(
        [(rank.entry, rank.source) for rank in ranks], config=None, run={}, series=[]
    )
    user = make_user("alice")
    capture = ready_capture(make_run(make_project(owner=user), name="r"), ranks=0)
    for position, entry in enumerate(report.pop("ranks")):
        make_dump(capture, rank=position, state=DumpState.DIGESTED, entry=entry, step_time_ns=1000 - position)
    capture.report = report
    capture.error = "rank 0: kernel_details.csv: is empty (zero bytes)"
    capture.save()
    return texts_of(user, f"/captures/{capture.pk}/")


def texts_of(user: User, address: str) -> list[str]:
    """What the page shows a Chinese reader."""
    client = Client()
    client.force_login(user)
    client.cookies["django_language"] = "zh-hans"
    texts = Texts()
    texts.feed(client.get(address).content.decode())
    return texts.found


def test_the_page_of_a_poor_run_is_chinese(tmp_path: Path):
    poor = {"mode": "pynative", "sink": False, "fused_attention": False, "mask": "full", "mask_rebuilt": True}
    write_job(tmp_path, dp=2, free_ratio=0.3, **poor)
    found = page_of(tmp_path)
    assert [text for text in found if SENTENCE.search(text)] == []
    assert any("是空文件" in text for text in found)


def test_statuses_are_chinese_for_those_who_hear_them():
    user = make_user("alice")
    capture = make_capture(make_run(make_project(owner=user)), key="step-1", state=CaptureState.READY)
    ChecklistResult.objects.create(capture=capture, run=capture.run, item="dtype_cast", status="fail", latest=True)
    found = texts_of(user, f"/runs/{capture.run_id}/")
    assert "step-1: 不通过" in found


@pytest.mark.real
@pytest.mark.parametrize("folder", ["msinsight-llm-pp2dp2", "msinsight-gpt3-2023", "mstt-advisor/compute_advice"])
def test_the_pages_of_real_dumps_are_chinese(folder: str):
    assert [text for text in page_of(SHARED / "dumps" / folder) if SENTENCE.search(text)] == []
