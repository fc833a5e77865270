from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.compare import compare, step_time_change


def step(computing, exposed, free, bubble=0.0):
    parts = {
        "computing_us": computing,
        "communication_not_overlapped_us": exposed,
        "free_us": free,
        "bubble_us": bubble,
    }
    return {"step": "1", "step_time_us": computing + exposed + free, "warmup": False, **parts}


def rank(steps, number=0, ops=(), parts=(), **more):
    types = [{"type": t, "core": core, "total_us": us, "count": 2} for t, core, us in ops]
    return {
        "rank": number,
        "steps": steps,
        "op_types": types,
        "layers": {"parts": list(parts)},
        "facts": {"steps": len(steps)},
        **more,
    }


def report(*ranks, **more):
    return {"source": {}, "ranks": list(ranks), **more}


def part(layer, blocks, name="layer"):
    rows = [{"block": block, "total_us": us, "kernel_count": 1} for block, us in blocks.items()]
    return {
        "part": name,
        "layer": layer,
        "pass": "forward",
        "total_us": sum(blocks.values()),
        "kernel_count": 1,
        "blocks": rows,
    }


BEFORE = report(
    rank(
        [step(700.0, 200.0, 100.0, bubble=50.0)],
        ops=[("MatMulV3", "AI_CORE", 500.0), ("Cast", "AI_VECTOR_CORE", 200.0), ("hcom_allReduce_", "HCCL", 300.0)],
        parts=[
            part(0, {"qkv": 300.0, "communication": 100.0}),
            part(1, {"qkv": 300.0}),
            part(None, {"optimizer": 100.0}, "optimizer"),
        ],
    )
)
AFTER = report(
    rank(
        [step(520.0, 150.0, 80.0, bubble=10.0)],
        ops=[("MatMulV3", "AI_CORE", 480.0), ("Muls", "AI_VECTOR_CORE", 50.0), ("hcom_allReduce_", "HCCL", 200.0)],
        parts=[part(0, {"qkv": 200.0}), part(1, {"qkv": 210.0}), part(None, {"optimizer": 100.0}, "optimizer")],
    )
)


def test_contributions_of_a_change_by_hand():
    found = step_time_change(BEFORE, AFTER)
    assert found["change_us"] == -250.0
    assert {row["kind"]: row["us"] for row in found["contributions"]} == {
        "computing": -180.0,
        "communication": -10.0,  # 150 -> 140 without bubble
        "bubble": -40.0,
        "free": -20.0,
    }
    assert sum(row["share"] for row in found["contributions"]) == pytest.approx(1.0)


def test_computing_is_split_three_ways_that_each_add_up():
    computing = step_time_change(BEFORE, AFTER)["contributions"][0]
    by = computing["by"]
    assert [(row["type"], row["us"]) for row in by["op_type"]] == [
        ("Cast", -200.0),
        ("Muls", 50.0),
        ("MatMulV3", -20.0),
        (None, -10.0),  # kernels ran beside each other: they sum to more than computing
    ]
    assert [(row["layer"], row["us"]) for row in by["layer"]] == [(0, -100.0), (1, -90.0), (None, 10.0)]
    assert [(row["block"], row["us"]) for row in by["block"]] == [("qkv", -190.0), (None, 10.0)]
    assert by["place"] == []
    for name in ("op_type", "layer", "block"):
        assert sum(row["us"] for row in by[name]) == pytest.approx(computing["us"])


def test_median_step_is_compared_not_the_mean():
    before = report(rank([step(100.0, 0.0, 0.0), step(110.0, 0.0, 0.0), step(900.0, 0.0, 0.0)]))
    after = report(rank([step(100.0, 0.0, 0.0), step(130.0, 0.0, 20.0), step(140.0, 0.0, 0.0), step(200.0, 0.0, 0.0)]))
    # median of after: mean of the steps of 140 and 150 -> 135 computing, 10 free
    found = step_time_change(before, after)
    assert found["change_us"] == pytest.approx(145.0 - 110.0)
    assert [(row["kind"], row["us"]) for row in found["contributions"] if row["us"]] == [
        ("computing", 25.0),
        ("free", 10.0),
    ]


def test_what_a_breakdown_does_not_fill_is_unaccounted():
    lonely = {"step": "1", "step_time_us": 900.0, "warmup": False}
    found = step_time_change(BEFORE, report(rank([lonely])))
    assert found["contributions"] == [{"kind": "unaccounted", "us": -100.0, "share": 1.0}]
    gap = {**step(500.0, 100.0, 100.0), "step_time_us": 750.0}
    found = step_time_change(BEFORE, report(rank([gap])))
    assert sum(row["us"] for row in found["contributions"]) == found["change_us"] == -250.0
    assert found["contributions"][-1]["kind"] == "unaccounted"


TIMES = st.integers(0, 10**9).map(lambda ns: ns / 1000)
STEPS = st.lists(st.builds(step, TIMES, TIMES, TIMES, TIMES), min_size=1, max_size=5)
OPS = st.lists(st.tuples(st.sampled_from(["Add", "Cast", "MatMul"]), st.just("AI_CORE"), TIMES), max_size=5)


CAUSES = st.lists(st.tuples(st.sampled_from(["launch_gap", "sync", "gc", "unknown"]), TIMES), max_size=4)
EXPOSED = st.lists(
    st.tuples(st.sampled_from(["layer", "gradient_sync", "other"]), st.sampled_from(["allReduce", "sendRecv"]), TIMES),
    max_size=4,
)


def holey(steps, ops, layers, places, exposed, causes, lost):
    """A rank of which some tables are not there: absent, null or empty."""
    entry = rank(steps, ops=ops, parts=[part(n, {"qkv": us, "communication": us / 2}) for n, us in enumerate(layers)])
    entry["facts"]["places"] = [{"class": c, "part": "layer", "block": "qkv", "total_us": us} for c, _, us in places]
    entry["facts"]["exposed"] = [{"part": p, "op": op, "total_us": us, "exposed_us": us / 2} for p, op, us in exposed]
    entry["free_time"] = {"by_cause": [{"cause": cause, "us": us, "share": None} for cause, us in causes]}
    for name, how in lost.items():
        entry[name] = how
    for one in entry["steps"][1:]:
        one["warmup"] = len(one["step"]) > 1
    return entry


LOST = st.dictionaries(
    st.sampled_from(["op_types", "layers", "facts", "free_time", "communication"]),
    st.sampled_from([None, {}]),
    max_size=3,
)
LAYERS = st.lists(TIMES, max_size=6)
HOLEY = st.builds(holey, STEPS, OPS, LAYERS, OPS, EXPOSED, CAUSES, LOST)
CAPTURES = st.lists(HOLEY, min_size=1, max_size=3).map(lambda ranks: report(*ranks))


@settings(max_examples=200, deadline=None)
@given(CAPTURES, CAPTURES)
def test_contributions_always_add_up(before, after):
    """Whatever the numbers of ranks, steps and layers, and whichever tables one side lacks."""
    found = step_time_change(before, after)
    if found["change_us"] is None:
        return
    close = pytest.approx(found["change_us"], abs=1e-3)
    assert sum(row["us"] for row in found["contributions"]) == close
    for row in found["contributions"]:
        for split in row.get("by", {}).values():
            assert not split or sum(part["us"] for part in split) == pytest.approx(row["us"], abs=1e-3)
            assert not split or all(value is None for key, value in split[-1].items() if key != "us")


@settings(max_examples=100, deadline=None)
@given(CAPTURES, CAPTURES)
def test_every_table_tells_the_whole_change(before, after):
    """Changes of a table are those of its sums, null exactly where a side knows nothing of it; nothing is NaN."""
    found = compare([before, after])
    json.dumps(found, allow_nan=False)
    for name in ("layers", "blocks", "places", "op_types", "communication"):
        for row in found[name]:
            known = None not in row["us"]
            assert (row["changes_us"][0] is not None) == known
            assert not known or row["changes_us"][0] == pytest.approx(row["us"][1] - row["us"][0], abs=1e-6)


def test_a_split_by_what_communication_is_for_by_hand():
    """Exposed 150 a step before (30 of it bubble), 100 after (10): 120 and 90. Of that, reductions went from 60 to 20,
    exchange in layers from 50 to 55; transfers are the bubble. 5 of the change nobody tells."""
    kinds = [("gradient_sync", "allReduce"), ("layer", "allGather"), ("other", "sendRecv")]

    def entry(exposed, bubble, times):
        steps = [step(500.0, exposed, 100.0, bubble)] * 2
        found = [{"part": p, "op": op, "exposed_us": 2 * us} for (p, op), us in zip(kinds, times, strict=True)]
        return report(rank(steps, facts={"steps": 2, "exposed": found}))

    found = step_time_change(entry(150.0, 30.0, [60.0, 50.0, 30.0]), entry(100.0, 10.0, [20.0, 55.0, 10.0]))
    (row,) = (row for row in found["contributions"] if row["kind"] == "communication")
    assert row["us"] == -30.0
    assert row["by"]["purpose"] == [
        {"part": "gradient_sync", "op": "allReduce", "us": -40.0},
        {"part": "layer", "op": "allGather", "us": 5.0},
        {"part": None, "op": None, "us": 5.0},
    ]


def test_a_split_of_free_time_by_cause_by_hand():
    def entry(free, **causes):
        found = [{"cause": cause, "us": us} for cause, us in causes.items()]
        return report(rank([step(500.0, 100.0, free)], free_time={"by_cause": found}))

    found = step_time_change(entry(100.0, gc=60.0, launch_gap=40.0), entry(70.0, launch_gap=45.0, sync=20.0))
    (row,) = (row for row in found["contributions"] if row["kind"] == "free")
    assert row["by"]["cause"] == [
        {"cause": "gc", "us": -60.0},
        {"cause": "sync", "us": 20.0},
        {"cause": "launch_gap", "us": 5.0},
        {"cause": None, "us": 5.0},
    ]
    unknown = step_time_change(entry(100.0, gc=60.0), report(rank([step(500.0, 100.0, 70.0)])))
    assert next(row for row in unknown["contributions"] if row["kind"] == "free")["by"] == {"cause": []}


def test_slowest_rank_stands_for_its_capture():
    after = report(rank([step(700.0, 0.0, 0.0)], 0), rank([step(1300.0, 0.0, 0.0)], 5))
    found = step_time_change(BEFORE, after)
    assert (found["change_us"], found["rank"]) == (300.0, 5)


def test_unknown_step_time_gives_no_contributions():
    assert step_time_change(BEFORE, report(rank([])))["change_us"] is None
    assert step_time_change(report(), report())["contributions"] == []


def metric(found, name):
    return next(row for row in found["metrics"] if row["name"] == name)


def test_metrics_know_which_way_is_better():
    found = compare([BEFORE, AFTER])
    row = metric(found, "step_time_us")
    assert row["values"] == [1000.0, 750.0]
    assert row["changes"][0] == {"absolute": -250.0, "relative": -0.25, "better": True, "refused": None}
    assert metric(found, "device_ratio")["changes"][0]["better"] is False  # 90 % -> 89.3 %
    assert metric(found, "mfu")["changes"][0]["absolute"] is None


def test_mfu_of_other_denominators_is_not_compared():
    def with_flops(**flops):
        return report(rank([step(1.0, 0.0, 0.0)], flops={"mfu": 0.4, "formula": "megatron_causal", **flops}))

    same, other = with_flops(peak_tflops=353.9), with_flops(peak_tflops=376.0)
    assert metric(compare([same, same]), "mfu")["changes"][0]["absolute"] == 0.0
    row = metric(compare([same, other]), "mfu")["changes"][0]
    assert row["absolute"] is None
    assert row["refused"] == "peak_tflops differs: 353.9 and 376.0"


def test_operators_of_one_side_only_count_as_nothing_there():
    rows = {row["type"]: row for row in compare([BEFORE, AFTER])["op_types"]}
    assert (rows["Cast"]["us"], rows["Cast"]["changes_us"], rows["Cast"]["counts"]) == (
        [200.0, 0.0],
        [-200.0],
        [2.0, 0.0],
    )
    assert rows["Muls"]["us"] == [0.0, 50.0]


def test_side_without_operators_is_unknown():
    rows = compare([BEFORE, report(rank([step(1.0, 0.0, 0.0)]))])["op_types"]
    assert all(row["us"][1] is None and row["changes_us"] == [None] for row in rows)


def test_layers_are_given_per_step_already():
    one = rank([step(1.0, 0.0, 0.0)] * 2, parts=[part(0, {"qkv": 30.0})])
    assert compare([report(one), report(one)])["layers"][0]["us"] == [30.0, 30.0]


def test_tables_are_means_over_ranks_per_step():
    two_steps = rank([step(1.0, 0.0, 0.0)] * 2, 0, ops=[("Add", "AI_VECTOR_CORE", 40.0)])
    other = rank([step(1.0, 0.0, 0.0)], 1, ops=[("Add", "AI_VECTOR_CORE", 10.0)])
    rows = compare([report(two_steps, other), report(other)])["op_types"]
    assert rows[0]["us"] == [15.0, 10.0]  # (40 / 2 + 10) / 2


def test_checklist_config_environment_and_findings():
    before = {
        **BEFORE,
        "checklist": {
            "items": [{"id": "dtype_cast", "status": "fail", "value": 0.12}, {"id": "graph_sink", "status": "pass"}]
        },
        "findings": [{"id": "ai_cpu", "severity": "high", "recoverable_us": 9.0}],
        "config": {"hidden": 64, "tp": 1},
        "source": {
            "cann_version": "8.2",
            "soc": "Ascend910B2",
            "environment": {"HCCL_ALGO": "x"},
            "parallel": {"tp": 1},
        },
    }
    after = {
        **AFTER,
        "checklist": {
            "items": [{"id": "dtype_cast", "status": "pass", "value": 0.03}, {"id": "graph_sink", "status": "fail"}]
        },
        "config": {"hidden": 64, "tp": 2},
        "source": {"cann_version": "8.3", "soc": "Ascend910B2", "parallel": {"tp": 2}},
    }
    found = compare([before, after])
    assert [(row["id"], row["turned"]) for row in found["checklist"]] == [
        ("dtype_cast", ["fixed"]),
        ("graph_sink", ["broken"]),
    ]
    assert found["config"] == [{"key": "tp", "values": [1, 2]}]
    assert [(row["key"], row["values"]) for row in found["environment"]] == [
        ("HCCL_ALGO", ["x", None]),
        ("cann_version", ["8.2", "8.3"]),
        ("parallel.tp", [1, 2]),
    ]
    assert found["findings"] == [{"id": "ai_cpu", "severities": ["high", None], "recoverable_us": [9.0, None]}]
    assert json.loads(json.dumps(found, allow_nan=False))["metrics"]


def test_three_reports_are_each_compared_with_the_first():
    found = compare([BEFORE, AFTER, BEFORE])
    assert [row["index"] for row in found["step_time"]] == [1, 2]
    assert [row["change_us"] for row in found["step_time"]] == [-250.0, 0.0]
    assert metric(found, "step_time_us")["values"] == [1000.0, 750.0, 1000.0]


def test_one_report_is_not_a_comparison():
    with pytest.raises(ValueError, match="two reports"):
        compare([BEFORE])


def test_reports_with_holes():
    holes = {"ranks": [{}, {"steps": None, "op_types": None, "layers": None}]}
    assert compare([holes, {}])["step_time"][0]["change_us"] is None


def placed(*rows):
    names = ("class", "part", "block", "total_us")
    return {"steps": 2, "places": [{**dict(zip(names, row, strict=True)), "count": 4} for row in rows]}


def test_computing_is_split_by_class_and_the_block_it_serves():
    # Two steps: Cast in attention grows by 60/2, products shrink by 10/2; the step's computing grows by 28, 3 are left.
    before = report(rank([step(700.0, 0.0, 0.0)], facts=placed(("matmul", "layer", "qkv", 1000.0))))
    cast = ("cast", "layer", "attention_core", 60.0)
    after = report(rank([step(728.0, 0.0, 0.0)], facts=placed(("matmul", "layer", "qkv", 990.0), cast)))
    rows = step_time_change(before, after)["contributions"][0]["by"]["place"]
    assert [(row["class"], row["block"], row["us"]) for row in rows] == [
        ("cast", "attention_core", 30.0),
        ("matmul", "qkv", -5.0),
        (None, None, 3.0),
    ]
    table = compare([before, after])["places"]
    assert [(row["class"], row["us"], row["changes_us"]) for row in table] == [
        ("cast", [0.0, 30.0], [30.0]),
        ("matmul", [500.0, 495.0], [-5.0]),
    ]
