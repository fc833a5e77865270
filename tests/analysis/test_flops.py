from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from analysis.chinese import chinese
from analysis.config import ModelConfig
from analysis.flops import log_step_time_us, model_flops, rank_utilisation, utilisation
from analysis.peaks import Peak
from analysis.shapes import with_flops

PEAK = Peak(353.9, "BF16", "table: Ascend910B2")


def dense(layers, hidden, heads, kv_heads, ffn, vocab, **more):
    sizes = {"seq_length": 4096, "global_batch": 1, "gated": True, "head_dim": 128, **more}
    return ModelConfig("m", layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, vocab=vocab, **sizes)


# Published sizes; expected values are those of the reference table, to its five digits.
LLAMA2_7B = dense(32, 4096, 32, 32, 11008, 32000)
GOLDEN = [
    (LLAMA2_7B, 1.7557e14),
    (dense(40, 5120, 40, 40, 13824, 32000), 3.3646e14),
    (dense(80, 8192, 64, 8, 28672, 32000), 1.7547e15),
    (dense(28, 3584, 28, 4, 18944, 152064), 1.8386e14),
    (dense(32, 4096, 32, 8, None, 32000, experts=8, experts_per_token=2, moe_ffn=14336), 3.2648e14),
]


@pytest.mark.parametrize(("config", "expected"), GOLDEN, ids=["llama2-7b", "13b", "70b-gqa", "qwen2.5-7b", "mixtral"])
def test_step_flops_of_published_models(config, expected):
    assert model_flops(config).total == pytest.approx(expected, rel=5e-5)


# The same table without a causal mask, where every score is computed, and per token of 4096.
FULL = [1.8876e14, 3.5707e14, 1.8206e15, 1.9396e14]
PER_TOKEN = [4.2864e10, 8.2143e10, 4.2839e11, 4.4888e10, 7.9706e10]


@pytest.mark.parametrize(("config", "full"), [(config, full) for (config, _), full in zip(GOLDEN, FULL, strict=False)])
def test_causal_core_is_half_of_the_full_one(config, full):
    flops = model_flops(config)
    assert flops.total + flops.core == pytest.approx(full, rel=5e-5)


@pytest.mark.parametrize(("config", "expected"), [(c, each) for (c, _), each in zip(GOLDEN, PER_TOKEN, strict=True)])
def test_step_flops_are_those_of_its_tokens(config, expected):
    assert model_flops(config).total / 4096 == pytest.approx(expected, rel=5e-5)
    more = replace(config, global_batch=7)
    assert model_flops(more).total == 7 * model_flops(config).total


@pytest.mark.parametrize(
    ("nominal", "share"),
    [(376.0, 0.406), (353.9, 0.432), (294.9, 0.518)],
)
def test_a_published_utilisation_over_three_peaks(nominal, share):
    """Llama-2-13B at 1860 tokens a second and device: 152.8 TFLOPS, which a guide calls 40 % (of the nominal peak)."""
    rate = model_flops(GOLDEN[1][0]).total / 4096 * 1860 / 1e12
    assert rate == pytest.approx(152.8, abs=0.05)
    assert rate / nominal == pytest.approx(share, abs=0.0005)


def test_small_dense_model_by_hand():
    # h=4, one head of 4, F=8, two matrices, V=10, s=2, B=3, one layer: 6 tokens.
    config = ModelConfig(
        "m",
        layers=1,
        hidden=4,
        heads=1,
        kv_heads=1,
        head_dim=4,
        ffn=8,
        vocab=10,
        seq_length=2,
        global_batch=3,
        gated=False,
    )
    flops = model_flops(config)
    assert flops.projections == 6 * 6 * (4 * 4 * 3 + 4 * 4)
    assert flops.core == 6 * 6 * (4 * 2)
    assert flops.dense_ffn == 6 * 6 * 4 * 8 * 2
    assert flops.logits == 6 * 6 * 4 * 10
    assert flops.total == 36 * (64 + 8 + 64 + 40)


def test_latent_attention_experts_and_prediction_layer_by_hand():
    config = ModelConfig(
        "m", layers=3, hidden=8, heads=2, vocab=16, seq_length=4, global_batch=1, gated=True, ffn=32, mla=True,
        q_lora_rank=6, kv_lora_rank=4, qk_nope_dim=3, qk_rope_dim=1, v_head_dim=5,
        experts=8, experts_per_token=2, moe_ffn=10, shared_ffn=10, dense_layers=1, mtp_layers=1,
    )  # fmt: skip
    query = 6 * (8 + 2 * 4 + 1)
    keys_values = 4 * (8 + 2 * (3 + 5) + 1) + 8 * 1
    out = 2 * 5 * 8
    core = 4 * (2 * 4 / 2 + 2 * 5 / 2)
    attention = 4 * (query + keys_values + out + core)  # 3 layers and the prediction layer
    ffn = 1 * 8 * 32 * 3 + 3 * 8 * (10 * 2 + 10) * 3
    rest = 8 * 16 * 2 + (3 * 8 + 2 * 8 * 8)
    assert model_flops(config).total == 6 * 4 * (attention + ffn + rest)


def test_latent_attention_without_query_compression():
    config = ModelConfig(
        "m", layers=1, hidden=8, heads=2, vocab=16, seq_length=4, global_batch=1, gated=True, ffn=32, mla=True,
        kv_lora_rank=4, qk_nope_dim=3, qk_rope_dim=1, v_head_dim=5,
    )  # fmt: skip
    assert model_flops(config).projections == 6 * 4 * (8 * 2 * 4 + 4 * (8 + 16 + 1) + 8 + 80)


def test_missing_sizes_give_no_number():
    assert model_flops(ModelConfig("m", missing=("layers",))) is None
    assert model_flops(ModelConfig("m", layers=2)) is None


def test_recompute_adds_a_forward_pass():
    flops = model_flops(LLAMA2_7B)
    layers = flops.total - flops.logits
    assert flops.with_recompute("full") == pytest.approx(layers * 4 / 3 + flops.logits)
    assert flops.with_recompute("selective") == pytest.approx(flops.total + flops.core / 3)
    assert flops.with_recompute("none") == flops.total
    assert flops.with_recompute("partial") is None


def test_published_ascend_throughput_is_matched():
    # MindSpore Transformers' guide: Llama2-13B, 1860 tokens/s a device, "40 %" of 376; by the formula 152.8 TFLOPS.
    config = dense(40, 5120, 40, 40, 13824, 32000, dp=1)
    found = utilisation(config=config, devices=1, step_time_us=4096 / 1860 * 1e6, peak=Peak(376, "FP16", "nominal"))
    assert found["tflops_per_device"] == pytest.approx(152.8, abs=0.05)
    assert found["mfu"] == pytest.approx(0.406, abs=0.0005)


def test_mfu_carries_its_denominator():
    found = utilisation(config=LLAMA2_7B, devices=8, step_time_us=1e6, step_time_source="log", peak=PEAK)
    assert found["mfu"] == pytest.approx(1.7557e14 / 8 / 353.9e12, rel=1e-4)
    assert (found["formula"], found["peak_tflops"], found["peak_dtype"]) == ("megatron_causal", 353.9, "BF16")
    assert found["step_time_source"] == "log"
    assert found["error"] is None


@pytest.mark.parametrize(
    ("split", "heads", "fits"),
    [
        ({}, [(32, 4096)], True),
        ({}, [(None, 4096)], True),
        ({}, [(16, 1024), (32, 4096)], True),  # a second attention beside it
        ({}, [], True),
        ({"tp": 8}, [(4, 512)], True),
        ({"tp": 8}, [(32, 4096)], False),
        ({"tp": 2, "cp": 4}, [(4, 512)], True),  # Ulysses
        ({}, [(40, 5120)], False),
        ({}, [(64, 4096)], False),  # 64 heads of 64
        ({}, [(None, 5120)], False),
    ],
)
def test_a_config_whose_heads_no_attention_kernel_has_is_of_another_model(split, heads, fits):
    config = replace(LLAMA2_7B, **split, dp=None)
    seen = [{"count": count, "width": width} for count, width in heads]
    found = utilisation(config=config, devices=8, step_time_us=1e6, peak=PEAK, measured_flops=1e13, heads=seen)
    assert (found["mfu"] is not None, found["model_flops_per_step"] is not None, found["error"] is None) == (fits,) * 3
    assert found["hfu"] is not None
    if not fits:
        assert "it says 32 heads of 128" in found["error"]
        assert chinese(found["error"])


def test_more_than_the_peak_is_an_error_not_a_value():
    found = utilisation(config=LLAMA2_7B, devices=1, step_time_us=1e5, measured_flops=1e14, peak=PEAK)
    assert found["mfu"] is None and found["hfu"] is None
    assert "MFU of 496% is impossible" in found["error"] and "HFU of 283%" in found["error"]


def test_without_config_the_measured_rate_is_given_and_mfu_unknown():
    found = utilisation(config=None, devices=8, step_time_us=1e6, measured_flops=1.0e14, peak=PEAK)
    assert found["mfu"] is None
    assert found["hfu"] == pytest.approx(100 / 353.9)
    assert found["tflops_per_device"] == pytest.approx(100.0)


def test_without_peak_only_tflops():
    found = utilisation(config=LLAMA2_7B, devices=1, step_time_us=1e6)
    assert found["mfu"] is None and found["tflops_per_device"] == pytest.approx(175.57, abs=0.01)


def test_config_for_another_number_of_devices_is_not_used():
    config = dense(32, 4096, 32, 32, 11008, 32000, dp=8, tp=1, pp=1, cp=1)
    found = utilisation(config=config, devices=4, step_time_us=1e6, peak=PEAK)
    assert found["mfu"] is None
    assert found["error"] == "the config splits over 8 devices, the run has 4"


def log(*times, first=1):
    return [{"step": first + index, "step_time_ms": time} for index, time in enumerate(times)]


def test_compile_warmup_and_profiled_steps_are_left_out():
    # 1 compile; 2 still warming; 5-6 profiled; the rest has median 110.
    series = log(9000.0, 400.0, 100.0, 110.0, 500.0, 500.0, 120.0)
    assert log_step_time_us(series, window=(5, 6)) == 110_000.0


def test_first_step_alone_says_nothing():
    assert log_step_time_us(log(9000.0)) is None
    assert log_step_time_us([]) is None
    assert log_step_time_us([{"step": 2, "step_time_ms": None}]) is None


def test_log_that_starts_later_keeps_its_steps():
    assert log_step_time_us(log(100.0, 100.0, first=50)) == 100_000.0


def test_unprofiled_time_is_preferred_and_named():
    entry = {"steps": [{"step": "5", "step_time_us": 2e6}], "flops": {"measured_flops": 1e14}}
    logged = rank_utilisation(entry, config=None, devices=1, series=log(9.0, 1000.0, 1000.0), peak=PEAK)
    assert (logged["step_time_us"], logged["step_time_source"]) == (1e6, "log")
    profiled = rank_utilisation(entry, config=None, devices=1, peak=PEAK)
    assert (profiled["step_time_us"], profiled["step_time_source"]) == (2e6, "profile")
    assert profiled["hfu"] == pytest.approx(50 / 353.9)


# --- MindSpore's own count

# hidden 64, 2 layers, 4 heads of 16, FFN 256 with GELU, vocabulary 128, sequence 32, batch 4.
# mindspore.train.FlopsUtilizationCollector (full_flops) said 88 080 384 a step of it: 6 x 106 496 matrix parameters
# x 128 tokens = 81 788 928, and 12 x 4 x 32 x 32 x 64 x 2 = 6 291 456 of attention without the causal half.
ORACLE, ORACLE_PRODUCTS, ORACLE_ATTENTION = 88_080_384, 81_788_928, 6_291_456
TINY = ModelConfig(
    "tiny", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, gated=False, vocab=128, seq_length=32,
    global_batch=4, micro_batch=4, micro_batches=1,
)  # fmt: skip


def test_sizes_give_the_figure_of_mindspores_collector():
    found = model_flops(TINY)
    assert found is not None
    assert found.projections + found.dense_ffn + found.logits == ORACLE_PRODUCTS
    assert 2 * found.core == ORACLE_ATTENTION  # the collector counts all scores, we half of them
    assert found.total + found.core == ORACLE


def product(m, k, n, op_type="MatMul", batch=""):
    return {
        "type": op_type,
        "input_shapes": f"{batch}{m},{k};{batch}{k},{n}",
        "output_shapes": f"{batch}{m},{n}",
        "input_formats": None,
        "output_formats": None,
    }


def trained(m, k, n, **more):
    """A product, its gradient by the input and its gradient by the weight."""
    return [product(m, k, n, **more), product(m, n, k, **more), product(k, m, n, **more)]


def test_shapes_give_the_figure_of_mindspores_collector():
    layer = [*(trained(128, 64, 64) * 4), *trained(128, 64, 256), *trained(128, 256, 64)]
    scores = trained(32, 16, 32, op_type="BatchMatMul", batch="4,4,")
    values = trained(32, 32, 16, op_type="BatchMatMul", batch="4,4,")
    rows = [*(layer * 2), *trained(128, 64, 128), *(scores * 2), *(values * 2)]
    texts = dict.fromkeys(("type", "input_shapes", "output_shapes", "input_formats", "output_formats"), pl.String)
    assert with_flops(pl.DataFrame(rows, schema=texts))["flops"].sum() == ORACLE


@pytest.mark.parametrize(
    ("mode", "expected", "mask"), [(None, 100.0, "causal"), (2, 100.0, "causal"), (0, 130.0, "full")]
)
def test_the_config_tells_whether_a_mask_as_long_as_the_sequence_is_whole(mode, expected, mask):
    """60 operations in two steps were counted as half: 30 more a step where masks are whole; judged twice as once."""
    entry = {"facts": {"steps": 2, "attention": {"assumed_flops": 60}}, "flops": {"measured_flops": 100.0}}
    config = replace(LLAMA2_7B, sparse_mode=mode)
    first = rank_utilisation(entry, config=config, devices=8)
    assert (first["measured_flops"], first["attention_mask"]) == (expected, mask)
    again = rank_utilisation({**entry, "flops": first}, config=config, devices=8)
    assert (again["measured_flops"], again["attention_mask"]) == (expected, mask)
    back = rank_utilisation({**entry, "flops": first}, config=None, devices=8)
    assert (back["measured_flops"], back["attention_mask"]) == (100.0, "causal")


def test_nothing_is_assumed_of_other_masks():
    entry = {"facts": {"steps": 1, "attention": {"assumed_flops": 0}}, "flops": {"measured_flops": 100.0}}
    found = rank_utilisation(entry, config=replace(LLAMA2_7B, sparse_mode=0), devices=8)
    assert (found["measured_flops"], found["attention_mask"]) == (100.0, None)


def test_operations_do_not_depend_on_the_split():
    """7 billion over a split that a script leaves open: MFU is that of the known split."""
    unknown = replace(LLAMA2_7B, tp=None, pp=None, cp=None, ep=None, dp=None, missing=("tp", "pp", "cp", "ep"))
    known = replace(LLAMA2_7B, dp=None)
    first, second = (utilisation(config=one, devices=8, step_time_us=1e6, peak=PEAK) for one in (known, unknown))
    assert first["mfu"] is not None
    assert second["mfu"] == first["mfu"]
    assert model_flops(replace(known, missing=("vocab", "tp"))) is None


@pytest.mark.parametrize(
    ("heads", "fits"), [((16, 2048), True), ((4, 512), True), ((40, 5120), False), ((64, 4096), False)]
)
def test_heads_of_an_unknown_split_may_be_any_whole_part(heads, fits):
    config = replace(LLAMA2_7B, tp=None, cp=None, dp=None, missing=("tp",))
    seen = [{"count": heads[0], "width": heads[1]}]
    found = utilisation(config=config, devices=8, step_time_us=1e6, peak=PEAK, heads=seen)
    assert (found["mfu"] is not None) == fits
