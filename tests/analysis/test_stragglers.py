from __future__ import annotations

from math import cos, pi

import pytest

from analysis.checklist import Evidence
from analysis.cli import build_report
from analysis.config import ModelConfig
from analysis.findings import findings
from analysis.stragglers import cluster, compute_spread, slow_links, slow_ranks, theoretical_bubble
from analysis.synthetic import GptSpec, Moe, write_capture

NONE: dict[int, int] = {}


def rank(number, computing=800.0, free=100.0, collectives=(), **more):
    step = {
        "step": "1",
        "step_time_us": 10_000.0,
        "computing_us": computing,
        "free_us": free,
        "warmup": False,
        **more.pop("step", {}),
    }
    return {"rank": number, "steps": [step], "collectives": list(collectives), "facts": {"steps": 1}, **more}


def collectives(times, group="dp"):
    return [
        {"step": "1", "group": group, "name": f"hcom_allReduce__{n}", "elapse_us": us} for n, us in enumerate(times)
    ]


def test_rank_with_the_shortest_time_in_collectives_is_the_late_one():
    # In each of six collectives rank 2 stays 100 us, the others 1000 us, rank 1 700 us: the group waits 600 us for it.
    ranks = [
        rank(0, collectives=collectives([1000.0] * 6)),
        rank(1, collectives=collectives([700.0] * 6)),
        rank(2, computing=900.0, collectives=collectives([100.0] * 6)),
    ]
    assert slow_ranks(ranks, NONE) == [{"rank": 2, "kind": "compute", "excess_us": 3600.0, "votes": 6, "of": 6}]


def test_rank_that_idles_longer_is_late_because_of_its_host():
    ranks = [
        rank(n, free=300.0 if n == 1 else 100.0, collectives=collectives([100.0 if n == 1 else 900.0] * 5))
        for n in range(3)
    ]
    assert slow_ranks(ranks, NONE)[0]["kind"] == "host"


def test_nobody_is_named_when_all_come_together():
    assert slow_ranks([rank(n, collectives=collectives([1000.0 + n] * 20)) for n in range(4)], NONE) == []


def test_turns_of_being_last_are_no_slow_rank():
    order = [[100.0 if turn % 4 == n else 1000.0 for turn in range(8)] for n in range(4)]
    assert slow_ranks([rank(n, collectives=collectives(order[n])) for n in range(4)], NONE) == []


def test_two_ranks_need_more_than_a_coin_toss():
    times = {0: [100.0] * 3 + [1000.0] * 2, 1: [1000.0] * 3 + [100.0] * 2}
    assert slow_ranks([rank(n, collectives=collectives(times[n])) for n in (0, 1)], NONE) == []


def test_few_collectives_prove_nothing():
    ranks = [rank(n, collectives=collectives([100.0 if n else 900.0] * 4)) for n in range(3)]
    assert slow_ranks(ranks, NONE) == []


def test_groups_vote_for_themselves():
    ranks = [rank(n, collectives=collectives([100.0 if n == 3 else 900.0] * 6, group=f"g{n // 2}")) for n in range(4)]
    assert [row["rank"] for row in slow_ranks(ranks, NONE)] == [3]


def test_cost_below_one_percent_of_the_step_is_not_named():
    # 6 x 15 us = 90 us of a step of 10 000 us; each difference is over the noise limit against the longest
    times = {0: [300.0] * 6, 1: [115.0] * 6, 2: [100.0] * 6}
    assert slow_ranks([rank(n, collectives=collectives(times[n])) for n in range(3)], NONE) == []


def test_without_collectives_compute_alone_names_a_rank_of_its_stage():
    ranks = [rank(n, computing=1000.0 if n == 2 else 800.0) for n in range(4)]
    assert slow_ranks(ranks, NONE) == [{"rank": 2, "kind": "compute", "excess_us": 200.0, "votes": 0, "of": 0}]
    assert (
        slow_ranks([rank(n, computing=800.0 if n < 4 else 1000.0) for n in range(8)], {n: n // 4 for n in range(8)})
        == []
    )


def test_spread_of_compute_is_a_share_of_the_step():
    assert compute_spread([rank(0, computing=800.0), rank(1, computing=1400.0)]) == pytest.approx(0.06)
    assert compute_spread([rank(0)]) is None


def link(src, dst, bandwidth, size=2**24, **more):
    return {
        "src": src,
        "dst": dst,
        "link": "HCCS",
        "op": "allreduce",
        "size_bytes": size,
        "bandwidth_gbps": bandwidth,
        **more,
    }


def test_link_far_below_its_kind_is_slow():
    ranks = [rank(0, links=[link(0, 1, 20.0), link(0, 2, 19.0), link(0, 3, 12.0)])]
    slow = {"src": 0, "dst": 3, "within_group": None, "link": "HCCS", "bandwidth_gbps": 12.0, "typical_gbps": 19.0}
    assert slow_links(ranks) == [slow]


def test_links_of_other_size_or_kind_are_not_compared():
    links = [link(0, 1, 20.0), link(0, 2, 20.0), link(0, 3, 5.0, link="RDMA"), link(0, 4, 5.0, size=2**21)]
    assert slow_links([rank(0, links=links)]) == []


def test_small_transfers_and_own_memory_say_nothing_about_links():
    links = [link(0, n, speed, size=1000) for n, speed in ((1, 0.1), (2, 0.2), (3, 0.2))]
    links += [link(0, 0, 900.0), link(0, 1, 20.0), link(0, 2, 20.0)]
    assert slow_links([rank(0, links=links)]) == []


@pytest.mark.parametrize(
    ("pp", "micro", "chunks", "expected"),
    [(4, 8, None, 3 / 11), (4, 8, 2, 3 / 19), (1, 8, None, 0.0), (2, None, None, None), (None, 8, None, None)],
)
def test_bubble_of_the_schedule(pp, micro, chunks, expected):
    config = ModelConfig("m", pp=pp, micro_batches=micro, interleave=chunks)
    assert theoretical_bubble(Evidence([], config=config)) == (None if expected is None else pytest.approx(expected))


def test_bubble_of_uneven_stages_follows_the_one_with_most_layers():
    """A step of 32 micro-batches takes 32 x 12 + (40 - 12) layers' time, of which a stage works 32 x 10 on average."""
    config = ModelConfig("m", pp=4, micro_batches=32, stage_layers=((9, 10, 12, 9),))
    assert theoretical_bubble(Evidence([], config=config)) == pytest.approx(1 - 320 / 412)
    even = ModelConfig("m", pp=2, micro_batches=4, interleave=2, stage_layers=((5, 5), (5, 5)))
    assert theoretical_bubble(Evidence([], config=even)) == pytest.approx(1 / 9)


@pytest.mark.parametrize("missing", ["interleave", "stage_layers"])
def test_bubble_of_a_schedule_that_is_not_known_is_unknown(missing):
    config = ModelConfig("m", pp=4, micro_batches=8, missing=(missing,))
    assert theoretical_bubble(Evidence([], config=config)) is None


def test_micro_batches_seen_in_layers_serve_where_the_config_is_silent():
    ranks = [{"rank": 0, "layers": {"micro_batches": 2}}]
    assert theoretical_bubble(Evidence(ranks, {"parallel": {"pp": 2}})) == pytest.approx(1 / 3)


def test_the_bubble_of_a_capture_is_the_mean_over_its_ranks():
    ranks = [rank(0, step={"bubble_us": 2000.0}), rank(1, step={"bubble_us": 1000.0})]
    assert cluster(Evidence(ranks))["bubble"]["measured"] == pytest.approx(0.15)


def test_no_bubble_is_measured_without_traffic_between_stages():
    quiet = {"step": {"bubble_us": 0.0}}
    assert cluster(Evidence([rank(0, **quiet)]))["bubble"]["measured"] is None
    talks = rank(0, communication=[{"type": "p2p"}], **quiet)
    assert cluster(Evidence([talks]))["bubble"]["measured"] == 0.0


def test_a_bubble_is_never_more_than_the_communication_it_is_part_of():
    told = rank(0, step={"bubble_us": 50_000.0, "communication_not_overlapped_us": 900.0})
    assert cluster(Evidence([told]))["bubble"]["measured"] == pytest.approx(0.09)


def test_stages_are_blocks_of_ranks():
    ranks = [rank(n, computing=1000.0 if n < 2 else 500.0) for n in range(4)]
    found = cluster(Evidence(ranks, {"parallel": {"pp": 2}, "world_size": 4}))["stages"]
    assert [(row["stage"], row["ranks"], row["computing_us"]) for row in found] == [(0, 2, 1000.0), (1, 2, 500.0)]


def test_thousand_ranks_are_told_apart_in_seconds():
    slow = 637
    ranks = [rank(n, collectives=collectives([100.0 if n == slow else 900.0] * 100, f"g{n // 8}")) for n in range(1000)]
    found = cluster(Evidence(ranks))
    assert [row["rank"] for row in found["slow_ranks"]] == [slow]


def test_nothing_known():
    found = cluster(Evidence([]))
    assert found == {
        "slow_ranks": [],
        "slow_links": [],
        "compute_spread_ratio": None,
        "bubble": {"measured": None, "theory": None},
        "stages": [],
        "expert_load": None,
    }


def test_load_of_experts_is_that_of_the_shapes(tmp_path):
    """Eight layers on four expert parallel ranks; rank r gets 1 + 0.6 cos(2 pi (r + l / 2) / 4) of 2048 x 2 tokens."""
    spec = GptSpec(layers=8, moe=Moe(8, 2, 512, uneven=0.6), ep=4, dp=4, mode="torch")
    write_capture(tmp_path, spec, steps=2)
    found = build_report(tmp_path)
    rows = found["cluster"]["expert_load"]["ranks"]
    wanted = [sum(round(4096 * (1 + 0.6 * cos(2 * pi * (r + layer / 2) / 4))) for layer in range(8)) for r in range(4)]
    assert [row["tokens"] for row in rows] == wanted
    assert [row["ratio"] for row in rows] == [round(n / (sum(wanted) / 4), 4) for n in wanted]
    layers = found["ranks"][1]["facts"]["expert_tokens"]["layers"]
    assert layers[0] == {"layer": 0, "tokens": 2 * 4096}
    assert all(row["id"] != "expert_load" for row in found["findings"])


def test_a_rank_with_hot_experts_is_named():
    facts = [{"steps": 2, "expert_tokens": {"total": total}} for total in (4000, 1000, 1000, 2000)]
    ranks = [{"rank": n, "steps": [], "facts": fact} for n, fact in enumerate(facts)]
    load = cluster(Evidence(ranks))["expert_load"]
    assert load["ratio"] == 2.0
    assert [row["tokens"] for row in load["ranks"]] == [2000, 500, 500, 1000]
    (row,) = (row for row in findings(Evidence(ranks)) if row["id"] == "expert_load")
    assert "2.0 times" in row["summary"] and "2.0 倍" in row["summary_zh"]
    assert [each["rank"] for each in row["evidence"]] == [0, 3, 1, 2]
    assert cluster(Evidence(ranks[:1]))["expert_load"] is None
