"""The pipeline's bubble of each step, and the parts of a step that come from it."""

from __future__ import annotations

import json
from itertools import pairwise

import polars as pl
import pytest

from analysis.breakdown import steps_from_kernels
from analysis.cli import build_report
from analysis.pipeline import Bubbles, bubbles
from analysis.schema import COMMUNICATION_COLUMNS, KERNEL_COLUMNS, polars_schema
from tests.dumps import OUTPUT, write_dump, write_job

US = 1000


def transfers(*rows):
    """Rows of (step, kind, start, elapse, transit, wait), in us."""
    table = [
        {"step": step, "type": kind, "start_ns": ns(start), "elapse_ns": ns(elapse), "transit_ns": ns(transit),
         "wait_ns": ns(wait)}
        for step, kind, start, elapse, transit, wait in rows
    ]  # fmt: skip
    return pl.DataFrame(table, schema=polars_schema(COMMUNICATION_COLUMNS))


def ns(us):
    return None if us is None else us * US


def computing(*spans):
    rows = [{"kind": "compute", "start_ns": a * US, "duration_ns": (b - a) * US} for a, b in spans]
    return pl.DataFrame(rows, schema=polars_schema(KERNEL_COLUMNS))


def test_a_transfer_waits_before_its_bytes_move_and_compute_beside_it_is_no_bubble():
    """100 to 200 us, the last 20 move bytes; compute runs from 0 to 130 and from 150 to 160: 80 - 30 - 10."""
    found = bubbles(transfers(("1", "p2p", 100, 100, 20, None)), computing((0, 130), (150, 160)), "communication.json")
    assert found == Bubbles({"1": 40 * US}, {"1": 100 * US}, frozenset(), "communication.json")


def test_waits_beside_each_other_count_once_and_collectives_not_at_all():
    """Send 0 to 50 and receive 30 to 100 wait 100 us together; another step waits 7."""
    rows = transfers(
        ("1", "p2p", 0, 50, 0, 50),
        ("1", "p2p", 30, 70, 0, None),
        ("1", "collective", 200, 900, 0, 900),
        ("2", "p2p", 500, 9, 2, None),
    )
    assert bubbles(rows, None, "f").waits == {"1": 100 * US, "2": 7 * US}


def test_the_wait_serves_where_the_time_of_the_bytes_is_unknown():
    assert bubbles(transfers((None, "p2p", 0, 50, None, 45)), None, "f").waits == {None: 45 * US}


@pytest.mark.parametrize("row", [("1", "p2p", None, 50, 0, 50), ("1", "p2p", 0, 50, None, None)])
def test_transfers_without_a_start_or_a_wait_measure_nothing(row):
    found = bubbles(transfers(row, ("1", "p2p", 100, 50, 0, 50), ("2", "p2p", 200, 50, 0, 50)), None, "f")
    assert (found.waits, found.untold) == ({"2": 50 * US}, {"1"})


def hidden(start, end, others):
    """How much of [start, end] the other spans cover, by walking their edges."""
    edges = sorted({start, end, *(min(max(edge, start), end) for span in others for edge in span)})
    return sum(b - a for a, b in pairwise(edges) if any(low <= a and b <= high for low, high in others))


def waited_ns(truth, step):
    """The bubble by construction: what is wait of the transfers, less compute beside it."""
    own = [k for k in truth.kernels if k.step == step and not k.is_communication]
    compute = [(k.start_ns, k.start_ns + k.duration_ns) for k in own]
    waits = [(op.start_ns, op.start_ns + op.wait_ns) for op in truth.communication if op.p2p and op.step == step]
    assert all(end <= start for (_, end), (start, _) in pairwise(sorted(waits)))
    near = [[span for span in compute if span[1] > low and span[0] < high] for low, high in waits]
    return sum(high - low - hidden(low, high, spans) for (low, high), spans in zip(waits, near, strict=True))


SCHEDULES = {
    "1F1B": {"pp": 2, "micro_batches": 4},
    "deep 1F1B": {"layers": 4, "pp": 4, "micro_batches": 8},
    "interleaved": {"layers": 4, "pp": 2, "interleave": 2, "micro_batches": 4},
    "zero bubble": {"pp": 2, "micro_batches": 4, "defer_wgrad": True, "dp": 2},
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("rank", [0, 1])
def test_each_step_has_the_bubble_of_its_schedule(tmp_path, schedule, rank):
    truth = write_dump(tmp_path, rank=rank, steps=2, mode="torch", **schedule)
    report = build_report(truth.folder)
    for step, told in zip(report["ranks"][0]["steps"], truth.steps, strict=True):
        expected = waited_ns(truth, told.step) / US
        assert expected > 0
        assert step["bubble_us"] == pytest.approx(expected, rel=1e-3)  # starts are rounded to 0.25 us
        assert step["bubble_source"] == "communication.json"
        assert step["bubble_us"] <= told.bubble_ns / US  # the profiler counts the time of the bytes as well


def test_the_parts_of_a_step_add_up_and_bubble_is_no_communication(tmp_path):
    truth = write_dump(tmp_path, steps=1, mode="torch", layers=4, pp=4, micro_batches=4, dp=2)
    report = build_report(truth.folder)
    step, found = report["ranks"][0]["steps"][0], report["bottleneck"]
    losses = {row["kind"]: row["us"] for row in found["losses"]}
    assert losses["bubble"] == step["bubble_us"]
    assert losses["communication"] == pytest.approx(step["communication_not_overlapped_us"] - step["bubble_us"])
    assert step["computing_us"] + sum(losses.values()) == pytest.approx(step["step_time_us"], abs=0.01)
    assert found["verdict"] == "pipeline"
    assert report["cluster"]["bubble"]["measured"] == pytest.approx(step["bubble_us"] / step["step_time_us"], rel=1e-4)


def test_without_transfers_the_profilers_own_bubble_serves(tmp_path):
    truth = write_dump(tmp_path, steps=1, mode="torch", pp=2, micro_batches=4)
    (truth.folder / OUTPUT / "communication.json").unlink()
    (step,) = build_report(truth.folder)["ranks"][0]["steps"]
    assert (step["bubble_us"], step["bubble_source"]) == (truth.steps[0].bubble_ns / US, "step_trace_time.csv")


def test_a_bubble_of_zero_is_unknown_where_transfers_tell_nothing(tmp_path):
    """The profiler counts no bubble where one operation sends and receives."""
    truth = write_dump(tmp_path, steps=1, mode="torch", pp=2, micro_batches=4)
    steps, told = truth.folder / OUTPUT / "step_trace_time.csv", truth.folder / OUTPUT / "communication.json"
    header, row = steps.read_text().splitlines()[:2]
    cells = dict(zip(header.split(","), row.split(","), strict=True)) | {"Bubble": "0"}
    steps.write_text(f"{header}\n{','.join(cells.values())}\n")
    content = json.loads(told.read_text())
    for operation in content["step10"]["p2p"].values():
        times = operation["Communication Time Info"]
        del times["Transit Time(ms)"], times["Wait Time(ms)"], operation["Communication Bandwidth Info"]
    told.write_text(json.dumps(content))
    report = build_report(truth.folder)
    step = report["ranks"][0]["steps"][0]
    assert (step["bubble_us"], step["bubble_source"]) == (None, None)
    assert report["cluster"]["bubble"]["measured"] is None


@pytest.mark.parametrize(("told", "source"), [(1.0, "communication.json"), (1.2, "step_trace_time.csv")])
def test_a_file_that_holds_only_some_transfers_is_not_believed(tmp_path, told, source):
    """The profiler counts all of the time in kernels that receive: more than the file's transfers last, some are
    missing."""
    truth = write_dump(tmp_path, steps=1, mode="torch", pp=2, micro_batches=4)
    inside = sum(op.elapse_ns for op in truth.communication if op.p2p) / US
    steps = truth.folder / OUTPUT / "step_trace_time.csv"
    header, row = steps.read_text().splitlines()[:2]
    cells = dict(zip(header.split(","), row.split(","), strict=True)) | {"Bubble": str(inside * told)}
    cells["Communication(Not Overlapped)"] = str(inside * 2)
    steps.write_text(f"{header}\n{','.join(cells.values())}\n")
    (step,) = build_report(truth.folder)["ranks"][0]["steps"]
    assert step["bubble_source"] == source


def test_every_rank_of_a_job_measures_its_own(tmp_path):
    truths = write_job(tmp_path, steps=1, mode="torch", pp=2, micro_batches=4)
    report = build_report(tmp_path)
    for entry, truth in zip(report["ranks"], truths, strict=True):
        assert entry["steps"][0]["bubble_us"] == pytest.approx(waited_ns(truth, truth.steps[0].step) / US, abs=0.01)


def test_steps_of_kernels_alone_know_of_no_bubble():
    kernels = computing((0, 10)).with_columns(step=pl.lit("1"))
    assert steps_from_kernels(kernels)["bubble_ns"].to_list() == [None]


@pytest.mark.real
def test_bubble_of_a_real_pipeline_by_hand(dumps):
    """Times of the three transfers of a step in communication.json (ms), less that of their bytes over HCCS."""
    report = build_report(dumps / "msinsight-llm-pp2dp2")
    first, second = (
        (0.43614 + 158.55328 - 0.40168 + 154.88838 - 0.4007),
        (0.43518 + 164.09654 - 0.40182 + 158.44884 - 0.40068),
    )
    assert [entry["steps"][0]["bubble_us"] for entry in report["ranks"]] == pytest.approx(
        [first * 1e3, second * 1e3], abs=0.02
    )
    losses = {row["kind"]: row["us"] for row in report["bottleneck"]["losses"]}
    assert losses == pytest.approx(
        {"bubble": first * 1e3, "communication": 420174.26 - first * 1e3, "free": 158558.0}, abs=0.02
    )
    assert report["bottleneck"]["verdict"] == "pipeline"
    share = (first / 810.02236 + second / 809.43166) / 2
    assert report["cluster"]["bubble"]["measured"] == pytest.approx(share, abs=1e-5)
