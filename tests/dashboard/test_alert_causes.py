from __future__ import annotations

from dashboard.alerts.causes import Side, cause


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
    why = cause("mfu", old, new)
    assert why.english == (
        "90 % of it is Cast, first seen with CANN 8.3 (8.2 before). "
        "A step takes 10 ms longer (100 ms → 110 ms), 90 % of it computing."
    )
    assert why.chinese == (
        "其中 90 % 是 Cast，首次出现于 CANN 8.3（之前 8.2）。单步变长 10 ms（100 ms → 110 ms），其中计算占 90 %。"
    )
    assert why.evidence == {"rank": 0, "type": "Cast", "block": ""}


def test_a_longer_bubble_is_not_called_communication():
    old = Side([entry(steps=[{**step(100_000, 50_000, 10_000), "bubble_us": 10_000}])])
    new = Side([entry(steps=[{**step(120_000, 50_000, 10_000), "bubble_us": 30_000}])])
    why = cause("mfu", old, new)
    assert "100 % of it waiting for other pipeline stages" in why.english
    assert "等待其他流水线阶段占 100 %" in why.chinese


def test_cast_is_counted_per_step_and_only_over_ranks_that_both_have():
    two_steps = [step(100_000, 80_000, 10_000)] * 2
    old = Side([entry(0, steps=two_steps, kernels={"cast_us": 4_000})])
    new = Side(
        [
            entry(0, steps=two_steps[:1], kernels={"cast_us": 8_000}),
            entry(1, steps=two_steps[:1], kernels={"cast_us": 90_000}),
        ]
    )
    assert cause("cast_ratio", old, new).english == "Cast takes 8 ms a step, 2 ms before."


def test_nothing_known_gives_no_sentence():
    for metric, old, new in (
        ("mfu", [], [entry()]),
        ("mfu", [entry(steps=None)], [entry(steps=[])]),
        ("peak_memory_bytes", [entry(memory=None)], [entry()]),
        ("cast_ratio", [entry()], [entry()]),
    ):
        why = cause(metric, Side(old), Side(new))
        assert (why.english, why.chinese) == ("", "")


def test_what_changed_is_told_even_where_nothing_else_is_known():
    why = cause("mfu", Side([], {"CANN": "8.2", "mode": ""}), Side([], {"CANN": "8.3", "mode": "graph"}))
    assert why.english == "First seen with CANN 8.3 (8.2 before)."
    assert why.chinese == "首次出现于 CANN 8.3（之前 8.2）。"


def test_memory_names_the_rank_that_grew_most():
    old = Side([entry(rank, memory={"peak_reserved_bytes": 2**30}) for rank in (0, 1)])
    new = Side([entry(rank, memory={"peak_reserved_bytes": (2 + rank) * 2**30}) for rank in (0, 1)])
    assert cause("peak_memory_bytes", old, new).english == "Rank 1 grew most, by 2.0 GiB."


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
    # 8 of the 10 ms that it grew
    assert cause("cast_ratio", old, new).english == (
        "Cast takes 11.5 ms a step, 1.5 ms before; 80 % of the growth is in Attention core."
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
    why = cause("mfu", old, new)
    # Of 20 ms of Cast in two steps, 18 stand in the attention core of four layers: 9 ms a step, 2.25 ms a layer.
    assert why.english == (
        "90 % of it is Cast in Attention core, +2.25 ms a layer, first seen with CANN 8.3 (8.2 before). "
        "A step takes 10 ms longer (100 ms → 110 ms), 100 % of it computing."
    )
    assert why.chinese.startswith("其中 90 % 是注意力核心中的 Cast，每层多 2.25 ms，首次出现于 CANN 8.3（之前 8.2）。")
    assert why.evidence == {"rank": 0, "type": "Cast", "block": "attention_core"}


def test_the_evidence_is_the_rank_whose_step_grew_most():
    old = Side([entry(rank, steps=[step(100, 80, 10)]) for rank in (0, 1, 2)])
    new = Side([entry(rank, steps=[step(total, 80, 10)]) for rank, total in ((0, 110), (1, 130), (2, 120))])
    assert cause("mfu", old, new).evidence == {"rank": 1}


def test_operators_are_told_where_no_step_is_longer():
    def side(us):
        return Side([entry(op_types=[{"type": "MatMulV3", "total_us": us, "share": 1.0}])])

    assert cause("device_ratio", side(1_000), side(3_000)).english == "MatMulV3 grew most, by 2 ms a step."
