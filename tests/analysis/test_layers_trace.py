"""Layers from the module ranges of a trace: kernel -> launch -> module, and through forward-backward flows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.errors import BadDump
from analysis.layers import attribute
from analysis.layers.trace import read_trace_layers
from analysis.schema import KERNEL_COLUMNS, polars_schema

MAIN, AUTOGRAD = 1, 2


def span(name: str, begin: float, end: float, tid: int = MAIN, cat: str = "python_function") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": f"{begin:.3f}", "dur": end - begin}


def flow(cat: str, number: int, begin: float, end: float, tid: int = MAIN, to: int = 7) -> list[dict[str, Any]]:
    common = {"bp": "e", "cat": cat, "name": cat, "id": number, "pid": 9}
    return [
        {**common, "ph": "s", "tid": tid, "ts": f"{begin:.3f}"},
        {**common, "ph": "f", "tid": to, "ts": f"{end:.3f}"},
    ]


def launch(number: int, host: float, device: float, tid: int = MAIN) -> list[dict[str, Any]]:
    return flow("async_npu", number, host, device, tid)


EVENTS = [
    span("nn.Module: Model_0", 0, 50),
    span("nn.Module: DecoderLayer_4", 10, 20),
    span("nn.Module: SelfAttention_4", 11, 15),
    span("nn.Module: LayerNorm_8", 10, 11),
    span("nn.Module: DecoderLayer_5", 20, 30),
    span("nn.Module: SelfAttention_5", 21, 25),
    span("aten::mm", 12, 13, cat="cpu_op"),
    span("aten::mm", 22, 23, cat="cpu_op"),
    *launch(1, 5, 105),
    *launch(2, 12.5, 112.5),
    *launch(3, 22.5, 122.5),
    *launch(4, 35, 135),
    span("MmBackward0", 60, 64, AUTOGRAD, "cpu_op"),
    span("MmBackward0", 70, 74, AUTOGRAD, "cpu_op"),
    span("AccumulateGrad", 75, 76, AUTOGRAD, "cpu_op"),
    *flow("fwdbwd", 11, 22, 60, MAIN, AUTOGRAD),
    *flow("fwdbwd", 12, 12, 70, MAIN, AUTOGRAD),
    *launch(5, 61, 161, AUTOGRAD),
    *launch(6, 73, 173, AUTOGRAD),
    *launch(7, 75.5, 175.5, AUTOGRAD),
    span("nn.Module: DecoderLayer_4", 65, 69, AUTOGRAD),
    span("nn.Module: SelfAttention_4", 66, 68, AUTOGRAD),
    *launch(8, 66, 166, AUTOGRAD),
]
PLACES = {
    112_500: (0, "forward"),
    122_500: (1, "forward"),
    161_000: (1, "backward"),
    166_000: (0, "recompute"),
    173_000: (0, "backward"),
}


def write(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "trace_view.json"
    path.write_text(json.dumps(events), encoding="utf-8")
    return path


def test_kernels_are_placed_by_the_module_that_launched_them(tmp_path: Path) -> None:
    found = read_trace_layers(write(tmp_path, EVENTS), "trace_view.json")
    assert {start: (layer, pass_) for start, layer, pass_ in found.rows()} == PLACES


def test_a_trace_without_modules_tells_nothing(tmp_path: Path) -> None:
    bare = [event for event in EVENTS if not event["name"].startswith("nn.Module")]
    assert read_trace_layers(write(tmp_path, bare), "trace_view.json").is_empty()


def test_blocks_of_a_network_without_attention_are_no_layers(tmp_path: Path) -> None:
    plain = [event for event in EVENTS if "Attention" not in event["name"]]
    assert read_trace_layers(write(tmp_path, plain), "trace_view.json").is_empty()


def test_a_cut_trace_is_one_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path, EVENTS)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BadDump, match="trace_view.json"):
        read_trace_layers(path, "trace_view.json")


def test_trace_places_kernels_that_structure_cannot(tmp_path: Path) -> None:
    starts = [105_000, *PLACES, 175_500]
    rows = [{"type": "MatMul", "name": "m", "kind": "compute", "start_ns": s, "duration_ns": 10} for s in starts]
    kernels = pl.DataFrame(rows, schema=polars_schema(KERNEL_COLUMNS))
    placed, report = attribute(kernels, trace=read_trace_layers(write(tmp_path, EVENTS), "trace_view.json"))
    assert (report["method"], report["layer_count"]) == ("trace", 2)
    assert placed["layer"].to_list() == [None, *(layer for layer, _ in PLACES.values()), None]
    assert placed["attribution"].to_list() == [None, *["trace"] * 5, None]


@pytest.mark.real
def test_real_trace_links_every_convolution_to_its_module(dumps: Path) -> None:
    """AlexNet has five Conv2d; the first has no input gradient."""
    folder = dumps / "msinsight-torch-ddp2/text/level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
    found = read_trace_layers(folder / "trace_view.json", "trace_view.json", "^Conv2d$")
    kernels = pl.read_csv(folder / "kernel_details.csv", infer_schema=False)
    digits = pl.col("Start Time(us)").str.strip_chars().str.replace(".", "", literal=True)
    joined = kernels.select("Type", start_ns=digits.cast(pl.Int64)).join(found, on="start_ns")
    forward = joined.filter(pl.col("Type") == "Conv2D").sort("start_ns")
    assert forward.select("layer", "pass").rows() == [(i, "forward") for i in range(5)]
    weights = joined.filter(pl.col("Type") == "Conv2DBackpropFilter").sort("start_ns")
    assert weights.select("layer", "pass").rows() == [(i, "backward") for i in (4, 3, 2, 1, 0)]
    inputs = joined.filter(pl.col("Type") == "Conv2DBackpropInput").sort("start_ns")
    assert inputs["layer"].to_list() == [4, 3, 2, 1]
