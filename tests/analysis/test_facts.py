from __future__ import annotations

import gzip
import json

import numpy as np
import polars as pl
import pytest

from analysis.communication import operation
from analysis.dump import RankDump, find_dumps
from analysis.facts import rank_facts
from analysis.facts.masks import mask_operand
from analysis.facts.recovery import exposed_ns
from analysis.optypes import with_class
from analysis.rank import read_rank
from analysis.schema import KERNEL_COLUMNS, polars_schema

QKV = "1024,1,512;1024,1,512;1024,1,512"
DUMP = RankDump("d", "mindspore", "text", 0, 0, None, {})


def kernel(op_type, us=10.0, **more):
    row = dict.fromkeys(KERNEL_COLUMNS)
    row.update(
        type=op_type, kind="compute", core="AI_VECTOR_CORE", stream_id=2, model_id=4294967295, name=f"aclnn{op_type}"
    )
    return {**row, "us": us, **more}


def frame(rows, **columns):
    """Kernels one after another on their streams, 1 us apart, unless `at` says otherwise."""
    now, out = {}, []
    for row in map(dict, rows):
        stream = row["stream_id"]
        start = row.pop("at", now.get(stream, 0))
        us = row.pop("us")
        out.append({**row, "start_ns": int(start * 1000), "duration_ns": int(us * 1000)})
        now[stream] = start + us + 1
    extra = {"part": pl.String, "layer": pl.Int64, "block": pl.String, "pass": pl.String, "within": pl.String}
    schema = {**polars_schema(KERNEL_COLUMNS), **{k: extra[k] for k in columns.get("places", ())}}
    return with_class(pl.DataFrame(out, schema=schema))


def facts(rows, **columns):
    found = rank_facts(frame(rows, **columns), {}, DUMP)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


PLACES = ("part", "layer", "block", "pass")


def placed(op_type, us, part, block, **more):
    return kernel(op_type, us, part=part, layer=0, block=block, **{"pass": "forward"}, **more)


# --- casts


def test_casts_by_dtype_pair():
    found = facts(
        [
            kernel("Cast", 10.0, input_dtypes="FLOAT", output_dtypes="DT_BF16"),
            kernel("Cast", 5.0, input_dtypes="FLOAT", output_dtypes="DT_BF16"),
            kernel("Cast", 1.0, input_dtypes="DT_BF16", output_dtypes="FLOAT"),
            kernel("Add", 100.0),
        ]
    )["casts"]
    assert (found["count"], found["total_us"], found["removable_us"]) == (3, 16.0, None)
    assert found["by_dtype"] == [
        {"from": "FLOAT", "to": "DT_BF16", "count": 2, "total_us": 15.0},
        {"from": "DT_BF16", "to": "FLOAT", "count": 1, "total_us": 1.0},
    ]


def test_a_cast_counts_in_the_block_it_serves():
    rows = [
        placed("Cast", 4.0, "layer", "movement", within="attention_core"),
        placed("Cast", 6.0, "layer", "movement", within="attention_core"),
        placed("FlashAttentionScore", 50.0, "layer", "attention_core", within="attention_core"),
        placed("Cast", 1.0, "layer", "movement"),
    ]
    found = facts(rows, places=(*PLACES, "within"))
    assert [(row["block"], row["total_us"]) for row in found["casts"]["by_block"]] == [
        ("attention_core", 10.0),
        ("movement", 1.0),
    ]
    assert found["places"] == [
        {"class": "attention", "part": "layer", "block": "attention_core", "count": 1, "total_us": 50.0},
        {"class": "cast", "part": "layer", "block": "attention_core", "count": 2, "total_us": 10.0},
        {"class": "cast", "part": "layer", "block": "movement", "count": 1, "total_us": 1.0},
    ]


def test_cast_under_another_stream_is_hidden_for_that_part():
    # The cast runs 0..10 us; a product on another stream 4..8 us.
    found = facts([kernel("Cast", 10.0, at=0), kernel("MatMulV2", 4.0, stream_id=3, at=4)])["casts"]
    assert (found["exposed_us"], found["hidden_us"]) == (6.0, 4.0)


def test_casts_that_norms_loss_and_optimizer_need_are_not_removable():
    rows = [
        placed("Cast", 1.0, "layer", "norm_attention"),
        placed("Cast", 2.0, "layer", "movement"),  # beside the norm that follows
        placed("RmsNorm", 5.0, "layer", "norm_attention"),
        placed("MatMulV2", 5.0, "layer", "qkv"),
        placed("Cast", 4.0, "layer", "movement"),
        placed("MatMulV2", 5.0, "layer", "attention_out"),
        placed("Cast", 8.0, "head_loss", "movement"),
        placed("Cast", 16.0, "optimizer", "movement"),
    ]
    found = facts(rows, places=PLACES)["casts"]
    assert found["total_us"] == 31.0
    assert found["removable_us"] == 4.0
    assert {"part": "layer", "block": "movement", "pass": "forward", "count": 2, "total_us": 6.0} in found["by_block"]


# --- attention


def batched(op_type="BatchMatMul", us=20.0):
    return kernel(op_type, us, input_shapes="1,8,64,16;1,8,16,64", output_shapes="1,8,64,64", core="AI_CORE")


def test_flash_attention_is_fused_and_tells_the_sequence_length():
    row = kernel("FlashAttentionScore", 50.0, input_shapes=QKV, output_shapes="1,8,1024,8;1,8,1024,8;;1024,1,512")
    found = facts([row, kernel("FlashAttentionScoreGrad", 90.0)])["attention"]
    assert found["heads"] == [{"count": 8, "width": 512}]
    assert found["assumed_flops"] == 0
    assert (found["fused_count"], found["fused_us"], found["unfused_count"]) == (1, 140.0, 0)
    assert found["sequence_length"] == 1024


def test_products_around_a_softmax_are_unfused_attention():
    softmax = kernel("SoftmaxV2", 30.0, input_shapes="1,8,64,64", output_shapes="1,8,64,64")
    rows = [kernel("Add"), batched(), kernel("Muls", 5.0), softmax, kernel("Cast", 5.0), batched(), kernel("Add")]
    found = facts(rows)
    assert found["attention"]["unfused_count"] == 1
    assert found["attention"]["unfused_us"] == 80.0  # 20 + 5 + 30 + 5 + 20
    assert found["attention"]["sequence_length"] == 64
    assert found["attention"]["unfused"][0]["kernels"] == 5


def test_softmax_of_router_or_loss_is_not_attention():
    flat = kernel("MatMulV2", 20.0, input_shapes="64,16;16,8", output_shapes="64,8")
    assert facts([flat, kernel("SoftmaxV2"), flat])["attention"]["unfused_count"] == 0


def test_products_of_another_stream_do_not_make_attention():
    rows = [batched() | {"stream_id": 5}, kernel("SoftmaxV2"), batched() | {"stream_id": 5}]
    assert facts(rows)["attention"]["unfused_count"] == 0


def test_products_far_from_the_softmax_do_not_make_attention():
    rows = [batched(), *[kernel("Add") for _ in range(11)], kernel("SoftmaxV2"), batched()]
    assert facts(rows)["attention"]["unfused_count"] == 0


# --- masks


@pytest.mark.parametrize(
    ("inputs", "dtypes", "expected"),
    [
        (QKV + ";;;;2048,2048;;", "BF16;BF16;BF16;BF16;UINT8;BF16;BOOL;INT64;INT64", ((2048, 2048), "BOOL")),
        (QKV + ";1,8,64,64;;;1,1,64,64", "BF16;BF16;BF16;BF16;UINT8;BF16;UINT8", ((1, 1, 64, 64), "UINT8")),
        (QKV + ";1,8,64,64", "BF16;BF16;BF16;BF16", None),  # position bias, no mask
        (QKV, "BF16;BF16;BF16", None),
        (QKV + ";;;;64,64", None, ((64, 64), None)),
    ],
)
def test_mask_among_the_operands(inputs, dtypes, expected):
    assert mask_operand("attention", inputs, dtypes) == expected


def masked(builders):
    shape = "1,1,64,64"
    built = [kernel("Less", 3.0, output_shapes=shape, output_dtypes="BOOL") for _ in range(builders)]
    flash = "64,1,512;64,1,512;64,1,512;;;;" + shape
    dtypes = "BF16;BF16;BF16;BF16;UINT8;BF16;BOOL"
    attention = [kernel("FlashAttentionScore", input_shapes=flash, input_dtypes=dtypes) for _ in range(4)]
    return facts([*built, *attention])["mask"]


def test_mask_built_once_is_not_rebuilt():
    assert masked(1)["rebuilt"] is False


def test_mask_built_for_each_attention_is_rebuilt_at_its_cost():
    found = masked(4)
    assert found["rebuilt"] is True
    assert found["builders_us"] == 12.0
    assert found["operands"] == [{"shape": [1, 1, 64, 64], "dtype": "BOOL", "count": 4}]


# --- constants


def test_rotary_tables_beyond_the_first_are_repeated_work():
    table = {"input_shapes": "64,1,1,128", "output_shapes": "64,1,1,128"}
    layer = [
        kernel("Cos", 4.0, **table),
        kernel("Cast", 1.0, **table),
        kernel("MatMulV2", 50.0, input_shapes="64,8;8,8"),
    ]
    found = facts(layer * 4)["constants"]
    assert found["count"] == 6  # three Cos and three Cast
    assert found["total_us"] == 15.0


def test_two_tables_are_not_yet_repetition():
    table = {"input_shapes": "64,1,1,128", "output_shapes": "64,1,1,128"}
    assert facts([kernel("Cos", 4.0, **table)] * 1 + [kernel("Sin", 4.0, **table)])["constants"]["count"] == 0


# --- cores


def test_ai_cpu_dynamic_share_and_idle_cores():
    found = facts(
        [
            kernel("Cast", 100.0, core="AI_CPU", input_dtypes="INT64", op_state="dynamic"),
            kernel("Add", 250.0, block_num=40, op_state="static"),
            kernel("ConcatD", 50.0, block_num=38, op_state="static"),
            kernel("Mul", 5.0, block_num=1, op_state="static"),  # too short to judge
        ]
    )
    assert found["ai_cpu"] == [{"type": "Cast", "input_dtypes": "INT64", "count": 1, "total_us": 100.0}]
    assert found["dynamic_ratio"] == round(100 / 405, 4)
    assert found["block_num"]["cores"] == {"vector": 40}
    idle = {"kind": "vector", "type": "ConcatD", "block_num": 38, "count": 1, "total_us": 50.0}
    assert found["block_num"]["underfilled"] == [idle]


@pytest.mark.parametrize(
    ("names", "model", "framework", "expected"),
    [
        (["Default/network-Net/layers-CellList/0-Layer/MatMul-op0"], 4294967295, "mindspore", ("graph", None)),
        (["MatMul"], 7, "mindspore", ("graph", True)),
        (["aclnnMatmul_MatMulV2AiCore_MatMulV2"], 4294967295, "mindspore", ("pynative", None)),
        (["ZerosLike46"], 4294967295, "torch_npu", ("pynative", None)),
        (["ZerosLike46"], 4294967295, "mindspore", (None, None)),
    ],
)
def test_how_kernels_were_launched(names, model, framework, expected):
    dump = RankDump("d", framework, "text", 0, 0, None, {})
    found = rank_facts(frame([kernel("MatMulV2", name=name, model_id=model) for name in names]), {}, dump)["launch"]
    assert (found["mode"], found["sink"]) == expected


# --- products, sequences, collectives


def test_matrix_products_by_shape():
    row = kernel("MatMulV2", 7.0, input_shapes="512,64;128,64", output_shapes="512,128", core="AI_CORE")
    found = facts([row.copy(), row.copy()])["matmuls"]
    assert [(r["m"], r["n"], r["k"], r["count"], r["total_us"]) for r in found] == [(512, 128, 64, 2, 14.0)]


def test_busiest_expert_where_shapes_list_the_groups():
    row = kernel("GroupedMatmul", 7.0, input_shapes="10,8;30,8;20,8;8,4;8,4;8,4", output_shapes="10,4;30,4;20,4")
    assert facts([row])["expert_load"] == {"ratio": 1.5, "experts": 3}


def test_host_bound_sequence_is_named_whole_and_once():
    # 6 times Mul, Add, Cast of 1 us each, launched every 10 us, each followed by a product.
    rows = []
    for turn in range(6):
        for place, op_type in enumerate(("Mul", "Add", "Cast", "MatMulV2")):
            rows.append(kernel(op_type, 1.0, at=turn * 40 + place * 10))
    found = facts(rows)["fusible"]
    assert found == [{"types": ["Mul", "Add", "Cast"], "count": 6, "device_us": 18.0, "wall_us": 126.0}]


def test_sequence_that_keeps_the_device_busy_is_not_named():
    assert facts([kernel(t, 9.0, at=10 * n) for n, t in enumerate(["Mul", "Add", "MatMulV2"] * 6)])["fusible"] == []


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("hcom_allReduce__170_1_1", "allReduce"),
        ("hcom_reduceScatter__097_4_1", "reduceScatter"),
        ("HcclAlltoAllV", "allToAll"),
        ("hcom_batchSendRecv__1", "sendRecv"),
        ("Default/network/Receive-op663", "sendRecv"),
        ("something", None),
    ],
)
def test_collective_of_a_kernel_name(name, op):
    assert operation(name) == op


def test_collectives_inside_layers_and_under_products():
    talk = placed("hcom_allReduce_", 10.0, "layer", "communication", stream_id=9, at=0, name="hcom_allReduce__1_0_1")
    outside = placed("hcom_allReduce_", 4.0, "gradient_sync", None, stream_id=9, at=50, name="hcom_allReduce__1_1_1")
    product_ = placed("MatMulV2", 20.0, "layer", "qkv", at=2)
    found = facts([talk | {"kind": "communication"}, outside | {"kind": "communication"}, product_], places=PLACES)
    assert found["collectives"]["ops"] == [{"op": "allReduce", "count": 2, "total_us": 14.0, "in_layers": 1}]
    assert found["overlapped_collectives"] == [{"name": "hcom_allReduce__1_0_1", "matmul_ratio": 0.8}]


# --- savings that share kernels


def test_marks_of_shared_kernels_are_kept_apart():
    table = {"input_shapes": "64,1,1,128", "output_shapes": "64,1,1,128"}
    rows = [kernel("Cos", 4.0, **table), kernel("Cast", 1.0, **table)] * 3 + [kernel("Cast", 7.0)]
    found = facts(rows)["recovery"]
    # repeated: 2 Cos (8 us) and 2 Cast (2 us, also casts); other casts: the first (1 us) and the lone one (7 us)
    assert {tuple(row["marks"]): row["us"] for row in found} == {
        ("constant_work",): 8.0,
        ("constant_work", "dtype_cast"): 2.0,
        ("dtype_cast",): 8.0,
    }


def test_exposed_time_equals_a_count_of_single_microseconds():
    rng = np.random.default_rng(7)
    rows = [
        kernel("Add", float(rng.integers(1, 9)), stream_id=int(rng.integers(0, 4)), at=float(rng.integers(0, 90)))
        for _ in range(40)
    ]
    compute = frame(rows)
    spans = [
        (s // 1000, (s + d) // 1000, stream)
        for s, d, stream in compute.select("start_ns", "duration_ns", "stream_id").rows()
    ]
    expected = [
        1000 * sum(not any(a <= t < b for a, b, other in spans if other != stream) for t in range(start, end))
        for start, end, stream in spans
    ]
    assert exposed_ns(compute).tolist() == expected


# --- files beside the kernels


def test_host_calls_of_the_acl_level(tmp_path):
    path = tmp_path / "api"
    path.write_bytes(
        gzip.compress(
            b"Device_id,Level,API Name,Time(us),Count,Avg(us)\n"
            b"host,acl,aclrtSynchronizeStream,100.5,4,25\nhost,runtime,StreamSynchronize,99,4,25\n"
            b"host,acl,aclopCompileAndExecute,7,30,1\nhost,acl,aclrtMallocHost,7,30,1\nhost,acl,aclrtFree,x,1,1\n"
        )
    )
    dump = RankDump("d", "torch_npu", "text", 0, 0, None, {"ASCEND_PROFILER_OUTPUT/api_statistic.csv": path})
    assert rank_facts(None, {}, dump)["api"] == [
        {"kind": "synchronize", "count": 4, "total_us": 100.5, "names": ["aclrtSynchronizeStream"]},
        {"kind": "compile", "count": 30, "total_us": 7.0, "names": ["aclopCompileAndExecute"]},
    ]


def test_comparison_of_mindstudio_probe(tmp_path):
    path = tmp_path / "c"
    path.write_text(
        "NPU Name,Bench Name,NPU Dtype,Cosine,MaxAbsErr,MaxRelativeErr,Accuracy Reached or Not,Err_message\n"
        "layers.0.forward.output.0,layers.0.forward.output.0,BF16,0.9999,0.0001,0.001,Yes,\n"
        "layers.1.forward.input.0,layers.1.forward.input.0,BF16,0.1,9,9,No,\n"
        "layers.1.forward.output.0,layers.1.forward.output.0,BF16,0.5,0.2,0.9,No,\n"
        "layers.2.forward.output.0,layers.2.forward.output.0,BF16,unsupported,unsupported,unsupported,,\n",
        encoding="utf-8-sig",
    )
    dump = RankDump("d", "mindspore", "text", 0, 0, None, {"compare_result_20260101.csv": path})
    found = rank_facts(None, {}, dump)["alignment"]
    assert (found["compared"], found["differing"]) == (2, 1)
    assert found["layers"][1]["name"] == "layers.1.forward.output.0"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'"never closed\n' * 3, b"\x1f\x8b broken", b"a,b\n1"])
def test_broken_side_files_are_left_out(tmp_path, content):
    path = tmp_path / "f"
    path.write_bytes(content)
    files = {"ASCEND_PROFILER_OUTPUT/api_statistic.csv": path, "compare_result_1.csv": path}
    assert rank_facts(None, {}, RankDump("d", None, "text", 0, 0, None, files)) == {}


# --- dumps with holes


def test_level0_kernels_without_types_give_no_facts_about_types():
    rows = [kernel(None, core=None, name="x") for _ in range(3)]
    found = facts(rows)
    assert "casts" not in found and "attention" not in found
    assert found["launch"]["mode"] is None


def test_kernels_of_unknown_duration_are_left_out():
    table = frame([kernel("Cast", 5.0), kernel("Cast", 7.0)])
    table = table.with_columns(duration_ns=pl.Series([5000, None], dtype=pl.Int64))
    found = rank_facts(table, {}, DUMP)
    assert (found["casts"]["count"], found["casts"]["total_us"], len(found["top_kernels"])) == (1, 5.0, 1)


def test_no_kernels():
    assert rank_facts(None, {}, DUMP) == {}
    assert rank_facts(frame([]), {}, DUMP) == {}


@pytest.mark.real
def test_real_language_model(dumps):
    dump = find_dumps(dumps / "msinsight-llm-pp2dp2" / "rank_0_ascend_pt")[0]
    found = read_rank(dump).entry["facts"]
    # op_statistic.csv of the same dump: 287 Cast of 5 998.28 us, 28 FlashAttentionScore, 56 Cos of 915.5 us, 56 Sin
    assert (found["casts"]["count"], found["casts"]["total_us"]) == (287, 5998.28)
    assert (found["attention"]["fused_count"], found["attention"]["sequence_length"]) == (28, 4096)
    assert found["mask"]["operands"] == [{"shape": [2048, 2048], "dtype": "BOOL", "count": 28}]
    by_type = {row["type"]: row for row in found["constants"]["by_type"]}
    assert (by_type["Cos"]["count"], by_type["Sin"]["count"]) == (55, 55)
    assert 890 < by_type["Cos"]["total_us"] < 915.5
    assert found["launch"]["mode"] == "pynative"
    assert found["ai_cpu"] == []


@pytest.mark.real
def test_real_unfused_attention(dumps):
    dump = find_dumps(dumps / "mstt-advisor" / "compute_advice")[0]
    found = read_rank(dump).entry["facts"]
    assert found["attention"]["unfused"][0]["type"] == "ScaledMaskedSoftmax"
    assert found["attention"]["unfused_count"] == 2
    assert found["mask"]["operands"] == [{"shape": [1, 1, 1024, 1024], "dtype": "BOOL", "count": 2}]
    assert found["ai_cpu"][0]["type"] == "Cast"


# --- counters


def counted(rows, **counters):
    found = frame(rows)
    return found.with_columns(pl.Series(name, values, dtype=pl.Float64) for name, values in counters.items())


def test_units_are_busy_by_type_weighted_by_duration():
    rows = [
        kernel("MatMulV3", 30.0),
        kernel("MatMulV3", 10.0),
        kernel("Add", 5.0),
        kernel("Mul", 4.0),
        kernel("X", 1.0),
    ]
    found = rank_facts(
        counted(
            rows,
            aic_mac_ratio=[0.8, 0.4, None, None, None],
            aiv_vec_ratio=[None, None, 0.2, 0.3, None],
            aiv_mte2_ratio=[None, None, 0.9, 0.4, None],
        ),
        {},
        DUMP,
    )["utilisation"]
    # (0.8 x 30 + 0.4 x 10) / 40 = 0.7
    assert [(row["type"], row["mac"], row["vec"], row["mte2_vector"], row["bound"]) for row in found] == [
        ("MatMulV3", 0.7, None, None, "none"),
        ("Add", None, 0.2, 0.9, "memory"),
        ("Mul", None, 0.3, 0.4, "none"),
    ]


@pytest.mark.parametrize(
    ("ratios", "bound"),
    [
        ({"aic_mac_ratio": 0.8, "aic_mte2_ratio": 0.79}, "mac"),
        ({"aic_mac_ratio": 0.85, "aic_mte2_ratio": 0.9}, "memory"),
        ({"aic_mac_ratio": 0.79, "aic_mte2_ratio": 0.79}, "none"),
        # the scalar unit issues the others' work: it binds where they have little of it
        ({"aic_scalar_ratio": 0.9, "aic_mac_ratio": 0.81}, "mac"),
        ({"aic_scalar_ratio": 0.95, "aic_mac_ratio": 0.4}, "none"),
        ({"aic_scalar_ratio": 0.95, "aic_mac_ratio": 0.39}, "scalar"),
        ({"aic_scalar_ratio": 0.95, "aiv_vec_ratio": 0.36}, "none"),  # more than half of 0.7
        ({"aic_scalar_ratio": 0.79, "aic_mac_ratio": 0.1}, "none"),
        ({"aiv_scalar_ratio": 0.8}, "scalar"),
        # a real FlashAttentionScore: 0.798 of 0.75
        ({"aic_scalar_ratio": 0.913, "aic_fixpipe_ratio": 0.798, "aic_mte2_ratio": 0.718}, "fixpipe"),
        ({"aic_mte1_ratio": 0.83}, "mte1"),
        ({"aic_fixpipe_ratio": 0.75}, "fixpipe"),
        ({"aiv_vec_ratio": 0.7}, "vec"),
        ({"aiv_mte3_ratio": 0.71, "aiv_vec_ratio": 0.7}, "memory"),
        # 0.74 of 0.7 is more than 0.81 of 0.8: each unit is held against its own threshold
        ({"aic_mte1_ratio": 0.81, "aiv_vec_ratio": 0.74}, "vec"),
        ({"aiv_vec_ratio": 0.0, "aiv_mte2_ratio": 0.0}, None),
        ({"aiv_vec_ratio": None}, None),
    ],
)
def test_a_kernel_is_bound_by_the_unit_that_is_busiest_for_its_threshold(ratios, bound):
    rows = counted([kernel("X", 30.0)], **{title: [value] for title, value in ratios.items()})
    found = rank_facts(rows, {}, DUMP)
    kinds = {row["type"]: row["bound"] for row in found.get("utilisation", [])}
    assert kinds.get("X") == bound
    by_bound = [row["bound"] for row in found.get("bounds", {"by_bound": []})["by_bound"]]
    assert by_bound == ([bound] if bound else [])


def test_each_longer_kernel_counts_by_its_own_busiest_unit():
    rows = [
        kernel("MatMulV3", 30.0, core="AI_CORE", block_num=24),
        kernel("MatMulV3", 50.0, core="AI_CORE", block_num=8),
        kernel("MatMulV3", 20.0, core="AI_CORE", block_num=8),  # not longer than 20 us
        kernel("Add", 40.0, core="AI_VECTOR_CORE", block_num=48),
        kernel("Gather", 25.0, core="AI_VECTOR_CORE", block_num=48),
        kernel("TopK", 60.0, core="AI_CPU"),
    ]
    found = rank_facts(
        counted(
            rows,
            aic_mac_ratio=[0.9, 0.5, 0.1, 0.0, 0.0, 0.1],
            aic_mte2_ratio=[0.4, 0.6, 0.1, 0.0, 0.0, 0.1],
            aiv_vec_ratio=[0.0, 0.0, 0.0, 0.3, 0.2, 0.0],
            aiv_scalar_ratio=[0.0, 0.0, 0.0, 0.1, 0.95, 0.0],
        ),
        {},
        DUMP,
    )["bounds"]
    assert found["judged_us"] == 145.0
    assert [(row["bound"], row["count"], row["total_us"]) for row in found["by_bound"]] == [
        ("none", 2, 90.0),
        ("mac", 1, 30.0),
        ("scalar", 1, 25.0),
    ]
    keys = ("type", "count", "total_us", "block_num", "unit", "ratio")
    assert [tuple(row[key] for key in keys) for row in found["unbound"]] == [
        ("MatMulV3", 1, 50.0, 8, "mte2_cube", 0.6),
        ("Add", 1, 40.0, 48, "vec", 0.3),
    ]
    assert [tuple(row[key] for key in keys) for row in found["scalar"]] == [
        ("Gather", 1, 25.0, 48, "scalar_vector", 0.95)
    ]


def test_the_busiest_unit_is_unknown_where_no_counter_tells_of_one():
    rows = [kernel("Add", 40.0, core="AI_VECTOR_CORE"), kernel("Mul", 30.0, core="AI_VECTOR_CORE")]
    found = rank_facts(counted(rows, aiv_vec_ratio=[None, 0.2], aiv_scalar_ratio=[0.3, 0.1]), {}, DUMP)["bounds"]
    assert [(row["type"], row["unit"], row["ratio"]) for row in found["unbound"]] == [
        ("Add", None, None),
        ("Mul", "vec", 0.2),
    ]


def test_types_reach_the_flops_of_their_kernels_over_their_time():
    rows = [kernel("MatMulV3", 30.0), kernel("MatMulV3", 10.0), kernel("Add", 5.0)]
    flops = pl.Series("flops", [6_000_000_000, None, None], dtype=pl.Int64)
    found = rank_facts(frame(rows).with_columns(flops), {}, DUMP)["utilisation"]
    # 6e9 in 30 us; the kernel whose FLOPs nobody knows counts with neither
    assert [(row["type"], row["tflops"], row["mac"], row["bound"]) for row in found] == [
        ("MatMulV3", 200.0, None, None)
    ]


def test_clock_is_cycles_over_time_and_cores():
    # 24 cores for 20 us at 1800 MHz: 24 x 20 x 1800 cycles; three of thirty kernels at 1500 MHz
    rows = [kernel("MatMulV3", 20.0, core="AI_CORE", block_num=24) for _ in range(30)]
    mhz = [1500.0] * 3 + [1800.0] * 27
    found = rank_facts(
        counted(rows, **{"aicore_time(us)": [20.0] * 30, "aic_total_cycles": [24 * 20 * value for value in mhz]}),
        {},
        DUMP,
    )
    assert found["clock"] == {"median_mhz": 1800.0, "slow_mhz": 1500.0, "count": 30}


def test_clock_comes_from_the_columns_of_a_file(tmp_path):
    header = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Block Dim,aicore_time(us),aic_total_cycles"
    rows = [f"mm,MatMulV3,AI_CORE,{1000 + 30 * n}.0,20.0,24,20.0,{24 * 20 * 1650}" for n in range(25)]
    path = tmp_path / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    path.parent.mkdir()
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    entry = read_rank(find_dumps(tmp_path)[0]).entry
    assert entry["facts"]["clock"]["median_mhz"] == 1650.0


def test_exposed_time_of_collectives_by_what_they_are_for():
    """Compute at 0-10, 20-30 us. A reduction at 5-25 is hidden for 10 us; two gathers at 28-40 and 35-45 count once."""
    talk = {"kind": "communication", "core": "HCCL", "stream_id": 7}
    rows = [
        kernel("MatMulV3", 10.0, at=0),
        kernel("MatMulV3", 10.0, at=20),
        kernel("x", 20.0, at=5, name="hcom_reduceScatter__097_0_1", part="gradient_sync", **talk),
        kernel("x", 12.0, at=28, name="hcom_allGather__097_1_1", part="gradient_sync", **talk),
        kernel("x", 10.0, at=35, name="hcom_allGather__097_2_1", part="gradient_sync", **talk),
        kernel("x", 4.0, at=50, name="hcom_send__346_0_1", **talk),
    ]
    found = facts(rows, places=PLACES)["exposed"]
    assert found == [
        {"part": "gradient_sync", "op": "allGather", "total_us": 17.0, "exposed_us": 15.0},
        {"part": "gradient_sync", "op": "reduceScatter", "total_us": 20.0, "exposed_us": 10.0},
    ]


def chain(names: str, us: float = 10.0, **more):
    """Kernels of these types, each as long and of one shape."""
    return [kernel(name, us, output_shapes="8,16", **more) for name in names.split()]


CHAINS = {
    # (types in order, operator, tensors that the chain moves, tensors that the operator moves)
    "RmsNorm": ("Square ReduceMean Adds Rsqrt Mul Mul", 7, 2),
    "RmsNorm by roots": ("PowTensorScalar Mean Add Sqrt RealDiv Mul", 7, 2),
    "LayerNorm": ("ReduceMean Sub Square ReduceMean Adds Rsqrt Mul Mul Add", 12, 2),
    "Softmax": ("ReduceMax Sub Exp ReduceSum RealDiv", 8, 2),
    "SwiGlu": ("Swish Mul", 5, 3),
    "SwiGlu by sigmoid": ("Sigmoid Mul Mul", 8, 3),
    "Gelu": ("Pow Muls Add Muls Tanh Adds Mul Muls", 18, 2),
    "Gelu by erf": ("Muls Erf Adds Mul Muls", 11, 2),
    "RotaryPositionEmbedding": ("Mul StridedSlice StridedSlice Neg ConcatD Mul Add", 10, 2),
    "FusedAdamW of torch": ("Muls Add Muls Addcmul Sqrt Divs Adds Addcdiv", 20, 7),
    "FusedAdamW by lerp": ("Lerp Muls Addcmul Sqrt RealDiv Adds Addcdiv", 18, 7),
    "FusedAdamW of lists": (
        "ForeachLerpScalar ForeachMulScalar ForeachAddcmulScalar ForeachSqrt ForeachDivScalarList ForeachAddScalar "
        "ForeachAddcdivScalarList",
        18,
        7,
    ),
    "FusedAdamW of MindSpore": ("Mul Mul Add Mul Square Mul Add Sqrt Add RealDiv", 23, 7),
}


@pytest.mark.parametrize("name", CHAINS)
def test_each_chain_written_out_is_found_and_saves_what_it_need_not_move(name: str):
    types, passes, fused = CHAINS[name]
    rows = [kernel("MatMulV3", 5.0), *chain(types), kernel("MatMulV3", 5.0), *chain(types)]
    counted = [word for word in types.split() if word != "StridedSlice"]
    (found,) = facts(rows)["affinity"]
    assert (found["fused"], found["count"], found["total_us"]) == (name.split(" ")[0], 2, 20.0 * len(counted))
    assert found["saved_us"] == pytest.approx(20.0 * len(counted) * (1 - fused / passes), abs=0.001)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_that_is_broken_or_lies_on_two_streams_is_none(name: str):
    whole = chain(CHAINS[name][0])
    for place in range(1, len(whole)):
        broken = [*whole[:place], kernel("MatMulV3", 1.0), *whole[place:]]
        split = [*whole[:place], *({**row, "stream_id": 9} for row in whole[place:])]
        between = "StridedSlice" in (whole[place - 1]["type"], whole[place]["type"])
        for rows in (broken,) if between else (broken, split):
            assert name.split(" ")[0] not in [row["fused"] for row in facts(rows)["affinity"]]


def test_no_kernel_is_part_of_two_chains():
    """The last two of a gate by sigmoid are no gate of their own, a LayerNorm's square and mean begin no RmsNorm."""
    rows = [*chain("ReduceMean Sub Square ReduceMean Adds Rsqrt Mul Mul Add"), *chain("Sigmoid Mul Mul")]
    assert [(row["fused"], row["count"]) for row in facts(rows)["affinity"]] == [("LayerNorm", 1), ("SwiGlu", 1)]


def test_a_gate_and_a_product_of_another_shape_are_none():
    rows = [*chain("Swish"), kernel("Mul", output_shapes="8,1")]
    assert facts(rows)["affinity"] == []


def test_fused_operators_are_no_chain():
    fused = "RmsNorm SwiGlu RotaryPositionEmbedding Gelu SoftmaxV2 ApplyAdamW AdamWeightDecay LayerNormV3 Mul Add"
    assert facts(chain(f"{fused} {fused}"))["affinity"] == []


def test_chains_save_only_what_no_other_stream_hides():
    rows = [*chain("Swish Mul"), kernel("MatMulV3", 10.0, at=0, stream_id=9)]  # the whole Swish is hidden
    (found,) = facts(rows)["affinity"]
    assert (found["total_us"], found["saved_us"]) == (20.0, 4.0)
    assert {"marks": ["affinity"], "us": 10.0} in facts(rows)["recovery"]


def test_casts_between_do_not_break_a_chain():
    rows = chain("Pow Cast ReduceMean Adds Rsqrt Mul Cast Mul")
    (found,) = facts(rows)["affinity"]
    assert (found["fused"], found["total_us"]) == ("RmsNorm", 60.0)


def talks(op: str, us: float, at: float, part: str = "layer"):
    name = f"hcom_{op}__097_{int(at)}_1"
    return kernel("x", us, at=at, name=name, part=part, kind="communication", core="HCCL", stream_id=7)


def test_products_and_collectives_that_wait_for_each_other_could_be_one():
    rows = [
        # a product of 40 us, then a reduction of 60, of which 10 run beside an Add
        kernel("MatMulV3", 40.0, at=0),
        talks("reduceScatter", 60.0, at=42),
        kernel("Add", 10.0, at=92),
        # a gather of 20 us, then a product of 30
        talks("allGather", 20.0, at=110),
        kernel("MatMulV3", 30.0, at=131),
        # behind an Add; wholly hidden; of gradients; of experts
        kernel("Add", 5.0, at=170),
        talks("allReduce", 30.0, at=176),
        kernel("MatMulV3", 50.0, at=210),
        talks("allReduce", 20.0, at=220),
        kernel("MatMulV3", 10.0, at=270),
        talks("reduceScatter", 30.0, at=281, part="gradient_sync"),
        kernel("MatMulV3", 10.0, at=320),
        talks("alltoall", 30.0, at=331),
    ]
    keys = ("fused", "count", "products_us", "exposed_us", "saved_us")
    assert [tuple(row[key] for key in keys) for row in facts(rows, places=PLACES)["fused_collectives"]] == [
        ("MatmulReduceScatter", 1, 40.0, 50.0, 30.0),  # three quarters of 40
        ("AllGatherMatmul", 1, 30.0, 20.0, 15.0),  # three quarters of 20
    ]


@pytest.mark.parametrize(("tokens", "mask", "counts"), [(2048, 2048, True), (4096, 2048, False), (2048, 1024, False)])
def test_a_mask_as_long_as_the_sequence_may_be_whole(tokens, mask, counts):
    """One batch of 8 heads of 64: half of 2 x 8 x 2048 x 2048 x (64 + 64), twice."""
    shapes = f"{tokens},1,512;{tokens},1,512;{tokens},1,512;{mask},{mask}"
    row = kernel("FlashAttentionScore", input_shapes=shapes, output_shapes=f"1,8,{tokens},8;;;{tokens},1,512")
    found = facts([row, row])["attention"]
    assert found["assumed_flops"] == (2 * 8 * 2048 * 2048 * 128 if counts else 0)


def test_rows_of_a_softmax_in_blocks_of_sixteen():
    """64 x 12 heads of 128 x 128 scores, stored as blocks."""
    softmax = kernel("Softmax", 30.0, input_shapes="64,12,8,8,16,16", output_shapes="64,12,8,8,16,16")
    assert facts([batched(), softmax, batched()])["attention"]["sequence_length"] == 128
