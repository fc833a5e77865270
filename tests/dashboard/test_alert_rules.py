from __future__ import annotations

import pytest

from dashboard.alerts.causes import Side, cause
from dashboard.alerts.rules import BY_METRIC, failed_items, regressed, told_once


@pytest.mark.parametrize(
    ("metric", "old", "new", "expected"),
    [
        ("cast_ratio", 0.03, 0.04, True),  # up by exactly one point
        ("cast_ratio", 0.03, 0.0399, False),
        ("cast_ratio", 0.0495, 0.0501, True),  # passes 5 %
        ("cast_ratio", 0.0495, 0.05, False),
        ("cast_ratio", 0.08, 0.085, False),  # was over 5 % already
        ("cast_ratio", 0.12, 0.03, False),
        ("mfu", 0.40, 0.388, True),  # 3 % of 0.40 is 0.012
        ("mfu", 0.40, 0.389, False),
        ("mfu", 0.22, 0.41, False),
        ("device_ratio", 0.90, 0.87, True),
        ("device_ratio", 0.90, 0.875, False),
        ("step_time_ns", 1_000_000_000, 1_030_000_000, True),
        ("step_time_ns", 1_000_000_000, 1_029_000_000, False),
        ("peak_memory_bytes", 40 * 2**30, 42 * 2**30, True),
        ("peak_memory_bytes", 40 * 2**30, 41 * 2**30, False),
        ("mfu", None, 0.3, False),
        ("mfu", 0.3, None, False),
        ("mfu", 0.0, 0.0, False),
    ],
)
def test_default_rules(metric, old, new, expected):
    assert regressed(BY_METRIC[metric], old, new) is expected


def test_an_item_counts_only_from_pass_to_fail():
    old = {"a": "pass", "b": "unknown", "c": "fail", "d": "pass"}
    assert failed_items(old, {"a": "fail", "b": "fail", "c": "fail", "d": "unknown"}) == ["a"]


def test_one_thing_is_told_once():
    assert told_once(["mfu", "step_time_ns"]) == ["mfu"]
    assert told_once(["step_time_ns", "item:graph_sink"]) == ["step_time_ns", "item:graph_sink"]
    assert told_once(["cast_ratio", "item:dtype_cast"]) == ["cast_ratio"]


def entry(rank=0, **fields):
    return {"rank": rank, **fields}


def step(total, computing, free):
    parts = {"computing_us": computing, "communication_not_overlapped_us": total - computing - free}
    return {"step_time_us": total, "free_us": free, **parts}


def test_the_cause_names_the_part_of_the_step_and_the_operator_that_grew():
    def types(cast):
        return [
            {"type": "Cast", "total_us": cast, "share": 0.1},
            {"type": "MatMul", "total_us": 50_000, "share": 0.9},
            {"type": "allreduce", "total_us": 9e9, "share": None},
        ]

    old = Side([entry(steps=[step(100_000, 80_000, 10_000)], op_types=types(3_000))], {"CANN": "8.2"})
    new = Side([entry(steps=[step(110_000, 89_000, 11_000)], op_types=types(12_000))], {"CANN": "8.3"})
    english, chinese = cause("mfu", old, new)
    assert english == (
        "A step takes 10 ms longer (100 ms -> 110 ms): 90 % of it is computing. "
        "Cast grew most: 9 ms a step more. Changed since then: CANN 8.2 -> 8.3."
    )
    assert chinese == (
        "单步变长 10 ms（100 ms -> 110 ms），其中 90 % 是计算。"
        "增长最多的算子是 Cast：每步多 9 ms。期间变化：CANN 8.2 -> 8.3。"
    )


def test_cast_is_counted_per_step_and_only_over_ranks_that_both_have():
    two_steps = [step(100_000, 80_000, 10_000)] * 2
    old = Side([entry(0, steps=two_steps, kernels={"cast_us": 4_000})])
    new = Side(
        [
            entry(0, steps=two_steps[:1], kernels={"cast_us": 8_000}),
            entry(1, steps=two_steps[:1], kernels={"cast_us": 90_000}),
        ]
    )
    assert cause("cast_ratio", old, new)[0] == "Cast takes 8 ms a step, before 2 ms."


def test_nothing_known_gives_no_sentence():
    assert cause("mfu", Side([]), Side([entry()])) == ("", "")
    assert cause("mfu", Side([entry(steps=None)]), Side([entry(steps=[])])) == ("", "")
    assert cause("peak_memory_bytes", Side([entry(memory=None)]), Side([entry()])) == ("", "")


def test_memory_names_the_rank_that_grew_most():
    old = Side([entry(rank, memory={"peak_reserved_bytes": 2**30}) for rank in (0, 1)])
    new = Side([entry(rank, memory={"peak_reserved_bytes": (2 + rank) * 2**30}) for rank in (0, 1)])
    assert cause("peak_memory_bytes", old, new)[0] == "Rank 1 grew most: 2.0 GiB more."


def test_cast_is_placed_in_the_blocks_where_it_grew_with_their_passes_together():
    def side(*rows):
        by_block = [{"part": part, "block": block, "pass": way, "total_us": us} for part, block, way, us in rows]
        return Side(
            [
                entry(
                    kernels={"cast_us": sum(row["total_us"] for row in by_block)},
                    facts={"casts": {"by_block": by_block}},
                )
            ]
        )

    old = side(("layer", "qkv", "forward", 1_000), ("head_loss", None, None, 500))
    new = side(
        ("layer", "attention_core", "forward", 3_000),
        ("layer", "attention_core", "backward", 5_000),
        ("layer", "qkv", "forward", 2_500),
        ("head_loss", None, None, 1_000),
    )
    assert cause("cast_ratio", old, new)[0] == (
        "Cast takes 11.5 ms a step, before 1.5 ms; most of it in Attention core (80 %), QKV (15 %)."
    )


def test_the_operator_that_grew_is_placed_and_counted_by_layer():
    def side(cann, step_us, *rows):
        places = [{"class": c, "part": "layer", "block": b, "total_us": us, "count": 8} for c, b, us in rows]
        facts = {"steps": 2, "places": places}
        types = [
            {"type": name, "total_us": sum(us for c, _, us in rows if c == kind), "share": 0.1}
            for name, kind in (("Cast", "cast"), ("MatMulV3", "matmul"))
        ]
        layers = {"layer_count": 4}
        steps = [step(step_us, step_us - 20_000, 10_000)] * 2
        return Side([entry(steps=steps, op_types=types, facts=facts, layers=layers)], {"CANN": cann})

    product = ("matmul", "qkv", 100_000)
    old = side("8.2", 100_000, product)
    new = side("8.3", 110_000, product, ("cast", "attention_core", 18_000), ("cast", "qkv", 2_000))
    english, chinese = cause("mfu", old, new)
    # 20 ms of Cast in two steps of four layers: 10 ms a step, 2.5 ms a layer
    assert english == (
        "A step takes 10 ms longer (100 ms -> 110 ms): 100 % of it is computing. Cast grew most: 10 ms a step more, "
        "most in Attention core (90 %), QKV (10 %); +2.5 ms a layer. Changed since then: CANN 8.2 -> 8.3."
    )
    assert "每步多 10 ms" in chinese
    assert "每层多 2.5 ms" in chinese
