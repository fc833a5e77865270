"""Who comes late to collectives, and how long the others wait for it.

All ranks leave a collective together, so the one with the shortest time inside came last. What the others lose is the
time from the arrival of the last but one to the arrival of the last, unless the rank computes on meanwhile. Ranks wait
for the same lateness in collectives of several groups at once, and several ranks wait for it side by side: only the
union on one rank is time lost.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.columns import Columns
from analysis.entries import Json, judged_steps, number, rows
from analysis.thresholds import limit

MIN_WAIT_US = 100.0
"""Smaller differences inside one collective are noise."""
MOST_SHORT = 10
"""Groups up to which three digits tell them apart: of ten, two have the same ones in one capture of twenty."""
_SHORT = re.compile(r"\d{1,3}")
"""What names of kernels tell of a group, where no file tells all of it."""
Floats = npt.NDArray[np.float64]
Step = str | None


class Members(NamedTuple):
    """The collectives of one group in one step that all ranks seen of it took part in. Arrays are ranks x collectives;
    starts are each rank's own clock; `blocked` is the part at the end in which the rank had nothing else to do."""

    step: Step
    ranks: list[int]
    start: Floats
    elapse: Floats
    blocked: Floats


@dataclass
class Votes:
    """How often each rank came last (`count`), of how many collectives that could tell (`of`), in a group of what size
    at most (`size`)."""

    count: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    of: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    size: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class Group:
    """What several ranks saw of one group's collectives in one step, read from their entries at each look: those of
    thousands of ranks at once would be most of what a report holds."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.ranks: list[int] = []
        self._rows: list[tuple[Sequence[Json], int]] = []

    def add(self, rank: int, table: Sequence[Json], place: int) -> None:
        self.ranks.append(rank)
        self._rows.append((table, place))

    def members(self) -> Members:
        """The collectives that all took part in; there may be none."""
        return _members(
            self.step, [(rank, table[at]) for rank, (table, at) in zip(self.ranks, self._rows, strict=True)]
        )


def groups_of(ranks: Sequence[Json]) -> list[Group]:
    """Collectives by group and step, where at least two ranks were seen of the group."""
    seen: dict[tuple[Step, Any], Group] = {}
    for entry in ranks:
        table = _arrivals(entry)
        for place, row in enumerate(table):
            key = row.get("step"), row.get("group")
            seen.setdefault(key, Group(key[0])).add(int(entry["rank"]), table, place)
    unsure = {group for _, group in seen if _SHORT.fullmatch(str(group))}
    left_out = unsure if len(unsure) > MOST_SHORT else set()
    return [group for (_, name), group in seen.items() if len(group.ranks) > 1 and name not in left_out]


def _arrivals(entry: Json) -> Sequence[Json]:
    told = entry.get("arrivals")
    return told if isinstance(told, Columns) else rows(entry, "arrivals") or _from_collectives(entry)


def _from_collectives(entry: Json) -> list[Json]:
    """Arrivals out of single collectives without a start: those of one group follow one another."""
    lists: dict[tuple[Step, Any], Json] = {}
    clock = 0.0
    for row in rows(entry, "collectives"):
        elapse, key = number(row, "elapse_us"), (row.get("step"), row.get("group"))
        if elapse is None:
            continue
        group = lists.setdefault(
            key, {"step": key[0], "group": key[1], "ids": [], "start_us": [], "elapse_us": [], "blocked_us": []}
        )
        group["ids"].append(zlib.crc32(str(row.get("name")).encode()))
        group["start_us"].append(clock)
        group["elapse_us"].append(elapse)
        group["blocked_us"].append(elapse)
        clock += elapse
    return list(lists.values())


def _members(step: Step, members: Sequence[tuple[int, Json]]) -> Members:
    ids = [np.array(row["ids"], dtype=np.int64) for _, row in members]
    chosen: list[npt.NDArray[np.int64]]
    if all(np.array_equal(other, ids[0]) for other in ids[1:]):
        chosen = [np.arange(len(ids[0]))] * len(ids)
    else:
        common = ids[0]
        for other in ids[1:]:
            common = np.intersect1d(common, other)
        chosen = [np.flatnonzero(np.isin(own, common)) for own in ids]
        if len({len(places) for places in chosen}) > 1:  # a name that comes twice on one rank only
            chosen = [places[:0] for places in chosen]
    start, elapse, blocked = (
        np.array([np.array(row[key], dtype=np.float64)[at] for (_, row), at in zip(members, chosen, strict=True)])
        for key in ("start_us", "elapse_us", "blocked_us")
    )
    return Members(step, [rank for rank, _ in members], start, elapse, blocked)


def count_votes(groups: Sequence[Group]) -> Votes:
    """Votes of the collectives whose times differ by more than noise."""
    votes = Votes()
    for group in (found for each in groups if (found := each.members()).elapse.size):
        longest, shortest = group.elapse.max(axis=0), group.elapse.min(axis=0)
        telling = longest - shortest >= np.maximum(MIN_WAIT_US, limit("wait_spread") * longest)
        late, counts = np.unique(group.elapse.argmin(axis=0)[telling], return_counts=True)
        for index, count in zip(late.tolist(), counts.tolist(), strict=True):
            votes.count[group.ranks[index]] += count
        for rank in group.ranks:
            votes.of[rank] += int(telling.sum())
            votes.size[rank] = max(votes.size[rank], len(group.ranks) if telling.any() else 0)
    return votes


def excess_us(ranks: Sequence[Json], groups: Sequence[Group], late: int) -> float:
    """What all would gain per step if `late` came with the next one: of the ranks that wait for it, the one that loses
    most. What a rank loses is the union of its waits, and no more than its communication that no compute hides."""
    waits: dict[int, dict[Step, list[Floats]]] = defaultdict(lambda: defaultdict(list))
    steps: set[Step] = set()
    for group in groups:
        if late in group.ranks and (members := group.members()).elapse.size:
            steps.add(group.step)
            _collect(members, late, waits)
    exposed = {int(entry["rank"]): _exposed(entry) for entry in ranks if int(entry["rank"]) in waits}
    losses = [
        sum(min(_union(parts), exposed[rank].get(step, np.inf)) for step, parts in by_step.items()) / len(steps)
        for rank, by_step in waits.items()
    ]
    return float(max(losses, default=0.0))


def _collect(group: Members, late: int, waits: dict[int, dict[Step, list[Floats]]]) -> None:
    """Add, for each other rank of the group, the intervals in which it waits for nobody but `late`."""
    row = group.ranks.index(late)
    mine = group.elapse.argmin(axis=0) == row
    if not mine.any():
        return
    elapse, end = group.elapse[:, mine], (group.start + group.elapse)[:, mine]
    shortest, second = np.partition(elapse, 1, axis=0)[:2]
    for other, rank in enumerate(group.ranks):
        if other != row:
            lost = np.maximum(shortest, np.minimum(second, group.blocked[other, mine]))
            waits[rank][group.step].append(np.stack([end[other] - lost, end[other] - shortest]))


def _union(parts: Sequence[Floats]) -> float:
    """Length of the union of intervals, given as arrays of 2 x n: starts and ends."""
    start, end = np.concatenate(parts, axis=1)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    reached = np.concatenate(([-np.inf], end[:-1]))
    return float(np.maximum(0.0, end - np.maximum(start, reached)).sum())


def _exposed(entry: Json) -> dict[Step, float]:
    steps = [(step.get("step"), number(step, "communication_not_overlapped_us")) for step in judged_steps(entry)]
    return {step: value for step, value in steps if value is not None}
