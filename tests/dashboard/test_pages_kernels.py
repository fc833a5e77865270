"""The kernels of a rank, read from its Parquet file."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.store import write_frames
from dashboard.runs.frames import frames_path
from dashboard.runs.kernel_rows import KernelSearch, kernels
from dashboard.runs.models import Dump
from tests.factories import make_capture, make_dump, make_project, make_run, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def dump(tmp_path: Path, settings: Any) -> Dump:
    """250 kernels of 10, 20, 30 ... ns; every fifth is a Cast, the first ten are of layer 3."""
    settings.DATA_ROOT = tmp_path
    user = make_user("alice")
    made = make_dump(make_capture(make_run(make_project(owner=user))), frames="7-0123456789ab")
    numbers = range(250)
    frame = pl.DataFrame(
        {
            "name": [f"Default/op{number}" for number in numbers],
            "type": ["Cast" if number % 5 == 0 else "MatMul" for number in numbers],
            "start_ns": [1_000_000 + number * 100 for number in numbers],
            "duration_ns": [(number + 1) * 10 for number in numbers],
            "wait_ns": [None] * 250,
            "layer": [3 if number < 10 else None for number in numbers],
        },
        schema_overrides={"wait_ns": pl.Int64},
    )
    write_frames(frames_path(made.frames), {"kernels": frame})
    return made


def test_the_longest_come_first_a_hundred_to_a_page(dump):
    found = kernels(dump, KernelSearch.from_params({"page": "3"}))
    assert (found["total"], found["pages"], found["page"], len(found["rows"])) == (250, 3, 3, 50)
    assert found["rows"][0]["duration_ns"] == 500
    # 10 + 20 + ... + 2500
    assert found["sum_ns"] == 313_750


def test_kernels_are_found_by_type_layer_and_text(dump):
    assert kernels(dump, KernelSearch.from_params({"type": "Cast"}))["total"] == 50
    assert kernels(dump, KernelSearch.from_params({"layer": "3"}))["total"] == 10
    assert kernels(dump, KernelSearch.from_params({"q": "OP24"}))["total"] == 11
    assert kernels(dump, KernelSearch.from_params({"q": "op[2"}))["total"] == 0


def test_times_count_from_the_first_kernel(dump):
    rows = kernels(dump, KernelSearch.from_params({"order": "start"}))["rows"]
    assert [row["offset_ns"] for row in rows[:2]] == [0, 100]


def test_a_page_number_out_of_range_is_the_last_page(dump):
    assert kernels(dump, KernelSearch.from_params({"page": "99"}))["page"] == 3


def test_the_page_shows_them_and_says_when_none_are_kept(dump, client):
    client.force_login(dump.capture.run.project.members.get().user)
    address = f"/captures/{dump.capture_id}/ranks/0/"
    assert "Default/op249" in client.get(address).content.decode()
    Dump.objects.update(frames="")
    assert "No kernels are kept for this rank" in client.get(address).content.decode()


@dataclass(frozen=True)
class SweptMeanwhile(KernelSearch):
    """A search during which a sweep takes the tables, after they were found."""

    folder: Path = Path()

    def __getattribute__(self, name: str) -> Any:
        if name == "order":
            shutil.rmtree(self.folder, ignore_errors=True)
        return super().__getattribute__(name)


def test_tables_that_a_sweep_takes_while_they_are_read_are_not_kept(dump):
    assert kernels(dump, SweptMeanwhile(text="cast", folder=frames_path(dump.frames))) is None


@pytest.mark.parametrize("name", ["", "../etc", "7-0123456789ab/..", "7-0123456789AB"])
def test_no_other_name_becomes_a_path(name):
    with pytest.raises(ValueError, match="not a frames folder"):
        frames_path(name)


def test_equal_lengths_stand_once_over_the_pages_and_unknown_ones_last(dump):
    folder = frames_path(dump.frames)
    lengths = [None, 5] + [7] * 246 + [None, 9]
    frame = pl.read_parquet(folder / "kernels.parquet").with_columns(duration_ns=pl.Series(lengths, dtype=pl.Int64))
    write_frames(folder, {"kernels": frame})
    pages = [kernels(dump, KernelSearch.from_params({"page": str(page)}))["rows"] for page in (1, 2, 3)]
    # The longest is row 249, the shortest row 1; rows 0 and 248 do not know.
    assert [row["row"] for page in pages for row in page] == [249, *range(2, 248), 1, 0, 248]


def test_text_is_found_in_types_and_names_as_it_is_written(dump):
    assert kernels(dump, KernelSearch.from_params({"q": "cAsT"}))["total"] == 50
    assert kernels(dump, KernelSearch.from_params({"q": "op.*"}))["rows"] == []


@pytest.mark.parametrize("text", ["op2(", "op2\\", "(?i", "[", "a|b", "^", " ", "算子", "é" * 300])
def test_no_text_is_taken_for_a_pattern(dump, text):
    found = kernels(dump, KernelSearch.from_params({"q": text}))
    assert found["total"] == (250 if not text.strip() else 0)
