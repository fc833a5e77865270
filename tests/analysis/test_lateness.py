"""What a late rank costs the others: the union of what each waits, not the sum."""

from __future__ import annotations

import polars as pl
import pytest

from analysis.communication import arrivals
from analysis.dump import find_dumps
from analysis.entries import step_time_us
from analysis.lateness import excess_us, groups_of
from analysis.rank import read_rank
from analysis.schema import COMMUNICATION_COLUMNS, KERNEL_COLUMNS, polars_schema
from analysis.stragglers import slow_ranks
from analysis.synthetic import GptSpec, write_capture


def rank(number, *groups, exposed=None):
    step = {"step": "1", "step_time_us": 10_000.0, "communication_not_overlapped_us": exposed}
    return {"rank": number, "steps": [step], "arrivals": list(groups), "facts": {"steps": 1}}


def group(name, *visits, ids=None, step="1"):
    """visits: (start, elapse) or (start, elapse, blocked)."""
    return {
        "step": step,
        "group": name,
        "ids": ids or list(range(len(visits))),
        "start_us": [visit[0] for visit in visits],
        "elapse_us": [visit[1] for visit in visits],
        "blocked_us": [visit[-1] for visit in visits],
    }


def excess(late, *ranks):
    return excess_us(ranks, groups_of(ranks), late)


def test_waits_in_two_groups_at_once_are_lost_once():
    # rank 1 waits for rank 0 from 0 to 900 in one group, from 400 to 1000 in the other: 1000 us, not 1500
    ranks = [
        rank(0, group("tp", (900.0, 100.0)), group("dp", (1000.0, 50.0))),
        rank(1, group("tp", (0.0, 1000.0)), group("dp", (400.0, 650.0))),
    ]
    assert excess(0, *ranks) == 1000.0


def test_ranks_that_wait_side_by_side_lose_the_time_once():
    ranks = [rank(n, group("dp", (900.0, 100.0) if n == 0 else (300.0 - n, 700.0 + n))) for n in range(4)]
    assert excess(0, *ranks) == 601.0  # the last but one, rank 1, stays 701 us


def test_wait_under_compute_is_not_lost():
    # rank 1 is in the collective for 1000 us but computes until 250 us before its end, of which 100 us are transit
    ranks = [rank(0, group("dp", (0.0, 100.0))), rank(1, group("dp", (0.0, 1000.0, 250.0)))]
    assert excess(0, *ranks) == 150.0


def test_loss_is_the_mean_of_the_steps():
    both = [
        rank(0, group("dp", (0.0, 100.0), step="1"), group("dp", (0.0, 100.0), step="2")),
        rank(1, group("dp", (0.0, 700.0), step="1"), group("dp", (0.0, 300.0), step="2")),
    ]
    assert excess(0, *both) == 400.0


def test_no_more_is_lost_than_communication_that_nothing_hides():
    ranks = [rank(0, group("dp", (0.0, 100.0))), rank(1, group("dp", (0.0, 1000.0)), exposed=700.0)]
    assert excess(0, *ranks) == 700.0


def test_collectives_are_matched_by_name_where_a_rank_misses_some():
    ranks = [
        rank(0, group("dp", (0.0, 500.0), (600.0, 100.0), ids=[7, 8])),
        rank(1, group("dp", (0.0, 900.0), ids=[8])),
    ]
    assert excess(0, *ranks) == 800.0


def test_slow_links_of_time_without_start_follow_one_another():
    told = [{"step": "1", "group": "dp", "name": f"n{i}", "elapse_us": us} for i, us in enumerate((1000.0, 800.0))]
    fast = [{**row, "elapse_us": 100.0} for row in told]
    ranks = [{"rank": 0, "steps": [], "collectives": fast}, {"rank": 1, "steps": [], "collectives": told}]
    assert excess(0, *ranks) == 900.0 + 700.0


def communication(*rows):
    frame = pl.DataFrame([{"type": "collective", "group": "g", **row} for row in rows])
    absent = [pl.lit(None, kind).alias(k) for k, kind in polars_schema(COMMUNICATION_COLUMNS).items() if k not in frame]
    return frame.with_columns(absent)


def kernels(*spans):
    frame = pl.DataFrame([{"kind": "compute", "start_ns": a, "duration_ns": b - a} for a, b in spans])
    absent = [pl.lit(None, kind).alias(k) for k, kind in polars_schema(KERNEL_COLUMNS).items() if k not in frame]
    return frame.with_columns(absent)


def test_collective_blocks_from_the_end_of_the_last_kernel_that_began_in_it():
    table = communication(
        {"step": "1", "name": "a", "start_ns": 1000, "elapse_ns": 4000},  # to 5000; the kernel to 3000: 2000 left
        {"step": "1", "name": "b", "start_ns": 6000, "elapse_ns": 2000},  # to 8000, a kernel runs on: nobody waits
        {"step": "1", "name": "c", "start_ns": 20_000, "elapse_ns": 1000},  # alone
    )
    found = arrivals(table, kernels((500, 3000), (7000, 9000)), {"1"})
    assert [(row["start_us"], row["elapse_us"], row["blocked_us"]) for row in found] == [
        ([0.0, 5.0, 19.0], [4.0, 2.0, 1.0], [2.0, 0.0, 1.0])
    ]


def test_warm_up_is_left_out_and_steps_are_kept_whole(monkeypatch):
    monkeypatch.setattr("analysis.communication.MAX_ARRIVALS", 3)
    rows = [{"step": str(n // 2), "name": f"c{n}", "start_ns": n * 100, "elapse_ns": 50} for n in range(6)]
    found = arrivals(communication(*rows), None, {"1", "2"})
    assert [(row["step"], len(row["ids"])) for row in found] == [("1", 2)]


@pytest.mark.parametrize("overlap", [True, False])
def test_slow_rank_costs_what_its_compute_takes_longer(tmp_path, overlap):
    # Two tensor parallel pairs share data parallel groups: rank 1 holds up rank 0 directly, ranks 2 and 3 through both.
    spec = GptSpec(
        layers=8, tp=2, dp=2, sequence_parallel=True, overlap_grad_sync=overlap, step_us=400_000, jitter=0.0, seed=5
    )
    truths = write_capture(tmp_path, spec, slow={1: 1.15})
    extra = truths[1].steps[0].computing_ns - truths[0].steps[0].computing_ns
    entries = [read_rank(dump).entry for dump in find_dumps(tmp_path)]
    (found,) = slow_ranks(entries, {})
    assert (found["rank"], found["kind"]) == (1, "compute")
    assert found["excess_us"] == pytest.approx(extra / 1000, rel=0.05)
    assert found["excess_us"] < step_time_us(entries[0])


@pytest.mark.parametrize(("groups", "judged"), [(10, True), (11, False)])
def test_groups_known_by_three_digits_alone_vote_where_they_are_few(groups, judged):
    """Of eleven groups two may well have the same digits, and then are taken for one."""
    row = {"step": "1", "ids": [1], "start_us": [0.0], "elapse_us": [500.0], "blocked_us": [500.0]}
    ranks = [{"rank": rank, "arrivals": [{**row, "group": str(100 + n)} for n in range(groups)]} for rank in (0, 1)]
    assert len(groups_of(ranks)) == (groups if judged else 0)
    whole = [{"rank": rank, "arrivals": [{**row, "group": f"{10**12 + n}"} for n in range(11)]} for rank in (0, 1)]
    assert len(groups_of(whole)) == 11
