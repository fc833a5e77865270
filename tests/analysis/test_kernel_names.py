"""Kernels found by a text, through the index of their different names."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from analysis import kernel_names
from analysis.cli import main
from analysis.kernel_names import rows_with, write_names
from analysis.schema import NAMES_FILE
from analysis.store import write_frames
from analysis.synthetic import write_rank
from analysis.synthetic.spec import llama2_7b
from analysis.words import as_categories

KERNELS = pl.DataFrame(
    {
        "name": ["MatMul-op1", "Default/Cast-op2", "MatMul-op1", None, "aclnn.add", "MatMul-op1"],
        "type": ["MatMulV3", "Cast", "MatMulV3", "Add", None, None],
    }
)  # fmt: skip
FILES = (f"{NAMES_FILE}.json", f"{NAMES_FILE}.bin")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_frames(tmp_path, {"kernels": KERNELS})
    return tmp_path


def found(folder: Path, text: str) -> list[int]:
    return rows_with(folder, text).nonzero()[0].tolist()


@pytest.mark.parametrize("way", ["searched", "indexed", "indexed by the digest"])
def test_a_text_is_found_in_names_and_types_in_any_case_and_as_it_stands(folder, monkeypatch, way):
    if way == "indexed":
        monkeypatch.setattr(kernel_names, "WORTH_KEEPING", 1)
    if way == "indexed by the digest":
        assert write_names(folder, as_categories(KERNELS))
    assert found(folder, "matmul") == [0, 2, 5]
    assert found(folder, "MATMULV3") == [0, 2]
    assert found(folder, "add") == [3, 4]
    assert found(folder, "n.a") == [4]
    assert found(folder, ".*") == []
    assert all((folder / name).exists() == (way != "searched") for name in FILES)


def test_where_too_many_names_differ_the_names_are_searched(folder, monkeypatch):
    monkeypatch.setattr(kernel_names, "WORTH_KEEPING", 1)
    monkeypatch.setattr(kernel_names, "MOST_PAIRS", 4)  # there are five
    assert found(folder, "matmul") == [0, 2, 5]
    assert not any((folder / name).exists() for name in FILES)


def test_where_no_kernels_are_kept_no_search_finds_a_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        rows_with(tmp_path, "cast")


@pytest.mark.parametrize(("least", "left"), [(1, True), (10**9, False)])
def test_a_digest_leaves_the_index_of_many_kernels(tmp_path, monkeypatch, least, left):
    monkeypatch.setattr("analysis.lanes.WORTH_KEEPING", least)
    folder = tmp_path / "host01_1_20260101120000123_ascend_ms"
    write_rank(folder, llama2_7b(), steps=1, run={"soc": "Ascend910B3"})
    order = tmp_path / "files.json"
    files = {str(path.relative_to(folder)): str(path) for path in folder.rglob("*") if path.is_file()}
    order.write_text(json.dumps({"folder": folder.name, "files": files}))
    assert main(["digest", "--files", str(order), "--out", str(tmp_path / "out")]) == 0
    assert all((tmp_path / "out" / name).exists() == left for name in FILES)
    kernels = pl.read_parquet(tmp_path / "out" / "kernels.parquet")
    here = kernels["name"].str.contains("(?i)cast") | kernels["type"].str.contains("(?i)cast").fill_null(False)
    assert rows_with(tmp_path / "out", "CAST").tolist() == here.to_list()
