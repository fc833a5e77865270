"""Names are labels of an allow-list; nothing that could be a path elsewhere gets through."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.ingest.errors import ApiError
from dashboard.ingest.manifest import check_name, read_manifest

SHA = "0" * 64


def row(name: str = "a.csv", size: int = 1, sha256: str = SHA) -> SimpleNamespace:
    return SimpleNamespace(name=name, size=size, sha256=sha256)


@pytest.mark.parametrize(
    "name",
    [
        "profiler_info.json",
        "profiler_info_12.json.gz",
        "stepscope_steps.jsonl",
        ".complete.json",
        "ASCEND_PROFILER_OUTPUT/kernel_details.csv",
        "ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db",
        "FRAMEWORK/torch.op_range.txt",
        "PROF_000001_2026/mindstudio_profiler_output/op_summary_2026.csv.gz",
        "PROF_000001_2026/device_3/info.json.3",
        "PROF_1/device_0/timeline/a.json",
        "profiler/step_trace_raw_0_detail_time.csv",
        "cluster_analysis_output/cluster.db",
        "kernel_details.csv",
    ],
)
def test_names_of_profiler_files_are_taken(name):
    check_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd.csv",
        "../a.csv",
        "ASCEND_PROFILER_OUTPUT/../../a.csv",
        "ASCEND_PROFILER_OUTPUT//a.csv",
        "./a.csv",
        "a\\b.csv",
        "C:a.csv",
        "a\n.csv",
        "a\x00.csv",
        "a\x85.csv",
        "a.csv\n",
        "profiler_info.json\n",
        "ASCEND_PROFILER_OUTPUT/deeper/a.csv",
        "PROF_1/host/data/a.json",
        "PROF_a/b/mindstudio_profiler_output/a.csv",
        "run.sh",
        "a.csv.gz.gz.exe",
        "x" * 297 + ".csv",
    ],
)
def test_any_other_name_is_refused(name):
    with pytest.raises(ApiError) as refused:
        check_name(name)
    assert (refused.value.status, refused.value.code) == (400, "bad_name")


@given(st.text(max_size=40) | st.from_regex(r"[./A-Z_\\:]{1,20}(\.csv)?"))
def test_no_taken_name_leaves_its_folder(name):
    try:
        check_name(name)
    except ApiError:
        return
    assert not name.startswith("/") and ".." not in name.split("/") and "" not in name.split("/")


@pytest.mark.parametrize(
    "rows",
    [[], [row(), row()], [row(size=-1)], [row(size=1 << 62)], [row(sha256="0" * 63 + "G")], [row(), row("b.csv", 2)]],
)
def test_a_manifest_that_cannot_be_is_refused(rows):
    with pytest.raises(ApiError) as refused:
        read_manifest(rows)
    assert (refused.value.status, refused.value.code) == (400, "bad_manifest")
