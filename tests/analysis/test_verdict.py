from __future__ import annotations

import pytest

from analysis.verdict import bottleneck, capture_bottleneck


def step(computing, exposed, free, bubble=0.0, **more):
    total = computing + exposed + free
    return {
        "step": "1",
        "step_time_us": total,
        "computing_us": computing,
        "communication_not_overlapped_us": exposed,
        "free_us": free,
        "bubble_us": bubble,
        "warmup": False,
        **more,
    }


@pytest.mark.parametrize(
    ("computing", "exposed", "free", "verdict"),
    [
        (70.0, 0.0, 30.0, "scheduling"),
        (70.1, 0.0, 29.9, "mostly_scheduling"),
        (85.0, 0.0, 15.0, "mostly_scheduling"),
        (85.1, 8.0, 6.9, "compute"),
        (90.0, 10.0, 0.0, "compute"),
        (85.0, 14.9, 0.1, "compute"),
        (80.0, 15.0, 5.0, "communication"),
        (80.0, 14.0, 6.0, "mixed"),
        (60.0, 15.0, 25.0, "mostly_scheduling"),
        (30.0, 40.0, 30.0, "communication"),
    ],
)
def test_verdict_at_its_limits(computing, exposed, free, verdict):
    assert bottleneck([step(computing, exposed, free)])["verdict"] == verdict


@pytest.mark.parametrize(
    ("exposed", "bubble", "free", "verdict"),
    [
        (30.0, 15.0, 10.0, "communication"),
        (30.0, 16.0, 10.0, "pipeline"),
        (30.0, 14.9, 29.0, "mostly_scheduling"),  # neither of the two is the largest loss
        (29.0, 14.9, 10.0, "mixed"),
        (15.0, 90.0, 5.0, "pipeline"),  # never more than the communication it is part of
    ],
)
def test_waiting_for_other_stages_is_a_loss_of_its_own(exposed, bubble, free, verdict):
    assert bottleneck([step(100.0 - exposed - free, exposed, free, bubble)])["verdict"] == verdict


def test_losses_are_disjoint_and_largest_first():
    found = bottleneck([step(50.0, 31.0, 19.0, bubble=12.0), step(50.0, 31.0, 19.0, bubble=8.0)])
    assert found["losses"] == [
        {"kind": "communication", "us": 21.0, "share": 0.21},
        {"kind": "free", "us": 19.0, "share": 0.19},
        {"kind": "bubble", "us": 10.0, "share": 0.1},
    ]


def test_waiting_for_data_is_an_input_verdict():
    found = bottleneck([step(60.0, 0.0, 40.0, data_wait_us=30.0)])
    assert found["verdict"] == "input"
    assert found["losses"][0] == {"kind": "input", "us": 30.0, "share": 0.3}
    assert bottleneck([step(60.0, 0.0, 40.0)], queue_empty_ratio=0.3)["verdict"] == "input"


def test_warmup_and_steps_of_unknown_length_are_left_out():
    slow = step(1.0, 0.0, 99.0, warmup=True)
    unknown = {"step": "2", "step_time_us": None, "free_us": None}
    assert bottleneck([slow, unknown, step(95.0, 5.0, 0.0)])["verdict"] == "compute"


def test_nothing_known_is_no_verdict():
    assert bottleneck([]) == {"verdict": None, "losses": []}
    assert capture_bottleneck([]) == {"verdict": None, "losses": []}


def test_capture_is_as_fast_as_its_slowest_rank():
    fast = {"rank": 0, "steps": [step(95.0, 5.0, 0.0)]}
    slow = {"rank": 3, "steps": [step(95.0, 5.0, 60.0)]}
    found = capture_bottleneck([fast, slow])
    assert (found["verdict"], found["rank"]) == ("scheduling", 3)


def test_parts_that_are_no_numbers_count_as_nothing():
    odd = {"step_time_us": 100.0, "computing_us": 95.0, "free_us": 5.0, "communication_not_overlapped_us": "x"}
    found = bottleneck([odd, {**odd, "free_us": None}, {**odd, "step_time_us": True}, {**odd, "bubble_us": True}])
    assert found["verdict"] == "compute"
    assert found["losses"] == [{"kind": "free", "us": 5.0, "share": 0.05}]


@pytest.mark.parametrize(("empty", "verdict"), [(1.0, "input"), (0.3, "input"), (0.29, None), (None, None)])
def test_an_empty_queue_is_an_input_verdict_even_where_no_step_is_taken_apart(empty, verdict):
    unknown = {"step": "1", "step_time_us": 100.0, "free_us": None, "warmup": False}
    assert bottleneck([unknown], queue_empty_ratio=empty) == {"verdict": verdict, "losses": []}
