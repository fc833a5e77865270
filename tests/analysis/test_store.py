from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from analysis.store import scan, write_frames


def test_what_is_written_is_read_back_with_types_and_nulls(tmp_path: Path):
    frame = pl.DataFrame(
        {"name": ["a", None], "start_ns": [1764246877073569640, None]}, schema={"name": pl.String, "start_ns": pl.Int64}
    )
    write_frames(tmp_path / "new", {"kernels": frame})
    assert scan(tmp_path / "new", "kernels").collect().equals(frame)


def test_no_unfinished_file_is_left(tmp_path: Path):
    write_frames(tmp_path, {"steps": pl.DataFrame({"step": ["1"]}), "memory": pl.DataFrame({"time_ns": [1]})})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.parquet", "steps.parquet"]


def test_a_table_that_was_never_written_is_not_found(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        scan(tmp_path, "kernels")
