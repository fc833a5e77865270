"""The timeline's index that a digest leaves beside the Parquet files of many kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis import lanes
from analysis.cli import main
from analysis.schema import LANES_FILE
from analysis.synthetic import write_rank
from analysis.synthetic.spec import llama2_7b

FILES = [f"{LANES_FILE}.json", f"{LANES_FILE}.bin"]


@pytest.fixture
def digested(tmp_path: Path) -> Path:
    """What a digest leaves of a synthetic rank."""
    folder = tmp_path / "host01_1_20260101120000123_ascend_ms"
    write_rank(folder, llama2_7b(), steps=1, run={"soc": "Ascend910B3"})
    files = {str(path.relative_to(folder)): str(path) for path in folder.rglob("*") if path.is_file()}
    order = tmp_path / "files.json"
    order.write_text(json.dumps({"folder": folder.name, "files": files}))
    assert main(["digest", "--files", str(order), "--out", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(lanes, "WORTH_KEEPING", 1)


def test_a_digest_of_many_kernels_leaves_the_index_that_a_first_view_would_make(many, digested):
    left = [(digested / name).read_bytes() for name in FILES]
    for name in FILES:
        (digested / name).unlink()
    lanes.build(digested)
    assert [(digested / name).read_bytes() for name in FILES] == left


def test_a_digest_of_few_kernels_leaves_the_index_to_the_first_view(digested):
    assert not any((digested / name).exists() for name in FILES)
