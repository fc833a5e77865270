"""cluster_analysis_output: every rank of a job that msprof-analyze summed up, from text and from its database."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report, main
from analysis.dump import find_dumps
from analysis.rank import read_rank
from analysis.synthetic import GptSpec, Truth, write_capture
from analysis.synthetic.cluster import write_cluster, write_cluster_database
from tests.conftest import SHARED

WRITERS = [write_cluster, write_cluster_database]
GROUPS = {"dp": [[0, 1]], "world": [[0, 1]]}


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> list[Truth]:
    return write_capture(tmp_path_factory.mktemp("job"), GptSpec(layers=2, dp=2, mode="torch"), run={})


@pytest.mark.parametrize("write", WRITERS)
def test_every_rank_has_its_steps_and_operations(write: Callable[..., Path], truths: list[Truth], tmp_path: Path):
    write(tmp_path, truths, GROUPS)
    report = build_report(tmp_path)
    assert [entry["rank"] for entry in report["ranks"]] == [0, 1]
    for entry, truth in zip(report["ranks"], truths, strict=True):
        told = [(step["step"], step["computing_us"], step["free_us"]) for step in entry["steps"]]
        assert told == [(step.step, step.computing_ns / 1000, step.free_ns / 1000) for step in truth.steps]
        counts: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
        for op in truth.communication:
            counts[op.op.rstrip("_")][0] += 1
            counts[op.op.rstrip("_")][1] += op.elapse_ns / 1000
            counts[op.op.rstrip("_")][2] += op.size_bytes
        found = {row["op"]: row for row in entry["communication"]}
        assert found.keys() == counts.keys()
        for op, (count, elapse, size) in counts.items():
            assert (found[op]["count"], found[op]["size_bytes"]) == (count, pytest.approx(size, abs=count))
            assert found[op]["elapse_us"] == pytest.approx(elapse, abs=0.01)
            assert found[op]["link"] == "HCCS"


@pytest.mark.parametrize("write", WRITERS)
def test_links_start_at_their_rank_and_count_the_jobs_ranks(
    write: Callable[..., Path], truths: list[Truth], tmp_path: Path
):
    write(tmp_path, truths, GROUPS)
    for entry, truth in zip(build_report(tmp_path)["ranks"], truths, strict=True):
        assert entry["links"]
        assert {(row["src"], row["dst"]) for row in entry["links"]} == {(truth.rank, 1 - truth.rank)}
        assert {row["within_group"] for row in entry["links"]} == {False}
        assert {round(row["bandwidth_gbps"], 3) for row in entry["links"] if row["size_bytes"] > 1_000_000} == {18.0}


MATRIX = {"step1": {"collective": {"allreduce-total@777": {
    "0-1": {"Transport Type": "HCCS", "Transit Size(MB)": 8.0, "Transit Time(ms)": 0.5}}}}}  # fmt: skip


def ranks_of(folder: Path, numbers: tuple[int, ...], metadata: dict[int, dict[str, Any]] | None = None) -> None:
    """Ranks that know no more than a step and one link of group 777."""
    steps = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n1,10,0,0,0,5\n"
    for number in numbers:
        output = folder / f"rank{number}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        (output / "step_trace_time.csv").write_text(steps)
        (output / "communication_matrix.json").write_text(json.dumps(MATRIX))
        (output.parent / f"profiler_info_{number}.json").write_text(json.dumps({"rank_id": number}))
        told = (metadata or {}).get(number)
        if told is not None:
            (output.parent / "profiler_metadata.json").write_text(json.dumps(told))


def links(folder: Path) -> dict[int, list[tuple[int, int, bool]]]:
    return {
        entry["rank"]: [(row["src"], row["dst"], row["within_group"]) for row in entry["links"]]
        for entry in build_report(folder)["ranks"]
    }


def test_links_of_a_group_that_nobody_lists_count_within_it(tmp_path: Path):
    ranks_of(tmp_path, (4, 6))
    assert links(tmp_path) == {4: [(0, 1, True)], 6: [(0, 1, True)]}


def test_a_group_that_one_rank_lists_settles_the_links_of_all(tmp_path: Path):
    ranks_of(tmp_path, (4, 6), {6: {"parallel_group_info": {"777": {"group_name": "dp", "global_ranks": [4, 6]}}}})
    assert links(tmp_path) == {4: [(4, 6, False)], 6: [(4, 6, False)]}


def test_groups_of_a_cluster_analysis_beside_the_ranks_settle_their_links(tmp_path: Path):
    ranks_of(tmp_path, (4, 6))
    listed = {"comm_group_parallel_info": [{"group_name": "777", "rank_set": [4, 6], "pg_name": "dp"}]}
    output = tmp_path / "cluster_analysis_output"
    output.mkdir()
    (output / "communication_group.json").write_text(json.dumps(listed))
    (output / "cluster_step_trace_time.csv").write_text("Step,Type,Index,Computing,Communication(Not Overlapped)\n")
    assert links(tmp_path) == {4: [(4, 6, False)], 6: [(4, 6, False)]}


def test_a_group_as_large_as_the_job_is_the_job(tmp_path: Path):
    ranks_of(tmp_path, (0, 1), {0: {"distributed_args": {"world_size": 2}}})
    assert links(tmp_path) == {0: [(0, 1, False)], 1: [(0, 1, False)]}


def test_a_cluster_file_of_nonsense_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "cluster_communication.json").write_text('{"p2p": {"step1": [')
    assert main(["report", str(tmp_path)]) == 2
    assert "cluster_communication.json: line 1: is not valid JSON" in capsys.readouterr().err


@pytest.mark.real
def test_the_gpt3_job_of_2023_has_16_ranks_and_broadcasts_of_eight(tmp_path: Path):
    source = SHARED / "dumps" / "msinsight-gpt3-2023" / "cluster_analysis_output"
    shutil.copytree(source, tmp_path / "cluster_analysis_output")
    report = build_report(tmp_path)
    ranks = {entry["rank"]: entry for entry in report["ranks"]}
    assert sorted(ranks) == [*range(16)]
    assert ranks[0]["steps"][0]["computing_us"] == pytest.approx(75174.574645)
    rows = {row["op"]: row for row in ranks[0]["communication"]}
    assert rows["hcom_send"]["elapse_us"] == pytest.approx(896.487, abs=0.001)
    assert (rows["hcom_send"]["size_bytes"], rows["hcom_send"]["link"]) == (20_971_520, "RDMA")
    (link,) = [row for row in ranks[0]["links"] if row["link"] == "RDMA"]
    assert (link["src"], link["dst"], link["within_group"]) == (0, 8, False)
    assert link["bandwidth_gbps"] == pytest.approx(24.2778, abs=1e-3)


@pytest.mark.real
def test_the_ranks_own_dumps_count_more_than_what_was_summed_up_from_them():
    found = find_dumps(SHARED / "dumps" / "msinsight-gpt3-2023")
    assert all("cluster_analysis_output" not in dump.label for dump in found)
    gpt3 = next(dump for dump in found if "test_rank_0" in dump.label)
    (link,) = [row for row in read_rank(gpt3).entry["links"] if row["op"] == "hcom_send"]
    assert (link["src"], link["dst"]) == (0, 8)
