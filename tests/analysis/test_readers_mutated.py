"""Whatever is changed in a valid file of any format, its reader gives sound rows or one clear error that names it.
Packed with gzip, every file reads as the plain one."""

from __future__ import annotations

import gzip
import math
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import BadDump
from analysis.readers.kernel_details import MAX_DURATION_NS, MAX_TIME_NS
from tests.analysis.formats import READERS, file_of, read, valid_files
from tests.analysis.test_bad_input import MUTATIONS

EXAMPLES = 12
HOSTILE = (
    b"NaN",
    b"-5",
    b"-0.001",
    b"inf",
    b"1e400",
    b"9" * 25,
    b"abc",
    b"",
    b"0x10",
    b"1_0",
    b"null",
    b"N/A",
    b"true",
)
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def outcome(name: str, content: bytes) -> tuple[Any, list[str]]:
    """What the reader gives, or the BadDump it raises; and its warnings."""
    warnings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        try:
            return read(name, path, warnings), warnings
        except BadDump as error:
            return error, warnings


def check(name: str, content: bytes) -> None:
    result, warnings = outcome(name, content)
    assert all(text.startswith(f"{file_of(name)}: ") and "\n" not in text for text in warnings)
    if isinstance(result, BadDump):
        assert result.path == file_of(name)
        assert result.reason and "\n" not in str(result)
        return
    for key, value in values(result):
        if isinstance(value, float):
            assert math.isfinite(value), key
        if key in ("start_ns", "time_ns") and "db" not in name:
            assert 0 <= value <= MAX_TIME_NS or key == "time_ns"
        if key in ("duration_ns", "elapse_ns", "computing_ns", "free_ns", "size_bytes", "reserved_bytes", "bytes"):
            assert value >= 0 or ("db" in name and key != "duration_ns"), key
        if key == "duration_ns":
            assert value <= MAX_DURATION_NS


def values(result: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in what a reader gave, with the name it stands under."""
    if isinstance(result, pl.DataFrame):
        for column in result.columns:
            yield from ((column, value) for value in result[column].drop_nulls())
    elif isinstance(result, dict):
        for name, value in result.items():
            yield from values(value, str(name))
    elif isinstance(result, (list, tuple)):
        for value in result:
            yield from values(value, key)
    elif result is not None:
        yield key, result


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32), times=st.integers(1, 3))
def test_any_change_of_bytes(name: str, seed: int, times: int):
    place, content = random.Random(seed), valid_files()[file_of(name)]
    for _ in range(times):
        content = place.choice(MUTATIONS)(content, place)
    check(name, content)


@pytest.mark.parametrize("name", [name for name in READERS if ".db" not in name])
@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32), times=st.integers(1, 3))
def test_any_number_replaced_by_what_is_none(name: str, seed: int, times: int):
    place, content = random.Random(seed), valid_files()[file_of(name)]
    for _ in range(times):
        found = list(NUMBER.finditer(content))
        match = place.choice(found)
        content = content[: match.start()] + place.choice(HOSTILE) + content[match.end() :]
    check(name, content)


@pytest.mark.parametrize("name", READERS)
def test_a_packed_file_reads_as_the_plain_one(name: str):
    content = valid_files()[file_of(name)]
    plain, packed = outcome(name, content), outcome(name, gzip.compress(content))
    assert not isinstance(plain[0], BadDump)
    assert packed[1] == plain[1]
    if isinstance(plain[0], pl.DataFrame):
        assert packed[0].equals(plain[0])
    elif not (isinstance(plain[0], tuple) and isinstance(plain[0][0], pl.DataFrame)):
        assert packed[0] == plain[0]
    else:
        assert packed[0][0].equals(plain[0][0]) and packed[0][1:] == plain[0][1:]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08", b"\0" * 100, b"\xff\xfe", b"{}", b"[]", b"null", b"a,b\n"])
def test_what_is_no_such_file_is_one_clear_error_or_nothing(name: str, content: bytes):
    check(name, content)


@pytest.mark.parametrize("value", ["1e999999999", "1e99999999999999999999", "-1e999999999", "NaN", "9" * 400])
@pytest.mark.parametrize("name", [name for name in READERS if file_of(name).endswith(".json")])
def test_numbers_beyond_all_measure(name: str, value: str):
    content = valid_files()[file_of(name)]
    for match in list(NUMBER.finditer(content))[-3:]:
        check(name, content[: match.start()] + value.encode() + content[match.end() :])
