"""Communication operations to the report's rows: by group and operation, and one by one for the vote over late
arrivers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis import spans
from analysis.breakdown import ratio
from analysis.shelf import Shelved

MAX_COLLECTIVES = 300
MAX_ARRIVALS = 4000
MAX_LINKS = 512
Integers = npt.NDArray[np.int64]
P2P = re.compile(r"send|recv|receive", re.IGNORECASE)
_OPERATIONS = {
    "allReduce": r"all_?reduce",
    "allGather": r"all_?gather",
    "reduceScatter": r"reduce_?scatter",
    "allToAll": r"all_?to_?all",
    "sendRecv": r"send|receive|recv",
    "broadcast": r"broadcast",
    "reduce": r"reduce",
    "scatter": r"scatter",
    "barrier": r"barrier",
}
_NAMED = [(op, re.compile(pattern, re.IGNORECASE)) for op, pattern in _OPERATIONS.items()]


def kind_of(name: str) -> str:
    """`p2p` for sends and receives whatever their spelling, else `collective`. The profiler's own sorting misses
    `hcom_send`."""
    return "p2p" if P2P.search(name) else "collective"


def operation(name: str) -> str | None:
    """The collective a kernel name stands for, None when it is none of the known ones."""
    return next((op for op, pattern in _NAMED if pattern.search(name)), None)


def by_operation(table: pl.DataFrame) -> list[dict[str, Any]]:
    """One row per (group, operation). Bandwidth is size over transit time, of the operations that tell both: the tool's
    own total leaves it out."""
    link = pl.col("link").sort_by("size_bytes", descending=True, nulls_last=True).drop_nulls().first()
    told = (pl.col("transit_ns") > 0) & (pl.col("size_bytes") > 0)
    grouped = table.group_by("group", "type", "op").agg(
        link,
        pl.len().alias("count"),
        *(_known_sum(f"{name}_ns") for name in ("elapse", "wait")),
        _known_sum("size_bytes"),
        transit_ns=pl.when(pl.col("transit_ns").is_not_null().all()).then(pl.col("transit_ns").sum()),
        moved=pl.when(told).then(pl.col("size_bytes")).sum(),
        moving=pl.when(told).then(pl.col("transit_ns")).sum(),
    )
    ordered = grouped.sort(["elapse_ns", "group", "op"], descending=[True, False, False], nulls_last=True)
    return [
        {
            "group": row["group"],
            "type": row["type"],
            "op": row["op"],
            "count": row["count"],
            "elapse_us": _us(row["elapse_ns"]),
            "transit_us": _us(row["transit_ns"]),
            "wait_us": _us(row["wait_ns"]),
            "size_bytes": row["size_bytes"],
            "bandwidth_gbps": ratio(row["moved"] or None, row["moving"]),
            "link": row["link"],
        }
        for row in ordered.iter_rows(named=True)
    ]


def _known_sum(column: str) -> pl.Expr:
    """Sum of what is known; unknown, not 0, where nothing is."""
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).alias(column)


def collectives(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Single collectives in time order, as evidence for who arrives late. Ranks of a group share the name of an
    operation."""
    rows = table.filter(pl.col("type") == "collective").sort("start_ns").head(MAX_COLLECTIVES)
    return [
        {
            "step": row["step"],
            "group": row["group"],
            "name": row["name"],
            "op": row["op"],
            "elapse_us": _us(row["elapse_ns"]),
            "transit_us": _us(row["transit_ns"]),
            "wait_us": _us(row["wait_ns"]),
            "size_bytes": row["size_bytes"],
        }
        for row in rows.iter_rows(named=True)
    ]


def arrivals(table: pl.DataFrame, kernels: pl.DataFrame | None, judged: Collection[str | None]) -> list[dict[str, Any]]:
    """When this rank came to the collectives of each group in each judged step and how long it stayed, in time order.

    Ranks of a group share names, so equal `ids` mean the same collective. Starts count from the rank's first one.
    `blocked_us` is the end of each collective in which the rank had nothing else to do. Whole steps are kept, the first
    ones, up to `MAX_ARRIVALS` collectives; of a longer step its beginning.
    """
    known = pl.col("start_ns").is_not_null() & pl.col("elapse_ns").is_not_null()
    rows = table.filter((pl.col("type") == "collective") & known).sort("start_ns")
    if judged:
        rows = rows.filter(pl.col("step").is_in([*judged], nulls_equal=True))
    sizes = rows.group_by("step", maintain_order=True).len()
    whole = sizes.filter((pl.col("len").cum_sum() <= MAX_ARRIVALS) | (pl.int_range(pl.len()) == 0))["step"]
    rows = rows.filter(pl.col("step").is_in(whole.to_list(), nulls_equal=True)).head(MAX_ARRIVALS)
    rows = rows.with_columns(pl.Series("blocked", _blocked_ns(rows, kernels)))
    start = pl.col("start_ns") - pl.col("start_ns").first()
    lists = rows.select("step", "group", "name", "blocked", start=start, elapse="elapse_ns")
    return [
        {
            "step": step,
            "group": group,
            "ids": [zlib.crc32(str(name).encode()) for name in part["name"]],
            "start_us": [value / 1000 for value in part["start"]],
            "elapse_us": [value / 1000 for value in part["elapse"]],
            "blocked_us": [value / 1000 for value in part["blocked"]],
        }
        for (step, group), part in lists.group_by("step", "group", maintain_order=True)
    ]


def _blocked_ns(rows: pl.DataFrame, kernels: pl.DataFrame | None) -> Integers:
    """Per collective, from the end of the last compute kernel that began before it ended (or from its own start) to its
    end: while kernels go on beginning, nobody waits for it."""
    start: Integers = rows["start_ns"].to_numpy()
    elapse: Integers = rows["elapse_ns"].to_numpy()
    compute = (
        spans.with_end(kernels.filter(pl.col("kind") == "compute").select("start_ns", "duration_ns"))
        if (kernels is not None)
        else None
    )
    if compute is None or compute.is_empty():
        return elapse
    compute = compute.sort("start_ns")
    reached: Integers = np.maximum.accumulate(compute["end_ns"].to_numpy())
    before = np.searchsorted(compute["start_ns"].to_numpy(), start + elapse) - 1
    busy_until = np.where(before >= 0, reached[np.maximum(before, 0)], start)
    blocked: Integers = np.maximum(0, start + elapse - np.maximum(start, busy_until))
    return blocked


def _us(value: int | None) -> float | None:
    return None if value is None else value / 1000


def groups(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Communication group id -> {name, ranks} as profiler_metadata.json or communication_group.json tell."""
    found: dict[str, dict[str, Any]] = {}
    listed = metadata.get("comm_group_parallel_info")
    for value in listed if isinstance(listed, list) else ():
        if isinstance(value, dict) and value.get("group_name"):
            _add_group(found, value["group_name"], value.get("pg_name"), value.get("rank_set"))
    told = metadata.get("parallel_group_info")
    for key, value in (told if isinstance(told, dict) else {}).items():
        if isinstance(value, dict):
            _add_group(found, key, value.get("group_name"), value.get("global_ranks"))
    return found


def _add_group(found: dict[str, dict[str, Any]], key: object, name: object, ranks: object) -> None:
    if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
        found[str(key)] = {"name": str(name or ""), "ranks": ranks}


def in_job(source: int, target: int, members: object) -> tuple[int, int, bool]:
    """Source and target as ranks of the job where the group's members tell, and whether they do."""
    if isinstance(members, list) and max(source, target) < len(members):
        return members[source], members[target], True
    return source, target, isinstance(members, list) and source in members and target in members


def settle_links(
    entries: Sequence[dict[str, Any]], sources: Iterable[Mapping[str, Any]], world_size: int | None
) -> None:
    """Give links that count ranks within their group the job's ranks: where any rank's source lists the group, or the
    group is as large as the job."""
    known: dict[str, Any] = {}
    for source in sources:
        told = source.get("groups")
        known |= told if isinstance(told, dict) else {}
    top: dict[str, int] = {}
    local = []
    for entry in entries:
        rows = [row for row in entry.get("links") or () if row.get("within_group")]
        for row in rows:
            group = str(row.get("group"))
            top[group] = max(top.get(group, 0), row["src"], row["dst"])
        local += [entry] if rows else []
    for group in set(top) - set(known):
        if world_size is not None and top[group] + 1 == world_size:
            known[group] = {"ranks": list(range(world_size))}
    for entry in local:
        _settle(entry, known)


def _settle(entry: dict[str, Any], known: Mapping[str, Any]) -> None:
    """Links that nothing tells stay the very rows they were; others stay where they were kept."""
    links = entry["links"]
    before = list(links)
    after = [_settled(row, known) for row in before]
    if after != before:
        entry["links"] = links.shelf.put(after) if isinstance(links, Shelved) else after


def _settled(row: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    group = known.get(str(row.get("group"))) if row.get("within_group") else None
    if not isinstance(group, dict):
        return row
    src, dst, told = in_job(row["src"], row["dst"], group.get("ranks"))
    return {**row, "src": src, "dst": dst, "within_group": not told}
