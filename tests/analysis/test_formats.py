"""One synthetic job in every format the profilers write: each reader finds the job's own numbers."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report
from analysis.dump import find_dumps
from analysis.rank import read_rank
from analysis.synthetic import GptSpec, Truth, write_rank


def written(folder: Path, export: str, **more) -> Truth:
    spec = GptSpec(layers=3, dp=2, casts=frozenset(["norm"]), mode=more.pop("mode", "graph"))
    return write_rank(folder, spec, export=(export,), **more)


@pytest.mark.parametrize(
    ("export", "mode"), [("text", "torch"), ("text", "graph"), ("db", "torch"), ("db", "graph"), ("msprof", "torch")]
)
def test_each_format_of_kernels_sums_to_the_job(tmp_path: Path, export, mode) -> None:
    truth = written(tmp_path, export, mode=mode, run={})
    entry = read_rank(find_dumps(tmp_path)[0]).entry
    compute = [kernel for kernel in truth.kernels if not kernel.is_communication]
    assert entry["kernels"]["compute_count"] == len(compute)
    assert entry["kernels"]["compute_us"] == pytest.approx(truth.compute_ns / 1000, abs=0.01)
    assert entry["kernels"]["cast_ratio"] == pytest.approx(truth.cast_ratio, abs=1e-6)
    assert entry["flops"]["measured_flops"] * entry["facts"]["steps"] == pytest.approx(truth.flops, abs=8)
    assert entry["layers"]["layer_count"] == 3


def test_averages_of_old_releases_are_one_step_of_the_job(tmp_path: Path) -> None:
    truth = written(tmp_path, "legacy")
    entry = read_rank(find_dumps(tmp_path)[0]).entry
    assert entry["kernels"]["compute_us"] == pytest.approx(truth.compute_ns / 1000 / len(truth.steps), rel=1e-3)
    assert len(entry["steps"]) == len(truth.steps)
    told = sum(step["step_time_us"] for step in entry["steps"])
    assert told == pytest.approx(sum(step.step_ns for step in truth.steps) / 1000, rel=1e-6)


def test_a_cpu_run_has_the_kernels_of_the_job(tmp_path: Path) -> None:
    truth = written(tmp_path, "cpu")
    entry = read_rank(find_dumps(tmp_path)[0]).entry
    compute = [kernel for kernel in truth.kernels if not kernel.is_communication]
    assert entry["kernels"]["compute_count"] == len(compute)
    assert entry["kernels"]["compute_us"] == pytest.approx(truth.compute_ns / 1000, abs=0.01)


def test_packed_files_are_read_as_the_plain_ones(tmp_path: Path) -> None:
    written(tmp_path / "plain", "text", run={})
    written(tmp_path / "packed", "text", run={})
    for path in list((tmp_path / "packed").rglob("*.csv")):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    plain, packed = (read_rank(find_dumps(tmp_path / name)[0]).entry for name in ("plain", "packed"))
    assert [step.pop("source") for step in packed["steps"]] == ["step_trace_time.csv.gz"] * 2
    assert [step.pop("source") for step in plain["steps"]] == ["step_trace_time.csv"] * 2
    assert {step.pop("bubble_source") for step in packed["steps"]} == {"step_trace_time.csv.gz"}
    assert {step.pop("bubble_source") for step in plain["steps"]} == {"step_trace_time.csv"}
    for key in ("steps", "kernels", "op_types", "layers", "memory"):
        assert packed[key] == plain[key]


UNTOLD = {
    "label": "the folder",
    "host": "HOST_INFO of the database",
    "links": "the synthetic database has no table of links",
    "missing": "how to get what is missing",
    "soc": "NPU_INFO of the database",
    "peak": "follows from the chip",
    "hfu": "follows from the chip",
    "dynamic_ratio": "OP State, a column of text only",
    "evidence": "names what was found missing",
    "source": "the file",
    "bubble_source": "the file",
    "format": "the form",
    "places": "a sorted list of what is compared in layers",
}
"""Keys that may differ between text and database of one job, and why."""


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two reports differ: numbers by more than 0.5 %."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if not any(key.startswith(untold) for untold in UNTOLD):
                yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield f"{path}: {len(one)} and {len(other)} of them"
        for index, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{path}[{index}]")
    elif isinstance(one, float) or isinstance(other, float):
        if one is None or other is None or one != pytest.approx(other, rel=0.005, abs=0.002):
            yield f"{path}: {one} and {other}"
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"


def test_text_and_database_of_one_job_tell_the_same_numbers_throughout(tmp_path: Path) -> None:
    reports = []
    for export in ("text", "db"):
        written(tmp_path / export, export, mode="torch", run={})
        report = build_report(tmp_path / export)
        for entry in report["ranks"]:
            entry["layers"]["parts"].sort(key=lambda part: [str(part[key]) for key in ("part", "layer", "pass")])
            for part in entry["layers"]["parts"]:
                part["blocks"].sort(key=lambda block: block["block"])
        reports.append(report)
    assert list(differences(*(report["ranks"][0] for report in reports))) == []
    for key in ("bottleneck", "cluster", "checklist", "findings"):
        assert list(differences(*(report[key] for report in reports), f".{key}")) == []
