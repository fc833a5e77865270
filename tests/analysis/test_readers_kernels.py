from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from analysis.errors import BadDump
from analysis.readers.kernel_details import read_kernels
from analysis.schema import KERNEL_COLUMNS
from tests.analysis.small_dumps import HEADER_2025, KERNELS, kernel, table

SHAPES = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID"
SHAPE_CELLS = '"""4,8;8,2""",FLOAT16;FLOAT16,ND;ND,"""4,2""",FLOAT16,ND,N/A'
TIMES = "1764246877073569.640\t,12.5,0"
VARIANTS = {
    "level 0 without schedule": (
        "Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim",
        f"k,N/A,N/A,{TIMES},24",
    ),
    "level 0": (
        "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim",
        f"3,k,N/A,N/A,{TIMES},24",
    ),
    "2023": (
        "Step Id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,"
        "Start Time(us),Duration(us),Wait Time(us),Block Dim,"
        f"Mix Block Dim,{SHAPES}",
        f"3,1,2,5,k,MatMul,AI_CORE,{TIMES},24,0,{SHAPE_CELLS}",
    ),
    "2023-09": (
        "Step Id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,"
        "Start Time(us),Duration(us),Wait Time(us),Block Dim,"
        f"Mix Block Dim,HF32 Eligible,{SHAPES}",
        f"3,1,2,5,k,MatMul,AI_CORE,{TIMES},24,0,NO,{SHAPE_CELLS}",
    ),
    "2024-25": (
        "Step Id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,"
        "Start Time(us),Duration(us),Wait Time(us),"
        f"Block Dim,Mix Block Dim,HF32 Eligible,{SHAPES}",
        f"3,1,2,5,k,MatMul,static,AI_CORE,{TIMES},24,0,NO,{SHAPE_CELLS}",
    ),
    "CANN 8.3": (
        "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
        f"Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,{SHAPES}",
        f"3,0,1,2,5,k,MatMul,static,AI_CORE,{TIMES},24,0,NO,{SHAPE_CELLS}",
    ),
    "CANN 8.5": (
        "Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,"
        "Start Time(us),Duration(us),Wait Time(us),"
        f"Block Num,Mix Block Num,HF32 Eligible,{SHAPES}",
        f"0,1,2,5,k,MatMul,static,AI_CORE,{TIMES},24,0,NO,{SHAPE_CELLS}",
    ),
    "MindSpore 2.10": (
        "Step ID,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,"
        "Start Time(us),Duration(us),Wait Time(us),"
        f"Block Num,Mix Block Num,HF32 Eligible,{SHAPES}",
        f"3,1,2,5,k,MatMul,static,AI_CORE,{TIMES},24,0,NO,{SHAPE_CELLS}",
    ),
    "op_summary": (
        "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),"
        f"Task Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,{SHAPES}",
        f"0,1,2,5,k,MatMul,static,AI_CORE,{TIMES},24,0,NO,{SHAPE_CELLS}",
    ),
    "op_summary of mixed names": (
        "Step Id,Model ID,Task ID,Stream ID,Op Name,OP Type,Task Type,Start Time(us),Task Duration(us),"
        f"Task Wait Time(us),Block Dim,{SHAPES}",
        f"3,1,2,5,k,MatMul,AI_CORE,{TIMES},24,{SHAPE_CELLS}",
    ),
    "op_summary without units": (
        f"Op Name,OP Type,Task Type,Task Start Time,Task Duration(us),Task Wait Time(us),Block Dim,{SHAPES}",
        f"k,MatMul,AI_CORE,{TIMES},24,{SHAPE_CELLS}",
    ),
}


def read(path: Path, text: str | bytes, warnings: list[str] | None = None):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_kernels(path, "kernel_details.csv", [] if warnings is None else warnings)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_known_header_gives_the_same_kernel(variant: str, tmp_path: Path):
    header, row = VARIANTS[variant]
    warnings: list[str] = []
    found = read(tmp_path / "k", table(header, [row], end="\r\n"), warnings).row(0, named=True)
    assert list(found)[: len(KERNEL_COLUMNS)] == list(KERNEL_COLUMNS)
    assert (found["name"], found["kind"]) == ("k", "compute")
    assert (found["start_ns"], found["duration_ns"], found["wait_ns"]) == (1764246877073569640, 12500, 0)
    assert found["block_num"] == 24
    assert found["step"] == ("3" if row.startswith("3,") else None)
    levels = ("level 0 without schedule", "level 0")
    assert found["type"] == (None if variant in levels else "MatMul")
    assert found["core"] == (None if variant in levels else "AI_CORE")
    assert found["input_shapes"] == (None if variant in levels else "4,8;8,2")
    assert found["output_dtypes"] == (None if variant in levels else "FLOAT16")
    assert warnings == []


def test_nanoseconds_survive_that_a_float_would_lose(tmp_path: Path):
    rows = [kernel("a", "Cast", f"1764246877073569.{part}", "0.001") for part in ("001", "002", "003", "999")]
    found = read(tmp_path / "k", table(HEADER_2025, rows))
    assert [start % 1000 for start in found["start_ns"]] == [1, 2, 3, 999]
    assert found["duration_ns"].to_list() == [1, 1, 1, 1]


@pytest.mark.parametrize("core", ["HCCL", "COMMUNICATION", "communication"])
def test_communication_is_told_by_its_core(core: str, tmp_path: Path):
    assert read(tmp_path / "k", table(HEADER_2025, [kernel("x", "y", "1", "2", core=core)]))["kind"].to_list() == [
        "communication"
    ]


def test_communication_is_told_by_its_name_where_the_profiler_wrote_no_core(tmp_path: Path):
    rows = [kernel("hcom_allReduce__1", "N/A", "1", "2", core="N/A"), kernel("aclnnAdd", "N/A", "1", "2", core="N/A")]
    assert read(tmp_path / "k", table(HEADER_2025, rows))["kind"].to_list() == ["communication", "compute"]


def test_pmu_counters_that_something_reads_follow_under_their_own_names(tmp_path: Path):
    found = read(tmp_path / "k", table(HEADER_2025, KERNELS)).row(0, named=True)
    assert (found["aic_mac_ratio"], found["cube_utilization(%)"]) == (0.5, 12.5)


PIPES = {
    "aic_mac_ratio": 0.5,
    "aic_scalar_ratio": 0.25,
    "aic_mte1_ratio": 0.125,
    "aic_mte2_ratio": 0.75,
    "aic_fixpipe_ratio": 0.375,
    "aic_icache_miss_rate": 0.0625,
    "aiv_vec_ratio": 0.875,
    "aiv_scalar_ratio": 0.625,
    "aiv_mte2_ratio": 0.5,
    "aiv_mte3_ratio": 0.25,
    "aiv_icache_miss_rate": 0.03125,
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_pipe_of_both_cores_is_kept(end: str, tmp_path: Path):
    header = ",".join(["Name", "Start Time(us)", "Duration(us)", *PIPES])
    rows = [",".join(["a", "1", "2", *map(str, PIPES.values())]), ",".join(["b", "4", "2", *["N/A"] * len(PIPES)])]
    found = read(tmp_path / "k", end.join([header, *rows, ""]))
    assert [{pipe: row[pipe] for pipe in PIPES} for row in found.rows(named=True)] == [PIPES, dict.fromkeys(PIPES)]


def test_counters_of_cores_that_are_not_split_stand_under_the_newer_names(tmp_path: Path):
    header = "Name,Start Time(us),Duration(us),aicore_time(us),total_cycles,vec_ratio,mac_ratio,scalar_ratio,mte3_ratio"
    (row,) = read(tmp_path / "k", f"{header}\na,1,2,1.5,1500,0.25,0.5,0.125,0.75\n").rows(named=True)
    names = ("aic_total_cycles", "aiv_vec_ratio", "aic_mac_ratio", "aic_scalar_ratio", "aiv_mte3_ratio")
    assert [row[name] for name in names] == [1500.0, 0.25, 0.5, 0.125, 0.75]


def test_a_counter_written_oddly_is_read_and_one_that_is_no_number_is_unknown(tmp_path: Path):
    cells = ["0.5", '"0.5"', "5e-1", " 0.5\t", "N/A", "", "nan", "inf", "-", "NA", "1e16", "-1e300"]
    rows = [f"k{place},{place},1,{cell},0.25,x" for place, cell in enumerate(cells)]
    header = "Name,Start Time(us),Duration(us),aic_mac_ratio,aiv_vec_ratio,Other"
    warnings: list[str] = []
    path = tmp_path / "k"
    path.write_text("\n".join([header, *rows, ""]))
    found = read_kernels(path, "k", warnings)
    assert found["aic_mac_ratio"].to_list() == [0.5] * 4 + [None] * 8
    assert found["aiv_vec_ratio"].to_list() == [0.25] * 12
    assert warnings == []


def test_counters_beyond_all_counting_are_unknown_where_all_are_numbers(tmp_path: Path):
    path = tmp_path / "k"
    path.write_text("Name,Start Time(us),Duration(us),aic_mac_ratio,Other\na,1,1,1e30,x\nb,2,1,-1e15,x\nc,3,1,1e39,x\n")
    assert read_kernels(path, "k", [])["aic_mac_ratio"].to_list() == [None, pytest.approx(-1e15), None]


def test_a_gzip_file_is_told_by_its_bytes_not_its_name(tmp_path: Path):
    found = read(tmp_path / "kernel_details.csv", gzip.compress(table(HEADER_2025, KERNELS).encode()))
    assert found.height == 4


def test_a_byte_order_mark_does_not_hide_the_first_column(tmp_path: Path):
    found = read(tmp_path / "k", "\ufeff" + table(HEADER_2025, KERNELS))
    assert found["step"].to_list() == ["1"] * 4


def test_a_header_without_rows_is_an_empty_frame(tmp_path: Path):
    found = read(tmp_path / "k", HEADER_2025 + "\n")
    assert found.is_empty() and found.columns[: len(KERNEL_COLUMNS)] == list(KERNEL_COLUMNS)


def test_a_row_with_too_few_or_too_many_cells_is_named_by_line(tmp_path: Path):
    warnings: list[str] = []
    short = KERNELS[1].rsplit(",", 1)[0]
    found = read(tmp_path / "k", table(HEADER_2025, [KERNELS[0], short, KERNELS[2]]), warnings)
    assert found.height == 3
    assert warnings == ["kernel_details.csv: line 3: 23 cells where the header has 24"]
    warnings.clear()
    found = read(tmp_path / "k", table(HEADER_2025, [KERNELS[0], KERNELS[1] + ",1,2", KERNELS[2] + ",3"]), warnings)
    assert found.height == 3
    assert warnings == ["kernel_details.csv: line 3: 26 cells where the header has 24, and 1 more such rows"]


def test_a_number_that_is_none_becomes_unknown_and_is_named(tmp_path: Path):
    warnings: list[str] = []
    rows = [
        KERNELS[0],
        kernel("a", "Add", "soon", "1"),
        kernel("a", "Add", "5", "nan"),
        kernel("a", "Add", "5", "-3.5"),
    ]
    found = read(tmp_path / "k", table(HEADER_2025, rows), warnings)
    assert found["start_ns"].to_list()[1] is None
    assert found["duration_ns"].to_list() == [10_000, 1_000, None, None]
    assert warnings == [
        "kernel_details.csv: line 3: start time is no number; in 1 rows it is left unknown",
        "kernel_details.csv: line 4: duration is no number; in 1 rows it is left unknown",
        "kernel_details.csv: line 5: duration is negative; in 1 rows it is left unknown",
    ]


def test_numbers_past_64_bits_are_unknown_not_wrapped(tmp_path: Path):
    warnings: list[str] = []
    found = read(tmp_path / "k", table(HEADER_2025, [kernel("a", "Add", "9" * 30, "9" * 40)]), warnings)
    assert found["start_ns"].to_list() == [None] and found["duration_ns"].to_list() == [None]
    assert len(warnings) == 2


def test_a_table_of_something_else_is_refused(tmp_path: Path):
    with pytest.raises(BadDump, match="not a kernel table: no column for name"):
        read(tmp_path / "k", "OP Type,Count\nAdd,3\n")


def test_more_rows_than_one_slice_come_out_in_order(tmp_path: Path):
    rows = [kernel(f"kernel{index}" + "x" * 900, "Add", str(index), "1", shapes="4,8") for index in range(12_000)]
    found = read(tmp_path / "k", table(HEADER_2025, rows))
    assert found["start_ns"].to_list() == [index * 1000 for index in range(12_000)]
    assert found["name"][11_999].startswith("kernel11999x")


def test_times_that_cannot_be_are_unknown_and_said(tmp_path: Path):
    warnings: list[str] = []
    rows = [kernel("a", "Add", "5000000000000000", "1"), kernel("a", "Add", "1", "86400000000.001"), KERNELS[0]]
    found = read(tmp_path / "k", table(HEADER_2025, rows), warnings)
    assert found["start_ns"].to_list() == [None, 1000, 1764246877000000000]
    assert found["duration_ns"].to_list() == [1000, None, 10_000]
    assert warnings == [
        "kernel_details.csv: line 2: start time is out of range; in 1 rows it is left unknown",
        "kernel_details.csv: line 3: duration is longer than a day; in 1 rows it is left unknown",
    ]


def test_words_of_a_million_kernels_are_categories_and_counters_numbers(tmp_path: Path):
    found = read(tmp_path / "k", table(HEADER_2025, KERNELS))
    words = [column for column, kind in KERNEL_COLUMNS.items() if kind == "str"]
    assert all(kind == pl.Categorical for kind in found.select(words).dtypes)
    assert all(kind in (pl.Int64, pl.Float32) for kind in found.drop(words).dtypes)
