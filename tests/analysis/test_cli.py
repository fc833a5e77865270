from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from analysis.cli import main
from analysis.store import scan
from tests.analysis.small_dumps import FOLDER, OUTPUT, whole_dump


def test_json_goes_to_standard_output_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(whole_dump(tmp_path)), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ranks"][0]["rank"] == 0
    assert captured.err == ""


def test_a_person_gets_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(whole_dump(tmp_path))]) == 0
    text = capsys.readouterr().out
    for word in ("torch_npu", "Steps (ms)", "MatMulV3", "Checklist", "dtype_cast", "how to get it"):
        assert word in text


def test_nothing_readable_is_exit_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(tmp_path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{tmp_path}: holds no profiler files that are known\n"


def test_an_archive_within_an_archive_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    inner, outer = tmp_path / "host01.zip", tmp_path / "all.zip"
    for archive, member in ((inner, "kernel_details.csv"), (outer, "ranks/host01.zip")):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(member, inner.read_bytes() if archive == outer else b"Name")
    assert main(["report", str(outer)]) == 2
    assert capsys.readouterr().err == (
        f"{outer}: holds no profiler files that are known; ranks/host01.zip is an archive itself: unpack it first\n"
    )


def test_a_folder_with_one_bad_rank_reports_the_others_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole_dump(tmp_path / "good")
    bad = whole_dump(tmp_path / "bad", kernel_details_csv="", step_trace_time_csv="")
    assert main(["report", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["ranks"]) == 1
    assert any(str(bad.relative_to(tmp_path)) in warning for warning in report["source"]["warnings"])


@pytest.mark.parametrize("option", ["--config", "--log"])
def test_a_side_file_that_is_not_there_is_one_line(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(whole_dump(tmp_path)), option, str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_log_gives_the_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = (
        "2026-01-01 12:00:00,000 - mindformers[x.py:1] - INFO - { Epoch:[  1/  2], step:[    %d/   19], loss: 10.5, "
        "per_step_time: 300ms, lr: 1e-05, overflow cond: False, loss_scale: 65536.0\n"
    )
    (tmp_path / "worker.log").write_text("".join(line % step for step in (1, 2)))
    assert main(["report", str(whole_dump(tmp_path)), "--json", "--log", str(tmp_path / "worker.log")]) == 0
    steps = json.loads(capsys.readouterr().out)["series"]["steps"]
    assert [(step["step"], step["loss"]) for step in steps] == [(1, 10.5), (2, 10.5)]


def order(tmp_path: Path, root: Path) -> list[str]:
    files = {path.relative_to(root).as_posix(): str(path) for path in root.rglob("*") if path.is_file()}
    (tmp_path / "files.json").write_text(json.dumps({"folder": FOLDER, "files": files}))
    return ["digest", "--files", str(tmp_path / "files.json"), "--out", str(tmp_path / "out")]


def test_digest_writes_entry_and_tables_and_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(order(tmp_path, whole_dump(tmp_path))) == 0
    assert capsys.readouterr() == ("", "")
    stored = json.loads((tmp_path / "out" / "entry.json").read_text())
    assert set(stored) == {"entry", "source", "series", "others"} and stored["others"] == []
    assert stored["entry"]["kernels"]["count"] == 4
    kernels = scan(tmp_path / "out", "kernels").collect()
    assert kernels.height == 4 and {"class", "flops", "part", "layer", "block", "pass"} <= set(kernels.columns)
    assert scan(tmp_path / "out", "steps").collect()["computing_ns"].to_list() == [100_000]


def test_digest_of_a_bad_dump_is_exit_2_and_leaves_no_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = whole_dump(tmp_path, kernel_details_csv="", step_trace_time_csv="")
    assert main(order(tmp_path, root)) == 2
    assert capsys.readouterr().err == (
        f"{FOLDER}/{OUTPUT}/kernel_details.csv: is empty (zero bytes) (1 more files cannot be read)\n"
    )
    assert not (tmp_path / "out" / "entry.json").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": 3}', '{"files": {"kernel_details.csv": "/nowhere/at/all"}}']
)
def test_digest_of_an_order_that_is_none_is_exit_2(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "files.json").write_text(text)
    assert main(["digest", "--files", str(tmp_path / "files.json"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
