"""From a dump to its tables: for each the best file that is there and can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from analysis.communication import groups
from analysis.dump import RAW_HELP, RankDump
from analysis.errors import BadDump
from analysis.readers.communication import read_communication, read_links
from analysis.readers.kernel_details import read_kernels
from analysis.readers.memory import read_memory
from analysis.readers.op_statistic import read_op_statistic
from analysis.readers.run_files import read_step_records
from analysis.readers.step_trace import read_steps

Table = TypeVar("Table")
Reader = Callable[[Path, str, list[str]], Table]

STAMP = r"(_(slice_)?\d[\w]*)?"
"""What msprof puts behind a name: slices and a time."""


@dataclass
class Tables:
    """What could be read. None: no file told it."""

    kernels: pl.DataFrame | None = None
    kernels_file: str | None = None
    steps: pl.DataFrame | None = None
    steps_file: str | None = None
    communication: pl.DataFrame | None = None
    links: list[dict[str, Any]] = field(default_factory=list)
    memory: pl.DataFrame | None = None
    op_statistic: list[dict[str, Any]] | None = None
    series: list[dict[str, Any]] = field(default_factory=list)
    device_id: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def read_tables(dump: RankDump, warnings: list[str]) -> Tables:
    """Every table of the dump. A bad file is a warning as long as another tells something; else BadDump."""
    tables = Tables()
    errors: list[BadDump] = []
    _read_text(dump, tables, warnings, errors)
    if not _tells(tables):
        raise _nothing(dump, errors)
    warnings.extend(str(error) for error in errors)
    return tables


def _tells(tables: Tables) -> bool:
    frames = (tables.kernels, tables.steps, tables.communication, tables.memory)
    return any(frame is not None and frame.height for frame in frames) or bool(tables.op_statistic or tables.series)


def _nothing(dump: RankDump, errors: list[BadDump]) -> BadDump:
    if errors:
        more = f" ({len(errors) - 1} more files cannot be read)" if len(errors) > 1 else ""
        return BadDump(dump.name(errors[0].path), errors[0].reason + more)
    if dump.raw:
        return BadDump(dump.label or "dump", RAW_HELP)
    held = ", ".join(sorted(dump.files)[:4]) or "no file that is known"
    return BadDump(dump.label or "dump", f"holds nothing that tells times; it has {held}")


def _read_text(dump: RankDump, tables: Tables, warnings: list[str], errors: list[BadDump]) -> None:
    kernels = _first(dump, r"kernel_details\.csv", read_kernels, warnings, errors)
    if kernels:
        tables.kernels_file, tables.kernels = kernels
    else:
        _read_slices(dump, tables, warnings, errors)
    steps = _first(dump, r"step_trace_time\.csv", read_steps, warnings, errors)
    if steps:
        tables.steps_file, (tables.steps, tables.device_id) = steps
    talk = _first(dump, r"communication\.json", read_communication, warnings, errors)
    tables.communication = talk[1] if talk else None
    links = _first(dump, r"communication_matrix\.json", _links_reader(dump), warnings, errors)
    tables.links = links[1] if links else []
    memory = _first(dump, rf"memory_record{STAMP}\.csv", read_memory, warnings, errors)
    tables.memory = memory[1] if memory else None
    statistic = _first(dump, rf"op_statistic{STAMP}\.csv", read_op_statistic, warnings, errors)
    tables.op_statistic = statistic[1] if statistic else None
    series = _first(dump, r"stepscope_steps\.jsonl", read_step_records, warnings, errors)
    tables.series = series[1] if series else []


def _links_reader(dump: RankDump) -> Reader[list[dict[str, Any]]]:
    members = groups(dump.metadata)
    return lambda path, name, warnings: read_links(path, name, members)


def _read_slices(dump: RankDump, tables: Tables, warnings: list[str], errors: list[BadDump]) -> None:
    """op_summary comes in slices when it is large: all of them together are the kernels."""
    parts = list(_all(dump, rf"op_summary{STAMP}\.csv", read_kernels, warnings, errors))
    if parts:
        tables.kernels_file = parts[0][0]
        tables.kernels = pl.concat([frame for _, frame in parts], how="diagonal")


def _first(
    dump: RankDump, pattern: str, reader: Reader[Table], warnings: list[str], errors: list[BadDump]
) -> tuple[str, Table] | None:
    """(label, content) of the first matching file that can be read."""
    return next(_all(dump, pattern, reader, warnings, errors), None)


def _all(
    dump: RankDump, pattern: str, reader: Reader[Table], warnings: list[str], errors: list[BadDump]
) -> Iterator[tuple[str, Table]]:
    for label in dump.find(pattern):
        try:
            yield label, reader(dump.files[label], label, warnings)
        except BadDump as error:
            errors.append(error)
