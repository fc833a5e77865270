"""What ranks tell together: links between them, groups of one rank, stages. Rows for pages and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection

from analysis.thresholds import limit
from dashboard.runs.models import Capture

Json = Mapping[str, Any]
MATRIX_SIDE = 64
"""A matrix of more ranks than this is drawn in blocks of neighbouring ranks: a screen shows no more cells."""

_LINKS = """
    SELECT (link->>'src')::int, (link->>'dst')::int, min(link->>'link'),
           sum((link->>'size_bytes')::float), sum((link->>'transit_us')::float),
           sum((link->>'size_bytes')::float) FILTER (WHERE jsonb_typeof(link->'transit_us') = 'number')
    FROM runs_dump, jsonb_array_elements(
        CASE jsonb_typeof(entry->'links') WHEN 'array' THEN entry->'links' ELSE '[]'::jsonb END) AS link
    WHERE capture_id = %s AND jsonb_typeof(link->'src') = 'number' AND jsonb_typeof(link->'dst') = 'number'
    GROUP BY 1, 2 ORDER BY 1, 2
"""


def capture_links(capture: Capture) -> list[dict[str, Any]]:
    """Per pair of ranks what went over it in the whole capture; one query, summed by the database. `timed_bytes` are
    those of which the time is known."""
    with connection.cursor() as cursor:
        cursor.execute(_LINKS, [capture.pk])
        keys = ("src", "dst", "link", "size_bytes", "transit_us", "timed_bytes")
        return [dict(zip(keys, row, strict=True)) for row in cursor.fetchall()]


def link_matrix(links: Sequence[Json], value: str = "bandwidth") -> dict[str, Any]:
    """`names` of rows and columns, `cells` (column, row, value) and `block`, the ranks that one of them stands for.

    `value`: "bandwidth" in GB/s (bytes / transit time) where enough went over the link to measure more than its delay,
    "size" in bytes or "time" in us; unknown cells are left out.
    """
    ranks = sorted({row[end] for row in links for end in ("src", "dst")})
    block = -(-len(ranks) // MATRIX_SIDE) or 1
    place = {rank: index // block for index, rank in enumerate(ranks)}
    sums: dict[tuple[int, int], dict[str, float]] = {}
    for row in links:
        cell = sums.setdefault((place[row["dst"]], place[row["src"]]), {})
        for key in ("size_bytes", "transit_us", "timed_bytes"):
            if row[key] is not None:
                cell[key] = cell.get(key, 0.0) + row[key]
    cells = [(*at, shown) for at, cell in sorted(sums.items()) if (shown := _shown(cell, value)) is not None]
    return {"names": _names(ranks, block), "cells": cells, "block": block}


def _shown(cell: Mapping[str, float], value: str) -> float | None:
    if value == "size":
        return cell.get("size_bytes")
    if value == "time":
        return cell.get("transit_us")
    timed = cell.get("timed_bytes", 0.0)
    return _gbps(timed, cell.get("transit_us")) if timed >= limit("link_bytes") else None


def _gbps(size: float | None, time_us: float | None) -> float | None:
    return size / time_us / 1e3 if size is not None and time_us else None


def _names(ranks: Sequence[int], block: int) -> list[str]:
    parts = [ranks[start : start + block] for start in range(0, len(ranks), block)]
    return [str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts]


def group_rows(entry: Json) -> list[dict[str, Any]]:
    """Communication of one rank summed by group, longest first; bandwidth is size / transit time where both are told.
    A transit time that an operation with bytes does not tell is unknown of the whole group."""
    groups: dict[str, dict[str, Any]] = {}
    for row in entry.get("communication") or []:
        group = groups.setdefault(str(row.get("group") or ""), {"group": row.get("group"), "ops": []})
        for key in ("count", "elapse_us", "transit_us", "wait_us", "size_bytes"):
            if row.get(key) is not None:
                group[key] = group.get(key, 0) + row[key]
        if row.get("transit_us") is None:
            group["untimed"] = True
        else:
            group["timed_bytes"] = group.get("timed_bytes", 0) + (row.get("size_bytes") or 0)
        if row.get("op") and row["op"] not in group["ops"]:
            group["ops"].append(row["op"])
    top = max((row.get("elapse_us") or 0 for row in groups.values()), default=0) or 1
    for row in groups.values():
        row["bandwidth_gbps"] = _gbps(row.pop("timed_bytes", None) or None, row.get("transit_us"))
        if row.pop("untimed", False):
            row["transit_us"] = None
        row["relative"] = (row.get("elapse_us") or 0) / top
    return sorted(groups.values(), key=lambda row: -(row.get("elapse_us") or 0))


def group_ranks(group: str | None, source: Json) -> int | None:
    """How many ranks a group has, where the dump tells."""
    for name, about in (source.get("groups") or {}).items():
        if isinstance(about, Mapping) and group in (name, about.get("group_name"), about.get("hash")):
            ranks = about.get("ranks") or about.get("global_ranks") or about.get("rank_list")
            return len(ranks) if isinstance(ranks, Sequence) else None
    return None


GRID_COLUMNS = 32
FEW_RANKS = 64


def grid_lines(cells: Sequence[tuple[Any, float | None, int | None]]) -> list[dict[str, Any]]:
    """The rank grid in lines: up to 64 ranks flow freely in one, more stand 32 to a line that begins with its rank."""
    width = GRID_COLUMNS if len(cells) > FEW_RANKS else len(cells) or 1
    parts = [cells[start : start + width] for start in range(0, len(cells), width)]
    return [{"first": part[0][0].rank, "cells": part} for part in parts]
