"""Ranks of one capture against each other."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.runs import rank_pairs
from dashboard.runs.models import Capture, Dump, DumpState
from tests.dashboard.page_data import entry, ready_capture
from tests.factories import make_dump, make_member, make_project, make_run, make_user

pytestmark = pytest.mark.django_db


def capture_of(*computing_ms: int | None, world: int = 8, pp: int | None = None, slow: Any = ()) -> Capture:
    """Ranks that compute so long; the entry of each has a MatMul of its computing time."""
    capture = ready_capture(make_run(make_project("team"), world_size=world, pp=pp), ranks=0)
    capture.report["cluster"] = {"slow_ranks": [{"rank": rank} for rank in slow]}
    capture.save()
    for rank, ms in enumerate(computing_ms):
        matmul = {"type": "MatMul", "core": "AI_CORE", "count": 4, "total_us": (ms or 0) * 1e3, "share": 1.0}
        told = {**entry(), "rank": rank, "op_types": [matmul]}
        told["steps"][0].update(computing_us=(ms or 0) * 1e3, step_time_us=100e3, free_us=100e3 - (ms or 0) * 1e3)
        make_dump(
            capture, rank=rank, state=DumpState.DIGESTED, entry=told, step_time_ns=100_000_000,
            computing_ns=None if ms is None else ms * 1_000_000,
        )  # fmt: skip
    return capture


def ranks(capture: Capture, *asked: int) -> list[int]:
    return [dump.rank for dump in rank_pairs.chosen(capture, asked, list(capture.dumps.order_by("rank")))]


def test_a_rank_alone_stands_against_the_one_in_the_middle():
    """Without rank 3 the others compute 10, 30 and 20: rank 2 is in the middle."""
    assert ranks(capture_of(10, 30, 20, 90), 3) == [2, 3]


def test_of_a_pipeline_the_middle_is_that_of_the_stage():
    """Ranks 0 to 2 are stage 0, ranks 3 to 5 stage 1."""
    assert ranks(capture_of(10, 20, 30, 90, 80, 70, world=6, pp=2), 3) == [5, 3]


def test_without_a_wish_the_slow_rank_is_taken_else_the_one_that_computes_longest():
    assert ranks(capture_of(10, 20, 30, slow=[1])) == [0, 1]


def test_without_a_slow_rank_the_one_that_computes_longest_is_taken():
    assert ranks(capture_of(10, 50, 30)) == [0, 1]


def test_ranks_keep_their_order_and_those_that_are_not_there_are_left_out():
    capture = capture_of(10, 20, 30)
    assert ranks(capture, 2, 99, 0) == [2, 0]
    Dump.objects.filter(capture=capture, rank=2).update(state=DumpState.FAILED)
    assert ranks(capture, 2, 0, 1) == [0, 1]


def test_one_rank_alone_is_compared_with_nobody(client):
    capture = capture_of(10)
    reader = make_user("reader")
    make_member(capture.run.project, reader)
    client.force_login(reader)
    assert "Two ranks are needed" in client.get(f"/captures/{capture.pk}/ranks/compare/").content.decode()


@pytest.fixture
def page(client):
    capture = capture_of(50, 60, slow=[1])
    reader = make_user("reader")
    make_member(capture.run.project, reader)
    client.force_login(reader)
    return lambda path="", **query: client.get(f"/captures/{capture.pk}/ranks/compare/{path}", query)


def test_the_page_says_who_computes_longer_and_by_what(page, django_assert_max_num_queries):
    with django_assert_max_num_queries(12):
        text = page().content.decode()
    told = " ".join(text.replace("\u202f", " ").split())
    assert "Rank 1 computes 20.0 % longer than rank 0: 60.0 ms a step, not 50.0 ms." in told
    assert "+10.0 ms" in told and "MatMul" in told
    assert "charts/steps/?ranks=0,1" in text


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [(50, 50, "compute alike"), (40, 50, "20.0 % less"), (None, 50, "unknown")],
)
def test_the_sentence_tells_how_they_differ(mine, theirs, said):
    one, other = (Dump(rank=rank, computing_ns=ms and ms * 10**6) for rank, ms in ((1, mine), (0, theirs)))
    assert said in rank_pairs.sentence(other, one).replace("\u202f", " ")


def test_charts_of_ranks_answer_with_their_names(page):
    assert page("charts/steps/", ranks="0,1").json()["options"]["xAxis"][0]["data"] == ["A", "B"]
    lines = page("charts/layers/", ranks="0,1").json()["options"]["series"]
    assert [line["name"] for line in lines] == ["A · rank 0", "B · rank 1"]
    assert page("charts/other/", ranks="0,1").status_code == 404


def test_strangers_find_nothing(client):
    capture = capture_of(50, 60)
    client.force_login(make_user("stranger"))
    assert client.get(f"/captures/{capture.pk}/ranks/compare/").status_code == 404
    assert client.get(f"/captures/{capture.pk}/ranks/compare/charts/steps/").status_code == 404
