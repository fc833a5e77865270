"""Operators under the chip's roof, and the sizes of transfers: by hand from a few kernels and transfers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.store import write_frames
from dashboard.runs import roofline, transfers

BF16 = {"input_dtypes": "DT_BF16;DT_BF16", "output_dtypes": "DT_BF16"}
MATMUL: dict[str, Any] = {
    "type": "MatMulV3", "input_shapes": "2,4;4,8", "output_shapes": "2,8", **BF16, "flops": 128, "duration_ns": 4,
    "aic_mac_ratio": 0.9,
}  # fmt: skip
ADD: dict[str, Any] = {
    "type": "Add", "input_shapes": "8,8;8,8", "output_shapes": "8,8", **BF16, "flops": None, "duration_ns": 1,
    "aic_mac_ratio": None,
}  # fmt: skip
NAME = "1-0123456789ab"
MATMUL_BYTES = (2 * 4 + 4 * 8 + 2 * 8) * 2
ADD_BYTES = 3 * 8 * 8 * 2


@pytest.fixture
def keep(tmp_path: Path, settings: Any) -> Any:
    """Writes tables as a rank's frames; their name."""
    settings.DATA_ROOT = tmp_path

    def write(**tables: list[dict[str, Any]]) -> str:
        frames = {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in tables.items()}
        write_frames(tmp_path / "frames" / NAME, frames)
        return NAME

    return write


def kernel(row: dict[str, Any], step: str = "2") -> dict[str, Any]:
    return {"step": step, "kind": "compute", "core": "AI_CORE", **row}


def test_an_operator_stands_where_its_flops_bytes_and_time_put_it(keep):
    frames = keep(kernels=[kernel(MATMUL), kernel(MATMUL), kernel(ADD), kernel(MATMUL, step="1")])
    found = roofline.operators(frames, {"steps": [{"step": "1", "warmup": True}, {"step": "2"}]})
    (row,) = found.rows
    assert (row["count"], row["ns"], row["share"]) == (2, 8, 8 / 9)
    assert row["intensity"] == pytest.approx(128 / MATMUL_BYTES)
    assert row["tflops"] == pytest.approx(128 / 4 / 1e3, abs=0.005)
    assert row["gbps"] == pytest.approx(MATMUL_BYTES / 4)
    # The sum of two tables moves more bytes a nanosecond than the product: it sets the slope of the roof.
    assert found.fastest_gbps == ADD_BYTES / 1


def test_the_roof_bends_where_memory_and_peak_meet(keep):
    found = roofline.operators(keep(kernels=[kernel(MATMUL), kernel({**ADD, "duration_ns": 2})]), {})
    drawn = roofline.chart(found, 0.5, "/kernels/")["options"]
    circles, roof = drawn["series"]
    assert [point["url"] for point in circles["data"]] == ["/kernels/?type=MatMulV3#kernels"]
    # 192 GB/s reach 0.5 TFLOPS at 500 / 192 FLOPs a byte.
    assert [round(at, 3) for at in roof["data"][1]] == [2.604, 0.5]
    assert roof["data"][0][0] == drawn["xAxis"][0]["min"] == 0.5  # below 128 / 112 with room
    assert drawn["xAxis"][0]["max"] == 4.0
    # Without a peak the slope alone is known.
    assert len(roofline.chart(found, None, "")["options"]["series"][1]["data"]) == 2


@pytest.mark.parametrize(
    "unknown",
    [{"input_shapes": None}, {"input_dtypes": "DT_BF16"}, {"output_dtypes": "COMPLEX9"}, {"output_shapes": "-1,8"}],
)
def test_what_does_not_tell_its_bytes_is_left_out(keep, unknown):
    found = roofline.operators(keep(kernels=[kernel({**MATMUL, **unknown})]), {})
    assert (found.rows, found.fastest_gbps) == ([], None)
    assert roofline.chart(found, 100.0, "")["empty"] is True


def test_operands_that_are_left_out_move_nothing():
    row = {
        "input_shapes": "2,4;;4,8",
        "input_dtypes": "FLOAT;DT_BF16;INT8",
        "output_shapes": "2,8",
        "output_dtypes": "BOOL",
    }
    assert roofline.moved_bytes(row) == 2 * 4 * 4 + 4 * 8 * 1 + 2 * 8 * 1


def transfer(
    size: int | None, elapse: int, transit: int | None, link: str | None = "HCCS", step: str = "2"
) -> dict[str, Any]:
    return {"step": step, "link": link, "size_bytes": size, "elapse_ns": elapse, "transit_ns": transit}


def test_transfers_are_summed_by_size_and_link(keep):
    mib = 1 << 20
    rows = [
        transfer(100, 5_000, 4_000), transfer(mib, 30_000, 20_000), transfer(2 * mib, 60_000, 40_000),
        transfer(2 * mib, 70_000, None, "RDMA"), transfer(256 * mib, 9_000_000, 8_000_000), transfer(None, 1, 1),
        transfer(3 * mib, 1_000, None), transfer(mib, 1, 1, step="1"),
    ]  # fmt: skip
    found = transfers.size_classes(keep(communication=rows), {"steps": [{"step": "1", "warmup": True}, {"step": "2"}]})
    told = [(transfers.class_name(row["place"]), row["link"], row["count"], row["elapse_ns"]) for row in found]
    assert [tuple(str(part).replace("\u202f", " ") for part in row) for row in told] == [
        ("< 4 KiB", "HCCS", "1", "5000"),
        ("1 MiB – 4 MiB", "HCCS", "3", "91000"),
        ("1 MiB – 4 MiB", "RDMA", "1", "70000"),
        ("≥ 256 MiB", "HCCS", "1", "9000000"),
    ]
    drawn = transfers.chart(found)
    speeds = [point["value"] for point in drawn["options"]["series"][-1]["data"]]
    assert speeds == pytest.approx([100 / 4_000, 3 * mib / 60_000, 256 * mib / 8_000_000], rel=1e-4)
    assert drawn["table"]["rows"][2][-1] is None  # its transit is not known
    assert drawn["options"]["legend"][0]["data"] == ["HCCS", "RDMA", "GB/s in transit"]


def test_transfers_without_transit_have_no_axis_of_speeds(keep):
    drawn = transfers.chart(transfers.size_classes(keep(communication=[transfer(5, 7, None)]), {}))
    assert len(drawn["options"]["series"]) == len(drawn["options"]["yAxis"]) == 1


def test_without_communication_the_chart_names_the_file():
    assert "communication.json" in transfers.chart([])["note"]
