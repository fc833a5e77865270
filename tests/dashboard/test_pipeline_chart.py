"""The chart of the pipeline over time, and the heat map of experts' load."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.runs import expert_chart, pipeline_chart
from dashboard.runs.models import Capture, Dump, DumpState
from tests.dashboard.page_data import ready_capture
from tests.factories import make_dump, make_member, make_run, make_user

pytestmark = pytest.mark.django_db
SECOND_NS = 1_000_000_000


def schedule(begin_ms: float, *passes: tuple[str, int, float, float], waits: tuple[float, float] = (0, 0)) -> Any:
    """A step of 100 ms; passes of (direction, micro-batch, start, end) and one wait, in ms."""
    ways, batches, starts, ends = zip(*passes, strict=True)
    return {
        "step": "10", "begin_ns": SECOND_NS + int(begin_ms * 1e6), "offset_us": 5000.0, "length_us": 100_000.0,
        "passes": {
            "pass": ways, "micro_batch": batches, "chunk": [None] * len(ways), "start_us": [ms * 1e3 for ms in starts],
            "end_us": [ms * 1e3 for ms in ends], "computing_us": [1000.0] * len(ways),
        },
        "waits": {"start_us": [waits[0] * 1e3], "end_us": [waits[1] * 1e3]},
    }  # fmt: skip


FIRST = schedule(0, ("forward", 0, 0, 10), ("backward", 0, 40, 60), waits=(10, 40))
SECOND = schedule(2, ("forward", 0, 10, 20), ("backward", 0, 20, 36))


def pipeline(schedules: dict[int, Any], world: int = 4, pp: int | None = 2) -> Capture:
    capture = ready_capture(make_run(world_size=world, pp=pp), ranks=0)
    for rank, told in schedules.items():
        make_dump(capture, rank=rank, state=DumpState.DIGESTED, entry={"rank": rank, "schedule": told})
    return capture


def boxes(spec: dict[str, Any]) -> dict[str, list[Any]]:
    return {series["name"]: [box["value"] for box in series["data"]] for series in spec["options"]["series"]}


def test_stages_stand_on_one_axis_with_the_micro_batch_each_is_at():
    spec = pipeline_chart.chart(pipeline({0: FIRST, 2: SECOND}), 0)
    assert boxes(spec) == {
        "Forward": [[0, 0.0, 10.0, 0], [1, 12.0, 22.0, 0]],
        "Backward": [[0, 40.0, 60.0, 0], [1, 22.0, 38.0, 0]],
        "Pipeline bubble": [[0, 10.0, 40.0], [1, 2.0, 2.0]],
    }
    assert spec["options"]["yAxis"][0]["data"] == ["Stage 0 · rank 0", "Stage 1 · rank 2"]
    # F of 10 on both, B of 16 on stage 1, B of 20 on stage 0: 56 ms after the first pass begins.
    assert spec["options"]["series"][0]["markLine"]["data"] == [{"xAxis": 56.0}]
    assert "begins at 0" not in str(spec)
    assert spec["table"]["rows"][0] == ["Stage 0 · rank 0", "Forward", 0, 0.0, 10.0]


def test_a_box_leads_to_its_time_in_the_timeline():
    capture = pipeline({0: FIRST, 2: SECOND})
    backward = pipeline_chart.chart(capture, 0)["options"]["series"][1]["data"][0]
    # 40 to 60 ms of a step that begins 5 ms after the first kernel, with 4 ms around it.
    assert backward["url"] == f"/captures/{capture.pk}/ranks/0/#t=41000000_69000000"


def test_the_pipeline_is_the_one_of_the_rank_and_others_stand_in_where_its_own_are_missing():
    capture = pipeline({0: FIRST, 1: FIRST, 2: SECOND})
    assert pipeline_chart.ranks_of_pipeline(capture, 0) == {0: 0, 1: 2}
    assert pipeline_chart.ranks_of_pipeline(capture, 1) == {0: 1, 1: 2}
    Dump.objects.filter(capture=capture, rank=2).update(state=DumpState.FAILED)
    assert pipeline_chart.ranks_of_pipeline(capture, 1) == {0: 1}


def test_stages_whose_clocks_differ_begin_at_0_and_say_so():
    late = schedule(5000, ("forward", 0, 10, 20), ("backward", 0, 20, 36))
    spec = pipeline_chart.chart(pipeline({0: FIRST, 2: late}), 0)
    assert boxes(spec)["Forward"] == [[0, 0.0, 10.0, 0], [1, 10.0, 20.0, 0]]
    assert spec["options"]["title"][0]["text"] == "clocks or steps differ: each stage begins at 0"


def test_passes_out_of_order_tell_that_clocks_differ():
    """Stage 1 begins its forward at 2 + 10 ms, 8 ms before stage 0 ends its own."""
    slow = schedule(0, ("forward", 0, 0, 20), ("backward", 0, 40, 60))
    told = pipeline_chart.chart(pipeline({0: slow, 2: SECOND}), 0)["options"]["title"][0]["text"]
    assert told.replace("\u202f", " ") == (
        "clocks of the hosts differ: a pass begins 8.00 ms before what it needs has ended"
    )


def test_a_stage_alone_ends_as_the_formula_says():
    """30 ms of work with a bubble of a third: 45 ms after its first pass."""
    capture = pipeline({0: FIRST})
    capture.report["cluster"] = {"bubble": {"theory": 1 / 3}}
    (mark,) = pipeline_chart.chart(capture, 0)["options"]["series"][0]["markLine"]["data"]
    assert mark == {"xAxis": 45.0}


def test_a_rank_whose_stage_is_unknown_stands_alone():
    spec = pipeline_chart.chart(pipeline({0: FIRST, 2: SECOND}, pp=None), 2)
    assert spec["options"]["yAxis"][0]["data"] == ["rank 2"]


@pytest.mark.parametrize("told", [None, {}, {"passes": {}}])
def test_reports_without_passes_say_what_brings_them(told):
    spec = pipeline_chart.chart(pipeline({0: told}), 0)
    assert spec["empty"] and "communication.json" in spec["note"]


def experts(*tokens: list[int], world: int | None = None, pp: int | None = None) -> Capture:
    """Ranks with tokens by layer, over two steps."""
    capture = ready_capture(make_run(world_size=world or len(tokens), pp=pp), ranks=0)
    for rank, counts in enumerate(tokens):
        layers = [{"layer": layer, "tokens": 2 * count} for layer, count in enumerate(counts)]
        facts = {"steps": 2, "expert_tokens": {"total": 2 * sum(counts), "layers": layers}}
        make_dump(capture, rank=rank, state=DumpState.DIGESTED, entry={"rank": rank, "facts": facts})
    return capture


def cells(spec: dict[str, Any]) -> list[Any]:
    return [cell["value"] for cell in spec["options"]["series"][0]["data"]]


def test_load_is_held_against_the_mean_of_the_layer():
    capture = experts([150, 50], [50, 150])
    spec = expert_chart.chart(capture, absolute=False)
    assert cells(spec) == [[0, 0, 50.0], [1, 0, -50.0], [0, 1, -50.0], [1, 1, 50.0]]
    first = spec["options"]["series"][0]["data"][0]
    assert first["url"] == f"/captures/{capture.pk}/ranks/0/?layer=0#kernels"
    assert cells(expert_chart.chart(capture, absolute=True))[0] == [0, 0, 150.0]


def test_layers_of_two_stages_are_not_the_same_layer():
    """Ranks 0 and 1 are stage 0, ranks 2 and 3 stage 1."""
    tokens = {(0, 0): 100.0, (1, 0): 100.0, (2, 0): 300.0, (3, 0): 100.0}
    assert expert_chart.against_mean(tokens, 2) == {(0, 0): 0.0, (1, 0): 0.0, (2, 0): 0.5, (3, 0): -0.5}


def test_many_ranks_stand_in_blocks_as_their_busiest():
    capture = experts(*([100] if rank != 37 else [200] for rank in range(130)))
    spec = expert_chart.chart(capture, absolute=True)
    assert len(spec["options"]["yAxis"][0]["data"]) == 44  # three ranks a line
    assert cells(spec)[12] == [0, 12, 200.0]
    assert "/ranks/37/" in spec["options"]["series"][0]["data"][12]["url"]


def test_one_rank_alone_has_nobody_to_be_held_against():
    capture = experts([100, 50])
    assert expert_chart.chart(capture, absolute=False)["empty"]
    assert cells(expert_chart.chart(capture, absolute=True)) == [[0, 0, 100.0], [1, 0, 50.0]]


def test_the_page_has_the_card_where_passes_are_known(client):
    capture = pipeline({0: FIRST, 2: SECOND})
    reader = make_user("reader")
    make_member(capture.run.project, reader)
    client.force_login(reader)
    page = client.get(f"/captures/{capture.pk}/?rank=0").content.decode()
    assert f"/captures/{capture.pk}/charts/pipeline/?rank=0" in page
    spec = client.get(f"/captures/{capture.pk}/charts/pipeline/?rank=0").json()
    assert spec["options"]["series"][0]["renderItem"] == "@span"
    assert client.get(f"/captures/{capture.pk}/charts/experts/").json()["empty"]
