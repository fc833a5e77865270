"""Large JSON is read entry by entry: the same values as at once, memory flat, errors named with their line."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.errors import BadDump
from analysis.readers import json_stream
from analysis.readers.json_stream import entries

ROOT = Path(__file__).resolve().parents[2]
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=3))
THREE_DEEP = st.dictionaries(
    st.text(max_size=4),
    st.one_of(VALUES, st.dictionaries(st.text(max_size=4), st.dictionaries(st.text(max_size=4), VALUES, max_size=4))),
    max_size=4,
)


def at_once(value: Any, depth: int, keys: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if not depth or not isinstance(value, dict):
        return [(keys, value)]
    return [found for key, item in value.items() for found in at_once(item, depth - 1, (*keys, key))]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=THREE_DEEP, indent=st.sampled_from([None, 1]), block=st.integers(1, 7), ascii=st.booleans())
def test_entries_are_those_of_the_whole_document(
    tree: dict[str, Any], indent: int | None, block: int, ascii: bool, tmp_path: Path
):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(tree, indent=indent, ensure_ascii=ascii), encoding="utf-8")
    text = json_stream._Text(io.StringIO(path.read_text(encoding="utf-8")), "file.json")
    whole, text.source = text.source, _InPieces(text.source, block)
    assert [*json_stream._walk(text, 3, ())] == at_once(tree, 3)
    assert [*entries(path, "file.json", 3)] == at_once(tree, 3)
    assert whole.read() == ""


class _InPieces(io.TextIOBase):
    """A file that gives few characters at a time, so that values are cut anywhere."""

    def __init__(self, source: Any, size: int) -> None:
        self.source, self.size = source, size

    def read(self, size: int | None = -1) -> str:
        return str(self.source.read(self.size))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ('{"a": {"b": 1}', "line 1: is not valid JSON, or was cut"),
        ('{"a":\n {"b" 1}}', "line 2: is not valid JSON, or was cut (':' is missing)"),
        ('{"a": 1,\n\n}', "line 3: is not valid JSON, or was cut (a name in quotes is missing)"),
        ('{"a": 1 "b": 2}', "a comma is missing"),
        ("{1: 2}", "a name in quotes is missing"),
        ('{"a": 1}\nx', "line 2: is not valid JSON, or was cut (something stands after its end)"),
        ('{"a": ' + "[" * 100_000, "is nested too deep"),
        ('{"a": tru', "line 1: is not valid JSON"),
    ],
)
def test_what_is_no_json_is_named_with_its_line(text: str, reason: str, tmp_path: Path):
    (tmp_path / "f").write_text(text)
    with pytest.raises(BadDump) as error:
        list(entries(tmp_path / "f", "f.json", 3))
    assert reason in str(error.value) and error.value.path == "f.json"


def test_text_of_another_encoding_and_packed_files(tmp_path: Path):
    (tmp_path / "f").write_bytes('{"é": 1}'.encode("latin-1"))
    with pytest.raises(BadDump, match="f.json: line 1: is not UTF-8 text"):
        list(entries(tmp_path / "f", "f.json", 2))
    (tmp_path / "f").write_bytes(gzip.compress('﻿{"é": {"x": 1.5}}'.encode()))
    assert [(keys, str(value)) for keys, value in entries(tmp_path / "f", "f.json", 2)] == [(("é", "x"), "1.5")]


def test_an_entry_without_end_is_refused_before_it_fills_memory(tmp_path: Path):
    with (tmp_path / "f").open("w") as file:
        file.write('{"a": "')
        for _ in range(40):
            file.write("x" * (1 << 20))
    with pytest.raises(BadDump, match="f.json: line 1: one entry is longer than 16 MiB"):
        list(entries(tmp_path / "f", "f.json", 1))


MEASURE = """
import re, sys
from pathlib import Path
from analysis.readers.communication import read_communication
frame = read_communication(Path(sys.argv[1]), "communication.json", [])
print(frame.height, int(frame["elapse_ns"].sum()), re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def test_a_communication_file_of_300_mib_is_read_in_flat_memory(tmp_path: Path):
    kinds = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
    sizes = {
        kind: {"Transit Size(MB)": 1.5, "Size Distribution": {str(n): [1, 0.5] for n in range(12)}} for kind in kinds
    }
    entry = json.dumps({"Communication Time Info": {"Start Timestamp(us)": 1.5, "Elapse Time(ms)": 0.25},
                        "Communication Bandwidth Info": sizes})  # fmt: skip
    count = (300 << 20) // len(entry)
    path = tmp_path / "communication.json"
    with path.open("w") as file:
        file.write('{"step1": {"collective": {')
        for number in range(count):
            file.write(f'{"," if number else ""}"hcom_allReduce__1_{number}_1@7": {entry}')
        file.write("}}}")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows, elapse, peak = map(int, done.stdout.split())
    assert (rows, elapse) == (count, count * 250_000)
    assert peak < 320 * 1024  # kB; the imports alone take about 120 MB
