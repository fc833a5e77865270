from __future__ import annotations

import pytest

from analysis.savings import Saving, fix_first, union_us


def rank(combos=(), free=200.0, exposed=100.0, mfu=0.4, steps=1):
    step = {
        "step": "1",
        "step_time_us": 1000.0,
        "free_us": free,
        "communication_not_overlapped_us": exposed,
        "warmup": False,
    }
    recovery = [{"marks": list(marks), "us": us} for marks, us in combos]
    return {"rank": 0, "steps": [step], "facts": {"steps": steps, "recovery": recovery}, "flops": {"mfu": mfu}}


def saving(name, us, source="finding"):
    return Saving(name, source, us, name, name)


def test_shared_kernels_count_once():
    # constant work 30 us, of which 10 are casts; casts 60 us in all
    ranks = [rank([(["constant_work"], 20.0), (["constant_work", "dtype_cast"], 10.0), (["dtype_cast"], 50.0)])]
    assert union_us(ranks, [saving("constant_work", 30.0)]) == pytest.approx(30.0)
    assert union_us(ranks, [saving("constant_work", 30.0), saving("dtype_cast", 60.0)]) == pytest.approx(80.0)


def test_saving_of_a_part_of_its_kernels_weighs_them_evenly():
    # half of 60 us of casts: 25 of the lone 50, and of the shared 10 all, since constant work saves those wholly
    ranks = [rank([(["constant_work", "dtype_cast"], 10.0), (["dtype_cast"], 50.0)])]
    assert union_us(ranks, [saving("constant_work", 10.0), saving("dtype_cast", 30.0)]) == pytest.approx(35.0)


def test_sums_of_a_capture_are_per_step():
    assert union_us([rank([(["ai_cpu"], 40.0)], steps=4)], [saving("ai_cpu", 10.0)]) == pytest.approx(10.0)


def test_causes_of_free_time_and_of_waiting_are_not_added_up():
    ranks = [rank(free=200.0, exposed=100.0)]
    free = [saving("graph_sink", 100.0), saving("synchronize", 60.0)]
    assert union_us(ranks, free) == 100.0
    assert union_us(ranks, [saving("exposed_communication", 90.0), saving("slow_rank", 500.0)]) == 100.0
    assert union_us(ranks, [*free, saving("slow_rank", 70.0)]) == 170.0


def test_ranked_list_and_the_mfu_it_leads_to():
    checklist = {
        "items": [
            {"id": "graph_sink", "status": "fail", "recoverable_us": 100.0, "summary": "free", "summary_zh": "空闲"},
            {"id": "dtype_cast", "status": "pass", "recoverable_us": 900.0, "summary": "cast"},
            {"id": "fused_attention", "status": "fail", "recoverable_us": None, "summary": "attention"},
        ]
    }
    findings = [{"id": "ai_cpu", "recoverable_us": 150.0, "summary": "ai cpu"}]
    found = fix_first([rank([(["ai_cpu"], 150.0)])], checklist, findings)
    assert [item["id"] for item in found["items"]] == ["ai_cpu", "graph_sink"]
    assert [item["combined_us"] for item in found["items"]] == [150.0, 250.0]
    assert found["items"][0]["mfu_after"] == pytest.approx(0.4 * 1000 / 850)
    assert found["recoverable_us"] == 250.0
    assert found["mfu_after"] == pytest.approx(0.4 / 0.75)


def test_a_saving_that_nobody_would_see_is_nothing_to_fix_first():
    """0.2 us of a step of 1000 us are 0.02 %, 0.05 us are not even 0.01 %."""
    findings = [
        {"id": "ai_cpu", "summary": "a", "recoverable_us": 0.2},
        {"id": "small_packets", "summary": "b", "recoverable_us": 0.05},
    ]
    ranks = [rank([(["ai_cpu"], 0.2)])]
    assert [item["id"] for item in fix_first(ranks, {"items": []}, findings)["items"]] == ["ai_cpu"]


def test_mfu_past_the_peak_is_not_promised():
    found = fix_first([rank([(["ai_cpu"], 900.0)])], {}, [{"id": "ai_cpu", "recoverable_us": 900.0, "summary": "x"}])
    assert found["items"][0]["mfu_after"] is None


def test_nothing_to_fix_or_nothing_known():
    assert fix_first([rank()], {}, [])["items"] == []
    assert fix_first([], {}, [])["mfu_after"] is None
