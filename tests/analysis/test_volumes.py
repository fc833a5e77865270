"""What a parallel split needs to exchange, in bytes, and what synthetic and worked-out jobs exchange."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.checklist import Evidence, ffn_parallel
from analysis.checklist.volumes import Needed, faults, measured, needed
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
)  # fmt: skip
# a layer: 512 x (2 x 512 + 2 x 128) = 655 360 of attention, 3 x 512 x 1024 = 1 572 864 of FFN
LAYER = 655_360 + 1_572_864
NOTHING = Needed(0.0, 0.0)


def need(**changes):
    found = needed(replace(CONFIG, **changes))
    assert found is not None
    return found


def test_one_device_needs_nothing():
    assert need() == {"collective": NOTHING, "allToAll": NOTHING, "p2p": NOTHING}


def test_tensor_parallel_reduces_four_times_a_layer():
    found = need(tp=4)["collective"]
    assert found.low == 0.75 * 4 * A * 8 * 4
    assert found.high == 2 * (4 * 8 + 4) * A * 4


def test_sequence_parallel_gathers_and_scatters():
    found = need(tp=4, sequence_parallel=True)["collective"]
    assert found.low == 0.75 * 8 * A * 8 * 4
    assert found.high == (10 * 8 + 4) * A * 4


def test_data_parallel_exchanges_gradients_of_its_parameters():
    found = need(dp=2)["collective"]
    assert found.low == 0.5 * 2 * 8 * LAYER
    assert found.high == 8 * (8 * LAYER + 2 * 512 * 1000) * (1 + 4)
    assert need(dp=2, tp=2)["collective"].low == need(tp=2)["collective"].low + found.low / 2


def test_experts_are_sent_there_and_back_in_both_passes():
    moe = {"experts": 16, "experts_per_token": 2, "moe_ffn": 256, "dense_layers": 2, "dp": 4}
    found = need(**moe, ep=4)["allToAll"]
    assert found == Needed(0.75 * 4 * 2 * A * 6 * 4, 4 * 2 * A * 6 * 4)


def test_stages_hand_over_each_micro_batch():
    assert need(pp=2)["p2p"] == Needed(A * 4, 4 * A * 4)
    assert need(pp=2, interleave=2)["p2p"].high == 2 * 4 * A * 4


def test_sizes_or_a_split_that_are_not_known_judge_nothing():
    assert needed(replace(CONFIG, hidden=None)) is None
    assert needed(replace(CONFIG, dp=None)) is None
    assert faults(exchanged(allReduce=1e12), replace(CONFIG, dp=None)) == []


def exchanged(steps=1, p2p=0, **ops):
    rows = [{"op": f"hcom_{op}", "type": "collective", "size_bytes": size} for op, size in ops.items()]
    rows += [{"op": "hcom_send", "type": "p2p", "size_bytes": p2p}] if p2p else []
    return {"rank": 0, "steps": [{"step": str(n)} for n in range(steps)], "communication": rows}


def test_bytes_are_those_of_one_step():
    found = measured(exchanged(steps=2, p2p=50, allReduce=100, allGather=20, alltoall=8))
    assert found == {"collective": 60.0, "allToAll": 4.0, "p2p": 25.0}
    assert measured({"communication": [{"op": "hcom_send", "type": "p2p", "size_bytes": None}]}) is None


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(0.79, 1), (0.81, 0), (1.0, 0)],
)
def test_too_little_is_a_fault_beyond_the_tolerance(factor, expected):
    config = replace(CONFIG, tp=4)
    assert len(faults(exchanged(allReduce=factor * 0.75 * 4 * A * 8 * 4), config)) == expected


@pytest.mark.parametrize(("factor", "expected"), [(1.24, 0), (1.26, 1)])
def test_too_much_is_a_fault_beyond_the_tolerance(factor, expected):
    config = replace(CONFIG, tp=4)
    assert len(faults(exchanged(allReduce=factor * 2 * (4 * 8 + 4) * A * 4), config)) == expected


def test_a_few_bytes_are_never_too_much():
    assert faults(exchanged(allReduce=900_000), CONFIG) == []
    assert faults(exchanged(allReduce=1_100_000), CONFIG) == [
        "collectives carry 0.0011 GB a step; the split needs at most 0 GB"
    ]


def test_the_item_fails_and_shows_bytes_beside_the_need():
    matmul = {"m": 2048, "n": 1024, "k": 512, "total_us": 10.0, "part": "layer", "block": "ffn_up"}
    entry = {**exchanged(allReduce=5e9), "facts": {"matmuls": [matmul]}}
    item = ffn_parallel.check(Evidence([entry], config=CONFIG))
    assert item.status == "fail"
    volume = next(row for row in item.evidence if row["kind"] == "volume")
    assert (volume["of"], volume["bytes"], volume["most_bytes"]) == ("collective", 5e9, 0.0)


@pytest.mark.parametrize("mode", ["graph", "torch"])
@pytest.mark.parametrize(
    "split",
    [
        {"tp": 4},
        {"tp": 4, "sequence_parallel": True},
        {"tp": 4, "sequence_parallel": True, "recompute": True},
        {"dp": 8},
        {"dp": 8, "optimizer_shard": False},
        {"pp": 2, "dp": 2, "micro_batches": 4},
        {"moe": Moe(8, 2, 1024), "dp": 4, "ep": 2, "tp": 2, "sequence_parallel": True},
    ],
    ids=["tp", "sp", "recompute", "zero", "ddp", "pp", "moe"],
)
def test_jobs_that_exchange_what_they_need_pass(tmp_path: Path, split, mode) -> None:
    spec = GptSpec(layers=4, mode=mode, **split)
    write_rank(tmp_path, spec, run={}, steps=1)
    entry = read_rank(find_dumps(tmp_path)[0]).entry
    assert measured(entry) is not None
    config = read_config(config_text(spec, "m"), "m.yaml")
    assert faults(entry, config) == []
    if spec.moe:
        experts = {"ep": spec.ep, "experts": 8, "experts_per_token": 2, "moe_ffn": 1024}
        assert faults(entry, replace(config, **experts)) == []
        assert faults(entry, replace(config, **{**experts, "experts_per_token": 6})) != []


def test_a_split_that_is_not_the_one_configured_fails(tmp_path: Path) -> None:
    spec = GptSpec(layers=4, tp=4)
    write_rank(tmp_path, spec, run={}, steps=1)
    entry = read_rank(find_dumps(tmp_path)[0]).entry
    alone = read_config(config_text(replace(spec, tp=1), "m"), "m.yaml")
    assert len(faults(entry, alone)) == 1
    deep = read_config(config_text(replace(spec, layers=16), "m"), "m.yaml")
    assert len(faults(entry, deep)) == 1
