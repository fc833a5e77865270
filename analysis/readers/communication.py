"""communication.json and communication_matrix.json: one entry per operation of each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import polars as pl

from analysis.communication import MAX_LINKS, kind_of
from analysis.errors import BadDump
from analysis.readers.text import read_json
from analysis.schema import COMMUNICATION_COLUMNS, polars_schema

ROLL_UP = "Total Op Info"
LINKS = ("HCCS", "RDMA", "PCIE", "SIO", "SDMA")
"""In order of preference where two carried the same bytes: SDMA counts what HCCS, PCIE and SIO carried once more."""
MAX_I64 = 2**63 - 1


def read_communication(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Operations with the columns of `COMMUNICATION_COLUMNS`; the roll-up entry is left out.

    The file mixes units: start in us, other times in ms, sizes in MB of a million bytes.
    """
    data = read_json(path, name, exact=True)
    if not isinstance(data, dict):
        raise BadDump(name, "is not an object of steps")
    rows = [_row(step, key, value, name, warnings) for step, key, value in _entries(data)]
    return pl.DataFrame([row for row in rows if row], schema=polars_schema(COMMUNICATION_COLUMNS), orient="row")


def _entries(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(step, operation, value) over both sections of all steps, whichever section the tool sorted it into."""
    for step, sections in data.items():
        for section in sections.values() if isinstance(sections, dict) else ():
            for key, value in section.items() if isinstance(section, dict) else ():
                if key != ROLL_UP:
                    yield step.removeprefix("step"), key, value


def _row(step: str, key: str, value: Any, name: str, warnings: list[str]) -> list[Any] | None:
    times = value.get("Communication Time Info") if isinstance(value, dict) else None
    if not isinstance(times, dict):
        warnings.append(f"{name}: {key[:80]}: no time information")
        return None
    bare, _, group = key.partition("@")
    link, size = _link(value.get("Communication Bandwidth Info"))
    return [
        step or None,
        group or None,
        kind_of(bare),
        bare.split("__")[0].rstrip("_"),
        bare,
        scaled(times.get("Start Timestamp(us)"), 1_000),
        scaled(times.get("Elapse Time(ms)"), 1_000_000),
        scaled(times.get("Transit Time(ms)"), 1_000_000),
        scaled(times.get("Wait Time(ms)"), 1_000_000),
        size,
        link,
    ]


def scaled(value: object, factor: int) -> int | None:
    """value x factor as a whole number; null for what is no finite number, is negative or does not fit."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)):
        return None
    try:
        result = int((Decimal(str(value)) * factor).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return None
    return result if 0 <= result <= MAX_I64 else None


def _link(bandwidth: Any) -> tuple[str | None, int | None]:
    """The link that carried most bytes, and how many."""
    sizes = {}
    for link in LINKS:
        told = bandwidth.get(link) if isinstance(bandwidth, dict) else None
        size = scaled(told.get("Transit Size(MB)"), 1_000_000) if isinstance(told, dict) else None
        if size is not None:
            sizes[link] = size
    if not sizes:
        return None, None
    best = max(sizes, key=lambda link: sizes[link])
    return (best, sizes[best]) if sizes[best] else (None, 0)


def read_links(path: Path, name: str, groups: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Links of communication_matrix.json, its `total` entries only. Ranks are global where the group's members are
    known."""
    data = read_json(path, name)
    if not isinstance(data, dict):
        raise BadDump(name, "is not an object of steps")
    rows: list[dict[str, Any]] = []
    for step, key, pairs in _entries(data):
        label, _, group = key.partition("@")
        if label.endswith("-total") and isinstance(pairs, dict):
            members = (groups.get(group) or {}).get("ranks")
            rows.extend(_links_of(step, label.removesuffix("-total"), group, pairs, members))
    rows.sort(key=lambda row: -(row["size_bytes"] or 0))
    return rows[:MAX_LINKS]


def _links_of(step: str, op: str, group: str, pairs: Mapping[str, Any], members: Any) -> Iterator[dict[str, Any]]:
    for pair, value in pairs.items():
        source, _, target = pair.partition("-")
        if source == target or not (source.isdigit() and target.isdigit()) or not isinstance(value, dict):
            continue
        size, transit = (
            scaled(value.get("Transit Size(MB)"), 1_000_000),
            scaled(value.get("Transit Time(ms)"), 1_000_000),
        )
        yield {
            "step": step,
            "group": group or None,
            "op": op,
            "src": _global(int(source), members),
            "dst": _global(int(target), members),
            "link": value.get("Transport Type") or None,
            "size_bytes": size,
            "transit_us": None if transit is None else transit / 1000,
            "bandwidth_gbps": round(size / transit, 6) if size and transit else None,
        }


def _global(index: int, members: Any) -> int:
    return members[index] if isinstance(members, list) and index < len(members) else index
