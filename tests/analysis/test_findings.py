from __future__ import annotations

import json

import pytest

from analysis.checklist import Evidence
from analysis.dump import find_dumps
from analysis.findings import RULES, findings
from analysis.findings.communication import hideable_us
from analysis.findings.view import severity
from analysis.rank import read_rank
from analysis.synthetic import GptSpec, write_rank
from analysis.thresholds import THRESHOLDS


def rank(number=0, *, total=1000.0, free=50.0, exposed=50.0, facts=None, **more):
    step = {
        "step": "1",
        "step_time_us": total,
        "computing_us": total - free - exposed,
        "communication_not_overlapped_us": exposed,
        "free_us": free,
        "warmup": False,
    }
    step.update(more.pop("step", {}))
    return {"rank": number, "steps": [step], "facts": {"steps": 1, **(facts or {})}, **more}


def found(*ranks, source=None, run=None):
    rows = findings(Evidence(list(ranks), source or {}, None, run or {}))
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    return {row["id"]: row for row in rows}


def test_quiet_capture_has_no_findings():
    assert found(rank()) == {}
    assert found() == {}
    assert found({}) == {}


@pytest.mark.parametrize(
    ("us", "expected"), [(50.0, "high"), (49.0, "medium"), (30.0, "medium"), (29.0, "low"), (None, "low")]
)
def test_severity_follows_from_the_share_of_the_step(us, expected):
    assert severity(us, 1000.0) == expected


def test_constant_work():
    constants = {"exposed_us": 40.0, "by_type": [{"type": "Cos", "count": 9, "total_us": 40.0}]}
    row = found(rank(facts={"constants": constants, "steps": 2}))["constant_work"]
    assert (row["recoverable_us"], row["severity"]) == (20.0, "low")
    assert "Cos" in row["summary"] and "Cos" in row["summary_zh"]


def test_ai_cpu_kernels_longer_than_twenty_microseconds():
    long = {"ai_cpu": [{"type": "Cast", "count": 2, "total_us": 100.0}], "ai_cpu_exposed_us": 80.0}
    short = {"ai_cpu": [{"type": "Cast", "count": 10, "total_us": 100.0}], "ai_cpu_exposed_us": 80.0}
    row = found(rank(facts=long))["ai_cpu"]
    assert (row["recoverable_us"], row["summary"]) == (80.0, "Cast runs on the AI CPU.")
    assert "ai_cpu" not in found(rank(facts=short))


def test_movement_share():
    kernels = {"movement_us": 150.0, "compute_us": 1000.0, "movement_ratio": 0.15}
    assert "15%" in found(rank(kernels=kernels))["movement"]["summary"]
    assert "movement" not in found(rank(kernels={**kernels, "movement_us": 149.0}))


def test_idle_cores_matter_from_one_percent_of_the_step():
    block = {"underfilled": [{"type": "ConcatD", "block_num": 38, "count": 1, "total_us": 10.0}]}
    assert "block_dim" in found(rank(facts={"block_num": block}))
    assert "block_dim" not in found(rank(facts={"block_num": block}, total=2000.0))


def bounds(kind: str, us: float, block_num: int = 48) -> dict[str, object]:
    row = {"type": "RmsNormGrad", "count": 2, "total_us": us, "block_num": block_num, "unit": "vec", "ratio": 0.43}
    return {"bounds": {"judged_us": 900.0, kind: [row]}, "block_num": {"cores": {"vector": 48}}}


def test_kernels_that_keep_no_unit_busy_matter_from_five_percent_of_the_step():
    row = found(rank(facts=bounds("unbound", 50.0)))["unbound"]
    assert "RmsNormGrad most; its busiest unit, the vector unit, works 43% of the time" in row["summary"]
    assert "以 RmsNormGrad 为最" in row["summary_zh"]
    assert (row["severity"], row["evidence"][0]["ratio"]) == ("low", 0.43)
    assert "fewer blocks" not in row["advice"]
    assert "fewer blocks" in found(rank(facts=bounds("unbound", 50.0, block_num=12)))["unbound"]["advice"]
    assert found(rank(facts=bounds("unbound", 100.0)))["unbound"]["severity"] == "medium"
    assert "unbound" not in found(rank(facts=bounds("unbound", 49.0)))
    # of two ranks with counters one has such kernels: half on the mean
    others = [rank(facts=bounds("unbound", 90.0)), rank(1, facts={"bounds": {"judged_us": 900.0, "unbound": []}})]
    assert "unbound" not in found(*others)


def test_kernels_held_up_by_their_scalar_unit_matter_from_one_percent_of_the_step():
    row = found(rank(facts=bounds("scalar", 10.0)))["scalar_bound"]
    assert row["summary"] == "RmsNormGrad: only the scalar unit is busy, in 0.01 ms a step."
    assert (row["severity"], row["recoverable_us"]) == ("low", None)
    assert found(rank(facts=bounds("scalar", 50.0)))["scalar_bound"]["severity"] == "medium"
    assert "scalar_bound" not in found(rank(facts=bounds("scalar", 9.0)))


def test_dynamic_shapes_matter_in_graph_mode_only():
    assert "dynamic_shape" in found(rank(facts={"dynamic_ratio": 0.5, "launch": {"mode": "graph"}}))
    assert "dynamic_shape" not in found(rank(facts={"dynamic_ratio": 1.0, "launch": {"mode": "pynative"}}))


def test_fusible_sequence():
    row = {"types": ["Mul", "Add"], "count": 9, "device_us": 4.0, "wall_us": 40.0}
    assert "Mul + Add" in found(rank(facts={"fusible": [row]}))["fusible"]["summary"]


@pytest.mark.parametrize(
    ("clock", "info", "named"),
    [
        ({"median_mhz": 1700.0, "slow_mhz": 1600.0}, {"DeviceInfo": [{"aic_frequency": "1800"}]}, True),  # 5.6 % below
        ({"median_mhz": 1750.0, "slow_mhz": 1600.0}, {"DeviceInfo": [{"aic_frequency": "1800"}]}, False),
        ({"median_mhz": 1800.0, "slow_mhz": 1700.0}, None, True),
        ({"median_mhz": 1850.0, "slow_mhz": 1840.0}, None, False),
    ],
)
def test_frequency_drop(clock, info, named):
    assert ("frequency_drop" in found(rank(facts={"clock": clock}), source={"device_info": info})) is named


def test_uneven_experts():
    assert found(rank(facts={"expert_load": {"ratio": 2.0}}))["expert_load"]["severity"] == "medium"


def test_exposed_communication_without_bubble():
    row = found(rank(exposed=300.0, step={"bubble_us": 100.0}))["exposed_communication"]
    assert (row["recoverable_us"], row["severity"]) == (None, "high")
    assert "exposed_communication" not in found(rank(exposed=240.0, step={"bubble_us": 100.0}))


@pytest.mark.parametrize(
    ("transit", "wait", "gain"),
    [(100.0, 0.0, 270.0), (400.0, 0.0, 180.0), (600.0, 0.0, None), (None, 700.0, 210.0), (None, 0.0, None)],
)
def test_collectives_that_mostly_wait_say_so(transit, wait, gain):
    """Exposed 300; of 1000 inside collectives bytes move for `transit`, else the tool tells the wait: that of 300."""
    told = {"type": "collective", "op": "hcom_allReduce", "link": "RDMA", "elapse_us": 1000.0, "size_bytes": 8_000_000}
    row = found(rank(exposed=300.0, communication=[{**told, "transit_us": transit, "wait_us": wait}]))
    row = row["exposed_communication"]
    assert row["recoverable_us"] == (gain and pytest.approx(gain))
    assert ("no byte moves" in row["summary"]) == (gain is not None)
    assert "Most of it: hcom_allReduce over RDMA takes 1 ms a step" in row["summary"]


@pytest.mark.parametrize(("inside", "gain"), [(360.0, 162.0), (300.0, None)])
def test_no_more_waits_than_there_is_in_collectives(inside, gain):
    """Two steps: half of `inside` in collectives a step, of which 90 % wait; the rest of 300 exposed are transfers."""
    told = {"type": "collective", "op": "a", "elapse_us": inside, "transit_us": inside / 10, "size_bytes": 8}
    transfer = {"type": "p2p", "op": "send", "elapse_us": 400.0, "transit_us": None, "wait_us": 400.0}
    entry = rank(exposed=300.0, communication=[told, transfer])
    entry["steps"] *= 2
    assert found(entry)["exposed_communication"]["recoverable_us"] == gain


def test_scalars_are_no_small_packets():
    assert "small_packets" not in found(rank(**talk([8, 8, 288, 4, 32_000_000])))


def test_the_operation_most_is_exposed_in_is_named():
    exposed = [exchange("other", "broadcast", 250.0, 240.0), exchange("gradient_sync", "allReduce", 90.0, 60.0)]
    row = found(rank(exposed=300.0, facts={"exposed": exposed}))["exposed_communication"]
    assert "Most of it: broadcast takes 0.24 ms a step." in row["summary"]
    assert "其中主要为 broadcast 每步 0.24 ms" in row["summary_zh"]
    bare = {"exposed": [], "collectives": {"ops": [{"op": "allReduce", "total_us": 290.0}]}}
    assert "allReduce takes 0.29 ms" in found(rank(exposed=300.0, facts=bare))["exposed_communication"]["summary"]
    even = [{**row, "exposed_us": 100.0} for row in (*exposed, exposed[0])]
    assert "Most of it" not in found(rank(exposed=300.0, facts={"exposed": even}))["exposed_communication"]["summary"]


def exchange(part, op, total, exposed):
    return {"part": part, "op": op, "total_us": total, "exposed_us": exposed}


def through(way, batch, us, communication=0.0):
    blocks = [{"block": "qkv", "total_us": us}, {"block": "communication", "total_us": communication}]
    return {"part": "layer", "layer": 0, "pass": way, "micro_batch": batch, "blocks": blocks}


PASSES = [through("forward", 0, 40.0), through("forward", 1, 400.0), through("backward", 0, 500.0),
          through("backward", 1, 70.0, 90.0), through("recompute", 1, 10.0)]  # fmt: skip


@pytest.mark.parametrize(
    ("exposed", "expected"),
    [
        # hides behind the last micro-batch's backward and recomputation: 80, of which 0 are taken
        ([exchange("gradient_sync", "allReduce", 60.0, 60.0)], 60.0),
        ([exchange("gradient_sync", "allReduce", 200.0, 200.0)], 80.0),
        # 50 of it are hidden there already
        ([exchange("gradient_sync", "reduceScatter", 250.0, 200.0)], 30.0),
        # weights are gathered beside the first forward pass: 40
        ([exchange("gradient_sync", "allGather", 90.0, 90.0)], 40.0),
        # what the next kernel or another stage waits for cannot run beside it
        ([exchange("layer", "allReduce", 200.0, 200.0), exchange("other", "sendRecv", 100.0, 100.0)], 0.0),
    ],
)
def test_only_what_overlap_could_hide_is_recoverable(exposed, expected):
    twice = [{**r, "total_us": 2 * r["total_us"], "exposed_us": 2 * r["exposed_us"]} for r in exposed]  # of two steps
    entry = rank(exposed=300.0, facts={"exposed": twice, "steps": 2}, layers={"parts": PASSES})
    row = found(entry)["exposed_communication"]
    assert row["recoverable_us"] == expected
    assert "By estimate" in row["summary"] and "据估算" in row["summary_zh"]
    assert row["severity"] == "high"


def test_no_more_is_recoverable_than_is_exposed():
    facts = {"exposed": [exchange("gradient_sync", "allReduce", 80.0, 80.0)]}
    entry = rank(total=100.0, free=0.0, exposed=20.0, facts=facts, layers={"parts": PASSES})
    assert found(entry)["exposed_communication"]["recoverable_us"] == 20.0


def test_a_job_that_reduces_gradients_after_backward_could_hide_them(tmp_path):
    """By construction: no communication in layers, so all that is exposed but the embeddings' share is the sum of the
    reductions, which last less than backward."""
    spec = GptSpec(layers=4, dp=8, overlap_grad_sync=False, optimizer_shard=False, mode="torch", link_gbps=20.0)
    truth = write_rank(tmp_path, spec, steps=1)
    entry = read_rank(find_dumps(tmp_path)[0]).entry
    sync = sum(k.duration_ns for k in truth.kernels if k.part == "gradient_sync") / 1000
    backward = sum(k.duration_ns for k in truth.kernels if (k.part, k.pass_) == ("layer", "backward")) / 1000
    assert hideable_us(entry) == pytest.approx(min(sync, backward), abs=0.01)
    hidden = GptSpec(layers=4, dp=8, optimizer_shard=False, mode="torch", link_gbps=20.0)
    write_rank(tmp_path / "hidden", hidden, steps=1)
    assert hideable_us(read_rank(find_dumps(tmp_path / "hidden")[0]).entry) < sync / 2


def times(us, count=6):
    return [{"step": "1", "group": "g", "name": str(n), "elapse_us": us} for n in range(count)]


def test_slow_rank_and_what_the_others_wait():
    times_of = {0: 1000.0, 1: 200.0, 2: 1000.0}
    ranks = [rank(n, total=10_000.0, exposed=6000.0, collectives=times(us)) for n, us in times_of.items()]
    row = found(*ranks)["slow_rank"]
    assert (row["recoverable_us"], row["severity"]) == (4800.0, "high")
    assert "rank 1" in row["summary"]


def test_slow_link():
    links = [
        {"src": 0, "dst": n, "link": "HCCS", "op": "a", "size_bytes": 2**24, "bandwidth_gbps": b}
        for n, b in ((1, 20), (2, 20), (3, 9))
    ]
    assert "0 -> 3" in found(rank(links=links))["slow_link"]["summary"]


def test_spread_without_a_pipeline_and_imbalance_with_one():
    ranks = [rank(0, free=50.0), rank(1, free=250.0)]
    assert found(*ranks)["compute_spread"]["severity"] == "medium"
    rows = found(*ranks, source={"parallel": {"pp": 2}, "world_size": 2})
    assert "compute_spread" not in rows
    assert rows["stage_imbalance"]["recoverable_us"] == pytest.approx(100.0)  # 900 against the mean of 900 and 700


@pytest.mark.parametrize(("bubble", "named"), [(150.0, True), (140.0, False)])
def test_much_waiting_for_stages_is_said_where_no_theory_is_known(bubble, named):
    entry = rank(step={"bubble_us": bubble}, exposed=400.0)
    row = found(entry).get("pipeline_bubble")
    assert (row is not None) == named
    if row:
        assert (row["recoverable_us"], row["severity"]) == (None, "high")
        assert "takes 15% of the step; what the schedule alone needs is not known" in row["summary"]


def test_bubble_beyond_the_schedule():
    entry = rank(step={"bubble_us": 400.0}, exposed=400.0, layers={"micro_batches": 3})
    row = found(entry, source={"parallel": {"pp": 2}})["pipeline_bubble"]  # 40 % against 1 / 4
    assert row["recoverable_us"] == pytest.approx(150.0)


def talk(sizes, link="HCCS", transit=10.0):
    rows = [
        {"group": "g", "op": "allReduce", "name": f"c{n}", "size_bytes": s, "transit_us": transit}
        for n, s in enumerate(sizes)
    ]
    return {"collectives": rows, "communication": [{"group": "g", "op": "allReduce", "link": link}]}


@pytest.mark.parametrize(
    ("sizes", "link", "named"),
    [
        ([1 << 20] * 3 + [32 << 20] * 7, "HCCS", True),
        ([1 << 20] * 2 + [32 << 20] * 8, "HCCS", False),
        ([1 << 19] * 3 + [2 << 20] * 7, "RDMA", True),
        ([2 << 20] * 10, "RDMA", False),
    ],
)
def test_small_packets_by_count(sizes, link, named):
    assert ("small_packets" in found(rank(**talk(sizes, link)))) is named


def test_small_packets_could_win_what_their_bytes_do_not_need():
    # best bandwidth: 2 MB in 10 us; the 1 MB one needs 5 us of its 10
    row = found(rank(**talk([1_000_000, 2_000_000])))["small_packets"]
    assert row["recoverable_us"] == pytest.approx(5.0)


def test_payloads_that_are_no_multiple_of_512_bytes():
    assert "1 payload is" in found(rank(**talk([513, 1024, 100])))["byte_alignment"]["summary"]
    assert "byte_alignment" not in found(rank(**talk([513], "RDMA")))


def test_transfers_slowed_by_matrix_products():
    facts = {"overlapped_collectives": [{"name": "c0", "matmul_ratio": 0.9}]}
    slow = talk([20_000_000], transit=2000.0)  # 10 GB/s
    fast = talk([20_000_000], transit=1000.0)  # 20 GB/s
    assert "bandwidth_contention" in found(rank(facts=facts, **slow))
    assert "bandwidth_contention" not in found(rank(facts=facts, **fast))
    assert "bandwidth_contention" not in found(rank(**slow))


def test_retransmission():
    assert "retransmission" in found(rank(**talk([1 << 30], "RDMA", transit=5e6)))


def api(kind, count, us):
    return {"api": [{"kind": kind, "count": count, "total_us": us, "names": ["x"]}]}


def test_synchronisation_after_every_other_launch():
    busy = {"free": 300.0, "kernels": {"compute_count": 100}}
    assert found(rank(facts=api("synchronize", 50, 900.0), **busy))["synchronize"]["recoverable_us"] == 200.0
    assert "synchronize" not in found(rank(facts=api("synchronize", 49, 900.0), **busy))


def test_compilation_and_memory_calls_in_the_step():
    assert found(rank(facts=api("compile", 20, 5.0)))["op_compile"]["severity"] == "high"
    row = found(rank(facts=api("memory", 9, 10_001.0), free=20_000.0, total=100_000.0))["memory_alloc"]
    assert row["recoverable_us"] == 10_001.0


def test_garbage_collection_and_waiting_for_data():
    rows = found(rank(facts={"free_causes": {"gc": 1500.0, "data_wait": 12_000.0}}, total=100_000.0))
    assert (rows["garbage_collection"]["recoverable_us"], rows["data_wait"]["recoverable_us"]) == (1500.0, 12_000.0)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("ASCEND_LAUNCH_BLOCKING", "1", True),
        ("ASCEND_LAUNCH_BLOCKING", "0", False),
        ("ASCEND_GLOBAL_LOG_LEVEL", "1", True),
        ("ASCEND_GLOBAL_LOG_LEVEL", "3", False),
        ("HCCL_ALGO", "level0:ring", True),
        ("HCCL_ALGO", "", False),
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", False),
    ],
)
def test_environment(name, value, named):
    rows = found(rank(), run={"environment": {name: value}})
    assert ("environment" in rows) is named


def test_gravest_first():
    ranks = [rank(exposed=300.0, facts={"constants": {"exposed_us": 1.0, "by_type": [{"type": "Cos"}]}})]
    assert [row["id"] for row in findings(Evidence(ranks))] == ["exposed_communication", "constant_work"]


def test_every_rule_speaks_two_languages_somewhere_in_these_tests():
    everything = rank(
        exposed=300.0,
        free=300.0,
        facts={
            "constants": {"exposed_us": 40.0, "by_type": [{"type": "Cos", "total_us": 40.0}]},
            "expert_load": {"ratio": 3.0},
            "dynamic_ratio": 0.9,
            "launch": {"mode": "graph"},
            "clock": {"median_mhz": 1800.0, "slow_mhz": 900.0},
            **api("compile", 30, 9.0),
        },
        **talk([513, 1024]),
    )
    rows = found(everything, run={"environment": {"HCCL_ALGO": "x"}})
    assert len(rows) >= 7
    for row in rows.values():
        for key in ("summary", "advice"):
            assert any("\u4e00" <= letter <= "\u9fff" for letter in row[key + "_zh"]), row["id"]


@pytest.mark.parametrize("rule", RULES)
def test_entries_with_holes_never_break_a_rule(rule):
    from analysis.findings.view import View

    holes = [
        {},
        {"rank": 1, "steps": None, "facts": None, "kernels": None},
        {"rank": 2, "steps": [{}], "collectives": [{}]},
    ]
    assert rule(View(Evidence(holes))) is None


def test_every_threshold_names_its_source():
    assert all(
        threshold.source.split(":")[0] in ("checklist", "advisor", "practice") for threshold in THRESHOLDS.values()
    )


def test_small_packets_are_priced_by_the_best_speed_seen():
    """16 MB at 100 us is 160 GB/s: 1 MB of it would take 6.25 us, and 5 operations took 10 each; two steps of the ten
    that there are, since only the first collectives are kept."""

    def row(n, size, us):
        return {
            "step": str(1 + n % 2),
            "group": "g",
            "name": f"hcom_allReduce__{n}",
            "op": "hcom_allReduce",
            "size_bytes": size,
            "transit_us": us,
            "elapse_us": us,
        }

    rows = [row(n, 1_000_000, 10.0) for n in range(5)] + [row(9, 16_000_000, 100.0)]
    told = [{"group": "g", "op": "hcom_allReduce", "link": "HCCS"}]
    entry = rank(collectives=rows, communication=told, facts={"steps": 10})
    assert found(entry)["small_packets"]["recoverable_us"] == pytest.approx(5 * 3.75 / 2)


def test_sequences_that_have_a_fused_operator():
    facts = {"affinity": [{"fused": "RmsNorm", "count": 4, "total_us": 60.0, "saved_us": 40.0}], "steps": 2}
    row = found(rank(facts=facts))["affinity"]
    assert "RmsNorm" in row["summary"] and "RmsNorm" in row["summary_zh"]
    assert (row["recoverable_us"], row["severity"]) == (20.0, "medium")
    assert "ops.rms_norm" in row["advice"] and "ops.rms_norm" in row["advice_zh"]
    assert "npu_rms_norm" in found(rank(facts=facts), source={"framework": "torch_npu"})["affinity"]["advice"]
    assert "affinity" not in found(rank(facts=facts, total=4000.0))


def test_products_and_collectives_that_could_be_one():
    pair = {"fused": "MatmulReduceScatter", "count": 4, "products_us": 60.0, "exposed_us": 50.0, "saved_us": 30.0}
    row = found(rank(facts={"fused_collectives": [pair], "steps": 2}))["fused_collectives"]
    assert "0.025 ms a step that nothing hides; MatmulReduceScatter" in row["summary"]
    assert (row["recoverable_us"], row["severity"]) == (15.0, "low")
    assert "compute_communicate_fusion_level" in row["advice"]
    assert "fused_collectives" not in found(rank(facts={"fused_collectives": [pair], "steps": 4}))


def test_many_synchronised_batch_norms():
    types = [{"type": "SyncBatchNormGatherStats", "core": "AI_CORE", "count": 42, "total_us": 1.0}]
    assert "21 times" in found(rank(op_types=types, facts={"steps": 2}))["sync_batch_norm"]["summary"]
    assert "sync_batch_norm" not in found(rank(op_types=types, facts={"steps": 3}))


def test_long_silence_of_the_host_is_conjectured_to_be_collection():
    def gap(us, cause):
        return {"step": "1", "start_us": 0.0, "duration_us": us, "cause": cause}

    entry = rank(total=1e6, free=5e5, free_time={"by_cause": [], "gaps": [gap(250_000.0, "unknown"), gap(3e5, "gc")]})
    row = found(entry)["conjectured_gc"]
    assert "1 gaps of up to 250 ms" in row["summary"]
    quiet = rank(total=1e6, free=5e5, free_time={"by_cause": [], "gaps": [gap(200_000.0, "unknown")]})
    assert "conjectured_gc" not in found(quiet)
