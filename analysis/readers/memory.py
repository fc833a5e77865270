"""memory_record.csv, npu_module_mem.csv and MindSpore's cpu_ms_memory_record: the memory curve."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from analysis.devices import from_type
from analysis.errors import BadDump
from analysis.readers.text import (
    find_titles,
    nanoseconds,
    not_numbers,
    number,
    plain,
    read_columns,
    read_header,
    text,
)
from analysis.schema import MEMORY_COLUMNS

MIB = 1 << 20
RECORD: dict[str, tuple[str, ...]] = {
    "component": ("component",),
    "time": ("timestamp",),
    "allocated": ("totalallocated",),
    "reserved": ("totalreserved",),
    "device": ("devicetype", "device"),
}


def read_memory(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Rows with the columns of `MEMORY_COLUMNS`, then `device_id`, in time order. MB in the file are 2^20 bytes."""
    with plain(path, name) as file:
        titles = read_header(file, name)
        if "Component" not in titles:
            raise BadDump(name, "is not a memory record: no column Component")
        rows = read_columns(file, name, RECORD, warnings)
    sizes = {"allocated": ("Total Allocated", _bytes("allocated")), "reserved": ("Total Reserved", _bytes("reserved"))}
    warnings.extend(not_numbers(rows, {"time": ("Timestamp", nanoseconds("time")), **sizes}, name))
    frame = rows.select(
        text("component").alias("component"),
        nanoseconds("time").alias("time_ns"),
        _bytes("allocated").alias("allocated_bytes"),
        _bytes("reserved").alias("reserved_bytes"),
        from_type("device"),
    )
    return frame.filter(pl.col("component").is_not_null()).sort("time_ns").select(*MEMORY_COLUMNS, "device_id")


MODULE: dict[str, tuple[str, ...]] = {
    "component": ("component",),
    "reserved": ("totalreserved",),
    "device": ("device", "devicetype"),
}


def read_modules(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """npu_module_mem.csv: `component` and the most bytes it reserved, by `device_id`; components that hold none are
    left out."""
    with plain(path, name) as file:
        if set(find_titles(read_header(file, name), MODULE)) != set(MODULE):
            raise BadDump(name, "is not a memory record of modules: columns are missing")
        rows = read_columns(file, name, MODULE, warnings)
    warnings.extend(not_numbers(rows, {"reserved": ("Total Reserved", _bytes("reserved"))}, name))
    return module_peaks(
        rows.select(text("component").alias("component"), _bytes("reserved").alias("bytes"), from_type("device"))
    )


def module_peaks(rows: pl.DataFrame) -> pl.DataFrame:
    """The most `bytes` of each component and device, most first."""
    peaks = rows.filter(pl.col("component").is_not_null()).group_by("component", "device_id").agg(pl.col("bytes").max())
    return peaks.filter(pl.col("bytes") > 0).sort(["bytes", "component"], descending=[True, False])


OPERATORS: dict[str, tuple[str, ...]] = {
    "time": ("allocationtime",),
    "allocated": ("allocationtotalallocated",),
    "reserved": ("allocationtotalreserved",),
}
DEVICE = {"device": ("devicetype",)}


def read_operator_memory(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """operator_memory.csv as a curve: bytes allocated and reserved when each operator took memory; component null.
    `device_id` follows the columns of `MEMORY_COLUMNS`."""
    rows = _operator_rows(path, name, warnings)
    frame = rows.select(
        pl.lit(None, pl.String).alias("component"),
        nanoseconds("time").alias("time_ns"),
        _bytes("allocated").alias("allocated_bytes"),
        _bytes("reserved").alias("reserved_bytes"),
        from_type("device"),
    )
    return frame.filter(pl.col("time_ns").is_not_null()).sort("time_ns").select(*MEMORY_COLUMNS, "device_id")


def _operator_rows(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    with plain(path, name) as file:
        if set(find_titles(read_header(file, name), OPERATORS)) != set(OPERATORS):
            raise BadDump(name, "is not a memory record of operators: columns are missing")
        return read_columns(file, name, {**OPERATORS, **DEVICE}, warnings)


def _bytes(column: str) -> pl.Expr:
    value = number(column)
    return pl.when((value >= 0) & (value < 2**42)).then((value * MIB).round().cast(pl.Int64, strict=False))
