"""Which dumps belong together: all ranks of one profiled window have one capture key."""

from __future__ import annotations

import calendar
import math
import os
import re
import time
from typing import Any, Callable, Mapping, Sequence

from stepscope_agent.discover import FoundDump, read_json
from stepscope_agent.manifest import write_json

LONGEST_KEY = 100
MOST_WINDOWS = 20000
TOGETHER_S = 60.0
_RANK_LIKE = re.compile(r"^(?:rank|device|card)_?\d+$")


def key_of(text: str) -> str:
    """`text` in the form of a run's or capture's key: letters, digits, `.`, `_`, `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:LONGEST_KEY].rstrip("-._") or "unnamed"


def shown(text: str) -> str:
    """`text` on one line, in letters every terminal and the server take: names of files may hold any byte."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def capture_keys(
    dumps: Sequence[FoundDump], given: str | None = None, counts: Mapping[FoundDump, int] | None = None
) -> dict[FoundDump, str]:
    """The capture key of each dump.

    `given` wins; then the request it answers; then the first training step of the window; then, for dumps in `counts`
    (see `Windows`), the profiler's steps, which are the same on each host of a job; then the time in the folder names,
    where the k-th dump of each rank under one parent is of the k-th window; then the parent's name. A training that
    began anew, or went on from a checkpoint, may record the same steps again: that is a second window of them.
    """
    if given:
        return {dump: key_of(given) for dump in dumps}
    counts = counts or {}
    keys = {dump: _steps_key(dump) for dump in counts}
    keys.update({dump: "step-%d" % dump.first_step for dump in dumps if dump.first_step is not None})
    keys = {dump: key + ("-%d" % counts[dump] if counts.get(dump, 1) > 1 else "") for dump, key in keys.items()}
    keys.update({dump: "request-%d" % dump.request for dump in dumps if dump.request is not None})
    rest = [dump for dump in dumps if dump not in keys]
    for group in _by_parent([dump for dump in rest if dump.stamp]).values():
        keys.update(_by_time(group))
    keys.update(_by_name([dump for dump in rest if not dump.stamp]))
    return _told_apart(keys)


def _steps_key(dump: FoundDump) -> str:
    return "profiler-step-%d-%d" % (dump.profiler_steps or (0, 0))


class Windows:
    """Which window it is of those with the same steps: the training's, or, for jobs of which only a part runs on this
    host, the profiler's.

    Hosts cannot ask each other, and their clocks may differ: but each sees the same windows in the same order. Ranks of
    one host share its clock: what they begin within a minute is one window, so that a rank that lost one, in a crash
    say, does not count on from a lower number. Counted per run and host, over restarts, so that a job that begins anew
    goes on counting.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        rows: dict[str, Any] = read_json(path)
        self._seen = {key: list(row) for key, row in rows.items() if isinstance(row, list)}
        self._before = repr(self._seen)

    def counts(self, dumps: Sequence[FoundDump], run_of: Callable[[FoundDump], str]) -> dict[FoundDump, int]:
        """The number of each dump, from 1, where the training's step is known or the job is spread over hosts."""
        stamped = [dump for dump in dumps if dump.stamp and dump.rank is not None]
        known = [dump for dump in stamped if dump.first_step is not None and dump.request is None]
        spread = [dump for dump in _spread(stamped) if dump.profiler_steps and dump.first_step is None]
        rows = {dump: self._row(dump, run_of(dump)) for dump in known + spread}
        for dump, row in rows.items():
            if _begun(dump) not in row:
                row.append(_begun(dump))
        numbers = {id(row): _numbers(row) for row in rows.values()}
        return {dump: numbers[id(row)][_begun(dump)] for dump, row in rows.items()}

    def _row(self, dump: FoundDump, run: str) -> list[Any]:
        steps = "%d-%d" % (dump.profiler_steps or (0, 0))
        if dump.first_step is not None:  # of one job: two that share a run are told apart by their folders
            steps = "%d %s" % (dump.first_step, _parent(dump))
        row = self._seen.setdefault("%s @%s %s" % (key_of(run), dump.host or "", steps), [])
        for stamp in self._seen.pop("%s %s %s" % (key_of(run), dump.rank, steps), ()):  # as earlier agents counted
            row.append("%s %s" % (stamp, dump.rank))
        return row

    def save(self) -> None:
        """A full disk costs the memory of this pass."""
        if repr(self._seen) != self._before:
            self._before = repr(self._seen)
            try:
                write_json(self.path, dict(list(self._seen.items())[-MOST_WINDOWS:]))
            except OSError:
                pass


def _begun(dump: FoundDump) -> str:
    return "%s %s" % (dump.stamp, dump.rank)


def _numbers(row: Sequence[str]) -> dict[str, int]:
    """The number of the window of each `stamp rank`. A window ends with a rank that it holds already, or in time."""
    numbers: dict[str, int] = {}
    number, ends, ranks = 0, -math.inf, set()
    for begun in sorted(row):
        stamp, _, rank = begun.partition(" ")
        if rank in ranks or _seconds(stamp) > ends:
            number, ends, ranks = number + 1, _seconds(stamp) + TOGETHER_S, set()
        ranks.add(rank)
        numbers[begun] = number
    return numbers


def _seconds(stamp: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(stamp[:14], "%Y%m%d%H%M%S")))
    except ValueError:
        return 0.0


def _spread(dumps: Sequence[FoundDump]) -> list[FoundDump]:
    """Dumps of jobs that have more ranks than this host shows."""
    found = []
    for group in _by_parent(dumps).values():
        here = len({dump.rank for dump in group if dump.rank is not None})
        found += [dump for dump in group if dump.rank is not None and (dump.world_size or 0) > here]
    return found


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
