"""Layers found without names: every kernel of synthetic dumps in the place it was made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.dump import find_dumps
from analysis.layers import attribute
from analysis.rank import read_rank
from analysis.synthetic import GptSpec, Mla, Moe, write_rank
from tests.analysis.layer_truth import misplaced, place, read_kernels, small

ALL_CASTS = frozenset(["weights", "norm", "rotary", "softmax", "residual"])
CASES: dict[str, dict[str, Any]] = {
    "dense": {},
    "grouped query attention": {"kv_heads": 2},
    "gelu and layer norm": {"activation": "gelu", "norm": "layer"},
    "norms on queries and keys": {"qk_norm": True, "kv_heads": 2},
    "mixture of experts": {"moe": Moe(8, 2, 128)},
    "shared expert, expert parallel": {"moe": Moe(8, 2, 128, 256), "ep": 2, "dp": 2},
    "latent attention": {"mla": Mla(96, 64, 32, 16, 32)},
    "unfused attention": {"fused_attention": False},
    "unfused attention, separate projections": {"fused_attention": False, "mode": "pynative"},
    "recompute": {"recompute": True},
    "recompute in a pipeline": {"recompute": True, "pp": 2, "micro_batches": 4},
    "tensor parallel": {"tp": 2},
    "sequence parallel": {"tp": 2, "sequence_parallel": True, "dp": 2},
    "pipeline with micro-batches": {"pp": 2, "micro_batches": 4, "dp": 2},
    "deep pipeline, tensor parallel": {"layers": 8, "pp": 4, "micro_batches": 6, "dp": 2, "tp": 2},
    "separate projections": {"mode": "pynative"},
    "gradients reduced after backward": {"dp": 2, "optimizer_shard": False, "overlap_grad_sync": False},
    "mask built in every layer": {"mask": "full", "mask_rebuilt": True},
    "casts everywhere": {"casts": ALL_CASTS},
    "casts everywhere, unfused": {"casts": ALL_CASTS, "fused_attention": False},
    "AI CPU kernel, gradient accumulation": {"ai_cpu": True, "micro_batches": 2},
    "context parallel": {"cp": 2},
    "context parallel in a pipeline": {"cp": 4, "tp": 2, "pp": 2, "micro_batches": 4},
    "context parallel, sends and receives apart": {"cp": 2, "pp": 2, "micro_batches": 2, "mode": "pynative"},
    "attention core recomputed alone": {"recompute_modules": frozenset(["core"])},
    "core recomputed, unfused": {"recompute_modules": frozenset(["core"]), "fused_attention": False},
    "norms and activations recomputed": {"recompute_modules": frozenset(["norm", "activation"])},
    "selective recompute in a pipeline": {
        "recompute_modules": frozenset(["norm", "activation", "core"]),
        "pp": 2,
        "micro_batches": 4,
    },
    "uneven experts": {"moe": Moe(8, 2, 128, uneven=0.6), "ep": 4, "dp": 4},
    "uneven experts, accumulated": {"moe": Moe(8, 2, 128, uneven=0.6), "ep": 4, "dp": 4, "micro_batches": 2},
    "interleaved pipeline": {"layers": 8, "pp": 2, "interleave": 2, "micro_batches": 4},
    "interleaved deep pipeline": {"layers": 16, "pp": 4, "interleave": 2, "micro_batches": 8, "dp": 2},
    "interleaved, recompute": {"layers": 8, "pp": 2, "interleave": 2, "micro_batches": 4, "recompute": True},
    "interleaved, three chunks of one layer": {"layers": 6, "pp": 2, "interleave": 3, "micro_batches": 4},
    "interleaved, as many micro-batches as stages": {"layers": 8, "pp": 2, "interleave": 2, "micro_batches": 2},
    "encoder and decoder": {"encoder_layers": 3, "layers": 4},
    "encoder and decoder of the same depth": {"encoder_layers": 3, "layers": 3},
    "encoder and decoder, several micro-batches": {"encoder_layers": 4, "layers": 4, "micro_batches": 3, "dp": 2},
    "encoder and decoder, recompute": {"encoder_layers": 2, "layers": 4, "recompute": True},
    "weight gradients put off": {"defer_wgrad": True},
    "zero-bubble pipeline": {"defer_wgrad": True, "pp": 2, "micro_batches": 4, "dp": 2},
    "zero-bubble deep pipeline": {"defer_wgrad": True, "layers": 8, "pp": 4, "micro_batches": 6},
    "zero-bubble, experts": {"defer_wgrad": True, "pp": 2, "micro_batches": 4, "moe": Moe(8, 2, 128), "ep": 2, "dp": 2},
}


def ranks(spec: GptSpec) -> list[int]:
    """First and last stage."""
    return sorted({0, spec.world_size - 1})


@pytest.mark.parametrize("name", CASES)
def test_every_kernel_is_in_its_place(name: str, tmp_path: Path) -> None:
    spec = small(**CASES[name])
    for rank in ranks(spec):
        joined, report, _ = place(tmp_path / str(rank), spec, rank)
        assert misplaced(joined).rows() == []
        assert report["layer_count"] == spec.encoder_layers + spec.stage_layers
        assert report["micro_batches"] == spec.micro_batches
        assert report["attributed_ratio"] == 1.0


def test_report_is_the_mean_of_a_step(tmp_path: Path) -> None:
    joined, report, truth = place(tmp_path, small(), steps=3)
    layer2 = truth.by("part", "layer", "pass_")["layer", 2, "backward"]
    part = next(p for p in report["parts"] if p["layer"] == 2 and p["pass"] == "backward")
    assert part["total_us"] == pytest.approx(layer2 / 1000 / 3, abs=0.001)
    assert sum(block["total_us"] for block in part["blocks"]) == pytest.approx(part["total_us"], abs=0.01)
    steps = joined["step"].unique().sort()
    _, judged = attribute(joined.select(read_kernels(truth.folder).columns), judged_steps=steps[-1:].to_list())
    last = joined.filter(
        (pl.col("step") == steps[-1]) & (pl.col("true_layer") == 2) & (pl.col("true_pass") == "backward")
    )
    part = next(p for p in judged["parts"] if p["layer"] == 2 and p["pass"] == "backward")
    assert part["total_us"] == pytest.approx(last["true_ns"].sum() / 1000, abs=0.001)


def test_steps_are_told_apart_without_step_ids(tmp_path: Path) -> None:
    _, report, truth = place(tmp_path, small(), steps=3)
    kernels = read_kernels(truth.folder).with_columns(step=pl.lit(None, pl.String))
    _, unnamed = attribute(kernels)
    assert (unnamed["layer_count"], unnamed["micro_batches"]) == (4, 1)
    times = {(p["part"], p["layer"], p["pass"]): p["total_us"] for p in unnamed["parts"] if p["part"] == "layer"}
    wanted = {(p["part"], p["layer"], p["pass"]): p["total_us"] for p in report["parts"] if p["part"] == "layer"}
    assert times == pytest.approx(wanted, abs=0.01)


def test_layers_are_of_the_steps_that_all_other_sums_are_of(tmp_path: Path) -> None:
    """Two steps ran, but no file tells them apart: the report has one, and its layers add up to all it did."""
    truth = write_rank(tmp_path / "dump", small(), steps=2)
    for other in ("step_trace_time.csv", "trace_view.json"):
        for file in truth.folder.rglob(other):
            file.unlink()
    table = next(truth.folder.rglob("kernel_details.csv"))
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *("," + row.partition(",")[2] for row in rows)]) + "\n")
    entry = read_rank(find_dumps(truth.folder)[0]).entry
    assert (len(entry["steps"]), entry["facts"]["steps"], entry["layers"]["attributed_ratio"]) == (1, 1, 1.0)
    placed = sum(part["total_us"] for part in entry["layers"]["parts"])
    assert placed == pytest.approx(entry["kernels"]["compute_us"] + entry["kernels"]["communication_us"], rel=0.01)


def test_types_missing_at_level0_are_taken_from_names(tmp_path: Path) -> None:
    joined, _, truth = place(tmp_path, small())
    bare = read_kernels(truth.folder).with_columns(
        type=pl.lit(None, pl.String),
        input_shapes=pl.lit(None, pl.String),
        output_shapes=pl.lit(None, pl.String),
    )
    placed, report = attribute(bare)
    assert report["layer_count"] == 4
    assert placed["layer"].to_list() == joined["true_layer"].to_list()


def test_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    _, report, truth = place(tmp_path, small(pp=2, micro_batches=2))
    _, shuffled = attribute(read_kernels(truth.folder).sample(fraction=1.0, shuffle=True, seed=7))
    assert shuffled["parts"] == report["parts"]


def test_a_kernel_of_another_stream_goes_with_the_layer_it_runs_beside(tmp_path: Path) -> None:
    joined, _, truth = place(tmp_path, small())
    core = joined.filter((pl.col("type") == "FlashAttentionScore") & (pl.col("layer") == 2)).head(1)
    beside = core.select(read_kernels(truth.folder).columns).with_columns(
        type=pl.lit("DSAGenBitMask"), stream_id=pl.lit(99, pl.Int64), start_ns=pl.col("start_ns") + 1
    )
    placed, _ = attribute(pl.concat([read_kernels(truth.folder), beside]))
    last = placed.filter(pl.col("stream_id") == 99).row(0, named=True)
    assert (last["part"], last["layer"], last["pass"]) == ("layer", 2, "forward")


def test_kernels_without_attention_have_no_layers(tmp_path: Path) -> None:
    _, _, truth = place(tmp_path, small())
    kernels = read_kernels(truth.folder).filter(~pl.col("type").str.contains("Attention"))
    placed, report = attribute(kernels)
    assert (report["method"], report["layer_count"], report["parts"]) == (None, None, [])
    assert report["reason"].startswith("no layers found")
    assert placed["part"].null_count() == placed.height


def test_an_empty_table_has_no_layers(tmp_path: Path) -> None:
    _, _, truth = place(tmp_path, small())
    placed, report = attribute(read_kernels(truth.folder).head(0))
    assert placed.height == 0
    assert report["method"] is None


def test_a_cast_tells_which_block_it_serves(tmp_path: Path) -> None:
    joined, _, _ = place(tmp_path, small(casts=frozenset(["softmax"]), fused_attention=False))
    casts = joined.filter((pl.col("type") == "Cast") & (pl.col("layer") == 1) & (pl.col("pass") == "forward"))
    assert set(casts["block"]) == {"movement"}
    assert {"attention_core", "position"} == set(casts["within"])


@pytest.mark.parametrize(
    ("site", "blocks"),
    [
        ("norm", {"norm_attention", "norm_ffn"}),
        ("rotary", {"position"}),
        ("weights", {"qkv", "attention_out", "ffn_up", "ffn_down"}),
    ],
)
def test_casts_for_the_dtype_of_a_kernel_serve_its_block_in_both_passes(tmp_path: Path, site, blocks) -> None:
    joined, _, _ = place(
        tmp_path, small(casts=frozenset([site]), mode="graph", seq=1024)
    )  # no weight as large as states
    casts = joined.filter((pl.col("type") == "Cast") & (pl.col("part") == "layer"))
    assert set(casts["pass"]) == {"forward", "backward"}
    assert set(casts["within"]) == blocks
