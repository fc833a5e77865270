from __future__ import annotations

import json
from dataclasses import replace

import pytest

from analysis.checklist import (
    CHECKS,
    Evidence,
    attention_mask,
    dtype_cast,
    ffn_parallel,
    fused_attention,
    graph_sink,
    precision_regression,
    run_checklist,
    warmup_mfu,
    weight_alignment,
)
from analysis.config import ModelConfig

IDS = [
    "dtype_cast", "graph_sink", "fused_attention", "ffn_parallel",
    "attention_mask", "weight_alignment", "warmup_mfu", "precision_regression",
]  # fmt: skip


def step(total=1000.0, free=100.0, **more):
    return {"step": "2", "step_time_us": total, "free_us": free, "computing_us": total - free, "warmup": False, **more}


def rank(number=0, *, cast=None, compute=1000.0, steps=(), facts=None, flops=None):
    ratio = None if cast is None else cast / compute
    return {
        "rank": number,
        "steps": list(steps),
        "kernels": {"cast_us": cast, "compute_us": compute, "cast_ratio": ratio},
        "facts": {"steps": 1, **(facts or {})},
        "flops": flops or {},
    }


def series(losses, norms=None):
    norms = norms or [1.0] * len(losses)
    pairs = enumerate(zip(losses, norms, strict=True), 1)
    return [{"step": number, "loss": loss, "global_norm": norm} for number, (loss, norm) in pairs]


# --- all eight


def test_the_eight_items_in_order_and_nothing_known():
    found = run_checklist(Evidence([]))
    assert [item["id"] for item in found["items"]] == IDS
    assert (found["passed"], found["failed"], found["unknown"], found["score"]) == (0, 0, 8, None)


def test_every_item_speaks_english_and_chinese_and_is_json():
    for item in run_checklist(Evidence([rank(cast=100.0, steps=[step()])]))["items"]:
        for key in ("summary", "advice"):
            assert item[key] and item[key].isascii(), (item["id"], key)
            assert any("\u4e00" <= letter <= "\u9fff" for letter in item[key + "_zh"]), (item["id"], key)
        assert json.loads(json.dumps(item, allow_nan=False)) == item


def test_score_counts_only_what_is_known():
    # Cast 3 % passes, device ratio 50 % fails, warm-up fails for lack of MFU; the other five are unknown.
    found = run_checklist(Evidence([rank(cast=30.0, steps=[step(free=500.0)])]))
    assert (found["passed"], found["failed"], found["unknown"]) == (1, 2, 5)
    assert found["score"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("check", CHECKS)
def test_entries_with_holes_never_break_a_check(check):
    holes = [{}, {"rank": 1, "steps": None, "kernels": None, "facts": None, "flops": None}, {"rank": 2, "steps": [{}]}]
    assert check(Evidence(holes, {}, ModelConfig("m"), {}, [{}], [{}])).status in ("unknown", "fail")


# --- 1 dtype_cast


@pytest.mark.parametrize(("cast", "status"), [(49.9, "pass"), (50.0, "fail"), (117.0, "fail")])
def test_cast_share_of_all_ranks(cast, status):
    item = dtype_cast.check(Evidence([rank(0, cast=cast), rank(1, cast=cast)]))
    assert item.status == status
    assert item.value == pytest.approx(cast / 1000)


def test_cast_weighs_ranks_by_their_compute_and_names_the_worst():
    item = dtype_cast.check(Evidence([rank(0, cast=10.0, compute=3000.0), rank(7, cast=100.0, compute=1000.0)]))
    assert item.value == pytest.approx(110 / 4000)
    assert item.evidence[0]["rank"] == 7


def test_cast_without_layers_could_win_what_is_over_the_limit():
    assert dtype_cast.check(Evidence([rank(cast=120.0)])).recoverable_us == pytest.approx(70.0)


def test_cast_with_layers_could_win_what_norms_and_loss_do_not_need():
    facts = {"steps": 2, "casts": {"removable_us": 90.0, "by_dtype": [{"from": "FLOAT", "to": "DT_BF16"}]}}
    item = dtype_cast.check(Evidence([rank(cast=120.0, facts=facts)]))
    assert item.recoverable_us == 45.0
    assert {"kind": "dtype_pair", "from": "FLOAT", "to": "DT_BF16"} in item.evidence


def test_cast_is_unknown_without_types():
    item = dtype_cast.check(Evidence([rank(cast=None)]))
    assert (item.status, item.value) == ("unknown", None)
    assert "Level1" in item.advice.en


# --- 2 graph_sink


@pytest.mark.parametrize(
    ("run", "free", "status"),
    [
        ({"mode": "graph", "sink": True}, 149.0, "pass"),
        ({"mode": "graph", "sink": True}, 150.0, "fail"),
        ({"mode": "pynative", "sink": True}, 100.0, "fail"),
        ({"mode": "graph", "sink": False}, 100.0, "fail"),
        ({"mode": "graph"}, 100.0, "unknown"),
        ({}, 100.0, "unknown"),
        ({}, 300.0, "fail"),
    ],
)
def test_graph_sink(run, free, status):
    assert graph_sink.check(Evidence([rank(steps=[step(free=free)])], run=run)).status == status


def test_graph_sink_takes_mode_from_config_then_from_names():
    config = ModelConfig("m", mode="graph", sink=True)
    launch = {"launch": {"mode": "pynative", "sink": None, "why": "aclnn names"}}
    ranks = [rank(steps=[step(free=50.0)], facts=launch)]
    assert graph_sink.check(Evidence(ranks, config=config)).status == "pass"
    item = graph_sink.check(Evidence(ranks))
    assert item.status == "fail"
    assert item.evidence[0]["text"] == "aclnn names"


@pytest.mark.parametrize(("free", "status"), [(149.0, "pass"), (150.0, "fail")])
def test_on_torch_the_device_ratio_alone_decides(free, status):
    launch = {"launch": {"mode": "pynative", "sink": None, "why": "no graph model id"}}
    item = graph_sink.check(Evidence([rank(steps=[step(free=free)], facts=launch)], source={"framework": "torch_npu"}))
    assert item.status == status
    assert "eager" in item.summary.en and "TASK_QUEUE_ENABLE" in item.advice.en
    assert "sink" not in item.summary.en + item.advice.en


@pytest.mark.parametrize("item", [dtype_cast, graph_sink, fused_attention, ffn_parallel, attention_mask])
def test_advice_is_in_the_words_of_the_framework(item):
    """MindSpore's switches have no meaning for torch_npu, and the other way round."""
    mindspore, torch = item._ADVICE, item._ADVICE_TORCH
    assert not any(
        word in torch.en for word in ("compute_type", "context mode", "use_attn_mask_compression", "MindSpore")
    )
    assert not any(word in mindspore.en for word in ("npu_", "--", "torch"))
    evidence = Evidence([], source={"framework": "torch_npu"})
    assert evidence.advice(mindspore, torch) is torch
    assert Evidence([], source={"framework": "mindspore"}).advice(mindspore, torch) is mindspore


def test_graph_sink_could_win_free_time_above_ten_percent():
    assert graph_sink.check(Evidence([rank(steps=[step(free=350.0)])])).recoverable_us == pytest.approx(250.0)


def test_graph_sink_is_unknown_without_step_time():
    assert graph_sink.check(Evidence([rank()], run={"mode": "pynative"})).status == "unknown"


# --- 3 fused_attention


def attention(fused=0, unfused=0, length=4096, **more):
    return {"attention": {"fused_count": fused, "unfused_count": unfused, "sequence_length": length, **more}}


def test_fused_attention():
    item = fused_attention.check(Evidence([rank(facts=attention(fused=28, fused_us=900.0))]))
    assert (item.status, item.value) == ("pass", 1.0)
    assert "4096" in item.summary.en


def test_unfused_attention_fails_and_could_win_half():
    facts = {"steps": 2, **attention(fused=1, unfused=3, fused_us=100.0, unfused_us=300.0)}
    item = fused_attention.check(Evidence([rank(facts=facts)]))
    assert (item.status, item.value, item.recoverable_us) == ("fail", 0.25, 75.0)


def test_no_attention_is_unknown():
    assert fused_attention.check(Evidence([rank(facts=attention())])).status == "unknown"


# --- 4 ffn_parallel

CONFIG = ModelConfig(
    "m", hidden=1024, ffn=4096, gated=True, seq_length=512, micro_batch=1, tp=4, dp=1, pp=1, cp=1, ep=1
)


def product(m, n, k, us=10.0):
    return {"type": "MatMulV2", "m": m, "n": n, "k": k, "total_us": us}


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [
        ((512, 1024, 1024), "split as configured"),  # forward: 4096 / 4 columns
        ((512, 2048, 1024), "split as configured"),  # gate and up in one matrix
        ((1024, 1024, 512), "split as configured"),  # gradient of the weight
        ((512, 4096, 1024), "not split over TP 4"),
        ((512, 4096, 256), "split along hidden instead of the FFN width"),
        ((512, 999, 1024), None),
    ],
)
def test_how_one_product_splits_the_ffn(sizes, verdict):
    assert ffn_parallel.judge_matmul(product(*sizes), CONFIG) == verdict


def test_attention_projections_are_not_taken_for_the_ffn():
    # Here hidden = width / TP = 1024: a square of that size has no axis of tokens, and a named block is believed.
    assert ffn_parallel.judge_matmul(product(1024, 1024, 1024), CONFIG) is None
    assert ffn_parallel.judge_matmul({**product(512, 1024, 1024), "block": "attention_out"}, CONFIG) is None


def test_ffn_split_as_configured():
    facts = {"matmuls": [product(512, 1024, 1024)], "collectives": ops(allReduce=4)}
    item = ffn_parallel.check(Evidence([rank(facts=facts)], config=CONFIG))
    assert (item.status, item.value) == ("pass", 1.0)


def test_ffn_not_split_fails_with_its_share():
    facts = {"matmuls": [product(512, 1024, 1024, 30.0), product(512, 4096, 1024, 10.0)]}
    item = ffn_parallel.check(Evidence([rank(facts=facts)], config=CONFIG))
    assert (item.status, item.value) == ("fail", 0.75)


def ops(in_layers=0, **counts):
    return {"types_known": True, "ops": [{"op": op, "count": n, "in_layers": in_layers} for op, n in counts.items()]}


def with_split(**split):
    sizes = {"tp": 1, "ep": 1, "cp": 1, **split}
    return ModelConfig("m", **sizes)


@pytest.mark.parametrize(
    ("facts", "config", "faults"),
    [
        (ops(allReduce=4), with_split(tp=2), 0),
        (ops(allGather=4, reduceScatter=4), with_split(tp=2), 0),
        (ops(allGather=4), with_split(tp=2), 1),
        (ops(allReduce=4), with_split(ep=8), 1),
        (ops(allToAll=4), with_split(ep=8), 0),
        (ops(in_layers=3, allReduce=3), with_split(), 1),
        (ops(in_layers=0, allReduce=3), with_split(), 0),
        ({"types_known": False, "ops": []}, with_split(tp=2), 0),
    ],
)
def test_collectives_a_split_needs(facts, config, faults):
    assert len(ffn_parallel.collective_faults(facts, config)) == faults


def test_ffn_is_unknown_without_config_or_shapes():
    assert ffn_parallel.check(Evidence([rank()])).status == "unknown"
    assert ffn_parallel.check(Evidence([rank()], config=CONFIG)).status == "unknown"


def test_the_ffns_split_is_unknown_where_the_configs_is():
    config = replace(CONFIG, tp=None, missing=("tp",))
    item = ffn_parallel.check(Evidence([rank(facts={"matmuls": [product(1024, 1024, 1024)]})], config=config))
    assert (item.status, item.summary.en) == ("unknown", "The parallel split of this run is not known.")
    assert ffn_parallel.judge_matmul(product(1024, 512, 1024), config) is None


# --- 5 attention_mask


def mask(shape, dtype="BOOL", length=4096, **more):
    return {"mask": {"operands": [{"shape": shape, "dtype": dtype, "count": 8}], "sequence_length": length, **more}}


@pytest.mark.parametrize(
    ("shape", "dtype", "status"),
    [
        ([2048, 2048], "BOOL", "pass"),
        ([1, 1, 4096, 4096], "DT_UINT8", "pass"),
        ([8, 1, 4096, 4096], "BOOL", "pass"),
        ([4096, 4096], "BOOL", "pass"),
        ([1, 16, 4096, 4096], "BOOL", "fail"),
        ([1, 1, 1024, 1024], "BOOL", "fail"),
        ([1, 1, 4096, 4096], "FLOAT16", "fail"),
    ],
)
def test_mask_shape_and_dtype(shape, dtype, status):
    assert attention_mask.check(Evidence([rank(facts=mask(shape, dtype))])).status == status


def test_mask_rebuilt_in_every_layer_fails_with_its_cost():
    facts = {"steps": 2, **mask([1, 1, 4096, 4096], rebuilt=True, builders_us=80.0, builders=[{"type": "Less"}])}
    item = attention_mask.check(Evidence([rank(facts=facts)]))
    assert (item.status, item.recoverable_us) == ("fail", 40.0)


def test_invisible_mask_is_unknown():
    assert attention_mask.check(Evidence([rank(facts={"mask": {"operands": []}})])).status == "unknown"


# --- 6 weight_alignment


@pytest.mark.parametrize(
    ("layer", "aligned"),
    [
        ({"aligned": False, "cosine": 1.0}, False),
        ({"cosine": 0.995, "max_absolute_error": 0.5}, True),
        ({"cosine": 0.98, "max_absolute_error": 0.0005}, True),
        ({"cosine": 0.98, "max_absolute_error": 0.002}, False),
        ({"cosine": 0.89, "max_absolute_error": 0.0}, False),
        ({"cosine": 1.0, "max_absolute_error": 1.5}, False),
        ({"max_relative_error": 0.009}, True),
        ({"max_relative_error": 0.02}, False),
        ({}, None),
        ({"cosine": 0.95}, False),  # an error that nobody measured is not an error of 0
        ({"cosine": 0.995}, True),
    ],
)
def test_when_a_layer_is_aligned(layer, aligned):
    assert weight_alignment.aligned(layer) is aligned


def test_attached_alignment_passes_or_names_the_layer():
    good, bad = {"name": "layers.0", "cosine": 0.9999}, {"name": "layers.1", "cosine": 0.5}
    assert weight_alignment.check(Evidence([], run={"alignment": {"layers": [good]}})).status == "pass"
    item = weight_alignment.check(Evidence([], run={"alignment": {"layers": [good, bad]}}))
    assert (item.status, item.value) == ("fail", 0.5)
    assert item.evidence[1]["name"] == "layers.1"
    assert item.summary.en.endswith("The first that differs: layers.1.")


def test_alignment_found_beside_a_dump_counts_all_its_outputs():
    found = {"tool": "MindStudio Probe", "compared": 100, "differing": 1, "layers": [{"name": "x", "aligned": False}]}
    item = weight_alignment.check(Evidence([rank(facts={"alignment": found})]))
    assert (item.status, item.value) == ("fail", 0.99)


def test_nothing_attached_is_unknown():
    assert weight_alignment.check(Evidence([rank()])).status == "unknown"


# --- 7 warmup_mfu


def test_mfu_with_judged_steps_passes():
    flops = {"mfu": 0.4, "formula": "megatron_causal", "peak_tflops": 353.9}
    item = warmup_mfu.check(Evidence([rank(steps=[step(warmup=True), step()], flops=flops)]))
    assert (item.status, item.value) == ("pass", 0.4)
    assert item.evidence[0] == {"kind": "steps", "profiled": 2, "judged": 1, "warmup": 1, "logged": 0}


def test_a_step_of_many_ranks_is_one_step():
    """Four ranks profiled the same three steps, one of them for warm-up; the fifth sent none."""
    ranks = [rank(steps=[step(warmup=True), step(), step()]) for _ in range(4)] + [rank()]
    item = warmup_mfu.check(Evidence(ranks))
    assert item.evidence[0] == {"kind": "steps", "profiled": 3, "judged": 2, "warmup": 1, "logged": 0}
    assert "2 of 3 profiled steps" in item.summary.en


def test_only_warmup_steps_fail():
    assert warmup_mfu.check(Evidence([rank(steps=[step(warmup=True)], flops={"mfu": 0.4})])).status == "fail"


def test_unrecorded_mfu_says_what_is_missing():
    config = ModelConfig("m", missing=("hidden", "layers"))
    item = warmup_mfu.check(Evidence([rank(steps=[step()])], config=config))
    assert item.status == "fail"
    assert [row["text"] for row in item.evidence[1:]][0] == "config lacks hidden, layers"


@pytest.mark.parametrize(
    ("flops", "why", "why_zh"),
    [
        ({"peak_tflops": 294.9, "devices": None}, "number of devices is unknown", "卡数未知"),
        (
            {"peak_tflops": 294.9, "error": "the config splits over 8 devices, the run has 2"},
            "the config splits over 8 devices, the run has 2",
            "配置按 8 张卡切分",
        ),
        ({"peak_tflops": None, "devices": 8}, "peak of the chip is unknown", "芯片峰值未知"),
    ],
)
def test_unrecorded_mfu_says_why_in_its_sentence(flops, why, why_zh):
    item = warmup_mfu.check(Evidence([rank(steps=[step()], flops=flops)], config=ModelConfig("m")))
    assert f"MFU is not recorded: {why}" in item.summary.en
    assert f"未记录 MFU：{why_zh}" in item.summary.zh
    assert [row["text"] for row in item.evidence[1:]] == [item.summary.en.split("recorded: ")[1].removesuffix(".")]


def test_no_steps_is_unknown():
    assert warmup_mfu.check(Evidence([rank()])).status == "unknown"


# --- 8 precision_regression


def test_same_losses_pass():
    item = precision_regression.check(Evidence([], series=series([2.0] * 100), reference=series([2.0] * 100)))
    assert (item.status, item.value) == ("pass", 0.0)


@pytest.mark.parametrize(("loss", "status"), [(2.03, "pass"), (2.05, "fail")])
def test_mean_relative_loss_difference_of_two_percent(loss, status):
    item = precision_regression.check(Evidence([], series=series([loss] * 100), reference=series([2.0] * 100)))
    assert item.status == status
    assert item.value == pytest.approx(loss / 2 - 1)


def test_drift_fails_although_the_mean_is_small():
    # first half equal, second half 1.5 % away: mean 0.75 %, drift 1.5 %
    losses = [2.0] * 50 + [2.03] * 50
    item = precision_regression.check(Evidence([], series=series(losses), reference=series([2.0] * 100)))
    assert item.status == "fail"
    assert item.evidence[0]["mean"] == pytest.approx(0.0075)
    assert item.evidence[0]["drift"] == pytest.approx(0.015)


def test_norm_is_judged_as_well():
    norms = [1.2] * 100
    item = precision_regression.check(Evidence([], series=series([2.0] * 100, norms), reference=series([2.0] * 100)))
    assert item.status == "fail"


@pytest.mark.parametrize(("mine", "theirs"), [(99, 200), (200, 99), (0, 100), (100, 0)])
def test_fewer_than_a_hundred_common_steps_prove_nothing(mine, theirs):
    item = precision_regression.check(Evidence([], series=series([2.0] * mine), reference=series([2.0] * theirs)))
    assert item.status == "unknown"
