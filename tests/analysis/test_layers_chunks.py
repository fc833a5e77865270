"""Interleaved pipelines: which passes are chunks of one micro-batch, and what is said where that cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.dump import find_dumps
from analysis.layers import Pipeline, attribute
from analysis.layers.chunks import MANY, UNKNOWN, Chunks, Unit, find_chunks
from analysis.rank import read_rank
from analysis.synthetic import write_rank
from tests.analysis.layer_truth import misplaced, place, read_kernels, small

DEEP = small(layers=16, pp=4, interleave=2, micro_batches=8)


def units(letters: str) -> list[Unit]:
    """F and B passes, f and b those with the embedding, L and l those with the loss (forward, backward)."""
    return [Unit(letter in "Bbl", letter in "fb", letter in "Ll") for letter in letters]


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("ffbb", Chunks()),  # every pass is embedded: one chunk
        ("ffFFffBFBFbb" + "BBbb", Chunks(2, 2)),  # two micro-batches, then the second chunk of both
        ("FFLLFFlLlLBBllBB", Chunks(2, 2)),  # the last stage: what ends in the loss is the last chunk
        ("fFFfFFBBbBBb", Chunks(3, 1)),
    ],
)
def test_chunks_by_where_passes_begin_and_end(letters: str, expected: Chunks) -> None:
    assert find_chunks([units(letters)], UNKNOWN) == expected


@pytest.mark.parametrize("letters", ["ffFBbb", "fFfFFFBBBBBb", "ffFFBBbbffFFbbBB"])
def test_passes_that_fit_no_schedule_are_left_as_they_are(letters: str) -> None:
    assert find_chunks([units(letters)], UNKNOWN) == Chunks(doubt=MANY)


@pytest.mark.parametrize("letters", ["FfbB", "FFFfffBBBbbb", "LFLFBlBl"])
def test_passes_that_begin_in_the_middle_of_a_micro_batch_are_left_as_they_are(letters: str) -> None:
    """What a window that cuts into a step, or rows of several devices mixed, look like."""
    assert find_chunks([units(letters)], UNKNOWN) == Chunks(doubt=MANY)


def test_metadata_with_no_stages_at_all_says_nothing() -> None:
    assert find_chunks([units("FFBB")], Pipeline(0, None, 2)) == find_chunks([units("FFBB")], UNKNOWN)


def test_places_of_passes_by_hand() -> None:
    found = Chunks(2, 2)
    forward = [found.place(i, backward=False) for i in range(8)]
    assert forward == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    assert [found.place(i, backward=True) for i in range(4)] == [(1, 0), (1, 1), (0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("stages", "stage", "letters", "expected"),
    [
        # 1F1B of 4 stages: stage 1 runs 2 forward passes ahead
        (4, 1, "FFFBFBFBBB", Chunks()),
        # 4 stages, 2 chunks, 8 micro-batches: stage 1 runs 2 x 2 + 4 = 8 ahead
        (4, 1, "F" * 8 + "FB" * 8 + "B" * 8, Chunks(2, 4)),
        # as many micro-batches as stages: all forward passes come first, whatever the number of chunks
        (2, 1, "FFFFBBBB", Chunks(2, 2)),
        # another schedule than these
        (4, 1, "FFBFFBFFBFFBBBBB", Chunks()),
    ],
)
def test_chunks_by_the_order_on_a_stage(stages: int, stage: int, letters: str, expected: Chunks) -> None:
    assert find_chunks([units(letters)], Pipeline(stages, stage)) == expected


def test_who_knows_the_number_of_chunks_settles_it() -> None:
    assert find_chunks([units("FFFFBBBB")], Pipeline(2, 1, 1)) == Chunks()
    assert find_chunks([units("FFFFBBBB")], Pipeline(2, 1, 3)) == Chunks(doubt=MANY)


def test_an_order_that_two_schedules_explain_is_doubted() -> None:
    """12 passes, 2 of them ahead: stage 1 of 4, or the last of 2 stages with 2 chunks."""
    assert find_chunks([units("FF" + "FB" * 10 + "BB")], UNKNOWN) == Chunks(doubt=MANY)
    assert find_chunks([units("FFBB")], UNKNOWN).count == 1


@pytest.mark.parametrize("rank", [1, 2])
def test_a_stage_in_the_middle_is_told_by_its_place(tmp_path: Path, rank: int) -> None:
    truth = write_rank(tmp_path / "dump", DEEP, rank=rank, run={})
    kernels = read_kernels(truth.folder)
    _, alone = attribute(kernels)
    assert (alone["layer_count"], alone["micro_batches"], alone["doubt"]) == (2, 16, MANY)
    placed, report = attribute(kernels, pipeline=Pipeline(4, rank))
    assert (report["layer_count"], report["micro_batches"], report["chunks"], report["doubt"]) == (4, 8, 2, None)
    local = {layer: place for place, layer in enumerate(truth.layers)}
    wanted = {(local[k.layer], k.micro_batch, k.pass_): 0 for k in truth.kernels if k.layer is not None}
    for k in truth.kernels:
        if k.layer is not None:
            wanted[local[k.layer], k.micro_batch, k.pass_] += k.duration_ns
    parts = [p for p in report["parts"] if p["part"] == "layer"]
    found = {(p["layer"], p["micro_batch"], p["pass"]): p["total_us"] for p in parts}
    assert found == {key: pytest.approx(ns / 1000 / 2, abs=0.001) for key, ns in wanted.items()}
    result = read_rank(find_dumps(truth.folder)[0])
    assert result.entry["layers"]["chunks"] == 2
    assert not any("layers:" in warning for warning in result.source["warnings"])


def test_what_cannot_be_told_is_warned_of(tmp_path: Path) -> None:
    truth = write_rank(tmp_path, DEEP, rank=1)
    (tmp_path / "profiler_metadata.json").unlink()
    result = read_rank(find_dumps(truth.folder)[0])
    assert f"layers: {MANY}" in result.source["warnings"]
    assert result.entry["layers"]["doubt"] == MANY


@pytest.mark.parametrize("rank", [1, 2])
def test_a_plain_pipeline_stage_in_the_middle_has_one_chunk(tmp_path: Path, rank: int) -> None:
    spec = small(layers=8, pp=4, micro_batches=6)
    joined, report, truth = place(tmp_path, spec, rank)
    assert misplaced(joined).rows() == []
    assert (report["layer_count"], report["chunks"]) == (2, 1)
    assert read_rank(find_dumps(truth.folder)[0]).entry["layers"]["doubt"] is None
