"""Files as spreadsheets, editors, killed jobs and old versions leave them: right rows, a warning that names file and
line, or one clear error."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.rank import RankResult, read_rank
from analysis.readers.kernel_details import read_kernels
from tests.analysis.small_dumps import HEADER_2025, OUTPUT, STEP_TRACE, kernel, table, whole_dump
from tests.dumps import write_dump

START, DURATION = "Start Time(us)", "Duration(us)"
PLAIN = table(
    HEADER_2025,
    [
        kernel("a", "Cast", "100.5", "10"),
        kernel("b", "MatMulV3", "200.25", "20.125"),
        kernel("c", "Add", "300", "5"),
    ],
)
CELLS = list(csv.reader(io.StringIO(PLAIN)))
STARTS, DURATIONS, NAMES = [100_500, 200_250, 300_000], [10_000, 20_125, 5_000], ["a", "b", "c"]


def written(rows: list[list[str]], **form: Any) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", **form).writerows(rows)
    return out.getvalue()


def cells(column: str, *values: str) -> str:
    """The table with other cells in a column, from the first row on."""
    place = CELLS[0].index(column)
    rows = [[*row] for row in CELLS]
    for row, value in zip(rows[1:], values, strict=False):
        row[place] = value
    return written(rows)


def titles(change: Callable[[str], str]) -> str:
    return written([[change(title) for title in CELLS[0]], *CELLS[1:]])


def without(column: str) -> str:
    place = CELLS[0].index(column)
    return written([[cell for index, cell in enumerate(row) if index != place] for row in CELLS])


BODY = PLAIN.split("\n", 1)[1]
HEAD = PLAIN.split("\n", 1)[0] + "\n"
OTHER = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim\nd,Add,AI_CORE,400,7,0,8\n"
SAME: dict[str, str | bytes] = {
    "windows line ends": PLAIN.replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + PLAIN,
    "byte order mark and windows line ends": "\ufeff" + PLAIN.replace("\n", "\r\n"),
    "columns the other way round": written([row[::-1] for row in CELLS]),
    "every cell quoted": written(CELLS, quoting=csv.QUOTE_ALL),
    "blanks around cells": written([[f" {cell} " for cell in row] for row in CELLS]),
    "titles in capitals": titles(str.upper),
    "titles in small letters": titles(str.lower),
    "titles with underscores": titles(lambda title: title.replace(" ", "_")),
    "tabs behind numbers": cells(DURATION, "10\t", "20.125\t", "5\t"),
    "blanks and signs": cells(DURATION, "+10", " 20.125 ", "5."),
    "exponents": cells(DURATION, "1e1", "2.0125E+1", "5.0e0"),
    "nothing at the end of the last line": PLAIN.rstrip("\n"),
    "blank lines between": PLAIN.replace("\n", "\n\n"),
    "blank lines behind": PLAIN + "\n\n\n",
    "a comma at the end of each line": PLAIN.replace("\n", ",\n"),
    "a comma at the end of each row": HEAD + BODY.replace("\n", ",\n"),
    "a column twice": written([[*row, row[0] if row is CELLS[0] else "999"] for row in CELLS]),
    "an unknown column in front": written([["Extra" if row is CELLS[0] else "x", *row] for row in CELLS]),
    "packed": gzip.compress(PLAIN.encode()),
    "milliseconds": titles(lambda title: title.replace("Duration(us)", "Duration(ns)"))
    .replace(",10,0,40", ",10000,0,40")
    .replace(",20.125,0,40", ",20125,0,40")
    .replace(",5,0,40", ",5000,0,40"),
}


def read(folder: Path, content: str | bytes) -> tuple[Any, list[str]]:
    warnings: list[str] = []
    path = folder / "kernel_details.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_kernels(path, path.name, warnings), warnings


@pytest.mark.parametrize("name", SAME)
def test_the_same_kernels_however_they_are_written(name: str, tmp_path: Path):
    found, warnings = read(tmp_path, SAME[name])
    assert found["start_ns"].to_list() == STARTS and found["duration_ns"].to_list() == DURATIONS
    assert found["name"].to_list() == NAMES and found["type"].to_list() == ["Cast", "MatMulV3", "Add"]
    assert warnings == []


@pytest.mark.parametrize(
    "name",
    [
        "a,b",
        'a"b',
        "a\nb",
        "算子_α😀",
        "x" * 10_000,
        "算" * 10_000,
        "Default/net/" + "layer/" * 2_000,
        "'=1+1",
        "a;b\tc",
    ],
)
def test_any_name_is_a_name(name: str, tmp_path: Path):
    found, warnings = read(tmp_path, cells("Name", name))
    assert found["name"].to_list() == [name, "b", "c"]
    assert found["duration_ns"].to_list() == DURATIONS and warnings == []


# name: (content, durations, what the one warning says)
WARNED: dict[str, tuple[str, list[int | None], str]] = {
    "decimal comma": (cells(DURATION, "10,5"), [None, 20_125, 5_000], "line 2: duration is no number; in 1 rows"),
    "thousands": (cells(DURATION, "1,234.5"), [None, 20_125, 5_000], "line 2: duration is no number; in 1 rows"),
    "a unit in the cell": (cells(DURATION, "10 us"), [None, 20_125, 5_000], "line 2: duration is no number"),
    "digits of another script": (cells(DURATION, "１０"), [None, 20_125, 5_000], "line 2: duration is no number"),
    "hexadecimal": (cells(DURATION, "10", "0x10"), [10_000, None, 5_000], "line 3: duration is no number"),
    "not finite": (cells(DURATION, "inf", "nan", "5"), [None, None, 5_000], "line 2: duration is no number; in 2 rows"),
    "past 64 bits": (cells(DURATION, "9" * 40), [None, 20_125, 5_000], "line 2: duration is no number"),
    "past everything": (cells(DURATION, "1e300"), [None, 20_125, 5_000], "line 2: duration is no number"),
    "below zero": (cells(DURATION, "10", "-5"), [10_000, None, 5_000], "line 3: duration is negative; in 1 rows"),
    "longer than a day": (cells(DURATION, "1e12"), [None, 20_125, 5_000], "line 2: duration is longer than a day"),
    "a start past 64 bits": (cells(START, "9" * 40), DURATIONS, "line 2: start time is no number; in 1 rows"),
    "a date": (cells(START, "2026-01-01 00:00:00"), DURATIONS, "line 2: start time is no number"),
    "a start in another age": (cells(START, "9e15"), DURATIONS, "line 2: start time is out of range"),
    "the header twice": (PLAIN + PLAIN, DURATIONS * 2, "line 5: the header again; 1 such rows are left out"),
    "the header twice in front": (HEAD + PLAIN, DURATIONS, "line 2: the header again; 1 such rows are left out"),
    "a footer": (PLAIN + "Total,,,\n", DURATIONS, "line 5: 4 cells where the header has 24"),
    "a word behind": (PLAIN + "done\n", DURATIONS, "line 5: 1 cells where the header has 24"),
    "cut in a row": (PLAIN[:-40], DURATIONS, "line 4: 17 cells where the header has 24"),
    "cut rows, packed": ("gz " + PLAIN[:-40], DURATIONS, "line 4: 17 cells where the header has 24"),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_no_number_is_unknown_and_told_once_with_its_line(name: str, tmp_path: Path):
    content, durations, warning = WARNED[name]
    packed = gzip.compress(content[3:].encode()) if content.startswith("gz ") else content
    found, warnings = read(tmp_path, packed)
    assert found["duration_ns"].to_list() == durations
    (told,) = warnings
    assert told.startswith(f"kernel_details.csv: {warning}")


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "semicolons": (written(CELLS, delimiter=";"), "line 1: cells are separated by semicolons, not commas"),
    "tabs": (written(CELLS, delimiter="\t"), "line 1: cells are separated by tabs, not commas"),
    "bars": (written(CELLS, delimiter="|"), "line 1: cells are separated by bars, not commas"),
    "titles in Chinese": (
        titles(lambda title: {"Name": "名称", START: "开始时间(us)"}.get(title, title)),
        "no column for name",
    ),
    "no duration": (without(DURATION), "no column for duration"),
    "no start": (without(START), "no column for start"),
    "no name": (without("Name"), "no column for name"),
    "carriage returns": (PLAIN.replace("\n", "\r"), "line 1: lines end in a carriage return alone"),
    "two versions": (PLAIN + OTHER, "line 5: another header with other columns: two files were put together"),
    "two versions, as many columns": (PLAIN + written([row[::-1] for row in CELLS]), "line 5: another header"),
    "two bytes a letter": (PLAIN.encode("utf-16"), "line 1: is not UTF-8 text"),
    "another encoding": (cells("Name", "é").encode("latin-1"), "line 2: is not UTF-8 text"),
    "NUL bytes": (PLAIN.replace("MatMulV3", "Mat\0"), "holds NUL bytes, first near line 1"),
    "an open quote": (PLAIN.replace(",a,", ',"a,', 1), "line 2: a quote is never closed"),
    "a remark in front": ("# exported\n" + PLAIN, "no column for name"),
    "what Excel puts in front": ("sep=,\n" + PLAIN, "no column for name"),
    "a page": ("<html><body>404</body></html>", "no column for name"),
    "nothing": ("", "is empty (zero bytes)"),
    "packed and cut": (gzip.compress(PLAIN.encode() * 50)[:-30], "gzip data is cut or damaged"),
    "packed twice": (gzip.compress(gzip.compress(PLAIN.encode())), "is not UTF-8 text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_told_in_one_line(name: str, tmp_path: Path):
    content, error = REFUSED[name]
    with pytest.raises(BadDump) as caught:
        read(tmp_path, content)
    told = str(caught.value)
    assert told.startswith("kernel_details.csv: ") and error in told and "\n" not in told


# --- other tables

MEMORY = (
    "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type\n"
    "PTA,1764246877000000.5\t,1.5,4,0,1,NPU:0\nPTA,1764246877000100\t,2.5,8,0,1,NPU:0\n"
)
TIMES = {"Start Timestamp(us)": 1764246877000050.0, "Elapse Time(ms)": 0.06, "Transit Time(ms)": 0.05}
TALK = json.dumps({"step1": {"p2p": {}, "collective": {"hcom_allReduce__1_0_1@g": {"Communication Time Info": TIMES}}}})
TWICE = "line 3: the header again; 1 such rows are left out"
OTHERS: dict[str, tuple[str, str | bytes, dict[str, Any], list[str]]] = {
    # name: (file, content, what the entry says, warnings without the file's name)
    "steps: windows and mark": ("step_trace_time_csv", "\ufeff" + STEP_TRACE.replace("\n", "\r\n"), {}, []),
    "steps: exponents": ("step_trace_time_csv", STEP_TRACE.replace("100.0", "1.0E+2"), {}, []),
    "steps: tabs": ("step_trace_time_csv", STEP_TRACE.replace("100.0", "100.0\t"), {}, []),
    "steps: blank lines": ("step_trace_time_csv", STEP_TRACE.replace("\n", "\n\n"), {}, []),
    "steps: packed": ("step_trace_time_csv", gzip.compress(STEP_TRACE.encode()), {}, []),
    "steps: other order": (
        "step_trace_time_csv",
        "".join(",".join(line.split(",")[::-1]) + "\n" for line in STEP_TRACE.splitlines()),
        {},
        [],
    ),
    "steps: the header twice": (
        "step_trace_time_csv",
        STEP_TRACE + STEP_TRACE.splitlines()[0] + "\n",
        {},
        [TWICE],
    ),
    "steps: decimal comma": (
        "step_trace_time_csv",
        STEP_TRACE.replace("100.0", '"100,0"'),
        {"computing_us": None},
        ["line 2: Computing is no number; in 1 of 1 steps it is left unknown"],
    ),
    "steps: past 64 bits": (
        "step_trace_time_csv",
        STEP_TRACE.replace("100.0", "9" * 40),
        {"computing_us": None},
        ["line 2: Computing is no number; in 1 of 1 steps it is left unknown"],
    ),
    "steps: semicolons": (
        "step_trace_time_csv",
        STEP_TRACE.replace(",", ";"),
        {"source": "kernel intervals"},
        ["line 1: cells are separated by semicolons, not commas: export the file again, or as plain CSV"],
    ),
    "memory: N/A": ("memory_record_csv", MEMORY.replace("2.5", "N/A"), {"allocated": 1.5}, []),
    "memory: decimal comma": (
        "memory_record_csv",
        MEMORY.replace("2.5", '"2,5"'),
        {"allocated": 1.5},
        ["line 3: Total Allocated is no number, or out of range; in 1 rows it is left unknown"],
    ),
    "memory: out of range": (
        "memory_record_csv",
        MEMORY.replace("2.5", "1e300"),
        {"allocated": 1.5},
        ["line 3: Total Allocated is no number, or out of range; in 1 rows it is left unknown"],
    ),
    "memory: exponents": ("memory_record_csv", MEMORY.replace("2.5", "2.5e0"), {"allocated": 2.5}, []),
    "communication: mark": ("communication_json", "\ufeff" + TALK, {"elapse_us": 60.0}, []),
    "communication: exponents": ("communication_json", TALK.replace("0.06", "6e-2"), {"elapse_us": 60.0}, []),
    "communication: as text": ("communication_json", TALK.replace("0.06", '"0.06"'), {"elapse_us": 60.0}, []),
    "communication: decimal comma": (
        "communication_json",
        TALK.replace("0.06", '"0,06"'),
        {"elapse_us": None},
        ["1 operations have no elapse time that is a number; it is left unknown"],
    ),
    "communication: not finite": (
        "communication_json",
        TALK.replace("0.06", "NaN"),
        {"elapse_us": None},
        ["1 operations have no elapse time that is a number; it is left unknown"],
    ),
    "communication: a list": ("communication_json", "[]", {}, ["is not an object of steps"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tables_however_they_are_written(name: str, tmp_path: Path):
    file, content, expected, warnings = OTHERS[name]
    result = read_rank(find_dumps(whole_dump(tmp_path, **{file: content}))[0])
    entry, (step,) = result.entry, result.entry["steps"]
    peak = entry["memory"]["peak_allocated_bytes"]
    told = {
        **step,
        "allocated": None if peak is None else peak / (1 << 20),
        "elapse_us": entry["communication"][0].get("elapse_us") if entry["communication"] else None,
    }
    plain = {"computing_us": 100.0, "free_us": 10.0, "source": "step_trace_time.csv"}
    assert {key: told[key] for key in plain | expected} == plain | expected
    label = f"{OUTPUT}/{file.replace('_csv', '.csv').replace('_json', '.json')}"
    assert [text for text in result.source["warnings"] if label in text] == [f"{label}: {text}" for text in warnings]


STATISTIC = "OP Type,Core Type,Count,Total Time(us)\nCast,AI_VECTOR_CORE,{},{}\nhcom_allReduce_,HCCL,9,99999\n"


@pytest.mark.parametrize(
    ("count", "us", "told"),
    [
        (3, 100.0, []),
        (3, 100.5, []),  # half a percent is rounding
        (2, 60.0, []),
        (
            7,
            400.0,
            ["holds 3 kernels of 100 us where op_statistic.csv counts 7 kernels of 400 us: a part is missing"],
        ),
    ],
)
def test_a_table_of_kernels_that_lacks_some_that_the_profiler_counted_is_told(
    count: int, us: float, told: list[str], tmp_path: Path
):
    root = whole_dump(tmp_path, op_statistic_csv=STATISTIC.format(count, us))
    label = f"{OUTPUT}/kernel_details.csv"
    warnings = read_rank(find_dumps(root)[0]).source["warnings"]
    assert [text for text in warnings if label in text] == [f"{label}: {text}" for text in told]


# --- databases

BASE = f"{OUTPUT}/ascend_pytorch_profiler_0.db"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    truth = write_dump(tmp_path_factory.mktemp("sound"), mode="torch", dp=2, export=("db",), rank=0)
    return truth.folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    target = tmp_path / sound.name
    shutil.copytree(sound, target)
    return target


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Connections that stay open while the dump is read."""
    with ExitStack() as stack:
        yield stack


def change(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / BASE)) as base:
        for statement in statements:
            base.execute(statement)
        base.commit()


def result_of(folder: Path) -> tuple[RankResult, list[str]]:
    """What is read, and what is said of the database."""
    result = read_rank(find_dumps(folder)[0])
    return result, [text.removeprefix(f"{BASE}: ") for text in result.source["warnings"] if text.startswith(BASE)]


def kernels(result: RankResult) -> tuple[int, int] | None:
    frame = result.frames.get("kernels")
    return None if frame is None else (frame.height, int(frame["duration_ns"].sum()))


def test_a_database_that_another_has_locked_is_read_all_the_same(folder: Path, sound: Path, held: ExitStack):
    other = held.enter_context(closing(sqlite3.connect(folder / BASE, isolation_level=None)))
    other.execute("begin exclusive")
    result, told = result_of(folder)
    assert (kernels(result), told) == (kernels(result_of(sound)[0]), [])


def test_a_database_is_read_without_the_journal_beside_it_which_is_told(folder: Path, sound: Path, held: ExitStack):
    before = kernels(result_of(sound)[0])
    other = held.enter_context(closing(sqlite3.connect(folder / BASE)))
    other.execute("pragma journal_mode=wal")
    other.execute("pragma wal_autocheckpoint=0")
    other.execute("update TASK set endNs = endNs + 1000")
    other.commit()
    result, told = result_of(folder)
    assert kernels(result) == before
    assert told == ["ascend_pytorch_profiler_0.db-wal lies beside it: what a tool wrote there last is not read"]
    assert sorted(path.name for path in (folder / OUTPUT).iterdir() if "profiler" in path.name) == [
        "ascend_pytorch_profiler_0.db",
        "ascend_pytorch_profiler_0.db-shm",
        "ascend_pytorch_profiler_0.db-wal",
    ]


def test_a_journal_that_was_left_by_a_killed_tool_is_told_and_left_alone(folder: Path, sound: Path):
    journal = folder / f"{BASE}-journal"
    journal.write_bytes(b"\0" * 512)
    result, told = result_of(folder)
    assert kernels(result) == kernels(result_of(sound)[0])
    assert told == ["ascend_pytorch_profiler_0.db-journal lies beside it: what a tool wrote there last is not read"]
    assert journal.stat().st_size == 512


@pytest.mark.parametrize(
    ("statements", "error"),
    [
        (["drop table TASK"], "holds no kernels: table TASK is missing"),
        (["drop table COMPUTE_TASK_INFO"], "holds no kernels: table COMPUTE_TASK_INFO is missing"),
        (["alter table TASK drop column startNs"], "holds no kernels: table TASK has no startNs"),
        (["alter table TASK drop column globalTaskId"], "holds no kernels: table TASK has no globalTaskId"),
        (
            ["alter table TASK rename to T", "create view TASK as select * from T"],
            "holds no kernels: table TASK is missing",
        ),
    ],
)
def test_a_database_without_what_makes_kernels_says_what_it_lacks(statements: list[str], error: str, folder: Path):
    change(folder, *statements)
    result, told = result_of(folder)
    assert (kernels(result), told) == (None, [error])
    assert len(result.entry["steps"]) == 2  # of analysis.db


@pytest.mark.parametrize(
    "statement",
    [
        "alter table TASK drop column deviceId",
        "alter table TASK drop column modelId",
        "alter table COMPUTE_TASK_INFO drop column attrInfo",
        "alter table COMPUTE_TASK_INFO drop column mixBlockDim",
        "update TASK set startNs = cast(startNs as text), endNs = cast(endNs as text)",
        "drop table TASK_PMU_INFO",
        "update TASK_PMU_INFO set value = 'x'",
        "delete from CANN_API",
        "drop table CANN_API",
        "update RANK_DEVICE_MAP set rankId = 'a'",
        "drop table RANK_DEVICE_MAP",
        "drop table META_DATA",
        "drop table ENUM_MODULE",
    ],
)
def test_a_database_without_what_kernels_do_not_need_tells_the_same_kernels(statement: str, folder: Path, sound: Path):
    change(folder, statement)
    result, told = result_of(folder)
    assert (kernels(result), told) == (kernels(result_of(sound)[0]), [])


def test_a_database_without_its_words_says_so(folder: Path, sound: Path):
    change(folder, "drop table STRING_IDS")
    result, told = result_of(folder)
    assert kernels(result) == kernels(result_of(sound)[0])
    assert told == ["table STRING_IDS is missing: names, types and shapes of kernels are unknown"]


@pytest.mark.parametrize("word", ["算😀" * 5_000, "x" * 10_000, 'a,"b\n'])
def test_any_word_of_a_database_is_a_name(word: str, folder: Path):
    with closing(sqlite3.connect(folder / BASE)) as base:
        (number,) = base.execute("select name from COMPUTE_TASK_INFO limit 1").fetchone()
        base.execute("update STRING_IDS set value = ? where id = ?", [word, number])
        base.commit()
    result, told = result_of(folder)
    assert word.strip(' \t"') in result.frames["kernels"]["name"].cast(str).to_list() and told == []


@pytest.mark.parametrize(
    ("statement", "warning"),
    [
        ("update TASK set endNs = startNs - 5 where rowid = 1", "1 kernels end before they start"),
        ("update TASK set endNs = 9223372036854775807 where rowid = 1", "1 kernels are longer than a day"),
        ("update TASK set endNs = 1e30 where rowid = 1", "1 kernels are longer than a day"),
    ],
)
def test_impossible_times_of_a_database_are_unknown_and_told(statement: str, warning: str, folder: Path, sound: Path):
    count, _ = kernels(result_of(sound)[0]) or (0, 0)
    change(folder, statement)
    result, told = result_of(folder)
    assert (result.frames["kernels"].height, result.frames["kernels"]["duration_ns"].null_count()) == (count, 1)
    assert len(told) == 1 and told[0].startswith(warning)


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda path: cut(path, path.stat().st_size // 2), "is cut: "),
        (lambda path: cut(path, 1), "is cut: "),
        (lambda path: path.write_bytes(b""), "is empty (zero bytes)"),
        (lambda path: path.write_text("no database"), "is not an SQLite database"),
        (lambda path: path.write_bytes(gzip.compress(path.read_bytes())[:-20]), "gzip data is cut or damaged"),
        (lambda path: path.write_bytes(gzip.compress(path.read_bytes()[:-5_000])), "is cut: "),
    ],
    ids=["half", "one byte", "nothing", "text", "packed and cut", "cut and packed"],
)
def test_a_damaged_database_is_one_clear_line(damage: Callable[[Path], None], error: str, folder: Path):
    damage(folder / BASE)
    result, told = result_of(folder)
    assert kernels(result) is None
    assert len(told) == 1 and told[0].startswith(error)


def test_a_packed_database_tells_the_same(folder: Path, sound: Path):
    path = folder / BASE
    path.write_bytes(gzip.compress(path.read_bytes()))
    result, told = result_of(folder)
    assert (kernels(result), told) == (kernels(result_of(sound)[0]), [])


def test_random_bytes_in_a_database_never_end_in_a_traceback(folder: Path):
    whole, noise = (folder / BASE).read_bytes(), random.Random(7)
    for place in range(100, len(whole), len(whole) // 12):
        (folder / BASE).write_bytes(whole[:place] + noise.randbytes(2_000) + whole[place + 2_000 :])
        with suppress(BadDump):
            result_of(folder)


def test_tables_without_rows_tell_nothing_and_say_how_to_get_it(folder: Path):
    change(folder, *(f"delete from {name}" for name in ("TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_OP", "STEP_TIME")))
    result, told = result_of(folder)
    assert (kernels(result), told) == (None, [])
    assert "kernel_details.csv" in [row["file"] for row in result.source["missing"]]
