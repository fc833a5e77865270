"""What a parallel split needs to exchange in each dimension, in bytes, and what jobs exchange: synthetic, worked out by
hand, and a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.checklist import Evidence, ffn_parallel
from analysis.checklist.volumes import NOTHING, Needed, Seen, faults, measured, needed, parameters
from analysis.chinese import chinese
from analysis.config import ModelConfig, read_config
from analysis.dump import find_dumps
from analysis.rank import read_rank
from analysis.synthetic import GptSpec, Moe, write_rank
from analysis.synthetic.log import config_text

# A = 2 x 1024 tokens x 512 x 2 bytes = 2 097 152 bytes
A = 2 * 1024 * 512 * 2
CONFIG = ModelConfig(
    "m", layers=8, hidden=512, heads=8, kv_heads=2, head_dim=64, ffn=1024, gated=True, vocab=1000, seq_length=1024,
    micro_batch=2, micro_batches=4, dp=1, tp=1, pp=1, cp=1, ep=1, compute_dtype="bfloat16", recompute="none",
    sequence_parallel=False,
)  # fmt: skip
# a layer: 512 x (2 x 512 + 2 x 128) = 655 360 of attention, 3 x 512 x 1024 = 1 572 864 of FFN
LAYER = 655_360 + 1_572_864
END = 512 * 1000
# at most: four norms and those of queries and keys, weight and bias, 2 x (4 x 512 + 2 x 64), and biases of queries,
# keys and values, up and gate, output and down, (8 + 2 x 2) x 64 + 2 x 1024 + 2 x 512; the final norm
SMALL = 4352 + 3840
FINAL = 2 * 512
# rows that fill the vocabulary up to a multiple of 128, learned positions
PADDING = 512 * (128 + 1024)


def need(seen=None, rank=0, **changes):
    found = needed(replace(CONFIG, **changes), seen or {}, rank)
    assert found is not None
    return found


def test_one_device_needs_nothing():
    assert set(need().values()) == {NOTHING}


def test_tensor_parallel_reduces_four_times_a_layer():
    found = need(tp=4)["tensor"]
    assert found.low == 0.75 * 4 * A * 8 * 4
    # a ring counts 2 x 3/4 of each; embedding and head are one more each
    assert found.high == 1.5 * (4 * 8 + 2) * A * 4


def test_sequence_parallel_gathers_and_scatters():
    found = need(tp=4, sequence_parallel=True)["tensor"]
    assert found == Needed(0.75 * 8 * A * 8 * 4, (10 * 8 + 6) * A * 4)


def test_recomputing_all_runs_forward_exchanges_again():
    once, again = need(tp=4)["tensor"], need(tp=4, recompute="full")["tensor"]
    assert again.low == 1.5 * once.low


def test_gradients_are_reduced_once():
    found = need(dp=4)["gradients"]
    assert found.low == 0.75 * 2 * (8 * LAYER + END)
    assert found.high == 1.5 * 4 * (8 * (LAYER + SMALL) + FINAL + 2 * (END + PADDING))
    half = need(dp=4, tp=2)["gradients"]
    assert half.low == found.low / 2


def test_sharded_optimizers_scatter_and_gather():
    seen = {"gradients": Seen({}, {"reduceScatter": 3.0, "allGather": 3.0})}
    found = need(seen, dp=4)["gradients"]
    whole = 8 * (LAYER + SMALL) + FINAL + 2 * (END + PADDING)
    # the embedding may be reduced without being shared out
    assert found == Needed(0.75 * 2 * (2 * 8 * LAYER + END), 2 * 4 * whole)
    every = {"gradients": Seen({}, {"reduceScatter": 12.0, "allGather": 3.0})}
    assert need(every, dp=4)["gradients"].high == (4 + 1) * 4 * whole


def test_a_stage_holds_its_layers_and_perhaps_an_end():
    """8 layers over 4 stages; 8 devices, two on each stage."""
    first, second = (need(rank=rank, pp=4, dp=2)["gradients"] for rank in (1, 2))
    assert first.low == 0.5 * 2 * (2 * LAYER + END)
    assert second.low == 0.5 * 2 * (2 * LAYER)
    # the first stage may share its embedding with the last one
    assert first.high == 4 * (2 * (LAYER + SMALL) + FINAL + END + PADDING) + 4 * (END + PADDING)
    assert second.high == 4 * (2 * (LAYER + SMALL) + FINAL)


def test_where_layers_do_not_go_into_the_stages_one_may_hold_one_more():
    """10 layers over 4 stages: two or three each."""
    found = need(rank=2, pp=4, dp=2, layers=10)["gradients"]
    assert (found.low, found.high) == (0.5 * 2 * 2 * LAYER, 4 * (3 * (LAYER + SMALL) + FINAL))
    assert need(rank=5, pp=4, tp=4, layers=10)["tensor"].high == 1.5 * 4 * 3 * A * 4


def test_layers_that_predict_further_tokens_lie_on_the_last_stage():
    found = need(dp=4, mtp_layers=1)["gradients"]
    whole = 9 * (LAYER + SMALL) + 2 * 512 * 512 + FINAL + 2 * (END + PADDING)
    assert (found.low, found.high) == (need(dp=4)["gradients"].low, 1.5 * 4 * whole)


def test_experts_are_sent_there_and_back_in_both_passes():
    """Own tokens there and those of the experts back: none at least, at most those of all four ranks."""
    moe = {"experts": 16, "experts_per_token": 2, "moe_ffn": 256, "dense_layers": 2, "dp": 4}
    assert need(**moe, ep=4)["experts"] == Needed(0.75 * 2 * 2 * A * 6 * 4, 2 * (1 + 4) * 2 * A * 6 * 4)
    split = need(**moe, ep=4, tp=2, sequence_parallel=True)["experts"]
    assert split == Needed(0.75 * 2 * A * 6 * 4, (1 + 4) * 2 * A * 6 * 4)


def test_expert_gradients_are_reduced_among_ranks_with_the_same_experts():
    """4 data parallel ranks, 2 groups of experts: 8 of 16 experts each, reduced over 2 ranks."""
    moe = {"experts": 16, "experts_per_token": 2, "moe_ffn": 256, "dense_layers": 0, "dp": 4, "ffn": None}
    found = need(**moe, ep=2)["gradients"]
    experts = 3 * 512 * 256 * 8 * 8
    assert found.low == 0.75 * 2 * (8 * 655_360 + END) + 0.5 * 2 * experts


def test_stages_hand_over_each_micro_batch():
    # an end sends and receives once in each direction, a stage in the middle twice; a tool may count sends only
    assert need(pp=2)["pipeline"] == Needed(A * 4, 2 * A * 4)
    assert need(pp=4, rank=1)["pipeline"] == Needed(2 * A * 4, 4 * A * 4)
    assert need(pp=2, interleave=2)["pipeline"] == Needed(3 * A * 4, 6 * A * 4)
    assert need(pp=2, tp=2, sequence_parallel=True)["pipeline"] == Needed(A * 4 / 2, 2 * A * 4 / 2)


def test_a_ring_passes_keys_and_values_on():
    """cp 4: 512 tokens of each rank; keys and values are 2 heads of 64: 512 x 2 x 128 x 2 bytes."""
    state = 2 * 256 * 2 * 128 * 2
    ring = {"context": Seen({"sendRecv": 1.0}, {})}
    assert need(ring, cp=4)["context"].low == 3 * 3 * state * 8 * 4
    assert need(ring, cp=4)["context"].high == 2 * (3 + 2 / 3) * 3 * state * 8 * 4
    # Ulysses: queries and results are 8 heads of 64
    exchange = {"context": Seen({"allToAll": 1.0}, {})}
    queries = 2 * 256 * 512 * 2
    assert need(exchange, cp=4)["context"].high == 2 * (2 * queries + state) * 8 * 4


def test_parameters_of_latent_attention():
    mla = replace(
        CONFIG,
        layers=1,
        heads=4,
        mla=True,
        q_lora_rank=48,
        kv_lora_rank=32,
        qk_nope_dim=16,
        qk_rope_dim=8,
        v_head_dim=16,
    )
    # down: 512 x (48 + 32 + 8); up: 48 x 4 x 24 + 32 x 4 x 32; out: 4 x 16 x 512
    down, up = 512 * 88, 48 * 96 + 32 * 128 + 64 * 512
    # norms: 2 x (4 x 512 + 2 x 64 + 48 + 32); biases: (4 + 2 x 2) x 64 + 2 x 1024, and 2 x 512
    norms, split, whole = 4512, 2560, 1024 + FINAL
    large = down + up + 1_572_864
    assert parameters(mla).shared == Needed(large, large + norms + split + whole)
    most = down + (up + 1_572_864 + split) / 2 + norms + whole
    assert parameters(replace(mla, tp=2)).shared == Needed(large / 2, most)


def test_sizes_or_a_split_that_are_not_known_judge_nothing():
    assert needed(replace(CONFIG, hidden=None), {}) is None
    assert needed(replace(CONFIG, dp=None), {}) is None
    assert faults(exchanged(allReduce=1e12), replace(CONFIG, dp=None)) == []
    assert "gradients" not in need(dp=2, heads=None)


def exchanged(steps=1, p2p=0, group="1128", inside=None, **ops):
    rows = [
        {"op": f"hcom_{op}", "type": "collective", "size_bytes": size, "count": 1, "group": group}
        for op, size in ops.items()
    ]
    rows += [{"op": "hcom_send", "type": "p2p", "size_bytes": p2p, "count": 1, "group": "1346"}] if p2p else []
    placed = [] if inside is None else [{"group": group[-3:], "count": 1, "in_layers": int(inside)}]
    steps = [{"step": str(n)} for n in range(steps)]
    return {"rank": 0, "steps": steps, "communication": rows, "facts": {"collectives": {"groups": placed}}}


def sizes(entry, config, groups=None):
    return {dimension: seen.total for dimension, seen in measured(entry, config, groups).items()}


def test_bytes_are_those_of_one_step():
    entry = exchanged(steps=2, p2p=50, allReduce=100, allGather=20, alltoall=8)
    assert sizes(entry, replace(CONFIG, pp=2, ep=2)) == {"gradients": 60.0, "experts": 4.0, "pipeline": 25.0}
    assert measured({"communication": [{"op": "hcom_send", "type": "p2p", "size_bytes": None}]}, CONFIG) is None


@pytest.mark.parametrize(
    ("ranks", "op", "dimension"),
    [
        ([4, 5], "allReduce", "tensor"),
        ([4, 6], "send", "context"),
        ([4, 6], "allGather", "gradients"),
        ([4, 6], "alltoall", "context"),
        ([0, 4, 8, 12], "alltoall", "experts"),
        ([0, 2, 4, 6, 8, 10, 12, 14], "reduceScatter", "gradients"),
        ([0, 16], "send", "pipeline"),
        ([0, 16], "allReduce", "gradients"),
    ],
)
def test_the_ranks_of_a_group_tell_its_dimension(ranks, op, dimension):
    """tp 2, cp 2, dp 4, pp 2 on 32 devices, four groups of experts."""
    config = replace(CONFIG, tp=2, cp=2, dp=4, pp=2, ep=4)
    row = {"op": f"hcom_{op}", "type": "p2p" if op == "send" else "collective", "size_bytes": 7, "group": "g1"}
    assert sizes({"communication": [row]}, config, {"g1": {"ranks": ranks}}) == {dimension: 7.0}


@pytest.mark.parametrize(
    ("changes", "inside", "op", "dimension"),
    [
        ({"tp": 2}, True, "allReduce", "tensor"),
        ({"tp": 2}, False, "allReduce", "gradients"),
        ({"tp": 2}, None, "allReduce", "unknown"),
        ({"dp": 2}, True, "allGather", "gradients"),
        ({"ep": 2}, True, "alltoall", "experts"),
        ({"cp": 2}, True, "alltoall", "context"),
        ({"cp": 2, "ep": 2}, True, "alltoall", "unknown"),
    ],
)
def test_without_ranks_operation_and_place_tell(changes, inside, op, dimension):
    entry = exchanged(inside=inside, **{op: 7})
    assert sizes(entry, replace(CONFIG, **changes)) == {dimension: 7.0}


@pytest.mark.parametrize(("factor", "expected"), [(0.98, 1), (0.995, 0), (1.0, 0)])
def test_too_little_is_a_fault_beyond_the_tolerance(factor, expected):
    config = replace(CONFIG, tp=4)
    assert len(faults(exchanged(inside=True, allReduce=factor * 0.75 * 4 * A * 8 * 4), config)) == expected


@pytest.mark.parametrize(("factor", "expected"), [(1.005, 0), (1.02, 1)])
def test_too_much_is_a_fault_beyond_the_tolerance(factor, expected):
    config = replace(CONFIG, tp=4)
    assert len(faults(exchanged(inside=True, allReduce=factor * 1.5 * (4 * 8 + 2) * A * 4), config)) == expected


def test_what_cannot_be_told_apart_may_be_what_is_missing():
    config = replace(CONFIG, tp=4)
    assert faults(exchanged(allReduce=4 * A * 8 * 4), config) == []
    assert faults(exchanged(allReduce=A), config) == [
        "tensor parallel groups carry 0 GB a step; the split needs at least 0.201 GB"
    ]


def test_a_few_bytes_are_never_too_much():
    assert faults(exchanged(allReduce=900_000), CONFIG) == []
    assert faults(exchanged(allReduce=1_100_000), CONFIG) == [
        "gradients and weights carry 0.0011 GB a step; the split needs at most 0 GB"
    ]


def test_faults_are_said_in_chinese_too():
    config = replace(CONFIG, tp=4)
    for entry in (exchanged(inside=True, allReduce=1e12), exchanged(inside=True, allReduce=1e6)):
        (fault,) = faults(entry, config)
        assert str(chinese(fault)).startswith("张量并行组每步通信 ")


def test_the_item_fails_and_shows_bytes_beside_the_need():
    matmul = {"m": 2048, "n": 1024, "k": 512, "total_us": 10.0, "part": "layer", "block": "ffn_up"}
    entry = exchanged(allReduce=5e9)
    entry["facts"]["matmuls"] = [matmul]
    item = ffn_parallel.check(Evidence([entry], config=CONFIG))
    assert item.status == "fail"
    volume = next(row for row in item.evidence if row["kind"] == "volume")
    assert (volume["of"], volume["bytes"], volume["most_bytes"]) == ("gradients", 5e9, 0.0)


SPLITS = {
    "tp": {"tp": 4},
    "sp": {"tp": 4, "sequence_parallel": True},
    "recompute": {"tp": 4, "sequence_parallel": True, "recompute": True},
    "zero": {"dp": 8},
    "ddp": {"dp": 8, "optimizer_shard": False},
    "pp": {"pp": 2, "dp": 2, "micro_batches": 4},
    "interleaved": {"layers": 8, "pp": 2, "dp": 2, "micro_batches": 4, "interleave": 2},
    "ring": {"cp": 4, "kv_heads": 2},
    "ring in a pipeline": {"cp": 2, "tp": 2, "pp": 2, "dp": 2, "micro_batches": 2},
    "uneven moe": {"moe": Moe(8, 2, 1024, uneven=0.9), "dp": 4, "ep": 4},
    "moe": {"moe": Moe(8, 2, 1024), "dp": 4, "ep": 2, "tp": 2, "sequence_parallel": True},
}


def job(folder: Path, spec: GptSpec, rank: int = 0):
    write_rank(folder, spec, rank=rank, run={}, steps=1)
    result = read_rank(find_dumps(folder)[0])
    config = read_config(config_text(spec, "m"), "m.yaml")
    if spec.moe:
        config = replace(config, ep=spec.ep, experts=8, experts_per_token=2, moe_ffn=1024)
    return result.entry, result.source["groups"], config


@pytest.mark.parametrize("mode", ["graph", "torch"])
@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("last", [False, True])
def test_jobs_that_exchange_what_they_need_pass(tmp_path: Path, name: str, mode, last) -> None:
    spec = GptSpec(**{"layers": 4, "mode": mode, **SPLITS[name]})
    entry, groups, config = job(tmp_path, spec, spec.world_size - 1 if last else 0)
    assert groups
    assert faults(entry, config, groups) == []
    assert faults(entry, config) == [], "also where the ranks of groups are not known"


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("tp", {"layers": 8}, ["tensor parallel groups"]),
        ("tp", {"tp": 1, "dp": 4}, ["gradients and weights"]),
        ("sp", {"sequence_parallel": False}, ["tensor parallel groups"]),
        ("zero", {"layers": 16}, ["gradients and weights"]),
        ("zero", {"dp": 1}, ["gradients and weights"]),
        ("ddp", {"hidden": 4096}, ["gradients and weights"]),
        ("pp", {"micro_batches": 16}, ["pipeline stages"]),
        ("interleaved", {"interleave": 1}, ["pipeline stages"]),
        ("ring", {"gradient_accumulation": 4}, ["context parallel groups"]),
        ("uneven moe", {"experts_per_token": 8}, ["experts"]),
    ],
)
def test_each_dimension_is_judged_apart(tmp_path: Path, name, config, words) -> None:
    """The same jobs beside a config that asks for something else: only the dimension it is about is at fault."""
    entry, groups, right = job(tmp_path, GptSpec(**{"layers": 4, **SPLITS[name]}))
    found = faults(entry, replace(right, **config), groups)
    assert [next(word for word in words if fault.startswith(f"{word} carry")) for fault in found] == words


@pytest.mark.real
def test_a_real_job_exchanges_what_its_split_needs(dumps: Path) -> None:
    """Qwen3-0.6B on two stages of two: 14 layers of 1024 x (2 x 2048 + 2 x 1024) + 3 x 1024 x 3072 = 15.7 M parameters
    and an embedding of 151936 x 1024 that both stages share."""
    config = ModelConfig(
        "qwen3", layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, ffn=3072, gated=True, vocab=151_936,
        seq_length=4096, micro_batch=1, micro_batches=2, dp=2, tp=1, pp=2, cp=1, ep=1, compute_dtype="bfloat16",
        recompute="none", sequence_parallel=False,
    )  # fmt: skip
    result = read_rank(find_dumps(dumps / "msinsight-llm-pp2dp2/rank_0_ascend_pt")[0])
    entry = result.entry
    seen = measured(entry, config, result.source["groups"])
    # and two norms of 1024 and two of 128 in each layer: tools count every parameter, exactly
    own = 14 * (15_728_640 + 2 * 1024 + 2 * 128) + 151_936 * 1024
    # 32-bit gradients, of which a ring of two sends half; 16-bit weights; the embedding's 32-bit gradient
    assert seen["gradients"].size["reduceScatter"] == own * 4 / 2
    assert seen["gradients"].size["allGather"] - own * 2 / 2 == 288  # flags
    assert seen["gradients"].size["allReduce"] == pytest.approx(151_936 * 1024 * 4, rel=0.001)
    assert seen["pipeline"].total == 2 * 4096 * 1024 * 2
    assert faults(entry, config, result.source["groups"]) == []
    assert len(faults(entry, replace(config, layers=112), result.source["groups"])) == 1


def test_a_stage_of_experts_alone_exchanges_for_all_its_layers():
    """Three layers without experts lie on the first stage of two; the second one has four with them."""
    moe = {"experts": 16, "experts_per_token": 2, "moe_ffn": 256, "dense_layers": 3, "dp": 4, "ep": 4, "pp": 2}
    assert need(rank=5, **moe)["experts"] == Needed(0.75 * 2 * 2 * A * 4 * 4, 2 * (1 + 4) * 2 * A * 4 * 4)
    assert need(rank=0, **moe)["experts"] == Needed(0.75 * 2 * 2 * A * 1 * 4, 2 * (1 + 4) * 2 * A * 1 * 4)


def test_stages_with_other_numbers_of_layers_exchange_as_much_as_they_hold():
    uneven = {"pp": 2, "tp": 4, "stage_layers": ((3, 5),)}
    assert need(rank=0, **uneven)["tensor"].low == 0.75 * 4 * A * 3 * 4
    assert need(rank=7, **uneven)["tensor"].low == 0.75 * 4 * A * 5 * 4


@pytest.mark.parametrize("missing", ["experts", "stage_layers", "interleave", "mtp_layers"])
def test_nothing_is_needed_where_it_is_not_known_what_a_stage_runs(missing):
    assert needed(replace(CONFIG, missing=(missing,)), {}, 0) is None


@pytest.mark.parametrize("unknown", ["tp", "pp", "cp", "micro_batches"])
def test_nothing_is_needed_while_the_split_is_not_known(unknown):
    assert needed(replace(CONFIG, **{unknown: None}), {}, 0) is None


def test_nothing_is_measured_by_dimension_while_the_split_is_not_known():
    entry = {"communication": [{"op": "hcom_allReduce_1", "group": "1", "size_bytes": 8}], "steps": [{}]}
    assert measured(entry, replace(CONFIG, tp=None)) is None
    assert faults(entry, replace(CONFIG, tp=None)) == []


def test_gradients_need_a_vocabulary_and_widths_that_are_known():
    assert "gradients" not in need(dp=4, vocab=None, missing=("vocab",))
    assert "gradients" not in need(dp=4, gated=None)
    assert "tensor" in need(tp=4, vocab=None, missing=("vocab",))
