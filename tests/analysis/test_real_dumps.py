"""Real dumps of public projects, where they are at hand. Expected values are from the design pages or counted with
other tools."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report, main
from analysis.dump import find_dumps
from analysis.facts.cores import CACHES, UNITS
from analysis.rank import read_rank
from tests.conftest import SHARED

pytestmark = pytest.mark.real
DUMPS = SHARED / "dumps"
LLM = "msinsight-llm-pp2dp2"
DDP = "msinsight-torch-ddp2"


def folders() -> list[str]:
    """Every folder at every level, as a person might name it."""
    return sorted(str(path.relative_to(DUMPS)) for path in DUMPS.rglob("*") if path.is_dir()) if DUMPS.is_dir() else []


@pytest.mark.parametrize("folder", folders())
def test_every_folder_gives_a_report_or_one_clear_line(folder: str, capsys: pytest.CaptureFixture[str]):
    status = main(["report", str(DUMPS / folder), "--json"])
    captured = capsys.readouterr()
    if status == 0:
        assert json.loads(captured.out)["ranks"]
        assert captured.err == ""
    else:
        assert status == 2
        assert captured.out == "" and captured.err.count("\n") == 1


def entry(path: str, index: int = 0) -> dict[str, Any]:
    return read_rank(find_dumps(DUMPS / path)[index]).entry


def test_llm_rank_0_meets_its_golden_values():
    found = entry(f"{LLM}/rank_0_ascend_pt")
    assert found["kernels"]["compute_us"] == pytest.approx(231_290, abs=1)
    assert found["kernels"]["cast_us"] == pytest.approx(5_998, abs=1)
    assert round(found["kernels"]["cast_ratio"], 3) == 0.026
    assert round(found["steps"][0]["device_ratio"], 3) == 0.804
    assert (found["kernels"]["compute_count"], found["kernels"]["communication_count"]) == (2448, 15)


def test_llm_dump_knows_its_job():
    report = build_report(DUMPS / LLM)
    source = report["source"]
    assert (source["framework"], source["framework_version"], source["cann_version"]) == (
        "torch_npu",
        "2.7.1",
        "8.3.RC1",
    )
    assert (source["world_size"], source["parallel"]) == (4, {"dp": 2, "tp": 1, "pp": 2, "cp": 1, "ep": 1})
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert report["ranks"][1]["kernels"] is None
    sends = [row for row in report["ranks"][0]["communication"] if row["op"] == "hcom_batchSendRecv"]
    assert [(row["type"], row["count"]) for row in sends] == [("p2p", 3)]


def test_operator_types_agree_with_the_profilers_own_statistic():
    found = {row["type"]: row for row in entry(f"{LLM}/rank_0_ascend_pt")["op_types"]}
    assert (found["FlashAttentionScoreGrad"]["count"], found["FlashAttentionScoreGrad"]["total_us"]) == (28, 63128.66)
    assert found["FlashAttentionScoreGrad"]["share"] == pytest.approx(0.27294, abs=1e-5)
    assert (found["MatMulV3"]["count"], found["MatMulV3"]["total_us"]) == (280, 48000.78)


def test_compute_advice_fails_the_cast_check():
    report = build_report(DUMPS / "mstt-advisor" / "compute_advice")
    kernels = report["ranks"][0]["kernels"]
    assert round(kernels["cast_ratio"], 3) == 0.117
    assert kernels["cast_us"] == pytest.approx(5_904, abs=1)
    assert {item["id"]: item["status"] for item in report["checklist"]["items"]}["dtype_cast"] == "fail"


@pytest.mark.parametrize("rank", [0, 1])
def test_level_0_leaves_cast_unknown(rank: int):
    report = build_report(DUMPS / DDP / "text" / "level0" / f"rank{rank}_ascend_pt")
    assert report["ranks"][0]["kernels"]["cast_ratio"] is None
    assert {item["id"]: item["status"] for item in report["checklist"]["items"]}["dtype_cast"] == "unknown"
    assert report["ranks"][0]["kernels"]["communication_count"] == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_the_same_job_as_text_and_as_database_agrees_within_half_a_percent(rank: int):
    text, base = (entry(f"{DDP}/{form}/level1/rank{rank}_ascend_pt") for form in ("text", "db"))
    assert text["kernels"]["count"] == base["kernels"]["count"] == 191
    assert base["kernels"]["compute_us"] == pytest.approx(text["kernels"]["compute_us"], rel=0.005)
    assert base["kernels"]["cast_ratio"] == pytest.approx(text["kernels"]["cast_ratio"], abs=0.0005)
    counts = [
        {row["type"]: row["count"] for row in found["op_types"] if row["share"] is not None} for found in (text, base)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_same_job_as_text_and_as_database_has_the_same_counters(rank: int):
    text, base = (entry(f"{DDP}/{form}/level1/rank{rank}_ascend_pt")["facts"] for form in ("text", "db"))
    assert text["clock"] == base["clock"]
    found = [{row["type"]: row for row in facts["utilisation"]} for facts in (text, base)]
    assert found[0].keys() == found[1].keys()
    for key in (*UNITS, *CACHES):  # two runs of the job: their kernels vary by some percent
        for kind in ("ForeachAddList", "MatMulV2", "Conv2D"):
            assert found[1][kind][key] == pytest.approx(found[0][kind][key], abs=0.02)


def test_a_database_tells_the_calls_of_the_host_as_text_does():
    """By sqlite: seven waits for a stream and one for the device (87 403.54 + 222.93 us), 19 compilations."""
    text, base = (entry(f"{DDP}/{form}/level1/rank0_ascend_pt")["facts"]["api"] for form in ("text", "db"))
    found = {row["kind"]: row for row in base}
    assert (found["synchronize"]["count"], found["synchronize"]["total_us"]) == (8, 87_626.47)
    assert (found["compile"]["count"], found["compile"]["total_us"]) == (19, 27_601.64)
    assert {row["kind"]: (row["count"], row["names"]) for row in text} == {
        row["kind"]: (row["count"], row["names"]) for row in base
    }


def test_what_binds_the_kernels_of_a_real_step_is_what_its_rows_say():
    """Row by row with csv: the largest ratio, each over its threshold, scalar ones only where the others are under
    half; of kernels over 20 us on an AI core."""
    folder = "msinsight-llm-pp2dp2/rank_0_ascend_pt"
    thresholds = {f"aic_{pipe}_ratio": 0.8 for pipe in ("mac", "scalar", "mte1", "mte2")} | {"aic_fixpipe_ratio": 0.75}
    thresholds |= {f"aiv_{pipe}_ratio": 0.7 for pipe in ("vec", "mte2", "mte3")} | {"aiv_scalar_ratio": 0.8}
    none, scalar, fixpipe = {}, {}, {}
    with (DUMPS / folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["Accelerator Core"] in ("COMMUNICATION", "AI_CPU") or float(row["Duration(us)"]) <= 20:
                continue
            shares = {pipe: float(row[pipe]) / least for pipe, least in thresholds.items()}
            pipe = max((pipe for pipe in shares if "scalar" not in pipe), key=shares.__getitem__)
            issuing = max(shares["aic_scalar_ratio"], shares["aiv_scalar_ratio"])
            if shares[pipe] >= 1:
                of = fixpipe if "fixpipe" in pipe else None
            else:
                of = scalar if issuing >= 1 and shares[pipe] < 0.5 else none
            if of is not None and max(shares.values()) > 0:
                of[row["Type"]] = of.get(row["Type"], 0.0) + float(row["Duration(us)"])
    found = entry(folder)["facts"]["bounds"]
    assert {row["type"]: row["total_us"] for row in found["unbound"]} == pytest.approx(none)
    assert {row["type"]: row["total_us"] for row in found["scalar"]} == pytest.approx(scalar)
    assert "FlashAttentionScoreGrad" in none and not scalar
    (out,) = [row["total_us"] for row in found["by_bound"] if row["bound"] == "fixpipe"]
    assert fixpipe == {"FlashAttentionScore": pytest.approx(out)}


def test_a_database_opened_by_another_tool_reads_as_one_that_was_not():
    counts = [entry(f"{DDP}/db/level1/rank{rank}_ascend_pt")["kernels"]["count"] for rank in (0, 1)]
    assert counts == [191, 191]


def test_kernels_of_a_hand_shortened_file_are_said_not_to_add_up():
    source = read_rank(find_dumps(DUMPS / "msinsight-gpt3-2023" / "test_rank_0")[0]).source
    assert any("line 17: 31 cells where the header has 32" in warning for warning in source["warnings"])
    assert any(
        "compute kernels sum to 27132 us, step_trace_time.csv says 75175 us" in warning
        for warning in source["warnings"]
    )


def test_a_mindspore_graph_run_on_cpu_has_two_steps_of_200_kernels():
    found = entry("mindspore-cpu-graph-model_cb")
    assert found["kernels"]["count"] == 400
    assert found["kernels"]["compute_us"] == pytest.approx(15_010, abs=5)  # 15.01 ms, as the dump's README says
    assert [step["step"] for step in found["steps"]] == ["1", "2"]


def test_an_old_pipeline_run_has_its_steps_and_collectives():
    ranks = [entry("mindinsight-ms1x-pp2-4ranks", index) for index in range(4)]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert [len(rank["steps"]) for rank in ranks] == [5] * 4
    assert [ranks[2]["steps"][0]["warmup"], ranks[2]["steps"][1]["warmup"]] == [True, False]
    assert ranks[2]["steps"][0]["step_time_us"] == pytest.approx(2_163_848.36)
    assert {row["op"] for row in ranks[0]["communication"]} >= {"AllReduce"}


def test_an_alexnet_timeline_of_2023_has_four_iterations_and_names():
    found = entry("mindinsight-msprof-2023")
    assert [(step["step"], step["step_time_us"]) for step in found["steps"]][:2] == [("1", 47587.81), ("2", 15369.16)]
    assert found["kernels"]["cast_ratio"] is not None


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("mindinsight-raw-unparsed", "raw profiler data, not parsed yet"),
        ("mindinsight-raw-unparsed/JOB_AICPU", "raw profiler data, not parsed yet"),
        ("msinsight-msprof-empty/normal", "is empty (zero bytes)"),
        ("msinsight-misc/metadata", "holds nothing that tells times; it has profiler_metadata.json"),
        ("training-logs", "holds no profiler files that are known"),
    ],
)
def test_what_cannot_be_reported_is_named_for_what_it_is(path: str, line: str, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(DUMPS / path)]) == 2
    assert line in capsys.readouterr().err


def test_newest_names_give_shapes_and_block_numbers():
    frames = read_rank(find_dumps(DUMPS / "torchnpu-910b-2026-blocknum")[0]).frames
    assert frames["kernels"]["block_num"].null_count() == 0
    assert frames["kernels"]["input_shapes"].null_count() < frames["kernels"].height


def test_dumps_are_never_written_to(tmp_path: Path):
    path = DUMPS / DDP / "db" / "level1" / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    before = {each.name: each.stat().st_mtime_ns for each in path.iterdir()}
    build_report(path.parent)
    assert {each.name: each.stat().st_mtime_ns for each in path.iterdir()} == before


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_of_a_level0_profile_are_those_among_its_kernels(rank):
    """Row by row with csv; both ranks of the one group name them alike."""
    folder = f"{DDP}/text/level0/rank{rank}_ascend_pt"
    with (DUMPS / folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").open(newline="") as file:
        own = [row for row in csv.DictReader(file) if row["Name"].startswith("hcom_")]
    (told,) = entry(folder)["communication"]
    assert (told["op"], told["type"], told["count"]) == ("hcom_allReduce", "collective", len(own))
    assert told["elapse_us"] == pytest.approx(sum(float(row["Duration(us)"]) for row in own))
    assert [row["name"] for row in entry(folder)["collectives"]] == [row["Name"] for row in own]
    assert told["group"] == own[0]["Name"].split("__")[1].split("_")[0]
