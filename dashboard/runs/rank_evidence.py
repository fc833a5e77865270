"""What a roll-up reads of each rank, and what it gives back: of a thousand ranks neither is whole entries.

An entry is 180 kB, of which a judgement needs half; the rest is let go rank by rank, and lists of rows wait in a file.
Nor is an entry written back: what the roll-up adds is merged into it by PostgreSQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO

from django.db import connection

from dashboard.runs.frames import nameless_file
from dashboard.runs.models import Capture, Dump, DumpState

Json = dict[str, Any]
AT_ONCE = 50
LARGE = ("collectives", "arrivals", "links", "communication")
"""Of an entry, hundreds of rows that a few judgements look at."""
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
    dumps = capture.dumps.filter(state=DumpState.DIGESTED).order_by("rank")
    rows = dumps.values_list("pk", "rank", "entry", "source", "digested_at", "slow", "slow_kind", "excess_ns")
    keep = Keeper(nameless_file())
    return [
        Rank(pk, rank, {**keep.entry(entry), "rank": rank}, keep.source(source), digested_at,
             {"slow": slow, "slow_kind": slow_kind, "excess_ns": excess_ns})
        for pk, rank, entry, source, digested_at, slow, slow_kind, excess_ns in rows.iterator(chunk_size=AT_ONCE)
    ]  # fmt: skip


class Keeper:
    """Keeps what a judgement reads of entries: lists in a file, one object for what many of them tell alike."""

    def __init__(self, file: BinaryIO) -> None:
        from analysis.shelf import Shelf

        self._put = Shelf(file).put
        self._words: dict[str, str] = {}
        self._told: dict[str, Any] = {}

    def entry(self, entry: Json) -> Json:
        """The entry as `judged_view` gives it."""
        from analysis.columns import compact
        from analysis.report import judged_view

        view = judged_view(entry)
        large = {name: view.pop(name) for name in LARGE if name in view}
        if large.get("arrivals"):
            large["arrivals"] = [
                {key: compact(value) if isinstance(value, list) else value for key, value in row.items()}
                for row in large["arrivals"]
            ]
        facts = view.get("facts")
        if isinstance(facts, dict):
            view["facts"] = {name: self._put(found) for name, found in facts.items()}
        return {**_shared(view, self._words), **{name: self._put(rows) for name, rows in large.items()}}

    def source(self, source: Json) -> Json:
        """The source, of which most is the same on all ranks, and groups name all of them."""
        return {key: self._told.setdefault(json.dumps(value), value) for key, value in source.items()}


def _shared(value: Any, words: dict[str, str]) -> Any:
    """`value` with one object for each text and name of a field, not one per rank."""
    if type(value) is dict:
        return {words.setdefault(key, key): _shared(part, words) for key, part in value.items()}
    if type(value) is list:
        return [_shared(part, words) for part in value]
    return words.setdefault(value, value) if type(value) is str else value


def store(ranks: Sequence[Rank], report: Json) -> bool:
    """Store what the roll-up worked out of each rank; False where somebody was writing one of them, which is to be
    told again: whoever writes a dump may wait for the capture, so that a roll-up must not wait for dumps."""
    added = _added_of(ranks, report["ranks"])
    slow = _slow_of(ranks, report["cluster"])
    changed = added.keys() | slow.keys()
    free = Dump.objects.filter(pk__in=changed).order_by("pk").select_for_update(skip_locked=True, no_key=True)
    mine = set(free.values_list("pk", flat=True))
    by_pk = {row.pk: row for row in ranks}
    store_added([(by_pk[pk], news) for pk, news in added.items() if pk in mine])
    store_slow([(by_pk[pk], found) for pk, found in slow.items() if pk in mine])
    return len(mine) == len(changed)


def _added_of(ranks: Sequence[Rank], entries: Iterable[Json]) -> dict[int, Json]:
    """What the roll-up worked out of entries (model FLOPs, bottleneck, between which ranks links lie), by dump, where
    that is news."""
    by_rank = {entry["rank"]: entry for entry in entries}
    found = ((row.pk, _added(row.entry, by_rank[row.rank])) for row in ranks)
    return {pk: news for pk, news in found if news}


def _added(before: Json, after: Json) -> Json:
    """What is not in the entry already. Rows on a shelf that nobody put anew are the same."""
    return {name: after[name] for name in ADDED if name in after and after[name] != before.get(name)}


def store_added(changed: Iterable[tuple[Rank, Json]]) -> None:
    """Merge news into entries, unless they were digested anew."""
    pairs = iter(changed)
    while some := list(islice(pairs, AT_ONCE)):
        _merge(some)


MERGE = """
    UPDATE runs_dump SET entry = runs_dump.entry || added.entry
    FROM unnest(%s::bigint[], %s::timestamptz[], %s::jsonb[]) AS added (id, digested_at, entry)
    WHERE runs_dump.id = added.id AND runs_dump.digested_at = added.digested_at
"""


def _merge(some: Sequence[tuple[Rank, Json]]) -> None:
    texts = [json.dumps(added, default=list) for _row, added in some]  # of rows on a shelf
    with connection.cursor() as cursor:
        cursor.execute(MERGE, [[row.pk for row, _ in some], [row.digested_at for row, _ in some], texts])


def _slow_of(ranks: Sequence[Rank], cluster: Json) -> dict[int, Json]:
    """Which ranks held the others up, by dump, where that is news. With a single rank nobody knows."""
    slow = {row["rank"]: row for row in cluster["slow_ranks"]}
    found = ((row, _slowness(slow.get(row.rank) or {}, alone=len(ranks) == 1)) for row in ranks)
    return {row.pk: told for row, told in found if told != row.found}


def store_slow(changed: Iterable[tuple[Rank, Json]]) -> None:
    """Store which ranks held the others up."""
    told: dict[tuple[tuple[str, Any], ...], list[Rank]] = {}
    for row, found in changed:
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
