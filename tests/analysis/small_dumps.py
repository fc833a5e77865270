"""Small dumps written out by hand, cell by cell, as the profiler writes them: a TAB after absolute times, shapes in
three quotes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = "host01_42_20260101120000123_ascend_pt"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
HEADER_2025 = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),"
    "Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,"
    "Output Formats,Context ID,aic_mac_ratio,cube_utilization(%)"
)


def kernel(
    name: str,
    type: str,
    start: str,
    duration: str,
    *,
    step: str = "1",
    core: str = "AI_VECTOR_CORE",
    shapes: str = "4,8",
) -> str:
    """One row of `HEADER_2025`; times in us as text."""
    return (
        f'{step},0,4294967295,7,2,{name},{type},dynamic,{core},{start}\t,{duration},0,40,0,NO,"""{shapes}""",FLOAT,ND,'
        f'"""{shapes}""",FLOAT,ND,N/A,0.5,12.5'
    )


KERNELS = (
    kernel("aclnnCast_Cast", "Cast", "1764246877000000.000", "10.000"),
    kernel("aclnnMatmul_MatMulV3", "MatMulV3", "1764246877000010.000", "80.000", core="AI_CORE"),
    kernel("hcom_allReduce__1_0_1", "hcom_allReduce_", "1764246877000050.000", "60.000", core="HCCL"),
    kernel("aclnnAdd_Add", "Add", "1764246877000120.000", "10.000"),
)
"""Compute 100 us of which Cast 10; communication 60 us, 20 of them past the end of the MatMul; 10 us nothing; span
130 us."""

STEP_TRACE = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing\n0,1,100.0,20.0,40.0,60.0,10.0,130.0,0,20.0,5.25\n"
)


def table(header: str, rows: Sequence[str], end: str = "\n") -> str:
    """A CSV text."""
    return end.join([header, *rows, ""])


def write_dump(folder: Path, files: Mapping[str, str | bytes | dict[str, object]]) -> Path:
    """A rank's folder of the torch_npu form holding these files (text, bytes or JSON), returned."""
    root = folder / FOLDER
    for label, content in files.items():
        path = root / label
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content) if isinstance(content, dict) else content
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return root


def whole_dump(folder: Path, **more: str | bytes | dict[str, object]) -> Path:
    """A rank 0 with kernels and step trace; `more` replaces or adds files of the output folder (`_csv` in a name is
    `.csv`)."""
    files: dict[str, str | bytes | dict[str, object]] = {
        "profiler_info_0.json": {"rank_id": "0", "torch_npu_version": "2.7.1", "cann_version": "8.3.RC1"},
        f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, KERNELS),
        f"{OUTPUT}/step_trace_time.csv": STEP_TRACE,
    }
    for name, content in more.items():
        stem, _, suffix = name.rpartition("_")
        files[f"{OUTPUT}/{stem}.{suffix}"] = content
    return write_dump(folder, files)
