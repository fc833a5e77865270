"""Ranks of one capture held against each other: the slow one against a typical one, or any that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from dashboard.runs.models import Capture, Dump, DumpState
from dashboard.runs.pipeline_chart import sizes
from dashboard.runs.templatetags.units import metric_text, percent_text

MOST_RANKS = 8
ALIKE = 0.005
"""A share below which two times are called the same."""


def chosen(capture: Capture, ranks: Sequence[int], dumps: Sequence[Dump]) -> list[Dump]:
    """The dumps of these ranks, in that order; of one rank a typical rank stands before it, of none the slow rank is
    taken."""
    there = {dump.rank: dump for dump in dumps if dump.state == DumpState.DIGESTED}
    found = [there[rank] for rank in ranks if rank in there][:MOST_RANKS]
    if not found:
        slow = slow_rank(capture, list(there.values()))
        found = [there[slow]] if slow is not None else []
    if len(found) == 1:
        other = typical(capture, found[0], list(there.values()))
        found = [other, *found] if other else found
    return found


def slow_rank(capture: Capture, dumps: Sequence[Dump]) -> int | None:
    """The rank that costs the others most, else the one that computes longest."""
    named = [row.get("rank") for row in ((capture.report or {}).get("cluster") or {}).get("slow_ranks") or []]
    known = [dump for dump in dumps if dump.computing_ns is not None]
    for rank in named:
        if any(dump.rank == rank for dump in dumps):
            return int(rank)
    return max(known, key=lambda dump: (dump.computing_ns or 0, -dump.rank)).rank if known else None


def typical(capture: Capture, dump: Dump, dumps: Sequence[Dump]) -> Dump | None:
    """Of the other ranks of its pipeline stage the one in the middle by computing time; of all where it is alone."""
    known = sizes(capture)
    width = known[1] if known else None
    others = [other for other in dumps if other.rank != dump.rank and other.computing_ns is not None]
    peers = [other for other in others if width and other.rank // width == dump.rank // width] or others
    peers.sort(key=lambda other: (other.computing_ns or 0, other.rank))
    return peers[(len(peers) - 1) // 2] if peers else None


def entries(dumps: Sequence[Dump]) -> list[Mapping[str, Any]]:
    """The report entries of these dumps, in one query."""
    found = dict(Dump.objects.filter(pk__in=[dump.pk for dump in dumps]).values_list("pk", "entry"))
    return [found.get(dump.pk) or {} for dump in dumps]


def differences(compared: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What analysis.compare says of the ranks, each as a report of its own."""
    from analysis.compare import compare

    return compare([{"ranks": [dict(entry)]} for entry in compared])


def sentence(first: Dump, last: Dump) -> str:
    """How their computing times differ: a step takes all ranks of a job as long, since they wait for each other."""
    if not first.computing_ns or not last.computing_ns:
        return _("How long one of them computes is unknown.")
    change = last.computing_ns / first.computing_ns - 1
    values = {
        "one": last.rank, "other": first.rank, "percent": percent_text(abs(change)),
        "mine": metric_text(last.computing_ns, "duration"), "theirs": metric_text(first.computing_ns, "duration"),
    }  # fmt: skip
    if abs(change) < ALIKE:
        return _("Ranks %(one)s and %(other)s compute alike: %(mine)s and %(theirs)s a step.") % values
    if change > 0:
        return (
            _("Rank %(one)s computes %(percent)s longer than rank %(other)s: %(mine)s a step, not %(theirs)s.") % values
        )
    return _("Rank %(one)s computes %(percent)s less than rank %(other)s: %(mine)s a step, not %(theirs)s.") % values
