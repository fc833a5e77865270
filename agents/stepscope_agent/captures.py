"""Which dumps belong together: all ranks of one profiled window have one capture key."""

from __future__ import annotations

import os
import re
from typing import Sequence

from stepscope_agent.discover import FoundDump

LONGEST_KEY = 100
_RANK_LIKE = re.compile(r"^(?:rank|device|card)_?\d+$")


def key_of(text: str) -> str:
    """`text` in the form of a run's or capture's key: letters, digits, `.`, `_`, `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:LONGEST_KEY].rstrip("-._") or "unnamed"


def capture_keys(dumps: Sequence[FoundDump], given: str | None = None) -> dict[FoundDump, str]:
    """The capture key of each dump.

    `given` wins; then the request it answers; then the first training step of the window; then the time in the
    folder names, where the k-th dump of each rank under one parent is of the k-th window; then the parent's name.
    """
    if given:
        return {dump: key_of(given) for dump in dumps}
    keys = {dump: "step-%d" % dump.first_step for dump in dumps if dump.first_step is not None}
    keys.update({dump: "request-%d" % dump.request for dump in dumps if dump.request is not None})
    rest = [dump for dump in dumps if dump not in keys]
    for group in _by_parent([dump for dump in rest if dump.stamp]).values():
        keys.update(_by_time(group))
    keys.update(_by_name([dump for dump in rest if not dump.stamp]))
    return _told_apart(keys)


def _told_apart(keys: dict[FoundDump, str]) -> dict[FoundDump, str]:
    """Keys that two jobs' dumps share (same time, same step) get the jobs' folder names too."""
    ranks: dict[tuple[str, int | None], set[str]] = {}
    for dump, key in keys.items():
        ranks.setdefault((key, dump.rank), set()).add(_parent(dump))
    shared = {key for (key, _), parents in ranks.items() if len(parents) > 1}
    names = _by_name([dump for dump in keys if keys[dump] in shared])
    return {dump: key_of(key + "-" + names[dump]) if dump in names else key for dump, key in keys.items()}


def _by_parent(dumps: Sequence[FoundDump]) -> dict[str, list[FoundDump]]:
    groups: dict[str, list[FoundDump]] = {}
    for dump in dumps:
        groups.setdefault(_parent(dump), []).append(dump)
    return groups


def _parent(dump: FoundDump) -> str:
    """The folder that the ranks of one job share."""
    if dump.kind in ("flat", "legacy", "msprof") and not _RANK_LIKE.match(dump.folder) and not dump.prefix:
        return dump.root
    parent = os.path.dirname(dump.root)
    return os.path.dirname(parent) if _RANK_LIKE.match(os.path.basename(parent)) else parent


def _by_time(group: Sequence[FoundDump]) -> dict[FoundDump, str]:
    ranks: dict[object, list[FoundDump]] = {}
    for dump in sorted(group, key=lambda dump: (dump.stamp or "", dump.root)):
        ranks.setdefault(dump.rank, []).append(dump)
    if len({len(row) for row in ranks.values()}) == 1:
        windows = [list(column) for column in zip(*ranks.values())]
    else:
        windows = _nearest(list(ranks.values()))
    return {dump: min(one.stamp or "" for one in window) for window in windows for dump in window}


def _nearest(rows: list[list[FoundDump]]) -> list[list[FoundDump]]:
    """Ranks with unequal counts: each dump joins the window of the busiest rank that is nearest in time."""
    windows = [[dump] for dump in max(rows, key=len)]
    for row in rows:
        if row[0] is windows[0][0]:
            continue
        free = list(windows)
        for dump in row:
            nearest = min(free, key=lambda window: abs(int(window[0].stamp or 0) - int(dump.stamp or 0)))
            nearest.append(dump)
            free.remove(nearest)
    return windows


def _by_name(dumps: Sequence[FoundDump]) -> dict[FoundDump, str]:
    """By the parent's name; by more of its path where two parents have the same."""
    parents = {dump: _parent(dump) for dump in dumps}
    keys: dict[FoundDump, str] = {}
    for depth in (1, 2, 3, 4):
        named = {parent: key_of("-".join(parent.split(os.sep)[-depth:])) for parent in set(parents.values())}
        keys = {dump: named[parents[dump]] for dump in dumps}
        if len(set(named.values())) == len(named):
            break
    return keys
