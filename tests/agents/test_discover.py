from __future__ import annotations

import os
import time

import pytest
from stepscope_agent.discover import find_dumps

from agent_dumps import write, write_torch


def one(path, **more):
    dumps = find_dumps(str(path), **more)
    assert len(dumps) == 1
    return dumps[0]


def write_mindspore(folder, name="host01_4242_20260101120000123_ascend_ms"):
    root = os.path.join(str(folder), name)
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv"), "Name\n")
    return root


@pytest.mark.parametrize(
    "place", ["", "host01_4242_20260101120000123_ascend_pt", "a/b"], ids=["above", "itself", "deep"]
)
def test_a_dump_is_found_from_above_and_from_itself(tmp_path, place):
    write_torch(tmp_path / "a" / "b", rank=0)
    start = tmp_path / "a" / "b" / place if place.endswith("_pt") else tmp_path / place
    assert one(start).folder == "host01_4242_20260101120000123_ascend_pt"


def test_the_output_folder_alone_stands_for_its_dump(tmp_path):
    root = write_torch(tmp_path, rank=2)
    assert one(os.path.join(root, "ASCEND_PROFILER_OUTPUT")).rank == 2


def test_facts_come_from_the_folders_name(tmp_path):
    dump = one(write_mindspore(tmp_path))
    assert (dump.kind, dump.framework, dump.host, dump.stamp) == (
        "ascend_ms",
        "mindspore",
        "host01",
        "20260101120000123",
    )
    assert dump.captured_at == "2026-01-01T12:00:00Z"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("profiler_info_5.json", "{}"),
        ("profiler_info.json", '{"rank_id": "5"}'),
        ("profiler_info.json", '{"ms_profiler_info": {"rank_id": "5", "device_id": "1"}}'),
        ("profiler_metadata.json", '{"distributed_args": {"rank": 5}}'),
        ("stepscope_run.json", '{"rank": 5}'),
        (".complete.json", '{"state": "complete", "rank": 5}'),
        ("FRAMEWORK/cpu_op_execute_timestamp_5.txt", ""),
        ("FRAMEWORK/minddata_pipeline_raw_5.csv", ""),
        ("ASCEND_PROFILER_OUTPUT/ascend_mindspore_profiler_5.db", ""),
    ],
)
def test_the_rank_is_read_wherever_it_is_written(tmp_path, name, content):
    root = write_mindspore(tmp_path)
    write(os.path.join(root, name), content)
    assert one(root).rank == 5


@pytest.mark.parametrize("folder", ["rank_5", "rank5_start3_stop4", "rank5"])
def test_the_rank_is_read_from_the_folder_above(tmp_path, folder):
    write_mindspore(tmp_path / folder)
    assert one(tmp_path).rank == 5


@pytest.mark.parametrize("name", ["rank_5_ascend_ms", "rank5_ascend_ms", "vm_rank5_77_20260101120000123_ascend_ms"])
def test_the_rank_is_read_from_the_dumps_own_name(tmp_path, name):
    write_mindspore(tmp_path, name)
    assert one(tmp_path).rank == 5


def test_an_unknown_rank_is_unknown(tmp_path):
    write_mindspore(tmp_path / "card7")
    assert one(tmp_path).rank is None


def test_the_dynamic_profilers_folder_tells_the_window(tmp_path):
    write_mindspore(tmp_path / "rank0_start25_stop26")
    dump = one(tmp_path)
    assert (dump.first_step, dump.last_step) == (25, 26)


def test_world_size_is_the_largest_group(tmp_path):
    root = write_mindspore(tmp_path)
    groups = {"a": {"global_ranks": [0, 2]}, "b": {"global_ranks": [0, 1, 2, 3]}}
    write(os.path.join(root, "profiler_metadata.json"), {"parallel_group_info": groups})
    assert one(root).world_size == 4


def test_a_dump_with_raw_data_only_is_raw_and_says_how_to_analyse_it(tmp_path):
    root = os.path.join(str(tmp_path), "host01_4242_20260101120000123_ascend_ms")
    write(os.path.join(root, "PROF_000001_20260101120000123_ABCDEFGH", "device_0", "data.bin"), "x")
    write(os.path.join(root, "profiler_info_0.json"), "{}")
    dump = one(tmp_path)
    assert dump.state == "raw"
    assert "mindspore.profiler.profiler import analyse" in dump.reason


def test_slices_of_old_releases_are_raw(tmp_path):
    write(tmp_path / "JOB1" / "training_trace.46.dev.profiler_default_tag.0.slice_0", "x")
    dump = one(tmp_path)
    assert (dump.kind, dump.state) == ("slices", "raw")


@pytest.mark.parametrize("state", ["whole", "failed"])
def test_a_failed_marker_says_why_and_what_there_is_counts(tmp_path, state):
    root = write_mindspore(tmp_path)
    write(os.path.join(root, ".complete.json"), {"schema": 1, "state": "failed", "reason": "msprof not found"})
    if state == "failed":
        os.unlink(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv"))
    dump = one(tmp_path)
    assert (dump.state, dump.reason) == (state, "the profiler failed: msprof not found")


def test_a_trace_without_its_end_is_unfinished_only_while_it_is_written_to(tmp_path):
    root = write_mindspore(tmp_path)
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "trace_view.json"), '[{"name": "MatM')
    assert one(root).state == "unfinished"
    assert one(root, now=time.time() + 3600).state == "whole"


def test_a_marker_outweighs_a_cut_trace(tmp_path):
    root = write_mindspore(tmp_path)
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "trace_view.json"), "[")
    write(os.path.join(root, ".complete.json"), {"schema": 1, "state": "complete"})
    assert one(root).state == "whole"


def test_an_empty_dump_is_empty(tmp_path):
    os.makedirs(str(tmp_path / "host01_4242_20260101120000123_ascend_pt"))
    assert one(tmp_path).state == "empty"


def test_metadata_that_is_not_json_is_no_error(tmp_path):
    root = write_mindspore(tmp_path)
    for name in ("profiler_metadata.json", "stepscope_run.json", ".complete.json"):
        write(os.path.join(root, name), b"\xff\xfe{" + b"[" * 100000)
    assert one(root).rank is None


def test_hidden_folders_and_links_are_not_entered(tmp_path):
    write_torch(tmp_path / "elsewhere", rank=0)
    write_torch(tmp_path / "job" / ".snapshots", rank=0)
    os.symlink(str(tmp_path / "elsewhere"), str(tmp_path / "job" / "link"))
    assert find_dumps(str(tmp_path / "job")) == []


def real(shared_dumps, folder):
    found = find_dumps(os.path.join(shared_dumps, folder))
    return [(dump.kind, dump.state, dump.rank, dump.world_size) for dump in found]


@pytest.mark.real
@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("msinsight-llm-pp2dp2", [("ascend_pt", "whole", 0, 4), ("ascend_pt", "whole", 1, 4)]),
        ("msinsight-gpt3-2023/test_rank_0", [("bare", "whole", 0, None)]),
        ("mindinsight-ms1x-pp2-4ranks", [("legacy", "whole", rank, None) for rank in range(4)]),
        ("mindinsight-ms1x-run1", [("legacy", "whole", 1, None)]),
        ("mindinsight-msprof-2023", [("msprof", "whole", None, None)]),
        ("mindinsight-raw-unparsed/JOB1", [("slices", "raw", None, None)]),
        ("mindspore-cpu-graph-model_cb-agent_window", [("ascend_ms", "whole", 0, None)]),
        ("mstt-advisor/compute_advice", [("flat", "whole", None, None)]),
        ("msinsight-msprof-empty", [("msprof", "whole", None, None)]),
        ("training-logs", []),
    ],
)
def test_real_dumps_are_recognised(shared_dumps, folder, expected):
    assert real(shared_dumps, folder) == expected


def test_a_whole_host_recorded_at_once_goes_up_once_as_the_rank_of_its_first_device(tmp_path):
    for device in (0, 3):
        write(tmp_path / "PROF_1_A" / ("device_%d" % device) / "timeline" / ("task_time_%d_1.csv" % device), "a\n")
    write(tmp_path / "PROF_1_A" / "mindstudio_profiler_output" / "op_summary_20260101.csv", "Device_id,Op Name\n")
    (dump,) = find_dumps(str(tmp_path))
    assert (dump.rank, dump.device_id) == (0, 0)
    os.rename(str(tmp_path / "PROF_1_A" / "device_3"), str(tmp_path / "elsewhere"))
    (dump,) = find_dumps(str(tmp_path))
    assert dump.rank is None  # one device alone tells nothing of the rank
