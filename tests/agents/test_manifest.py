from __future__ import annotations

import hashlib
import os

import pytest
from stepscope_agent.discover import find_dumps
from stepscope_agent.manifest import HashCache, allowed, entries_of, names_of

from agent_dumps import write, write_torch


@pytest.mark.parametrize(
    "name",
    [
        "profiler_info.json", "profiler_info_12.json", "profiler_metadata.json", "stepscope_run.json",
        "stepscope_steps.jsonl", ".complete.json", "kernel_details.csv", "kernel_details.csv.gz",
        "ASCEND_PROFILER_OUTPUT/kernel_details.csv", "ASCEND_PROFILER_OUTPUT/analysis.db", "FRAMEWORK/cpu_framework_0.txt",
        "profiler/aicore_intermediate_0_detail.csv", "mindstudio_profiler_output/op_summary_1.csv",
        "PROF_000001_2026_ABC/mindstudio_profiler_output/op_summary_1.csv", "PROF_1/device_0/info.json.0",
        "PROF_1/device_0/timeline/msprof_0_2_1.json",
    ],
)  # fmt: skip
def test_the_protocols_names_are_taken(name):
    assert allowed(name)


@pytest.mark.parametrize(
    "name",
    [
        "../kernel_details.csv", "/etc/x.csv", "ASCEND_PROFILER_OUTPUT/../x.csv", "ASCEND_PROFILER_OUTPUT//x.csv",
        "ASCEND_PROFILER_OUTPUT\\x.csv", "c:x.csv", "a\nb.csv", "model.py", "FRAMEWORK/mindspore.op_range", "logs/x.txt",
        "PROF_1/host/data.bin", "PROF_1/device_0/data/x.csv", "other/x.csv", "stepscope_steps.csvx", "x" * 300 + ".csv",
        "ASCEND_PROFILER_OUTPUT/deeper/x.csv", "",
    ],
)  # fmt: skip
def test_no_other_name_is_taken(name):
    assert not allowed(name)


def sent(path, **more):
    return sorted(name for dump in find_dumps(str(path)) for name, _ in names_of(dump, **more))


def test_trace_and_logs_and_raw_data_stay(tmp_path):
    root = write_torch(tmp_path, rank=0, trace=True)
    write(os.path.join(root, "logs", "profiler_1.log"), "x")
    write(os.path.join(root, "PROF_1_20260101120000123_A", "device_0", "data", "hwts.data"), "x")
    write(os.path.join(root, "PROF_1_20260101120000123_A", "mindstudio_profiler_output", "op_summary_1.csv"), "x")
    write(os.path.join(root, "PROF_1_20260101120000123_A", "device_0", "info.json.0"), "{}")
    assert sent(tmp_path) == [
        "ASCEND_PROFILER_OUTPUT/kernel_details.csv",
        "ASCEND_PROFILER_OUTPUT/step_trace_time.csv",
        "PROF_1_20260101120000123_A/device_0/info.json.0",
        "profiler_info_0.json",
    ]
    assert "ASCEND_PROFILER_OUTPUT/trace_view.json" in sent(tmp_path, with_trace=True)


def test_a_trace_that_is_all_there_is_goes_up(tmp_path):
    write(tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", "[]")
    write(tmp_path / "x_ascend_pt" / "profiler_info_0.json", "{}")
    assert "ASCEND_PROFILER_OUTPUT/trace_view.json" in sent(tmp_path)


def test_a_msprof_folder_keeps_its_name_as_the_protocol_wants(tmp_path):
    write(tmp_path / "PROF_1_A" / "mindstudio_profiler_output" / "op_summary_1.csv", "x")
    assert sent(tmp_path) == ["PROF_1_A/mindstudio_profiler_output/op_summary_1.csv"]


def test_the_folder_above_a_bare_output_stays_private(tmp_path):
    write(tmp_path / "work" / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv", "x")
    write(tmp_path / "work" / "salaries.csv", "x")
    assert sent(tmp_path) == ["ASCEND_PROFILER_OUTPUT/kernel_details.csv"]


def test_ranks_in_one_legacy_folder_get_their_own_files(tmp_path):
    for rank in (0, 1):
        write(tmp_path / "profiler" / ("aicore_intermediate_%d_detail.csv" % rank), "x")
    write(tmp_path / "profiler" / "step_trace_point_info.json", "{}")
    first, second = find_dumps(str(tmp_path))
    assert [name for name, _ in names_of(second)] == [
        "profiler/aicore_intermediate_1_detail.csv",
        "profiler/step_trace_point_info.json",
    ]


def test_a_link_out_of_the_dump_is_not_followed(tmp_path):
    root = write_torch(tmp_path / "job", rank=0)
    secret = write(tmp_path / "secret.csv", "x")
    os.symlink(secret, os.path.join(root, "ASCEND_PROFILER_OUTPUT", "stolen.csv"))
    assert not any("stolen" in name for name in sent(tmp_path / "job"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    root = write_torch(tmp_path, rank=0)
    path = os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv")
    os.chmod(path, 0)
    entries, troubles = entries_of(find_dumps(str(tmp_path))[0])
    assert [entry.name for entry in entries] == ["ASCEND_PROFILER_OUTPUT/step_trace_time.csv", "profiler_info_0.json"]
    assert path in troubles[0]


def test_size_and_hash_are_of_the_bytes(tmp_path):
    write_torch(tmp_path, rank=0)
    entries, _ = entries_of(find_dumps(str(tmp_path))[0])
    for entry in entries:
        with open(entry.path, "rb") as stream:
            data = stream.read()
        assert (entry.size, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_hashes_are_kept_until_the_file_changes(tmp_path):
    path, cache = write(tmp_path / "a.csv", "one"), str(tmp_path / "hashes.json")
    first = HashCache(cache)
    assert first.sha256(path) == hashlib.sha256(b"one").hexdigest()
    first.save()
    stat = os.stat(path)
    with open(path, "r+") as stream:
        stream.write("two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert HashCache(cache).sha256(path) == hashlib.sha256(b"one").hexdigest()  # same size and time: not read again
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert HashCache(cache).sha256(path) == hashlib.sha256(b"two").hexdigest()


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\xff", b'{"/x": 3}'])
def test_a_spoilt_cache_is_only_slower(tmp_path, content):
    cache, path = write(tmp_path / "hashes.json", content), write(tmp_path / "a.csv", "one")
    assert HashCache(cache).sha256(path) == hashlib.sha256(b"one").hexdigest()


def test_what_was_found_of_all_ranks_goes_with_each(tmp_path):
    root = write_torch(tmp_path, rank=0)
    for name in ("cluster_step_trace_time.csv", "cluster_communication.json", "cluster_analysis.db", "notes.md"):
        write(tmp_path / "cluster_analysis_output" / name, "x")
    (dump,) = find_dumps(str(tmp_path))
    names = [name for name, path in names_of(dump) if name.startswith("cluster_analysis_output/")]
    assert names == [
        "cluster_analysis_output/" + name
        for name in ("cluster_analysis.db", "cluster_communication.json", "cluster_step_trace_time.csv")
    ]
    assert all(allowed(name) for name in names)
    assert dump.root == root
