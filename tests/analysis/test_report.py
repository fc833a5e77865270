from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.config import read_config
from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.rank import RankResult, read_rank
from analysis.report import capture_report, judged_view, merged_source
from analysis.synthetic import GptSpec, Moe, write_capture
from tests.analysis.small_dumps import HEADER_2025, KERNELS, OUTPUT, kernel, table, whole_dump, write_dump

SECTIONS = {"schema", "source", "ranks", "cluster", "checklist", "findings", "series"}


def rank_of(root: Path) -> RankResult:
    return read_rank(find_dumps(root)[0])


def report_of(*roots: Path, **more: Any) -> dict[str, Any]:
    results = [rank_of(root) for root in roots]
    options = {"config": None, "run": {}, "series": [], **more}
    return capture_report([(result.entry, result.source) for result in results], **options)


def test_a_whole_dump_gives_every_section_and_is_plain_json(tmp_path: Path):
    report = report_of(whole_dump(tmp_path))
    assert set(report) >= SECTIONS
    json.dumps(report, allow_nan=False)
    step = report["ranks"][0]["steps"][0]
    assert (step["step"], step["step_time_us"], step["computing_us"]) == ("1", 130.0, 100.0)
    assert (step["device_ratio"], step["free_us"], step["source"]) == (
        pytest.approx(120 / 130),
        10.0,
        "step_trace_time.csv",
    )
    kernels = report["ranks"][0]["kernels"]
    assert (kernels["compute_us"], kernels["cast_ratio"], kernels["communication_us"]) == (100.0, 0.1, 60.0)
    assert {item["id"]: item["status"] for item in report["checklist"]["items"]}["dtype_cast"] == "fail"


def test_steps_by_our_own_union_agree_with_the_profilers(tmp_path: Path):
    root = whole_dump(tmp_path)
    (root / OUTPUT / "step_trace_time.csv").unlink()
    own = rank_of(root).entry["steps"][0]
    assert own["source"] == "kernel intervals"
    assert (own["computing_us"], own["communication_not_overlapped_us"], own["overlapped_us"], own["free_us"]) == (
        100,
        20,
        40,
        10,
    )


def test_level_0_has_an_unknown_cast_share_and_says_which_switch_would_tell(tmp_path: Path):
    rows = [
        kernel("aclnnCast", "N/A", "1", "5", core="N/A", shapes="N/A"),
        kernel("hcom_x", "N/A", "9", "2", core="HCCL"),
    ]
    report = report_of(whole_dump(tmp_path, kernel_details_csv=table(HEADER_2025, rows)))
    assert report["ranks"][0]["kernels"]["cast_ratio"] is None
    assert report["ranks"][0]["op_types"] == []
    hidden = {item["file"]: item for item in report["source"]["missing"]}["kernel_details.csv: operator types"]
    assert "cast_ratio" in hidden["hides"] and hidden["how"] == "profiler_level=Level1"
    assert {item["id"]: item["status"] for item in report["checklist"]["items"]}["dtype_cast"] == "unknown"


def test_a_dump_without_kernels_still_reports_its_steps_and_what_is_missing(tmp_path: Path):
    root = whole_dump(tmp_path)
    (root / OUTPUT / "kernel_details.csv").unlink()
    report = report_of(root)
    assert report["ranks"][0]["kernels"] is None
    assert report["ranks"][0]["steps"][0]["device_ratio"] is not None
    assert "kernel_details.csv" in {item["file"] for item in report["source"]["missing"]}


def test_operator_types_come_from_the_statistic_where_there_are_no_kernels(tmp_path: Path):
    statistic = (
        "OP Type,Core Type,Count,Total Time(us)\nCast,AI_VECTOR_CORE,2,25\nMatMul,AI_CORE,1,75\nhcom,HCCL,1,500\n"
    )
    root = whole_dump(tmp_path, op_statistic_csv=statistic)
    (root / OUTPUT / "kernel_details.csv").unlink()
    shares = {row["type"]: row["share"] for row in rank_of(root).entry["op_types"]}
    assert shares == {"hcom": None, "MatMul": 0.75, "Cast": 0.25}


def test_a_bad_optional_file_is_a_warning_and_the_rest_goes_on(tmp_path: Path):
    root = whole_dump(tmp_path, memory_record_csv="", communication_json="{", trace_view_json='[{"ph"')
    result = rank_of(root)
    assert result.entry["kernels"]["compute_us"] == 100.0
    named = " ".join(result.source["warnings"])
    assert all(f"{OUTPUT}/{name}" in named for name in ("memory_record.csv", "communication.json", "trace_view.json"))


def test_a_bad_kernel_file_leaves_the_step_trace(tmp_path: Path):
    result = rank_of(whole_dump(tmp_path, kernel_details_csv="\xff\xfe" * 10))
    assert result.entry["kernels"] is None and len(result.entry["steps"]) == 1
    assert f"{OUTPUT}/kernel_details.csv" in result.source["warnings"][0]


def test_only_when_nothing_is_left_is_the_dump_bad(tmp_path: Path):
    root = whole_dump(tmp_path, kernel_details_csv="", step_trace_time_csv="")
    with pytest.raises(BadDump, match=r"kernel_details.csv: is empty \(zero bytes\) \(1 more files cannot be read\)"):
        rank_of(root)


def test_warmup_steps_are_left_out_of_the_sums(tmp_path: Path):
    rows = [
        kernel("c", "Cast", "0", "900", step="1"),
        *(kernel("m", "MatMulV3", str(1000 * step), "100", step=str(step)) for step in (2, 3)),
    ]
    root = write_dump(tmp_path, {f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, rows)})
    entry = rank_of(root).entry
    assert [step["warmup"] for step in entry["steps"]] == [True, False, False]
    assert (entry["kernels"]["compute_us"], entry["kernels"]["cast_ratio"]) == (200.0, 0.0)


def test_step_times_of_the_callback_win_over_the_profilers(tmp_path: Path):
    root = whole_dump(tmp_path)
    (root / "stepscope_run.json").write_text(json.dumps({"rank": 0, "window": {"first_step": 100, "last_step": 100}}))
    (root / "stepscope_steps.jsonl").write_text('{"step": 99, "step_time_ms": 7}\n{"step": 100, "step_time_ms": 0.2}\n')
    result = rank_of(root)
    step = result.entry["steps"][0]
    assert (step["step_time_us"], step["free_us"], step["source"]) == (200.0, 80.0, "stepscope_steps.jsonl")
    assert [row["step"] for row in result.series] == [99, 100]


def test_run_metadata_tells_mode_parallel_split_and_versions(tmp_path: Path):
    root = whole_dump(tmp_path)
    meta = {
        "framework": "mindspore",
        "framework_version": "2.10.0",
        "mode": "graph",
        "sink": True,
        "soc": "Ascend910B3",
        "world_size": 8,
        "parallel": {"dp": 2, "tp": 4},
        "environment": {"HCCL_ALGO": "", "MS_A": "1"},
    }
    (root / "stepscope_run.json").write_text(json.dumps(meta))
    source = rank_of(root).source
    assert (source["framework"], source["mode"], source["sink"], source["soc"]) == (
        "mindspore",
        "graph",
        True,
        "Ascend910B3",
    )
    assert source["parallel"] == {"dp": 2, "tp": 4, "pp": None, "cp": None, "ep": None}
    assert (source["world_size"], source["environment"]) == (8, {"MS_A": "1"})


def test_mfu_follows_from_sizes_step_time_and_peak(tmp_path: Path):
    text = """
model:
  model_config: {type: LlamaConfig, num_layers: 1, hidden_size: 8, num_heads: 2, seq_length: 4, vocab_size: 16,
    intermediate_size: 16}
runner_config: {batch_size: 1}
parallel_config: {data_parallel: 1, model_parallel: 1, pipeline_stage: 1}
"""
    report = report_of(whole_dump(tmp_path), config=read_config(text, "run.yaml"), soc="Ascend910B3")
    flops = report["ranks"][0]["flops"]
    assert flops["peak_tflops"] == pytest.approx(20 * 1800 * 8192 / 1e6)
    assert flops["mfu"] == pytest.approx(flops["model_flops_per_step"] / (130e-6 * flops["peak_tflops"] * 1e12))


def test_a_configuration_that_tells_no_number_of_devices_says_what_mfu_lacks(tmp_path: Path):
    """A launch script of Megatron names its splits but data parallelism, and this dump tells no world size."""
    text = (
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
        "--vocab-size 1000 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --micro-batch-size 2 "
        "--global-batch-size 4 --bf16\n"
    )
    dump = whole_dump(tmp_path)
    report = report_of(dump, config=read_config(text, "train.sh"), soc="Ascend910B3")
    assert report["ranks"][0]["flops"]["mfu"] is None
    missing = {item["file"]: item for item in report["source"]["missing"]}
    assert missing["number of devices"]["hides"] == ["mfu"]
    assert missing["number of devices"]["file_zh"] == "卡数"
    known = report_of(dump, config=read_config(text, "train.sh"), soc="Ascend910B3", run={"world_size": 1})
    assert "number of devices" not in {item["file"] for item in known["source"]["missing"]}


def test_ranks_are_ordered_and_what_only_some_lack_names_them(tmp_path: Path):
    second = write_dump(
        tmp_path / "b",
        {"profiler_info_1.json": {"rank_id": 1}, f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, KERNELS)},
    )
    first = whole_dump(
        tmp_path / "a", memory_record_csv="Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB)\nPTA,1,1,1\n"
    )
    report = report_of(second, first)
    assert [entry["rank"] for entry in report["ranks"]] == [0, 1]
    missing = {item["file"]: item.get("ranks") for item in report["source"]["missing"]}
    assert missing["memory_record.csv"] == [1]
    assert missing["communication.json: transit times and sizes"] is None


def test_mixed_jobs_and_duplicate_ranks_are_said():
    sources = [
        {"framework": "mindspore", "world_size": 4, "warnings": ["x"]},
        {"framework": "torch_npu", "world_size": 4},
    ]
    merged = merged_source(sources, [{"rank": 0}, {"rank": 0}])
    assert merged["warnings"] == [
        "rank 0: x",
        "ranks of different jobs? framework is mindspore and torch_npu",
        "rank 0 is there 2 times",
    ]
    assert merged["framework"] == "mindspore"


def test_a_report_can_be_made_again_from_stored_json(tmp_path: Path):
    result = rank_of(whole_dump(tmp_path))
    stored = json.loads(json.dumps([result.entry, result.source]))
    fresh = capture_report([(result.entry, result.source)], config=None, run={}, series=[])
    again = capture_report([(stored[0], stored[1])], config=None, run={}, series=[])
    assert json.loads(json.dumps(fresh)) == again


def test_making_a_report_changes_nothing_of_what_it_was_given(tmp_path: Path):
    result = rank_of(whole_dump(tmp_path))
    before = json.dumps([result.entry, result.source])
    capture_report([(result.entry, result.source)], config=None, run={"soc": "Ascend910B3"}, series=[])
    assert json.dumps([result.entry, result.source]) == before


def test_a_trace_alone_tells_how_long_steps_were_and_nothing_else(tmp_path: Path):
    trace = json.dumps([{"ph": "X", "name": "ProfilerStep#1", "ts": "5.5", "dur": 14091.97}])
    entry = rank_of(write_dump(tmp_path, {f"{OUTPUT}/trace_view.json": trace})).entry
    step = entry["steps"][0]
    assert (step["step"], step["step_time_us"], step["source"]) == ("1", 14091.97, "trace_view.json")
    assert step["computing_us"] is None and step["device_ratio"] is None and entry["kernels"] is None


def test_memory_of_operators_serves_where_there_is_no_memory_record(tmp_path: Path):
    header = (
        "Name,Size(KB),Allocation Time(us),Allocation Total Allocated(MB),Allocation Total Reserved(MB),Device Type"
    )
    rows = ["aten::a,1,5.5\t,3,8,NPU:0", "aten::b,1,4.5\t,2,9,NPU:0"]
    entry = rank_of(whole_dump(tmp_path, operator_memory_csv=table(header, rows))).entry
    assert entry["memory"] == {"peak_allocated_bytes": 3 << 20, "peak_reserved_bytes": 9 << 20, "modules": []}


@pytest.mark.parametrize("odd", [5, "x", [1], {"a": [1]}, True, -1e300])
def test_metadata_of_another_kind_than_its_key_has_is_left_out(odd: Any, tmp_path: Path):
    result = rank_of(whole_dump(tmp_path / "d"))
    keys = ("soc", "mode", "jit_level", "sink", "world_size", "parallel", "window", "model", "environment", "framework")
    run = {**dict.fromkeys(keys, odd), "parallel": {"dp": odd}, "window": {"first_step": odd}}
    report = capture_report([(result.entry, result.source)], config=None, run=run, series=[])
    assert report["ranks"][0]["kernels"]["count"] > 0
    json.dumps(report, allow_nan=False)


def test_the_view_of_an_entry_is_judged_like_the_entry(tmp_path: Path) -> None:
    """Everything the judgement looks at is in the view, and the view is a good deal smaller."""
    spec = GptSpec(layers=4, tp=2, dp=4, mode="torch", casts=frozenset(["norm"]), ai_cpu=True, overlap_grad_sync=False,
                   link_gbps=5.0, moe=Moe(8, 2, 512, uneven=0.9), ep=4)  # fmt: skip
    write_capture(tmp_path, spec, slow={1: 1.4}, slow_link=(0, 1, 3.0), export=("text", "trace"), run={})
    results = [read_rank(dump) for dump in find_dumps(tmp_path)]
    whole = capture_report([(r.entry, r.source) for r in results], config=None, run={}, series=[])
    views = [(judged_view(r.entry), r.source) for r in results]
    judged = capture_report(views, config=None, run={}, series=[])
    assert len(whole["findings"]) >= 4
    for key in ("bottleneck", "cluster", "checklist", "findings", "fix_first", "source"):
        assert json.dumps(judged[key], sort_keys=True) == json.dumps(whole[key], sort_keys=True), key
    assert len(json.dumps(views[0][0])) < 0.75 * len(json.dumps(results[0].entry))


def test_what_many_ranks_say_is_said_once():
    told = [{"rank": rank, "label": f"folder {rank}"} for rank in (3, 0, 1)] + [{"rank": None, "label": "folder x"}]
    sources = [{"warnings": ["a: b"]}, {"warnings": ["a: b", "c"]}, {"warnings": ["a: b"]}, {"warnings": ["a: b"]}]
    assert merged_source(sources, told)["warnings"] == ["ranks 0, 1, 3, folder x: a: b", "rank 0: c"]
    many = [{"rank": rank} for rank in range(20)]
    (said,) = merged_source([{"warnings": ["d"]}] * 20, many)["warnings"]
    assert said == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ...: d"


def test_a_split_that_a_script_leaves_open_is_named_with_what_would_bring_it():
    script = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 8 --tensor-model-parallel-size $TP"
    config = read_config(script + " --global-batch-size 8 --micro-batch-size 1 --padded-vocab-size 512", "run.sh")
    report = capture_report([({"rank": 0, "steps": []}, {})], config=config, run={"world_size": 8}, series=[])
    gap = next(row for row in report["source"]["missing"] if "split" in row["file"])
    assert (gap["file"], gap["hides"]) == ("run.sh: parallel split", ["ffn_parallel"])
    assert gap["how"] == "say tp in the script and set its variables, or give the job's log, which prints them"
    assert gap["how_zh"].startswith("在脚本中写明 tp")
    told = capture_report(
        [({"rank": 0, "steps": []}, {})], config=config, run={"world_size": 8, "parallel": {"tp": 4}}, series=[]
    )
    assert (told["config"]["tp"], told["config"]["dp"], told["config"]["missing"]) == (4, 2, [])
    assert told["config"]["micro_batches"] == 4
