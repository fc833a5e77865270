"""MindSpore on CPU: FRAMEWORK/cpu_op_execute_timestamp says when each operator ran; there is no device and no step
mark."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from analysis.errors import BadDump
from analysis.readers.kernel_details import columns_only
from analysis.readers.text import first_line, has_rows, integer, plain, scan_text
from analysis.schema import MEMORY_COLUMNS

CORE = "CPU"
TYPE_IN_NAME = r"([A-Za-z_][A-Za-z0-9_]*?)(?:-op\d+)?$"


def read_kernels(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Kernels in order of start with `KERNEL_COLUMNS`; `step` is null. Lines look like
    `name;kind;start_ns,duration_ms,thread ...`."""
    with plain(path, name) as file:
        scan_text(file, name)
        lines = pl.DataFrame({"line": file.read_text(encoding="utf-8").splitlines()}, schema={"line": pl.String})
    parts = lines.filter(pl.col("line").str.strip_chars() != "").select(pl.col("line").str.split(";").alias("part"))
    runs = parts.filter(pl.col("part").list.len() >= 3).select(
        name=pl.col("part").list.get(0), run=pl.col("part").list.get(2).str.strip_chars().str.split(" ")
    )
    if runs.is_empty():
        raise BadDump(name, "holds no line `name;kind;start,duration,thread`")
    single = runs.explode("run").with_columns(run=pl.col("run").str.split(","))
    kernels = single.select(
        "name",
        type=pl.col("name").str.split("/").list.last().str.extract(TYPE_IN_NAME),
        core=pl.lit(CORE),
        kind=pl.lit("compute"),
        start_ns=pl.col("run").list.get(0, null_on_oob=True).cast(pl.Int64, strict=False),
        duration_ns=_duration(),
        stream_id=pl.col("run").list.get(2, null_on_oob=True).cast(pl.Int64, strict=False),
    )
    good = kernels.filter(pl.col("start_ns").is_not_null() & (pl.col("duration_ns") >= 0))
    bad = kernels.height - good.height + parts.height - runs.height
    if bad:
        warnings.append(f"{name}: {bad} of {kernels.height} runs of operators cannot be read")
    if good.is_empty():
        raise BadDump(name, "holds no run of an operator that can be read")
    return columns_only(good.sort("start_ns"))


def _duration() -> pl.Expr:
    milliseconds = pl.col("run").list.get(1, null_on_oob=True).cast(pl.Decimal(38, 6), strict=False)
    return (milliseconds * 1_000_000).cast(pl.Int64, strict=False)


def with_types(kernels: pl.DataFrame, path: Path, name: str) -> pl.DataFrame:
    """Types as cpu_op_detail_info tells them, by full name; the name's own ending stays where it does not."""
    with plain(path, name) as file, file.open(encoding="utf-8", errors="replace", newline="") as lines:
        found = {row.get("full_op_name"): row.get("op_type") for row in csv.DictReader(lines) if row.get("op_type")}
    told = pl.DataFrame(
        {"name": list(found), "told": list(found.values())}, schema={"name": pl.String, "told": pl.String}
    )
    joined = kernels.join(told, on="name", how="left", maintain_order="left")
    return joined.with_columns(type=pl.coalesce("told", "type")).drop("told")


def with_shapes(kernels: pl.DataFrame, path: Path, name: str) -> pl.DataFrame:
    """Input shapes of cpu_framework_N.txt, which drops scopes: only for operators whose short name stands for one
    shape alone."""
    shapes: dict[str, set[str]] = {}
    with plain(path, name) as file, file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            parts = line.strip().split(";")
            if len(parts) > 3:
                shapes.setdefault(parts[1], set()).add(_shapes(parts[3:]))
    owners = Counter(full.rsplit("/", 1)[-1] for full in kernels["name"].unique())
    sure = {short: next(iter(found)) for short, found in shapes.items() if len(found) == 1 and owners.get(short) == 1}
    told = pl.DataFrame(
        {"short": list(sure), "told": list(sure.values())}, schema={"short": pl.String, "told": pl.String}
    )
    short = kernels.with_columns(short=pl.col("name").str.split("/").list.last())
    joined = short.join(told, on="short", how="left", maintain_order="left")
    return joined.with_columns(input_shapes=pl.col("told")).drop("short", "told")


def _shapes(inputs: list[str]) -> str:
    """`input_1:[4, 32];input_2:NoShape` as `4,32;`."""
    bare = [each.partition(":")[2] for each in inputs if each.startswith("input_")]
    return ";".join(each.strip("[]").replace(" ", "") if each.startswith("[") else "" for each in bare)


def with_steps(kernels: pl.DataFrame, window: tuple[int, int] | None) -> pl.DataFrame:
    """Step of each run of an operator, from how often it ran.

    In a graph every operator runs equally often per step. `window` (first, last step) gives number and names of the
    steps;
    without it they are numbered from 1, and only where all operators ran equally often.
    """
    counts = Counter(kernels.group_by("name").len()["len"].to_list())
    steps = window[1] - window[0] + 1 if window else (next(iter(counts)) if len(counts) == 1 else 0)
    if steps < 1 or steps > 1_000_000:
        return kernels
    first = window[0] if window else 1
    index = pl.int_range(pl.len()).over("name")
    times = pl.len().over("name")
    step = (index // (times // steps) + first).cast(pl.String)
    return kernels.with_columns(step=pl.when((times % steps == 0) & (times >= steps)).then(step))


def read_memory(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """cpu_ms_memory_record: `MEMORY_COLUMNS`, component MindSpore. Bytes and ns in the file."""
    with plain(path, name) as file:
        scan_text(file, name)
        if not has_rows(file):
            raise BadDump(name, "has a header and no rows")
        try:
            table = pl.read_csv(file, infer_schema=False, truncate_ragged_lines=True)
        except pl.exceptions.PolarsError as error:
            raise BadDump(name, f"is not a table that can be read ({first_line(error)})") from error
    titles: Mapping[str, str] = {title.split("(")[0].strip().lower(): title for title in table.columns}
    wanted = {"time_ns": "timestamp", "allocated_bytes": "total allocated", "reserved_bytes": "total reserved"}
    if not set(wanted.values()) <= set(titles):
        raise BadDump(name, "is not a memory record: columns are missing")
    frame = table.select(integer(titles[title]).alias(column) for column, title in wanted.items())
    if bad := frame.filter(pl.any_horizontal(pl.all() < 0)).height:
        warnings.append(f"{name}: {bad} rows have a time or size below zero, taken as unknown")
        frame = frame.with_columns(pl.when(pl.all() >= 0).then(pl.all()).name.keep())
    return frame.with_columns(component=pl.lit("MindSpore")).sort("time_ns").select(*MEMORY_COLUMNS)
