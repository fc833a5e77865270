"""communication.json and communication_matrix.json: one entry per operation of each step."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from analysis.communication import MAX_LINKS, P2P, in_job, kind_of
from analysis.errors import BadDump
from analysis.readers.json_stream import entries
from analysis.schema import COMMUNICATION_COLUMNS, polars_schema

ROLL_UP = "Total Op Info"
LINKS = ("HCCS", "RDMA", "PCIE", "SIO", "SDMA")
"""In order of preference where two carried the same bytes: SDMA counts what HCCS, PCIE and SIO carried once more."""
MAX_I64 = 2**63 - 1
ROWS = 20_000
MAX_KEPT = 1_000_000
SAMPLE = re.compile(r"-(top|middle|bottom)\d*$")
"""Entries of communication_matrix.json that show one operation as an example of many."""
KERNEL_NAME = r"^(hcom_\w+?)__(\d+)_"
"""Of a collective among kernels: the operation, and the last digits of its group."""
_LONGEST_LINK = 40
_LONGEST_NUMBER = 400
Link = tuple[int | None, int | None]
"""Bytes and ns of one pair of ranks."""


def read_communication(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Operations with the columns of `COMMUNICATION_COLUMNS`; the roll-up entry is left out.

    The file mixes units: start in us, other times in ms, sizes in MB of a million bytes.
    """
    found = (operation_of(step, key, value, name, warnings) for step, key, value in _entries(path, name))
    table = table_of(row for row in found if row)
    if unknown := table["elapse_ns"].null_count():
        warnings.append(f"{name}: {unknown} operations have no elapse time that is a number; it is left unknown")
    return table


def table_of(rows: Iterator[list[Any]]) -> pl.DataFrame:
    """Rows in the order of `COMMUNICATION_COLUMNS` as a table, without holding them all as Python values."""
    schema = polars_schema(COMMUNICATION_COLUMNS)
    parts = [pl.DataFrame(part, schema=schema, orient="row") for part in iter(lambda: list(islice(rows, ROWS)), [])]
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def of_kernels(kernels: pl.DataFrame) -> pl.DataFrame | None:
    """Operations as the kernels themselves tell them, where no file analyses them: when and how long, and the group by
    the last three digits of its number, but not how long they waited nor what they moved. None where none is told."""
    named = pl.col("name").cast(pl.String).str.contains(KERNEL_NAME)
    found = kernels.filter((pl.col("kind") == "communication") & named).with_columns(pl.col("name").cast(pl.String))
    if found.is_empty():
        return None
    table = found.select(
        pl.col("step").cast(pl.String),
        group=pl.col("name").str.extract(KERNEL_NAME, 2),
        type=pl.when(pl.col("name").str.contains(f"(?i){P2P.pattern}"))
        .then(pl.lit("p2p"))
        .otherwise(pl.lit("collective")),
        op=pl.col("name").str.extract(KERNEL_NAME, 1).str.strip_chars_end("_"),
        name="name",
        start_ns="start_ns",
        elapse_ns="duration_ns",
    )
    unknown = [name for name in COMMUNICATION_COLUMNS if name not in table.columns]
    schema = polars_schema(COMMUNICATION_COLUMNS)
    return table.with_columns(pl.lit(None, schema[name]).alias(name) for name in unknown).select(*COMMUNICATION_COLUMNS)


def _entries(path: Path, name: str) -> Iterator[tuple[str, str, Any]]:
    """(step, operation, value) over both sections of all steps, whichever section the tool sorted it into."""
    for keys, value in entries(path, name, 3):
        if not keys:
            raise BadDump(name, "is not an object of steps")
        if len(keys) == 3 and keys[2].partition("@")[0] != ROLL_UP:
            yield keys[0].removeprefix("step"), keys[2], value


def operation_of(step: str, key: str, value: Any, name: str, warnings: list[str]) -> list[Any] | None:
    """A row of `COMMUNICATION_COLUMNS` of one entry; None, with a warning, for what is no operation."""
    times = value.get("Communication Time Info") if isinstance(value, dict) else None
    if not isinstance(times, dict):
        warnings.append(f"{name}: {key[:80]}: no time information")
        return None
    bare, _, group = key.partition("@")
    link, size, busy = _link(value.get("Communication Bandwidth Info"))
    kind = kind_of(bare)
    elapse, transit = (scaled(times.get(f"{name} Time(ms)"), 1_000_000) for name in ("Elapse", "Transit"))
    return [
        step or None,
        group or None,
        kind,
        bare.split("__")[0].rstrip("_"),
        bare,
        scaled(times.get("Start Timestamp(us)"), 1_000),
        elapse,
        known_transit(transit, size, busy if kind == "p2p" else None, elapse),
        scaled(times.get("Wait Time(ms)"), 1_000_000),
        size,
        link,
    ]


def scaled(value: object, factor: int) -> int | None:
    """value x factor as a whole number; null for what is no finite number, is negative or does not fit."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)):
        return None
    text = str(value)
    return _whole(text, factor) if len(text) <= _LONGEST_NUMBER else None


# Most entries say the same few numbers, 0 above all.
@lru_cache(maxsize=1 << 14)
def _whole(text: str, factor: int) -> int | None:
    try:
        result = int((Decimal(text) * factor).to_integral_value())
    except (ArithmeticError, ValueError):
        return None
    return result if 0 <= result <= MAX_I64 else None


def known_transit(told: int | None, size: int | None, busy: int | None = None, elapse: int | None = None) -> int | None:
    """How long an operation moved bytes, in ns: as told for it. No bytes move in no time: then it is unknown, save for
    `busy`, how long the link of a transfer between two ranks was, if that fits into the operation. (Of collectives a
    link's time is the sum over peers served side by side.)"""
    if told or not size:
        return told
    return busy or None if elapse is not None and busy is not None and busy <= elapse else None


def _link(bandwidth: Any) -> tuple[str | None, int | None, int | None]:
    """The link that carried most bytes, how many, and for how many ns."""
    sizes, times = {}, {}
    for link in LINKS:
        told = bandwidth.get(link) if isinstance(bandwidth, dict) else None
        size = scaled(told.get("Transit Size(MB)"), 1_000_000) if isinstance(told, dict) else None
        if isinstance(told, dict) and size is not None:
            sizes[link], times[link] = size, scaled(told.get("Transit Time(ms)"), 1_000_000)
    if not sizes:
        return None, None, None
    best = max(sizes, key=lambda link: sizes[link])
    return (best, sizes[best], times[best]) if sizes[best] else (None, 0, None)


def read_links(path: Path, name: str, groups: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Links of communication_matrix.json: its `total` entries, or the sum over single operations where it has none.

    Ranks are the job's where the group's members are known; else they count within the group (`within_group`).
    """
    links: dict[tuple[Any, ...], Link] = {}
    totals: dict[tuple[Any, ...], Link] = {}
    for step, key, pairs in _entries(path, name):
        label, _, group = key.partition("@")
        if label.endswith("-total"):
            add_pairs(totals, (step, group, label.removesuffix("-total")), pairs)
        elif not SAMPLE.search(label):
            add_pairs(links, (step, group, label.split("__")[0].rstrip("_")), pairs)
    return link_rows(totals or links, groups)


def add_pairs(links: dict[tuple[Any, ...], Link], key: tuple[Any, ...], pairs: Any) -> None:
    """Add the entry of one operation to the links: bytes and time of each pair `src-dst`."""
    for pair, value in pairs.items() if isinstance(pairs, dict) else ():
        source, _, target = str(pair).partition("-")
        if source == target or not (source.isdigit() and target.isdigit()) or not isinstance(value, dict):
            continue
        size, transit = (
            scaled(value.get("Transit Size(MB)"), 1_000_000),
            scaled(value.get("Transit Time(ms)"), 1_000_000),
        )
        add_link(links, (*key, int(source), int(target), link_name(value.get("Transport Type"))), size, transit)


def link_name(value: object) -> str | None:
    """The kind of link, None for what is no name."""
    return value[:_LONGEST_LINK] if isinstance(value, str) and value else None


def add_link(links: dict[tuple[Any, ...], Link], key: tuple[Any, ...], size: int | None, transit: int | None) -> None:
    """Add bytes and ns to the link; a sum with an unknown part is unknown. Links past a bound are left out."""
    known = links.get(key, (0, 0) if len(links) < MAX_KEPT else None)
    if known is not None:
        links[key] = (
            known[0] + size if known[0] is not None and size is not None else None,
            known[1] + transit if known[1] is not None and transit is not None else None,
        )


def link_rows(links: Mapping[tuple[Any, ...], Link], groups: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The report's links, most bytes first."""
    largest = heapq.nlargest(MAX_LINKS, links.items(), key=lambda item: item[1][0] or 0)
    rows = []
    for (step, group, op, source, target, link), (size, transit) in largest:
        members = (groups.get(group) or {}).get("ranks")
        src, dst, known = in_job(source, target, members)
        rows.append(
            {"step": step, "group": group or None, "op": op, "src": src, "dst": dst, "link": link}
            | {"within_group": not known, "size_bytes": size}
            | {"transit_us": None if transit is None or (size and not transit) else transit / 1000}
            | {"bandwidth_gbps": round(size / transit, 6) if size and transit else None}
        )
    return rows
