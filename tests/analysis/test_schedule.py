"""Passes of a pipeline stage and its waits, as the chart of a pipeline draws them."""

from __future__ import annotations

from itertools import groupby

import polars as pl
import pytest

from analysis.cli import build_report
from analysis.schedule import ideal_end_us, schedule, slip_us
from analysis.synthetic.schedule import stage_order
from analysis.synthetic.spec import GptSpec
from tests.analysis.test_pipeline import SCHEDULES, transfers
from tests.dumps import write_dump

US = 1000


def placed(*rows):
    """Compute kernels of (step, pass, micro-batch, start, end), in us."""
    table = [
        {"step": step, "kind": "compute", "pass": way, "micro_batch": batch, "start_ns": a * US,
         "duration_ns": (b - a) * US}
        for step, way, batch, a, b in rows
    ]  # fmt: skip
    return pl.DataFrame(table, schema_overrides={"step": pl.String, "start_ns": pl.Int64, "duration_ns": pl.Int64})


def test_kernels_of_one_micro_batch_in_one_direction_are_a_pass_and_recomputation_is_backward():
    kernels = placed(
        ("1", "forward", 0, 100, 110),
        ("1", "forward", 0, 115, 120),
        ("1", "forward", 1, 130, 140),
        ("1", "none", None, 140, 141),
        ("1", "recompute", 0, 200, 210),
        ("1", "backward", 0, 210, 240),
    )
    found = schedule(kernels, transfers(("1", "p2p", 150, 50, 10, None)), {"1"})
    assert (found["step"], found["begin_ns"], found["length_us"]) == ("1", 100 * US, 140.0)
    assert found["passes"] == {
        "pass": ["forward", "forward", "backward"],
        "micro_batch": [0, 1, 0],
        "chunk": [None, None, None],
        "start_us": [0.0, 30.0, 100.0],
        "end_us": [20.0, 40.0, 140.0],
        "computing_us": [15.0, 10.0, 40.0],
    }
    assert found["waits"] == {"start_us": [50.0], "end_us": [90.0]}  # 150 to 200, the last 10 move bytes


def test_a_wait_is_cut_by_what_computes_beside_it():
    """Transfers wait from 0 to 60 and from 50 to 100 together; 20 to 30 and 90 to 95 compute."""
    kernels = placed(("1", "forward", 0, 20, 30), ("1", "backward", 0, 90, 95))
    rows = transfers(("1", "p2p", 0, 60, 0, None), ("1", "p2p", 50, 50, 0, None), ("1", "collective", 0, 500, 0, 500))
    found = schedule(kernels, rows, {"1"})
    assert found["waits"] == {"start_us": [-20.0, 10.0, 75.0], "end_us": [0.0, 70.0, 80.0]}


def test_the_first_judged_step_is_told():
    kernels = placed(*((step, "forward", 0, at, at + 10) for step, at in (("9", 0), ("10", 100), ("11", 200))))
    rows = transfers(*((step, "p2p", at, 20, 0, None) for step, at in (("9", 10), ("10", 110), ("11", 210))))
    found = schedule(kernels, rows, {"10", "11"})
    assert (found["step"], found["offset_us"]) == ("10", 100.0)
    assert schedule(kernels, rows, {"12"}) is None


@pytest.mark.parametrize(
    ("kernels", "rows"),
    [
        (None, transfers(("1", "p2p", 0, 9, 0, None))),
        (placed(("1", "forward", 0, 0, 9)), None),
        (placed(("1", "forward", 0, 0, 9)), transfers(("1", "collective", 0, 9, 0, 9))),
        (placed(("1", "forward", None, 0, 9)), transfers(("1", "p2p", 0, 9, 0, None))),
        (placed(("1", "forward", 0, 0, 9)).drop("micro_batch"), transfers(("1", "p2p", 0, 9, 0, None))),
    ],
)
def test_without_passes_or_transfers_there_is_no_schedule(kernels, rows):
    assert schedule(kernels, rows, {"1"}) is None


def true_passes(truth, step):
    """(pass, micro-batch, first start, last end) by construction, recomputation counted as backward."""
    own = [k for k in truth.kernels if k.step == step and not k.is_communication and k.micro_batch is not None]
    own = sorted((k for k in own if k.pass_ != "none"), key=lambda k: k.start_ns)
    turns = groupby(own, key=lambda k: ("forward" if k.pass_ == "forward" else "backward", k.micro_batch))
    listed = [(*key, list(kernels)) for key, kernels in turns]
    return [(way, mb, ks[0].start_ns, max(k.start_ns + k.duration_ns for k in ks)) for way, mb, ks in listed]


@pytest.mark.parametrize("name", ["1F1B", "deep 1F1B", "interleaved"])
@pytest.mark.parametrize("rank", [0, 1])
def test_passes_are_those_of_the_schedule(tmp_path, name, rank):
    truth = write_dump(tmp_path, rank=rank, steps=2, mode="torch", **SCHEDULES[name])
    report = build_report(truth.folder)
    entry = report["ranks"][0]
    found = entry["schedule"]
    passes = found["passes"]
    spec = GptSpec(**SCHEDULES[name])
    order = stage_order(spec, spec.stage(rank))
    assert list(zip(passes["pass"], passes["micro_batch"], strict=True)) == [unit[:2] for unit in order]
    told = [unit.chunk for unit in order] if spec.interleave > 1 else [None] * len(order)
    assert passes["chunk"] == told
    step = truth.steps[0].step
    assert found["step"] == step
    begin = found["begin_ns"]
    wanted = true_passes(truth, step)
    for start, end, (_way, _batch, first, last) in zip(passes["start_us"], passes["end_us"], wanted, strict=True):
        assert start == pytest.approx((first - begin) / US, abs=1)
        assert end == pytest.approx((last - begin) / US, abs=1)
    waits = sum(b - a for a, b in zip(found["waits"]["start_us"], found["waits"]["end_us"], strict=True))
    bubble = entry["steps"][0]["bubble_us"]
    assert 0.95 * bubble < waits <= bubble + 1  # those under a thousandth of the step are left out


def test_a_job_without_stages_has_no_schedule(tmp_path):
    truth = write_dump(tmp_path, steps=1, mode="torch", micro_batches=4, dp=2)
    assert build_report(truth.folder)["ranks"][0]["schedule"] is None


def passes(text, forward=1.0, backward=2.0):
    """Passes such as "F0 B0", with a chunk behind a point: "F0.1"."""
    found = {"pass": [], "micro_batch": [], "chunk": [], "start_us": [], "end_us": []}
    for at, word in enumerate(text.split()):
        batch, _, chunk = word[1:].partition(".")
        found["pass"].append("forward" if word[0] == "F" else "backward")
        found["micro_batch"].append(int(batch))
        found["chunk"].append(int(chunk) if chunk else None)
        found["start_us"].append(at * 100.0)
        found["end_us"].append(at * 100.0 + (forward if word[0] == "F" else backward))
    return found


def test_equal_stages_end_as_the_formula_says():
    """1F1B of 2 micro-batches on 2 stages: (m + p - 1) (F + B) = 3 x 3."""
    assert ideal_end_us([passes("F0 F1 B0 B1"), passes("F0 B0 F1 B1")]) == 9.0


def test_a_slow_stage_sets_the_pace():
    """Stage 1 needs 10 a pass: it begins at 1, makes 4 passes, and stage 0 has one backward pass of 2 left."""
    assert ideal_end_us([passes("F0 F1 B0 B1"), passes("F0 B0 F1 B1", 10.0, 10.0)]) == 43.0


def test_chunks_go_round_the_stages():
    """One micro-batch, two chunks: F on stages 0, 1, 0, 1, then B on 1, 0, 1, 0."""
    order = "F0.0 F0.1 B0.1 B0.0"
    assert ideal_end_us([passes(order), passes(order)]) == 4 * 1.0 + 4 * 2.0


@pytest.mark.parametrize("second", ["B0 F0", "F0 F0 B0", "F1 B1"])
def test_passes_that_fit_no_schedule_tell_no_end(second):
    assert ideal_end_us([passes("F0 B0"), passes(second)]) is None


def at(text):
    """Passes such as "F0 0-10", in us."""
    words = text.split()
    found = passes(" ".join(words[::2]))
    spans = [span.split("-") for span in words[1::2]]
    return {**found, "start_us": [float(a) for a, _ in spans], "end_us": [float(b) for _, b in spans]}


def test_passes_in_order_show_no_slip_of_clocks():
    stages = [at("F0 0-10 B0 40-60"), at("F0 10-20 B0 20-40")]
    assert slip_us(stages, [0.0, 0.0]) == 0.0


def test_a_pass_that_begins_before_its_input_has_ended_tells_how_far_clocks_differ():
    """Stage 1's clock is 7 us early: its forward begins at 3 while stage 0 ends at 10."""
    stages = [at("F0 0-10 B0 40-60"), at("F0 10-20 B0 20-40")]
    assert slip_us(stages, [0.0, -7.0]) == 7.0
    assert slip_us(stages, [0.0, 5.0]) == 5.0  # late: stage 0's backward begins before stage 1's has ended
