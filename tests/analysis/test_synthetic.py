"""The writer of synthetic dumps: what is in the files is what Truth says, and the forms are the real ones."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from analysis.config import read_config
from analysis.synthetic import GptSpec, Mla, Moe, Truth, each_rank, write_capture
from analysis.synthetic.forms import FORMS, STEP_TRACE
from analysis.synthetic.log import config_text, step_flops
from analysis.synthetic.model import expert_load, pieces
from analysis.synthetic.schedule import Unit, interleaved, one_forward_one_backward, stage_order
from analysis.synthetic.spec import cluster
from tests.dumps import OUTPUT, small_spec, write_dump, write_job

VARIANTS: dict[str, dict[str, Any]] = {
    "graph": {},
    "pynative": {
        "mode": "pynative",
        "fused_attention": False,
        "mask_rebuilt": True,
        "casts": frozenset({"softmax", "norm"}),
    },
    "torch": {"mode": "torch", "qk_norm": True, "kv_heads": 2},
    "gelu": {"norm": "layer", "activation": "gelu", "recompute": True},
    "moe": {"moe": Moe(8, 2, 512, 512), "dp": 4, "ep": 4},
    "mla": {"mla": Mla(256, 128, 96, 32, 96)},
    "tensor parallel": {"tp": 2, "sequence_parallel": True},
    "pipeline": {"pp": 2, "micro_batches": 3},
}


def ns(cell: str) -> int:
    return int(Decimal(cell.strip()) * 1000)


def read(truth: Truth, name: str = "kernel_details.csv") -> list[dict[str, str]]:
    with (truth.folder / OUTPUT / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def header(path: Path) -> bytes:
    with path.open("rb") as lines:
        return lines.readline()


@pytest.mark.parametrize("knobs", VARIANTS.values(), ids=VARIANTS.keys())
def test_kernel_rows_say_what_truth_says(tmp_path: Path, knobs: dict[str, Any]) -> None:
    truth = write_dump(tmp_path, **knobs)
    rows = read(truth)
    assert [(row["Name"], row["Type"]) for row in rows] == [(k.name, k.type) for k in truth.kernels]
    assert [ns(row["Start Time(us)"]) for row in rows] == [k.start_ns for k in truth.kernels]
    assert [ns(row["Duration(us)"]) for row in rows] == [k.duration_ns for k in truth.kernels]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_keeps_exact_times(tmp_path: Path, name: str) -> None:
    truth = write_dump(tmp_path, header=name, mode="graph" if name.startswith("mindspore") else "torch", dp=2)
    rows = read(truth)
    assert list(rows[0]) == FORMS[name].names
    assert sum(ns(row["Duration(us)"]) for row in rows) == truth.compute_ns + truth.communication_ns
    assert {row["Accelerator Core"] for row in rows} >= {FORMS[name].comm_core}


@pytest.mark.parametrize("columns", STEP_TRACE)
def test_step_trace_adds_up_in_every_form(tmp_path: Path, columns: int) -> None:
    truth = write_dump(tmp_path, mode="torch", dp=2, step_trace_columns=columns)
    rows = read(truth, "step_trace_time.csv")
    assert len(rows[0]) == columns
    for row, step in zip(rows, truth.steps, strict=True):
        parts = [row["Computing"], row["Communication(Not Overlapped)"], row["Free"]]
        assert sum(map(ns, parts)) == step.step_ns == ns(row["Stage"])
        assert ns(row["Communication"]) - ns(row["Overlapped"]) == ns(row["Communication(Not Overlapped)"])


def test_stage_is_not_the_step_in_mindspore(tmp_path: Path) -> None:
    alone = write_dump(tmp_path / "alone", steps=1)
    assert [row["Stage"] for row in read(alone, "step_trace_time.csv")] == ["0.000"]
    together = write_dump(tmp_path / "together", steps=1, dp=2)
    ops = together.communication
    span = ops[-1].start_ns + ops[-1].elapse_ns - ops[0].start_ns
    assert ns(read(together, "step_trace_time.csv")[0]["Stage"]) == span < together.steps[0].step_ns


@pytest.mark.parametrize(
    ("sizes", "flops"),
    [
        # FLOPs of one sequence of 4096 tokens by Megatron's causal formula, worked out from the published sizes
        ({"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008}, 1.7557e14),
        ({"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 40, "ffn": 13824}, 3.3646e14),
        ({"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672}, 1.7547e15),
    ],
    ids=["7B", "13B", "70B"],
)
def test_step_flops_are_the_known_ones(sizes: dict[str, int], flops: float) -> None:
    spec = GptSpec(**sizes, vocab=32000, seq=4096)  # type: ignore[arg-type]
    assert step_flops(spec) == pytest.approx(flops, rel=1e-4)


def test_step_flops_of_experts_count_those_a_token_goes_to() -> None:
    """A layer has 2048 x (2 x 4096 + 2 x 512) weights in projections and 8 x 3 x 2048 x 768 in experts; 16 of them with
    2048 x 151936 of the head, and 16 x 4096 x 4096 scores a token: 6 x (1 217 134 592 + 268 435 456) x 4096."""
    moe = Moe(128, 8, 768)
    spec = GptSpec(layers=16, hidden=2048, heads=32, kv_heads=4, vocab=151936, seq=4096, moe=moe)
    assert step_flops(spec) == 6 * (1_217_134_592 + 268_435_456) * 4096


def test_the_config_tells_uneven_stages_and_experts() -> None:
    uneven = read_config(config_text(GptSpec(layers=12, pp=4, offset=(1, 1, 0, -2)), "m"), "m.yaml")
    assert uneven.stage_layers == ((4, 4, 3, 1),)
    sparse = read_config(config_text(GptSpec(heads=16, moe=Moe(128, 8, 768)), "m"), "m.yaml")
    assert (sparse.experts, sparse.experts_per_token, sparse.moe_ffn, sparse.head_dim) == (128, 8, 768, 128)
    assert sparse.missing == ()


def test_computing_is_the_sum_of_kernels_on_the_one_compute_stream(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, dp=4)
    for step in truth.steps:
        kernels = [k for k in truth.kernels if k.step == step.step and not k.is_communication]
        assert sum(k.duration_ns for k in kernels) == step.computing_ns


def test_kernels_stay_inside_their_step_and_do_not_overlap_on_the_compute_stream(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, dp=4, micro_batches=2)
    for step in truth.steps:
        kernels = [k for k in truth.kernels if k.step == step.step]
        assert min(k.start_ns for k in kernels) - step.start_ns == step.preparing_ns
        assert max(k.start_ns + k.duration_ns for k in kernels) <= step.start_ns + step.step_ns
        compute = [k for k in kernels if not k.is_communication]
        for before, after in zip(compute, compute[1:], strict=False):
            assert before.start_ns + before.duration_ns <= after.start_ns


def test_a_wanted_step_time_is_met_to_the_nanosecond(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, step_us=50_000, free_ratio=0.2)
    assert [step.step_ns for step in truth.steps] == [50_000_000, 50_000_000]
    assert truth.steps[0].device_ratio == pytest.approx(0.8, abs=0.01)


def test_a_wanted_cast_share_is_met(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, casts=frozenset({"weights", "norm"}), cast_ratio=0.12, layers=4)
    assert truth.cast_ratio == pytest.approx(0.12, abs=0.002)


def test_cast_share_without_casts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Cast kernels"):
        write_dump(tmp_path, cast_ratio=0.1, rank=1, pp=3, layers=3)


def test_a_torch_layer_has_the_31_forward_kernels_of_the_real_one(tmp_path: Path) -> None:
    # counted in the real dump of a 28-layer model with query and key norms: kernels 7 to 37 are one layer
    truth = write_dump(tmp_path, mode="torch", qk_norm=True, kv_heads=2, steps=1)
    layer = [k.type for k in truth.kernels if (k.layer, k.pass_) == (1, "forward")]
    assert len(layer) == 31
    assert layer[:3] == ["RmsNorm", "MatMulV3", "Slice"]
    assert layer[23:26] == ["FlashAttentionScore", "MatMulV3", "Add"]
    assert layer[-4:] == ["MatMulV3", "SwiGlu", "MatMulV3", "Add"]


def test_flops_of_a_dense_layer_follow_from_its_sizes(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, layers=1, steps=1)
    # tokens 2048, hidden 512, ffn 1408: projections 4*h*h, feed-forward 3*h*f, 2 FLOPs each; attention
    # 4 heads * 2048^2 / 2 scores (causal) * 2 * (128 + 128)
    matmul = 2 * 2048 * (4 * 512 * 512 + 3 * 512 * 1408)
    attention = 4 * 2048**2 // 2 * 2 * 256
    flops = {
        pass_: sum(k.flops for k in truth.kernels if (k.part, k.pass_) == ("layer", pass_))
        for pass_ in ("forward", "backward")
    }
    assert flops["forward"] == matmul + attention
    assert flops["backward"] == 2 * matmul + attention * 5 // 2


def test_every_layer_and_pass_has_the_same_kernels(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, layers=4, recompute=True, micro_batches=2, steps=1)
    for pass_ in ("forward", "recompute", "backward"):
        runs = {
            (layer, batch): tuple(
                k.type for k in truth.kernels if (k.layer, k.pass_, k.micro_batch) == (layer, pass_, batch)
            )
            for layer in range(4)
            for batch in range(2)
        }
        assert len(set(runs.values())) == 1
        assert all(runs.values())


def test_backward_visits_layers_in_reverse(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, layers=3, steps=1)
    order = [k.layer for k in truth.kernels if k.type == "FlashAttentionScoreGrad"]
    assert order == [2, 1, 0]


def test_backward_scopes_name_one_instance_as_mindspore_does(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, layers=3, steps=1)
    grads = [k.name for k in truth.kernels if k.pass_ == "backward" and k.type == "MatMulV3" and k.part == "layer"]
    assert all("/0-LLamaDecodeLayer/attention-LLamaAttention/wq-Linear/Grad_MatMul/MatMul-op" in name for name in grads)
    honest = write_dump(tmp_path / "honest", layers=3, steps=1, backward_scopes="true")
    assert all(f"/{k.layer}-LLamaDecodeLayer/" in k.name for k in honest.kernels if k.type == "FlashAttentionScoreGrad")


def test_names_of_a_graph_are_unique_within_a_step(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, recompute=True, micro_batches=2, dp=2, steps=1)
    names = [k.name for k in truth.kernels]
    assert len(set(names)) == len(names)


def test_unfused_attention_computes_all_scores(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, fused_attention=False, steps=1)
    core = [k.type for k in truth.kernels if (k.layer, k.pass_, k.block) == (0, "forward", "attention_core")]
    assert core == ["BatchMatMulV2", "Mul", "Add", "SoftmaxV2", "BatchMatMulV2"]
    assert not any("FlashAttention" in k.type for k in truth.kernels)


def test_the_order_on_a_pipeline_stage() -> None:
    f, b = "forward", "backward"
    assert one_forward_one_backward(2, 0, 3) == [(f, 0), (f, 1), (b, 0), (f, 2), (b, 1), (b, 2)]
    assert one_forward_one_backward(2, 1, 3) == [(f, 0), (b, 0), (f, 1), (b, 1), (f, 2), (b, 2)]


def test_the_order_of_an_interleaved_stage() -> None:
    """2 stages, 2 chunks, 4 micro-batches; the last stage runs 2 passes ahead, the first 4."""
    f = [Unit("forward", b, c) for b, c in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]]
    b = [Unit("backward", u.micro_batch, 1 - u.chunk) for u in f]
    turns = [unit for pair in zip(f[2:], b, strict=False) for unit in pair]
    assert interleaved(2, 1, 2, 4) == [*f[:2], *turns, *b[6:]]
    assert interleaved(2, 0, 2, 4)[:4] == f[:4]
    assert interleaved(2, 1, 2, 2) == [*f[:4], *b[:4]]


def test_weight_gradients_follow_later_by_the_stage() -> None:
    order = stage_order(GptSpec(layers=4, pp=2, micro_batches=3, defer_wgrad=True), 1)
    assert [u.pass_[0] + str(u.micro_batch) for u in order] == ["f0", "b0", "f1", "b1", "w0", "f2", "b2", "w1", "w2"]


def test_groups_of_a_job_with_context_parallel() -> None:
    spec = GptSpec(layers=4, tp=2, cp=2, dp=2, pp=2)
    assert spec.world_size == 16
    assert spec.group("tp", 5) == (4, 5)
    assert spec.group("cp", 5) == (5, 7)
    assert spec.group("dp", 5) == (1, 3, 5, 7)  # gradients are summed over context parallel ranks too
    assert spec.group("pp", 5) == (5, 13)
    assert spec.place(5) == (1, 1, 0)


def test_a_ring_does_all_the_work_of_one_device() -> None:
    """Half of the scores are masked; over the ranks of a ring they are the same number as without it."""
    alone, ring = (
        sum(op.flops for op in pieces(spec).forward if op.type == "FlashAttentionScore")
        for spec in (GptSpec(), GptSpec(cp=4))
    )
    assert 4 * ring == alone


def test_loads_of_experts_are_uneven_about_one() -> None:
    spec = GptSpec(moe=Moe(8, 2, 128, uneven=0.5), ep=4, dp=4)
    loads = [[expert_load(spec, layer, rank) for rank in range(4)] for layer in range(3)]
    assert all(sum(row) == pytest.approx(4) for row in loads)
    assert loads[0] == pytest.approx([1.5, 1.0, 0.5, 1.0])
    assert loads[1] != loads[0]


def test_drawn_loads_have_the_mean_of_one_and_ranks_that_stay_busy() -> None:
    spec = GptSpec(moe=Moe(8, 2, 128, uneven=0.9, drawn=True), ep=8, dp=8)
    loads = [[expert_load(spec, layer, rank) for rank in range(8)] for layer in range(16)]
    assert all(sum(row) == pytest.approx(8) for row in loads)
    assert min(map(min, loads)) > 0
    busiest = [row.index(max(row)) for row in loads]
    assert max(map(busiest.count, busiest)) > 8  # one rank in more than half of the layers


def test_gradients_of_experts_that_no_other_rank_has_are_not_reduced(tmp_path: Path) -> None:
    """Ranks share of a layer four projections of 512 x 512, two norms of 512 and a router of 8 x 512, 2 bytes each."""
    truth = write_dump(tmp_path, steps=1, dp=4, ep=4, moe=Moe(8, 2, 512))
    sizes = {op.size_bytes for op in truth.communication if op.group == "dp" and op.op == "hcom_allGather_"}
    assert sizes == {2 * (4 * 512 * 512 + 2 * 512 + 8 * 512)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"interleave": 2},
        {"layers": 6, "pp": 2, "interleave": 2, "micro_batches": 4},
        {"pp": 2, "interleave": 2, "micro_batches": 3},
        {"pp": 2, "interleave": 2, "micro_batches": 4, "defer_wgrad": True},
        {"pp": 2, "encoder_layers": 2},
        {"cp": 3},
        {"cp": 2, "fused_attention": False},
        {"recompute_modules": frozenset(["mlp"])},
    ],
)
def test_jobs_that_cannot_be_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="needs|goes|unknown"):
        GptSpec(**wrong)


def test_collectives_of_a_job_end_together_and_the_slow_rank_arrives_last(tmp_path: Path) -> None:
    truths = write_job(tmp_path, tp=2, dp=2, steps=1, slow={3: 1.5}, layers=2)
    assert [truth.rank for truth in truths] == [0, 1, 2, 3]
    ends = [[op.start_ns + op.elapse_ns for op in truth.communication if op.group == "tp"] for truth in truths]
    assert ends[0] == ends[1]
    assert ends[2] == ends[3]
    pairs = [
        (a.wait_ns, b.wait_ns)
        for a, b in zip(truths[2].communication, truths[3].communication, strict=True)
        if a.group == "tp"
    ]
    assert len(pairs) == 9  # the embedding, and two forward and two backward in each of two layers
    assert all(slow < other for other, slow in pairs)


def test_communication_json_holds_every_operation(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, tp=2, dp=2, steps=2)
    steps = json.loads((truth.folder / OUTPUT / "communication.json").read_text())
    assert list(steps) == ["step10", "step11"]
    collective = steps["step10"]["collective"]
    total = collective.pop("Total Op Info")
    ops = [op for op in truth.communication if op.step == "10"]
    assert len(collective) == len(ops)
    elapsed = sum(op.elapse_ns for op in ops) / 1e6
    assert total["Communication Time Info"]["Elapse Time(ms)"] == pytest.approx(elapsed)


def test_memory_record_meets_the_peak(tmp_path: Path) -> None:
    truth = write_dump(tmp_path)
    allocated = [
        float(row["Total Allocated(MB)"]) for row in read(truth, "memory_record.csv") if row["Total Allocated(MB)"]
    ]
    assert max(allocated) * 2**20 == truth.peak_allocated_bytes


def test_op_statistic_sums_to_compute(tmp_path: Path) -> None:
    truth = write_dump(tmp_path, dp=2)
    rows = read(truth, "op_statistic.csv")
    assert sum(ns(row["Total Time(us)"]) for row in rows) == truth.compute_ns
    assert sum(int(row["Count"]) for row in rows) == sum(not k.is_communication for k in truth.kernels)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (write_dump(tmp_path / name, dp=2, seed=7) for name in ("one", "two"))
    for path in (one.folder / OUTPUT).iterdir():
        assert path.read_bytes() == (two.folder / OUTPUT / path.name).read_bytes()


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of tp"):
        GptSpec(heads=3, tp=2)
    with pytest.raises(ValueError, match="unknown cast sites"):
        GptSpec(casts=frozenset({"everywhere"}))


def test_groups_of_a_rank() -> None:
    spec = GptSpec(layers=4, heads=8, tp=2, dp=4, pp=2, ep=2)
    assert spec.group("tp", 5) == (4, 5)
    assert spec.group("dp", 5) == (1, 3, 5, 7)
    assert spec.group("pp", 5) == (5, 13)
    assert spec.group("ep", 5) == (5, 7)
    assert spec.stage(13) == 1


def test_ranks_of_one_stage_only_can_be_written(tmp_path: Path) -> None:
    spec = small_spec(pp=2, dp=2)
    assert [truth.stage for truth in write_capture(tmp_path, spec, ranks=[2, 3], steps=1)] == [1, 1]


def test_a_rank_of_a_thousand_can_be_written_alone(tmp_path: Path) -> None:
    truth = next(each_rank(tmp_path, cluster(1000), steps=1))
    assert 2_400 < len(truth.kernels) < 2_600
    matrix = json.loads((truth.folder / OUTPUT / "communication_matrix.json").read_text())
    links = {name: list(pairs) for name, pairs in matrix["step10"]["collective"].items()}
    largest = max(links.values(), key=len)
    assert largest[0] == "0-0" and len(largest) == 16


FAKE = "mindspore-ascend-synthetic"
REAL_KERNELS = {
    "level0_nostep": "mstt-advisor/test.csv",
    "level0": "msinsight-torch-ddp2/text/level0/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv",
    "2023": "mstt-advisor/compute_advice/kernel_details.csv",
    "2023_hf32": "msinsight-gpt3-2023/test_rank_0/ASCEND_PROFILER_OUTPUT/kernel_details.csv",
    "2025": "msinsight-torch-ddp2/text/level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv",
    "cann8.3": "msinsight-llm-pp2dp2/rank_0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv",
    "cann8.5": "torchnpu-910b-2026-blocknum/*/ASCEND_PROFILER_OUTPUT/kernel_details.csv",
    "mindspore_short": f"{FAKE}/fake-graph-O0-sched-Level1/*/{OUTPUT}/kernel_details.csv",
    "mindspore_nostep": f"{FAKE}/fake-graph-O0-nosched-Level1/*/{OUTPUT}/kernel_details.csv",
    "mindspore_level0": f"{FAKE}/fake-graph-O0-sched-Level0/*/{OUTPUT}/kernel_details.csv",
}


@pytest.mark.real
@pytest.mark.parametrize(("name", "real"), REAL_KERNELS.items(), ids=REAL_KERNELS.keys())
def test_kernel_headers_are_the_real_ones_byte_for_byte(tmp_path: Path, dumps: Path, name: str, real: str) -> None:
    truth = write_dump(tmp_path, header=name, mode="graph" if name.startswith("mindspore") else "torch", steps=1)
    (path,) = dumps.glob(real)
    assert header(truth.folder / OUTPUT / "kernel_details.csv") == header(path)


@pytest.mark.real
@pytest.mark.parametrize(
    ("columns", "real"),
    [(9, "msinsight-gpt3-2023/test_rank_0"), (11, "msinsight-llm-pp2dp2/rank_0_ascend_pt")],
)
def test_step_trace_headers_are_the_real_ones(tmp_path: Path, dumps: Path, columns: int, real: str) -> None:
    truth = write_dump(tmp_path, mode="torch", step_trace_columns=columns, steps=1)
    name = f"{OUTPUT}/step_trace_time.csv"
    assert header(truth.folder / name) == header(dumps / real / name)


@pytest.mark.real
@pytest.mark.parametrize("name", ["op_statistic.csv", "api_statistic.csv", "memory_record.csv"])
def test_other_headers_are_the_real_ones(tmp_path: Path, dumps: Path, name: str) -> None:
    truth = write_dump(tmp_path, mode="torch", steps=1)
    real = dumps / "msinsight-llm-pp2dp2/rank_0_ascend_pt" / OUTPUT / name
    assert header(truth.folder / OUTPUT / name) == header(real)


@pytest.mark.real
def test_shapes_are_quoted_as_in_the_real_file(tmp_path: Path, dumps: Path) -> None:
    truth = write_dump(
        tmp_path, mode="torch", steps=1, seq=4096, hidden=1024, heads=16, kv_heads=8, ffn=3072, qk_norm=True
    )
    real = (dumps / "msinsight-llm-pp2dp2/rank_0_ascend_pt" / OUTPUT / "kernel_details.csv").read_text()
    ours = (truth.folder / OUTPUT / "kernel_details.csv").read_text()
    for cell in (
        '"""4096,1024;6144,1024""",DT_BF16;DT_BF16',
        '"""4096,1,2048;4096,1,1024;4096,1,1024;;;;2048,2048;;;;;;;;"""',
    ):
        assert cell in real
        assert cell in ours


@pytest.mark.real
@pytest.mark.parametrize(
    "types",
    [
        {"FlashAttentionScore"},
        {"FlashAttentionScoreGrad"},
        {"MatMulV2", "MatMulV3"},
        {"RmsNorm"},
        {"RmsNormGrad"},
        {"RotaryPositionEmbedding"},
    ],
    ids=lambda types: "+".join(sorted(types)),
)
def test_the_real_job_written_anew_has_its_kernels_and_about_their_time(
    tmp_path: Path, dumps: Path, types: set[str]
) -> None:
    # first of two stages of a 28-layer model, two micro-batches; sizes from the shapes in the real file
    sizes = {"hidden": 1024, "heads": 16, "kv_heads": 8, "ffn": 3072, "vocab": 151936, "seq": 4096, "qk_norm": True}
    truth = write_dump(tmp_path, mode="torch", layers=28, pp=2, dp=2, micro_batches=2, steps=1, **sizes)
    path = dumps / "msinsight-llm-pp2dp2/rank_0_ascend_pt" / OUTPUT / "kernel_details.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        real = [ns(row["Duration(us)"]) for row in csv.DictReader(lines) if row["Type"] in types]
    ours = [k.duration_ns for k in truth.kernels if k.type in types]
    assert len(ours) == len(real)
    assert sum(ours) == pytest.approx(sum(real), rel=0.25)
