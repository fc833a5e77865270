"""Files no profiler would write. Each gives the right rows, a warning or one clear BadDump; never a traceback, never
unbounded memory."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.rank import RankResult, read_rank
from analysis.readers.communication import read_links
from analysis.readers.kernel_details import read_kernels
from analysis.readers.profiler_db import read_communication as read_database_communication
from analysis.readers.text import MAX_COLUMNS, read_json
from tests.analysis.small_dumps import HEADER_2025, KERNELS, OUTPUT, kernel, table, whole_dump, write_dump

GOOD = table(HEADER_2025, KERNELS)


def read(tmp_path: Path, data: str | bytes) -> list[str]:
    """Read as kernel_details.csv; the warnings."""
    path = tmp_path / "file"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    warnings: list[str] = []
    read_kernels(path, "kernel_details.csv", warnings)
    return warnings


def refused(tmp_path: Path, data: str | bytes) -> str:
    with pytest.raises(BadDump) as error:
        read(tmp_path, data)
    assert "\n" not in str(error.value)
    assert error.value.path == "kernel_details.csv"
    return error.value.reason


def test_an_empty_file(tmp_path: Path):
    assert refused(tmp_path, "") == "is empty (zero bytes)"


def test_a_file_of_another_encoding_is_named_with_its_line(tmp_path: Path):
    bad = GOOD.encode() + kernel("caf\xe9", "Add", "1", "2").encode("latin-1") + b"\n"
    assert refused(tmp_path, bad) == "line 6: is not UTF-8 text"
    assert "is not UTF-8 text" in refused(tmp_path, GOOD.encode("utf-16"))


def test_a_character_cut_at_the_end_of_the_file(tmp_path: Path):
    assert "is not UTF-8 text" in refused(tmp_path, GOOD.encode() + "数".encode()[:2])


def test_a_trace_cut_in_the_middle_is_warned_of_without_the_place_it_was_read_from(tmp_path: Path):
    trace = '[{"ph": "X", "name": "aten::add", "ts": "1764246877000000.000", "dur": 5, "cat": "cpu_op"}, {"ph": "X'
    folder = whole_dump(tmp_path, trace_view_json=trace)
    result = read_rank(find_dumps(folder)[0])
    told = next(w for w in result.source["warnings"] if "trace_view.json" in w)
    assert "is not a trace that can be read, or was cut" in told
    assert str(tmp_path) not in told


def test_a_header_in_the_middle_is_no_kernel_and_no_step(tmp_path: Path):
    """Two exports put one below the other."""
    later = GOOD.replace(",17642468770", ",17642468780")
    folder = write_dump(tmp_path, {f"{OUTPUT}/kernel_details.csv": GOOD + later})
    result = read_rank(find_dumps(folder)[0])
    assert (result.entry["kernels"]["count"], result.entry["facts"]["steps"]) == (2 * len(KERNELS), 1)
    line = 2 + len(KERNELS)
    warned = f"{OUTPUT}/kernel_details.csv: line {line}: the header again; 1 such rows are left out"
    assert warned in result.source["warnings"]


def test_a_kernel_of_another_decade_does_not_stretch_its_step(tmp_path: Path):
    """All but one lie within 110 us of November 2025; the clock of the one was never set."""
    rows = [*KERNELS * 4, kernel("aclnnAdd_Add", "Add", "1000000000000000", "5.000")]
    folder = write_dump(tmp_path, {f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, rows)})
    result = read_rank(find_dumps(folder)[0])
    assert result.entry["steps"][0]["step_time_us"] < 1000
    last = len(rows) + 1
    assert [w for w in result.source["warnings"] if "start time" in w] == [
        f"{OUTPUT}/kernel_details.csv: line {last}: start time is a month from the others; in 1 rows it is left unknown"
    ]


def test_a_kernel_table_without_rows_is_no_kernels_at_all(tmp_path: Path):
    """Unknown, not 0 us of compute; the step table beside it tells that the device did work."""
    titles = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble"
    steps = f"{titles}\n1,80,10,0,10,10,100,0\n"
    files = {f"{OUTPUT}/kernel_details.csv": HEADER_2025 + "\n", f"{OUTPUT}/step_trace_time.csv": steps}
    result = read_rank(find_dumps(write_dump(tmp_path, files))[0])
    assert result.entry["steps"][0]["step_time_us"] == 100
    assert result.entry["kernels"] is None
    assert "kernel_details.csv" in [item["file"] for item in result.source["missing"]]


def test_binary_data(tmp_path: Path):
    assert "NUL" in refused(tmp_path, b"Name\0\0\0\1\n" * 10)


def test_ten_thousand_columns(tmp_path: Path):
    header = HEADER_2025 + "".join(f",extra{index}" for index in range(10_000))
    assert refused(tmp_path, table(header, KERNELS)) == f"has 10024 columns; {MAX_COLUMNS} at most are expected"


def test_quotes_that_never_close_are_named_with_their_line(tmp_path: Path):
    rows = [KERNELS[0], KERNELS[1].replace('"""', '""', 1), *KERNELS[2:]]
    assert refused(tmp_path, table(HEADER_2025, rows)) == "line 3: a quote is never closed"


def test_a_line_of_200_mb_is_refused_in_bounded_memory(tmp_path: Path):
    path = tmp_path / "kernel_details.csv"
    with path.open("wb") as file:
        file.write(GOOD.encode())
        for _ in range(200):
            file.write(b"x" * (1 << 20))
    code = (
        "import re, sys; from analysis.cli import main; status = main(['report', sys.argv[1]]); "
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr); sys.exit(status)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, capture_output=True, text=True)
    message, peak = done.stderr.strip().rsplit("\n", 1)
    assert done.returncode == 2
    assert "kernel_details.csv: line 6 is longer than 1 MiB" in message
    assert int(peak) < 180 * 1024  # kB; the imports alone take about 100 MB


def test_a_gzip_bomb_is_stopped_while_it_unpacks(tmp_path: Path):
    assert "refused as a bomb" in refused(tmp_path, gzip.compress(GOOD.encode() + bytes(100 << 20)))


def test_a_cut_gzip_file(tmp_path: Path):
    assert refused(tmp_path, gzip.compress(GOOD.encode())[:-20]) == "gzip data is cut or damaged"


def test_a_file_cut_in_the_middle_keeps_the_rows_before_the_cut(tmp_path: Path):
    cut = GOOD[: GOOD.index("aclnnAdd") + 20]
    assert read(tmp_path, cut) == ["kernel_details.csv: line 5: 8 cells where the header has 24"]


@pytest.mark.parametrize("opener", ["[", '{"a":', '[{"a":'])
def test_json_nested_100_000_deep(opener: str, tmp_path: Path):
    (tmp_path / "file").write_text(opener * 100_000)
    with pytest.raises(BadDump, match="communication.json: is nested too deep"):
        read_json(tmp_path / "file", "communication.json")


@pytest.mark.parametrize("text", ["", "{", "[1, 2", '{"a": 1}x', "\ufeff{", "nul", '{"a": 1' + "0" * 5000 + "}"])
def test_json_that_is_none(text: str, tmp_path: Path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(BadDump, match="communication.json: "):
        read_json(tmp_path / "file", "communication.json")


def rank(root: Path) -> RankResult:
    return read_rank(find_dumps(root)[0])


@pytest.mark.parametrize(
    "name",
    [
        "communication_json",
        "communication_matrix_json",
        "memory_record_csv",
        "op_statistic_csv",
        "trace_view_json",
        "analysis_db",
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[" * 100_000, b'"', b"{}", b"[]", b"null", b'{"step1": 3}', b"a,b\n1,2\n"]
)
def test_no_optional_file_stops_the_rest(name: str, content: bytes, tmp_path: Path):
    result = rank(whole_dump(tmp_path, **{name: content}))
    assert result.entry["kernels"]["compute_us"] == 100.0
    assert result.entry["steps"][0]["step_time_us"] == 130.0


def test_a_database_that_is_none_is_a_warning_beside_text(tmp_path: Path):
    result = rank(whole_dump(tmp_path, ascend_pytorch_profiler_0_db=b"not a database"))
    assert f"{OUTPUT}/ascend_pytorch_profiler_0.db: is not an SQLite database" in result.source["warnings"]


def test_a_database_full_of_text_where_numbers_belong(tmp_path: Path):
    root = write_dump(tmp_path, {f"{OUTPUT}/ascend_pytorch_profiler_0.db": b""})
    with closing(sqlite3.connect(root / OUTPUT / "ascend_pytorch_profiler_0.db")) as base:
        base.execute("create table TASK (startNs, endNs, globalTaskId)")
        base.execute("create table COMPUTE_TASK_INFO (name, globalTaskId)")
        base.execute("insert into TASK values ('soon', x'ff', 1), (9e300, -5, 1), (10, 30, 1)")
        base.execute("insert into COMPUTE_TASK_INFO values ('three', 1)")
        base.commit()
    assert rank(root).entry["kernels"]["count"] == 3


def test_overlapping_and_disordered_steps_still_add_up(tmp_path: Path):
    rows = [
        kernel("m", "MatMulV3", "500", "100", step="3"),
        kernel("m", "MatMulV3", "0", "100", step="1"),
        kernel("m", "MatMulV3", "50", "200", step="2"),
        kernel("m", "MatMulV3", "40", "20", step=""),
    ]
    result = rank(write_dump(tmp_path, {f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, rows)}))
    assert [(step["step"], step["computing_us"]) for step in result.entry["steps"]] == [
        ("1", 100.0),
        ("2", 200.0),
        ("3", 100.0),
    ]
    assert result.entry["kernels"]["compute_us"] == 420.0


def test_zero_and_absurd_durations_do_not_break_the_report(tmp_path: Path):
    rows = [kernel("a", "Add", "0", "0"), kernel("b", "Add", "9000000000000000", "9000000000000000")]
    result = rank(write_dump(tmp_path, {f"{OUTPUT}/kernel_details.csv": table(HEADER_2025, rows)}))
    assert result.entry["kernels"]["count"] == 2


def delete(text: bytes, place: random.Random) -> bytes:
    start = place.randrange(len(text))
    return text[:start] + text[start + place.randrange(1, 40) :]


def overwrite(text: bytes, place: random.Random) -> bytes:
    start = place.randrange(len(text))
    return text[:start] + place.randbytes(place.randrange(1, 6)) + text[start + 3 :]


def repeat(text: bytes, place: random.Random) -> bytes:
    start = place.randrange(len(text))
    return text[:start] + text[start : start + 30] * 3 + text[start:]


def special(text: bytes, place: random.Random) -> bytes:
    start = place.randrange(len(text))
    return (
        text[:start]
        + place.choice([b'"', b"\n", b"\r", b",", b"\t", b"\0", b"-", b"1e999", b"N/A", b"\xef\xbb\xbf"])
        + text[start:]
    )


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (delete, overwrite, repeat, special)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), times=st.integers(1, 3))
def test_any_change_of_a_kernel_file_is_rows_a_warning_or_one_clear_error(seed: int, times: int, tmp_path: Path):
    place = random.Random(seed)
    data = GOOD.encode()
    for _ in range(times):
        data = place.choice(MUTATIONS)(data, place)
    path = tmp_path / "file"
    path.write_bytes(data)
    warnings: list[str] = []
    try:
        frame = read_kernels(path, "kernel_details.csv", warnings)
    except BadDump as error:
        assert error.path == "kernel_details.csv" and "\n" not in str(error)
        return
    assert frame["kind"].null_count() == 0
    assert frame.filter(frame["duration_ns"] < 0).is_empty()
    assert all(warning.startswith("kernel_details.csv: ") for warning in warnings)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    name=st.sampled_from(["kernel_details.csv", "step_trace_time.csv", "communication.json"]),
)
def test_any_change_of_a_dump_is_a_report_or_one_clear_error(seed: int, name: str, tmp_path: Path):
    place = random.Random(seed)
    talk = b'{"step1": {"collective": {"hcom_allReduce__1@7": {"Communication Time Info": {"Elapse Time(ms)": 5.5}}}}}'
    root = whole_dump(tmp_path, communication_json=talk)
    path = root / OUTPUT / name
    path.write_bytes(place.choice(MUTATIONS)(path.read_bytes(), place))
    try:
        result = rank(root)
    except BadDump as error:
        assert "\n" not in str(error)
        return
    assert result.entry["rank"] == 0


@pytest.mark.parametrize("kind", [float("inf"), ["HCCS"], {"a": 1}, 7, "", None, True])
def test_a_link_of_no_kind_is_one_whose_kind_is_unknown(tmp_path, kind):
    pair = {"Transport Type": kind, "Transit Size(MB)": 2.0, "Transit Time(ms)": 1.0}
    matrix = {"step1": {"collective": {"hcom_allReduce-total@1": {"0-1": pair}}}}
    (tmp_path / "communication_matrix.json").write_text(json.dumps(matrix))
    (row,) = read_links(tmp_path / "communication_matrix.json", "communication_matrix.json", {})
    assert (row["link"], row["size_bytes"]) == (None, 2_000_000)


@pytest.mark.parametrize("kind", [7, b"HCCS", 1.5, None])
def test_a_database_whose_link_is_no_name_is_read_without_it(tmp_path, kind):
    path = tmp_path / "analysis.db"
    with closing(sqlite3.connect(path)) as base:
        base.execute(
            "create table CommAnalyzerTime "
            "(step, group_name, hccl_op_name, start_timestamp, elapse_time, transit_time, wait_time)"
        )
        base.execute(
            "insert into CommAnalyzerTime values ('step1', '1', 'hcom_allReduce__1_0_1@1', 1.0, 2.0, 1.0, 0.5)"
        )
        base.execute(
            "create table CommAnalyzerBandwidth "
            "(step, group_name, hccl_op_name, transport_type, transit_size, transit_time)"
        )
        base.execute(
            "insert into CommAnalyzerBandwidth values ('step1', '1', 'hcom_allReduce__1_0_1@1', ?, 4.0, 1.0)", [kind]
        )
        base.commit()
    rows = read_database_communication(path, "analysis.db", [])
    assert rows.select("elapse_ns", "size_bytes", "link").rows() == [(2_000_000, 4_000_000, None)]
