"""The writer's pipelines: all stages on one clock, each waiting for its neighbours as the schedule has it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.cli import build_report
from analysis.schedule import slip_us
from analysis.synthetic.model import step_slots
from analysis.synthetic.spec import GptSpec
from analysis.synthetic.timing import Nominal, Stage, Timeline, lay_out
from tests.dumps import OUTPUT, write_dump, write_job

S = 1_000_000_000
ATTENTION = {"FlashAttentionScore": 0, "FlashAttentionScoreGrad": 1}
"""One kernel of a layer in each direction."""
HOPS = 1e-3
"""Transfers take a microsecond each: all of them together less than this, in seconds."""


def passes(lengths: list[tuple[float, float]], **schedule: Any) -> list[tuple[Timeline, list[bool]]]:
    """A step whose passes are one kernel each, of (forward, backward) seconds by stage; which kernels receive."""
    spec = GptSpec(pp=len(lengths), layers=len(lengths) * schedule.get("interleave", 1), jitter=0, **schedule)
    stages = []
    for stage, seconds in enumerate(lengths):
        slots = [
            slot for slot in step_slots(spec, stage) if slot.op.type in ATTENTION or (slot.op.comm and slot.op.comm.p2p)
        ]
        duration = np.array([0 if slot.op.comm else seconds[ATTENTION[slot.op.type]] * S for slot in slots], float)
        shape = Nominal(duration, 0.0, None)
        stages.append(Stage(slots, [stage], shape, np.ones((1, 1)), np.random.default_rng(1)))
    steps = lay_out(spec, stages, [np.zeros(1, np.int64)] * spec.pp)
    received = [[bool(slot.op.comm and slot.op.comm.receives) for slot in stage.slots] for stage in stages]
    return list(zip(steps, received, strict=True))


def waits(step: Timeline, received: list[bool]) -> float:
    """Seconds a stage stands in receives while no byte moves."""
    return float((step.duration - step.transit)[0, received].sum() / S)


def test_even_stages_wait_as_the_theory_says() -> None:
    """4 stages, 8 micro-batches, forward 1 s, backward 2 s: (8 + 4 - 1) x 3 s in all, of which each stage stands idle
    3 x 3 s, before, between and after its passes; after them s x 2 s on stage s, when it receives nothing."""
    laid = passes([(1, 2)] * 4, micro_batches=8)
    assert [waits(*one) for one in laid] == pytest.approx([9, 7, 5, 3], abs=HOPS)
    first = laid[0][0]
    assert first.end[0] / S == pytest.approx(33, abs=HOPS)
    assert waits(*laid[0]) / (first.end[0] / S) == pytest.approx(3 / (8 + 3), abs=HOPS)


def test_uneven_stages_wait_as_worked_out_by_hand() -> None:
    """Stage 0: F0 0-1, F1 1-2, B0 7-9, B1 13-15. Stage 1 takes twice as long: F0 1-3, B0 3-7, F1 7-9, B1 9-13."""
    (first, first_receives), (second, second_receives) = passes([(1, 2), (2, 4)], micro_batches=2)
    assert first.end[0] / S == pytest.approx(15, abs=HOPS)
    assert second.end[0] / S == pytest.approx(13, abs=HOPS)
    assert waits(first, first_receives) == pytest.approx((7 - 2) + (13 - 9), abs=HOPS)
    assert waits(second, second_receives) == pytest.approx(1, abs=HOPS)


def test_interleaving_makes_the_bubble_as_many_times_smaller_as_there_are_chunks() -> None:
    """(2 x 8 + 4 - 1) passes of half the length: 19 x 1.5 s, of which the first stage stands idle 3 x 1.5 s. The last
    one waits for the first micro-batch, three passes of half a second, and for nothing after."""
    laid = passes([(0.5, 1)] * 4, micro_batches=8, interleave=2)
    assert laid[0][0].end[0] / S == pytest.approx(28.5, abs=HOPS)
    assert [waits(*one) for one in (laid[0], laid[3])] == pytest.approx([4.5, 1.5], abs=HOPS)


JOBS: dict[str, dict[str, Any]] = {
    "1F1B": {"layers": 4, "pp": 4, "micro_batches": 6, "tp": 2},
    "torch": {"pp": 2, "micro_batches": 3, "dp": 2, "mode": "torch"},
    "interleaved": {"layers": 8, "pp": 4, "interleave": 2, "micro_batches": 8},
    "interleaved, as many micro-batches as stages": {"layers": 8, "pp": 2, "interleave": 2, "micro_batches": 2},
    "zero bubble": {"layers": 4, "pp": 4, "micro_batches": 6, "defer_wgrad": True},
    "uneven": {"layers": 12, "pp": 4, "micro_batches": 4, "offset": (1, 1, 0, -2), "step_us": 200_000},
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_every_layer_follows_the_one_before_on_whatever_stage(tmp_path: Path, job: dict[str, Any]) -> None:
    """Attention of a layer begins after that of the layer before has ended, in backward of the layer behind; in forward
    of the last before in backward. Layers count over the whole model."""
    truths = write_job(tmp_path, steps=1, **job)
    for batch in range(job["micro_batches"]):
        attention = [k for truth in truths for k in truth.kernels if k.type in ATTENTION and k.micro_batch == batch]
        forward, backward = ([k for k in attention if ATTENTION[k.type] == way] for way in (0, 1))
        layers = range(max(k.layer or 0 for k in attention) + 1)
        visits = [[k for k in forward if k.layer == layer] for layer in layers]
        visits += [[k for k in backward if k.layer == layer] for layer in reversed(layers)]
        for before, after in pairwise(visits):
            assert max(k.start_ns + k.duration_ns for k in before) <= min(k.start_ns for k in after)


def test_the_report_finds_stages_in_order(tmp_path: Path) -> None:
    write_job(tmp_path, steps=1, **JOBS["uneven"])
    schedules = [entry["schedule"] for entry in build_report(tmp_path)["ranks"]]
    begins = [one["begin_ns"] / 1000 for one in schedules]
    assert slip_us([one["passes"] for one in schedules], [begin - min(begins) for begin in begins]) == 0


def test_a_receive_ends_with_its_send_or_finds_it_sent(tmp_path: Path) -> None:
    """Stage 0 sends forward what stage 1 receives, in order, and the other way round in backward. On stage 0 of 1F1B
    the first two transfers are sends of micro-batches 0 and 1; on stage 1 they come in turns of four."""
    first, second = write_job(tmp_path, steps=1, pp=2, micro_batches=3)
    by_op = [
        {name: [op for op in truth.communication if op.op == name] for name in ("hcom_send_", "hcom_receive_")}
        for truth in (first, second)
    ]
    pairs = [*zip(by_op[0]["hcom_send_"], by_op[1]["hcom_receive_"], strict=True)]
    pairs += zip(by_op[1]["hcom_send_"], by_op[0]["hcom_receive_"], strict=True)
    assert len(pairs) == 6
    for sent, received in pairs:
        assert (sent.wait_ns, sent.transit_ns) == (0, received.transit_ns)
        assert received.start_ns + received.elapse_ns == max(sent.start_ns, received.start_ns) + sent.transit_ns
    assert any(received.wait_ns > 0 for _, received in pairs)


def test_links_of_a_stage_lead_to_its_neighbours(tmp_path: Path) -> None:
    truths = write_job(tmp_path, steps=1, layers=4, pp=4, micro_batches=4)
    for truth, others in zip(truths, ([1], [0, 2], [1, 3], [2]), strict=True):
        matrix = json.loads((truth.folder / OUTPUT / "communication_matrix.json").read_text())["step10"]["p2p"]
        linked = {int(link.split("-")[1]) for links in matrix.values() for link in links} - {truth.rank}
        assert sorted(linked) == others


def test_ranks_of_all_stages_meet_where_the_whole_job_does(tmp_path: Path) -> None:
    truths = write_job(tmp_path, steps=2, layers=4, pp=2, tp=2, micro_batches=2)
    ends = {tuple(op.start_ns + op.elapse_ns for op in truth.communication if op.group == "world") for truth in truths}
    assert len(ends) == 1
    assert len(ends.pop()) == 2


def test_a_rank_alone_waits_as_it_does_among_all(tmp_path: Path) -> None:
    """Each stage of one rank: nothing differs whether its peers are written or only run along."""
    job: dict[str, Any] = {"layers": 4, "pp": 4, "micro_batches": 4, "steps": 1}
    together = write_job(tmp_path / "all", **job)
    alone = write_dump(tmp_path / "one", rank=2, **job)
    assert alone.communication == together[2].communication


@pytest.mark.parametrize("offset", [(), (1, 1, 0, -2)])
def test_a_pipelines_wanted_step_time_is_met_on_every_rank(tmp_path: Path, offset: tuple[int, ...]) -> None:
    job: dict[str, Any] = {"layers": 12, "pp": 4, "tp": 2, "micro_batches": 4, "offset": offset, "step_us": 300_000}
    for truth in write_job(tmp_path, **job):
        assert [step.step_ns for step in truth.steps] == pytest.approx([300_000_000] * 2, rel=3e-3)
        assert all(
            step.free_ns + step.computing_ns + step.communication_not_overlapped_ns == step.step_ns
            for step in truth.steps
        )


def test_offset_moves_layers_between_stages() -> None:
    """12 layers on 4 stages, 3 each: 4, 4, 3 and 1."""
    spec = GptSpec(layers=12, pp=4, offset=(1, 1, 0, -2))
    assert [spec.local_layers(stage) for stage in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [11]]


@pytest.mark.parametrize("offset", [(1, -1), (1, 0, 0, 0)])
def test_offsets_that_do_not_fit_are_refused(offset: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="offset needs"):
        GptSpec(layers=12, pp=4, offset=offset)
