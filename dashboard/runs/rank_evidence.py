"""What a roll-up reads of each rank, and what it gives back: of a thousand ranks neither is whole entries.

An entry is 180 kB, of which a judgement needs half; the rest is let go rank by rank. Nor is an entry written back: what
the roll-up adds is merged into it by PostgreSQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import connection

from dashboard.runs.models import Capture, Dump, DumpState

Json = dict[str, Any]
AT_ONCE = 50
ADDED = ("flops", "bottleneck", "links")
"""What a roll-up works out for each entry."""


@dataclass(frozen=True)
class Rank:
    """A digested dump without what no roll-up needs. `found`: what the roll-up before this one wrote of it."""

    pk: int
    rank: int
    entry: Json
    source: Json
    digested_at: datetime | None
    found: Mapping[str, Any]


def read_ranks(capture: Capture) -> list[Rank]:
    """The capture's digested ranks in order, read a few at a time."""
    from analysis.report import judged_view

    dumps = capture.dumps.filter(state=DumpState.DIGESTED).order_by("rank")
    rows = dumps.values_list("pk", "rank", "entry", "source", "digested_at", "slow", "slow_kind", "excess_ns")
    words: dict[str, str] = {}
    told: dict[str, Any] = {}
    return [
        Rank(pk, rank, {**_packed(judged_view(entry), words), "rank": rank}, _same(source, told), digested_at,
             {"slow": slow, "slow_kind": slow_kind, "excess_ns": excess_ns})
        for pk, rank, entry, source, digested_at, slow, slow_kind, excess_ns in rows.iterator(chunk_size=AT_ONCE)
    ]  # fmt: skip


def _shared(value: Any, words: dict[str, str]) -> Any:
    """`value` with one object for each text and name of a field, not one per rank."""
    if type(value) is dict:
        return {words.setdefault(key, key): _shared(part, words) for key, part in value.items()}
    if type(value) is list:
        return [_shared(part, words) for part in value]
    return words.setdefault(value, value) if type(value) is str else value


def _same(source: Json, told: dict[str, Any]) -> Json:
    """`source` with one object for what several ranks tell alike: most of it, and groups name all ranks."""
    return {key: told.setdefault(json.dumps(value), value) for key, value in source.items()}


def _packed(entry: Json, words: dict[str, str]) -> Json:
    """`entry` with its lists of hundreds by column, and with the words of the others."""
    from analysis.columns import columns, compact

    arrivals = [
        {key: compact(value) if isinstance(value, list) else value for key, value in row.items()}
        for row in entry.get("arrivals") or ()
    ]
    lists = {"collectives": columns(entry.get("collectives"), words), "arrivals": _shared(arrivals, words)}
    return {**lists, **{key: _shared(value, words) for key, value in entry.items() if key not in lists}}


def store_added(ranks: Sequence[Rank], entries: Iterable[Json]) -> None:
    """Merge what the roll-up worked out (model FLOPs, bottleneck, between which ranks links lie) into entries, unless
    they were digested anew."""
    by_rank = {entry["rank"]: {name: entry[name] for name in ADDED if name in entry} for entry in entries}
    pairs = ((row, by_rank[row.rank]) for row in ranks)
    changed = (pair for pair in pairs if any(pair[0].entry.get(name) != found for name, found in pair[1].items()))
    while some := list(islice(changed, AT_ONCE)):
        _merge(some)


MERGE = """
    UPDATE runs_dump SET entry = runs_dump.entry || added.entry
    FROM unnest(%s::bigint[], %s::timestamptz[], %s::jsonb[]) AS added (id, digested_at, entry)
    WHERE runs_dump.id = added.id AND runs_dump.digested_at = added.digested_at
"""


def _merge(some: Sequence[tuple[Rank, Json]]) -> None:
    texts = [json.dumps(added) for _row, added in some]
    with connection.cursor() as cursor:
        cursor.execute(MERGE, [[row.pk for row, _ in some], [row.digested_at for row, _ in some], texts])


def store_slow(ranks: Sequence[Rank], cluster: Json) -> None:
    """Which ranks held the others up. With a single rank nobody knows."""
    slow = {row["rank"]: row for row in cluster["slow_ranks"]}
    told: dict[tuple[tuple[str, Any], ...], list[Rank]] = {}
    for row in ranks:
        found = _slowness(slow.get(row.rank) or {}, alone=len(ranks) == 1)
        if found != row.found:
            told.setdefault(tuple(found.items()), []).append(row)
    for items, rows in told.items():
        same = Dump.objects.filter(pk__in=[row.pk for row in rows])
        # Digested anew meanwhile: the roll-up that follows tells.
        same.filter(digested_at__lte=max(row.digested_at for row in rows if row.digested_at)).update(**dict(items))


def _slowness(row: Json, *, alone: bool) -> Json:
    return {
        "slow": None if alone else bool(row),
        "slow_kind": str(row.get("kind") or "")[:10],
        "excess_ns": to_ns(row.get("excess_us")),
    }


def to_ns(microseconds: float | None) -> int | None:
    return None if microseconds is None else round(microseconds * 1000)
