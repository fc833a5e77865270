"""What stages of a pipeline exchange outside of layers: results, and the gradient of an embedding that two share."""

from __future__ import annotations

import polars as pl
import pytest

from analysis.layers import attribute
from analysis.readers.kernel_details import read_kernels
from analysis.words import as_text
from tests.dumps import OUTPUT, write_dump

SHARED = "hcom_allReduce__170_1_1"
PIPELINE = {"pp": 2, "dp": 2, "micro_batches": 2, "mode": "torch"}


def job(tmp_path, **knobs):
    truth = write_dump(tmp_path, steps=1, **knobs)
    path = truth.folder / OUTPUT / "kernel_details.csv"
    return as_text(read_kernels(path, path.name, [])).sort("start_ns")


def with_all_reduce(kernels, name=SHARED, behind=0):
    """The kernels and an all-reduce right behind the last gradients that are scattered, or so many kernels later."""
    scattered = kernels.with_row_index("at").filter(pl.col("name").str.contains("reduceScatter"))
    last = kernels[int(scattered["at"][-1])]
    compute = kernels.filter((pl.col("kind") == "compute") & (pl.col("start_ns") >= last["start_ns"][0]))
    start = last["start_ns"][0] + 1 if not behind else compute["start_ns"][behind] + 1
    row = last.with_columns(
        name=pl.lit(name), type=pl.lit("hcom_allReduce_"), start_ns=pl.lit(start), duration_ns=pl.lit(500_000)
    ).cast(dict(kernels.schema))
    return pl.concat([kernels, row]).sort("start_ns")


def part_of(kernels, name=SHARED):
    placed, _ = attribute(kernels)
    return placed.filter(pl.col("name") == name)["part"].to_list()


def test_the_gradient_of_a_shared_embedding_has_a_place_of_its_own(tmp_path):
    placed, report = attribute(with_all_reduce(job(tmp_path, **PIPELINE)))
    row = placed.row(by_predicate=pl.col("name") == SHARED, named=True)
    assert (row["part"], row["block"], row["pass"]) == ("embedding_gradients", "communication", "none")
    assert [part["total_us"] for part in report["parts"] if part["part"] == "embedding_gradients"] == [500.0]


@pytest.mark.parametrize(
    ("name", "behind", "why"),
    [
        ("hcom_allReduce__097_9_1", 0, "the group reduces other gradients"),
        (SHARED, 3, "kernels of the optimizer come first: a norm"),
    ],
)
def test_other_all_reduces_behind_the_backward_pass_are_not(tmp_path, name, behind, why):
    kernels = job(tmp_path, **PIPELINE)
    group = kernels.filter(pl.col("name").str.contains("reduceScatter"))["name"][0].split("__")[1][:3]
    name = name.replace("097", group)
    assert part_of(with_all_reduce(kernels, name, behind), name) != ["embedding_gradients"], why


def test_without_a_pipeline_no_embedding_is_shared(tmp_path):
    assert part_of(with_all_reduce(job(tmp_path, dp=2, mode="torch"))) != ["embedding_gradients"]


def test_transfers_between_stages_are_told_apart(tmp_path):
    placed, _ = attribute(job(tmp_path, **PIPELINE))
    transfers = placed.filter(pl.col("name").str.contains("(?i)send|recv|receive"))
    assert transfers.height == 4
    assert set(transfers["part"]) == {"pipeline_transfers"}


@pytest.mark.real
def test_the_shared_embedding_of_a_real_pipeline(dumps):
    """communication.json: hcom_allReduce__170 carries 622 329 856 bytes, 151 936 x 1024 gradients in 32 bits."""
    path = dumps / "msinsight-llm-pp2dp2/rank_0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv"
    placed, report = attribute(read_kernels(path, path.name, []))
    assert placed.filter(pl.col("part") == "embedding_gradients")["name"].to_list() == [SHARED]
    assert [row["total_us"] for row in report["parts"] if row["part"] == "embedding_gradients"] == [34_623.92]
    # 313 877.8 us in transfers: 436.14 + 158 553.28 + 154 888.38
    times = [row["total_us"] for row in report["parts"] if row["part"] == "pipeline_transfers"]
    assert times == [pytest.approx(313_877.8)]
