"""MindSpore up to 2.4 as MindInsight read it: averages per operator, ticks of 10 ns, one JSON inside each cell."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from analysis.communication import kind_of
from analysis.errors import BadDump
from analysis.readers.communication import known_transit, scaled
from analysis.readers.kernel_details import columns_only, kernels_of
from analysis.readers.text import BLOCK, plain, scan_text
from analysis.schema import COMMUNICATION_COLUMNS, STEP_COLUMNS, polars_schema

TICK_NS = 10
_ROUNDED = 0.005
"""Parts may add up to this much more than their step."""
AVERAGE = "-"
"""Step number of the row that holds averages."""
TALK = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "AlltoAll",
    "AllToAll",
    "Send-op",
    "Receive-op",
    "hcom_",
)
"""Beginnings of operators that communicate."""


def table(path: Path, name: str) -> Iterator[dict[str, str]]:
    """Rows of a CSV by title, with blanks stripped. Titles may have changed between versions; cells may hold JSON."""
    with plain(path, name) as file:
        scan_text(file, name)
        csv.field_size_limit(BLOCK * 2)
        with file.open(encoding="utf-8-sig", newline="") as lines:
            try:
                for row in csv.DictReader(lines, skipinitialspace=True):
                    yield {
                        (title or "").strip(): (cell or "").strip()
                        for title, cell in row.items()
                        if isinstance(cell, str)
                    }
            except csv.Error as error:
                raise BadDump(name, f"is not a table that can be read ({error})") from error


def first_of(row: Mapping[str, str], *titles: str) -> str | None:
    """The first filled cell under any of these titles."""
    return next((row[title] for title in titles if row.get(title)), None)


def read_averages(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """aicore_intermediate_N_detail: one row per operator, its mean time as duration. No starts, no steps: one step's
    worth."""
    rows = []
    bad = 0
    for row in table(path, name):
        operator = first_of(row, "full_kernel_name", "full_op_name")
        time = scaled(first_of(row, "execution_time", "task_duration"), 1_000_000)
        if operator is None or time is None:
            bad += 1
            continue
        core = first_of(row, "task_type") or "AI_CORE"
        rows.append({"name": operator, "duration_ns": time, "core": core, **kind_of_operator(operator, core)})
    if not rows:
        raise BadDump(name, "holds no operator with a time")
    if bad:
        warnings.append(f"{name}: {bad} rows have no operator name or no time")
    warnings.append(f"{name}: mean times per operator; there is no order in time, so steps and gaps are unknown")
    return kernels_of(rows)


def read_timeline(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """output_timeline_data_N.txt: `op_name, stream_id, start_time(ms), duration(ms)`."""
    rows = []
    bad = 0
    for row in table(path, name):
        start, duration = scaled(row.get("start_time(ms)"), 1_000_000), scaled(row.get("duration(ms)"), 1_000_000)
        operator = row.get("op_name")
        if not operator or start is None or duration is None:
            bad += 1
            continue
        stream = scaled(row.get("stream_id"), 1)
        rows.append(
            {
                "name": operator,
                "start_ns": start,
                "duration_ns": duration,
                "stream_id": stream,
                **kind_of_operator(operator, ""),
            }
        )
    if not rows:
        raise BadDump(name, "holds no operator with start and duration")
    if bad:
        warnings.append(f"{name}: {bad} rows cannot be read")
    return kernels_of(rows).sort("start_ns")


def kind_of_operator(operator: str, core: str) -> dict[str, str]:
    """`type` and `kind` as the operator's name tells them."""
    last = operator.rsplit("/", 1)[-1]
    talks = last.startswith(TALK) or core in ("HCCL", "COMMUNICATION")
    return {"type": last.partition("-op")[0], "kind": "communication" if talks else "compute"}


def with_operators(kernels: pl.DataFrame, path: Path, name: str) -> pl.DataFrame:
    """Types, shapes and data types of framework_raw_N.csv (or its copy under another name), joined by full name."""
    found = {}
    for row in table(path, name):
        operator = first_of(row, "full_kernel_name", "full_op_name")
        if operator is not None and operator not in found:
            found[operator] = [operator, first_of(row, "kernel_type", "op_type"), *operands(row.get("op_info", ""))]
    titles = (
        "name",
        "told",
        *(f"{side}_{what}" for side in ("input", "output") for what in ("shapes", "dtypes", "formats")),
    )
    told = pl.DataFrame(list(found.values()), schema=dict.fromkeys(titles, pl.String), orient="row")
    joined = kernels.drop(titles[2:]).join(told, on="name", how="left", maintain_order="left")
    return columns_only(joined.with_columns(type=pl.coalesce("told", "type")))


def operands(info: str) -> list[str | None]:
    """Shapes, data types and formats of inputs, then of outputs, each joined by `;`."""
    try:
        value = json.loads(info) if info else {}
    except (ValueError, RecursionError):
        value = {}
    told = value if isinstance(value, dict) else {}
    found: list[str | None] = []
    for side in ("input", "output"):
        own = [operand for key, operand in told.items() if key.startswith(side) and isinstance(operand, dict)]
        found.append(";".join(_shape(operand.get("shape")) for operand in own) or None)
        found.append(";".join(_dtype(operand.get("data_type")) for operand in own) or None)
        found.append(";".join(str(operand.get("format", "")) for operand in own) or None)
    return found


def _shape(value: object) -> str:
    return ",".join(str(size) for size in value) if isinstance(value, list) else str(value or "").strip('"')


def _dtype(value: object) -> str:
    return str(value or "").removeprefix("NUMBER_TYPE_")


def read_steps(path: Path, name: str, warnings: list[str]) -> tuple[pl.DataFrame, dict[str, float]]:
    """step_trace_raw_N: `STEP_COLUMNS` (only `preparing_ns`, from step start to first forward kernel, is told there)
    and step -> us.

    The row of averages is left out.
    """
    steps, lengths, bad = [], {}, 0
    for row in table(path, name):
        step = row.get("step_num")
        if step == AVERAGE:
            continue
        total, interval = (scaled(row.get(title), TICK_NS) for title in ("total", "iteration_interval"))
        if not step or total is None:
            bad += 1
            continue
        steps.append({"step": step, "preparing_ns": interval})
        lengths[step] = total / 1000
    if not steps:
        raise BadDump(name, "holds no step")
    if bad:
        warnings.append(f"{name}: {bad} rows are no step")
    frame = pl.DataFrame(steps, schema={"step": pl.String, "preparing_ns": pl.Int64})
    absent = [pl.lit(None, pl.Int64).alias(column) for column in STEP_COLUMNS if column not in frame.columns]
    return frame.with_columns(absent).select(*STEP_COLUMNS), lengths


def with_breakdown(
    steps: pl.DataFrame, lengths: Mapping[str, float], path: Path, name: str
) -> tuple[pl.DataFrame, str | None]:
    """ascend_cluster_analyse_*_N.csv: what each step's time went to, in order of steps and without their numbers, ms.

    The steps with it, and what does not fit.
    """
    rows = [
        [
            scaled(row.get(f"{title}_time"), 1_000_000)
            for title in ("computation", "communication_alone", "receive_alone")
        ]
        for row in table(path, name)
    ]
    if len(rows) < steps.height:
        return steps, f"{name}: tells {len(rows)} steps, the step trace {steps.height}: left out"
    titles = ("computing_ns", "communication_not_overlapped_ns", "bubble_ns")
    told = pl.DataFrame(rows[: steps.height], schema=dict.fromkeys(titles, pl.Int64), orient="row")
    total = pl.Series("total", [round(lengths[step] * 1000) for step in steps["step"]], dtype=pl.Int64)
    computing, exposed = pl.col(titles[0]), pl.col(titles[1])
    over = computing + exposed - pl.col("total")
    rounded = (over > 0) & (over < _ROUNDED * pl.col("total"))  # each part was measured on its own
    joined = steps.drop(titles).hstack(told).hstack([total])
    joined = joined.with_columns(pl.when(rounded).then(exposed - over).otherwise(exposed).alias(titles[1]))
    free = pl.max_horizontal(pl.col("total") - computing - exposed, pl.lit(0, pl.Int64))
    told_free = pl.when(computing.is_not_null() & exposed.is_not_null()).then(free)
    return joined.with_columns(told_free.alias("free_ns")).select(*STEP_COLUMNS), None


def read_communication(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """hccl_raw_N: operations of each step with `COMMUNICATION_COLUMNS`; starts are not told. Times ms, sizes kB of
    1000."""
    rows: list[list[Any]] = []
    for row in table(path, name):
        if row.get("step_num") in (AVERAGE, None, ""):
            continue
        try:
            operations = json.loads(row.get("communication_operator_cost", ""))
        except (ValueError, RecursionError):
            warnings.append(f"{name}: step {row['step_num']}: operators are no JSON")
            continue
        for operator, cost in operations.items() if isinstance(operations, dict) else ():
            if isinstance(cost, list) and len(cost) >= 4:
                rows.append(_operation(row["step_num"], operator, cost))
    if not rows:
        raise BadDump(name, "holds no communication operator")
    return pl.DataFrame(rows, schema=polars_schema(COMMUNICATION_COLUMNS), orient="row")


def _operation(step: str, operator: str, cost: list[Any]) -> list[Any]:
    transit, wait = scaled(cost[1], 1_000_000), scaled(cost[2], 1_000_000)
    link, size = _carried(cost[3])
    bare = operator.rsplit("_", 1)[-1]
    elapse = transit + wait if transit is not None and wait is not None else None
    moved = known_transit(transit, size)
    return [step, None, kind_of(bare), bare.partition("-op")[0], operator, None, elapse, moved, wait, size, link]


def _carried(links: Any) -> tuple[str | None, int | None]:
    """Link kind that carried most bytes, and how many; `{"1-0": {"SDMA": [ms, kB, kB/s]}}`. Sizes that are no numbers
    are unknown."""
    sizes: dict[str, int] = {}
    for told in links.values() if isinstance(links, dict) else ():
        for link, numbers in told.items() if isinstance(told, dict) else ():
            size = scaled(numbers[1], 1_000) if isinstance(numbers, list) and len(numbers) > 1 else None
            if size is not None:
                sizes[link] = sizes.get(link, 0) + size
    best = max(sizes, key=lambda link: sizes[link], default=None)
    return (best, sizes[best]) if best is not None else (None, None)
