"""Names and types of our tables. Readers produce them, everything else relies on them.

Times are integer nanoseconds, sizes are bytes. A null means unknown, never zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Polars must not be at work when a process forks; see tests/analysis/test_fork.py
    import polars as pl

KERNEL_COLUMNS = {
    "step": "str",  # profiler step id as written, null without a schedule
    "name": "str",  # full name as written, scope included
    "type": "str",  # op type; null where the profiler wrote N/A (Level0)
    "core": "str",  # Accelerator Core as written; null where N/A
    "kind": "str",  # "compute" or "communication", never null
    "start_ns": "i64",
    "duration_ns": "i64",
    "wait_ns": "i64",
    "stream_id": "i64",
    "task_id": "i64",
    "model_id": "i64",
    "device_id": "i64",
    "op_state": "str",  # "static" / "dynamic"
    "block_num": "i64",  # Block Dim in older dumps
    "mix_block_num": "i64",
    "hf32": "str",
    "input_shapes": "str",  # "128,64;64,64", quotes stripped; null at Level0
    "input_dtypes": "str",  # "DT_BF16;FLOAT"
    "input_formats": "str",
    "output_shapes": "str",
    "output_dtypes": "str",
    "output_formats": "str",
}
"""Every kernels frame has exactly these, in this order; PMU columns (Float32, named as newer profilers do, in lower
case) may follow."""

STEP_COLUMNS = {
    "step": "str",
    "computing_ns": "i64",
    "communication_ns": "i64",
    "communication_not_overlapped_ns": "i64",
    "overlapped_ns": "i64",
    "free_ns": "i64",
    "stage_ns": "i64",
    "bubble_ns": "i64",
    "preparing_ns": "i64",
}

COMMUNICATION_COLUMNS = {
    "step": "str",
    "group": "str",
    "type": "str",  # "collective" or "p2p", by our own reading of the name
    "op": "str",  # hcom_allReduce
    "name": "str",  # as written
    "start_ns": "i64",
    "elapse_ns": "i64",
    "transit_ns": "i64",
    "wait_ns": "i64",
    "size_bytes": "i64",
    "link": "str",  # HCCS, RDMA, SDMA, PCIE, SIO: the one that carried most bytes
}

KERNEL_KINDS = ("compute", "communication")

LANES_FILE = "timeline1"
"""Name of the two files of `analysis.lanes`; the number is the version of their form."""
NAMES_FILE = "names1"
"""Name of the two files of `analysis.kernel_names`; the number is the version of their form."""
LANE_COLUMNS = {
    "start": "<i8",
    "duration": "<i8",
    "row": "<u4",
    "place": "<u2",
    "type": "<u2",
    "class_": "u1",
    "block": "u1",
}
"""Columns of the index of lanes, one after the other; the widest come first, so that each is aligned."""

MEMORY_COLUMNS = {"component": "str", "time_ns": "i64", "allocated_bytes": "i64", "reserved_bytes": "i64"}


def polars_schema(columns: dict[str, str]) -> dict[str, pl.DataType]:
    """`columns` as a Polars schema."""
    import polars as pl

    types = {"str": pl.String(), "i64": pl.Int64()}
    return {name: types[kind] for name, kind in columns.items()}
