"""Why the device idles: each gap between kernels has one cause, told by what the host did meanwhile.

- `gc`, `data_wait`, `memory_alloc`, `sync`: a collection of garbage, the data loader, a call that allocates or releases
  device memory, a call that waits for the device covers at least half of the gap. A gap that begins while the host
  waits for the device is `sync` too: nothing could be launched ahead.
- `host_op`: a gap of 50 us or more of which host operators cover at least half.
- `launch_gap`: shorter ones, and longer ones in which the host does nothing that is known, or is still in the call that
  launches the next kernel: it launches too late.
- `device_start`: 50 us or more although that call had ended before the gap: the device itself was late to start.
- `unknown`: 50 us or more with no sign of the host in the trace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.spans import islands, with_end

CAUSES = ("gc", "data_wait", "memory_alloc", "sync", "host_op", "launch_gap", "device_start", "unknown")
LONG_NS = 50_000
_NEAR_NS = 1_000
_COVER = 0.5
_AROUND = r"\.forward$|^Optimizer\."
"""Ranges around much of a step: they say nothing of what the host does inside."""
_MAX_GAPS = 20
_MAX_TEXT = 200
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Json = dict[str, Any]


class Window(NamedTuple):
    """A step from start to end, in ns."""

    step: str | None
    start: int
    end: int


class FreeTime(NamedTuple):
    """`report` is the entry's "free_time", `gaps` every gap with step, start_ns, duration_ns and cause."""

    report: Json
    gaps: pl.DataFrame
    steps: int

    def us(self, cause: str) -> Mapping[str | None, float]:
        """Step -> free time of that cause."""
        rows = self.gaps.filter(pl.col("cause") == cause).group_by("step").agg(pl.col("duration_ns").sum())
        return {row[0]: row[1] / 1000 for row in rows.iter_rows()}


def free_time(kernels: pl.DataFrame, events: pl.DataFrame, judged: Collection[str | None]) -> FreeTime | None:
    """Gaps of the judged steps with their causes; None where the trace or the kernels tell no times.

    `events` are those of `read_events`. Times of causes are means per step, `share` is of all free time.
    """
    timed = with_end(kernels.select("step", "start_ns", "duration_ns"))
    windows = _windows(events, timed, judged)
    if timed.is_empty() or not windows:
        return None
    gaps = _gaps(timed, windows)
    host = _host(events)
    gaps = gaps.with_columns(cause=pl.Series(_causes(gaps, host, events), dtype=pl.String))
    total = int(gaps["duration_ns"].sum())
    sums = dict(gaps.group_by("cause").agg(pl.col("duration_ns").sum()).iter_rows())
    by_cause = [
        {"cause": cause, "us": round(sums[cause] / 1000 / len(windows), 3), "share": round(sums[cause] / total, 6)}
        for cause in sorted(sums, key=lambda cause: -sums[cause])
    ]
    report = {"by_cause": by_cause, "gaps": _longest(gaps, kernels, host, windows)}
    return FreeTime(report, gaps, len(windows))


def _windows(events: pl.DataFrame, timed: pl.DataFrame, judged: Collection[str | None]) -> list[Window]:
    """The profiler's own step ranges; else each step from its first kernel to its last."""
    ranges = events.filter(pl.col("name").str.contains("ProfilerStep#", literal=True).fill_null(False))
    told = ranges.select(
        step=pl.col("name").str.extract(r"#(\d+)$"), start="start_ns", end=pl.col("start_ns") + pl.col("duration_ns")
    ).drop_nulls()
    told = told.unique("step", keep="first").sort("start")
    own = timed.group_by("step").agg(start=pl.col("start_ns").min(), end=pl.col("end_ns").max()).sort("start")
    for table in (told, own):
        found = [Window(*row) for row in table.select("step", "start", "end").iter_rows()]
        chosen = [window for window in found if not judged or window.step in judged]
        if chosen:
            return chosen
    return []


def _gaps(timed: pl.DataFrame, windows: list[Window]) -> pl.DataFrame:
    """Times inside the windows in which no kernel runs: step, start_ns, duration_ns."""
    busy = islands(timed)
    begin = np.append(np.iinfo(np.int64).min // 2, busy.ends)
    end = np.append(busy.starts, np.iinfo(np.int64).max // 2)
    parts = []
    for window in windows:
        first, last = np.searchsorted(end, window.start, side="right"), np.searchsorted(begin, window.end)
        start = np.maximum(begin[first:last], window.start)
        length = np.minimum(end[first:last], window.end) - start
        frame = pl.DataFrame({"start_ns": start, "duration_ns": length}).filter(pl.col("duration_ns") > 0)
        parts.append(frame.select(pl.lit(window.step, pl.String).alias("step"), "start_ns", "duration_ns"))
    return pl.concat(parts)


def _host(events: pl.DataFrame) -> pl.DataFrame:
    """What the host did: kind (a cause), name, start_ns, end_ns. Data loading counts on the thread of the steps."""
    name = pl.col("name")
    memory = name.str.contains("aclrt(Malloc|Free|MapMem|UnmapMem|ReserveMem)") & ~name.str.contains("Host")
    kind = (
        pl.when((pl.col("cat") == "GC") | (name == "GC"))
        .then(pl.lit("gc"))
        .when(name.str.contains("ProfilerStep#", literal=True))
        .then(pl.lit("step"))
        .when(name.str.contains("DataLoader|GetNext|DataQueue"))
        .then(pl.lit("data_wait"))
        .when(name.str.contains("aclrtSynchronize"))
        .then(pl.lit("sync"))
        .when(memory)
        .then(pl.lit("memory_alloc"))
        .when((pl.col("cat") == "cpu_op") & ~name.str.contains(_AROUND) | name.str.contains(r"^\w+::\w+::"))
        .then(pl.lit("host_op"))
    )
    ranges = with_end(events.filter((pl.col("ph") == "X") & name.is_not_null()).with_columns(kind=kind))
    ranges = ranges.filter(pl.col("kind").is_not_null())
    threads = ranges.filter(pl.col("kind") == "step")["tid"].unique().to_list()
    if threads:
        ranges = ranges.filter((pl.col("kind") != "data_wait") | pl.col("tid").is_in(threads))
    return ranges.select("kind", "name", "start_ns", "end_ns")


def _causes(gaps: pl.DataFrame, host: pl.DataFrame, events: pl.DataFrame) -> npt.NDArray[np.str_]:
    start, length = gaps["start_ns"].to_numpy(), gaps["duration_ns"].to_numpy()
    long = length >= LONG_NS
    launched_before = _launched(events, start + length) <= start
    covered = {kind: _covered(host, kind, start, length) for kind in CAUSES[:5]}
    covered["sync"] |= _begins_in(host, "sync", start)
    covered["host_op"] &= long & ~launched_before
    known = not host.is_empty() or bool((events["ph"] == "s").any())
    found = np.where(long & launched_before, "device_start", "launch_gap" if known else "unknown")
    found = np.where(long, found, "launch_gap")
    for kind in reversed(CAUSES[:5]):
        found = np.where(covered[kind], kind, found)
    return found.astype(np.str_)


def _covered(host: pl.DataFrame, kind: str, start: Integers, length: Integers) -> Flags:
    """Whether ranges of that kind cover at least half of each gap."""
    covered = islands(host.filter(pl.col("kind") == kind)).within(start, start + length)
    return np.asarray(covered >= _COVER * length, dtype=np.bool_)


def _begins_in(host: pl.DataFrame, kind: str, start: Integers) -> Flags:
    """Whether a range of that kind runs when each gap begins."""
    ranges = host.filter(pl.col("kind") == kind)
    if ranges.is_empty():
        return np.zeros(len(start), dtype=np.bool_)
    known = islands(ranges)
    last = np.searchsorted(known.starts, start + _NEAR_NS, side="right") - 1
    return np.asarray((last >= 0) & (known.ends[np.maximum(last, 0)] > start), dtype=np.bool_)


def _launched(events: pl.DataFrame, kernel_start: Integers) -> Integers:
    """When the host had launched the kernel that begins then; the end of time where no flow tells."""
    never = np.full(len(kernel_start), np.iinfo(np.int64).max)
    for category in ("HostToDevice", "async_npu"):
        flows = events.filter(pl.col("cat") == category)
        begins = flows.filter(pl.col("ph") == "s").select("id", "tid", launched="start_ns").unique("id", keep="first")
        ends = flows.filter(pl.col("ph") == "f").select("id", at="start_ns")
        pairs = _call_ends(events, ends.join(begins, on="id").drop_nulls()).sort("at")
        if pairs.is_empty():
            continue
        at, launched = pairs["at"].to_numpy(), pairs["launched"].to_numpy()
        nearest = np.minimum(np.searchsorted(at, kernel_start - _NEAR_NS), len(at) - 1)
        return np.where(np.abs(at[nearest] - kernel_start) <= _NEAR_NS, launched[nearest], never)
    return never


def _call_ends(events: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """`launched` moved to the end of the call (`Node@launch`) in which the flow begins."""
    calls = with_end(events.filter((pl.col("ph") == "X") & pl.col("name").str.starts_with("Node@launch")))
    if calls.is_empty() or pairs.is_empty():
        return pairs
    ranges = calls.select("tid", "end_ns", begin="start_ns").sort("begin")
    joined = pairs.sort("launched").join_asof(
        ranges, left_on="launched", right_on="begin", by="tid", strategy="backward", check_sortedness=False
    )
    return joined.with_columns(launched=pl.max_horizontal("launched", "end_ns"))


def _longest(gaps: pl.DataFrame, kernels: pl.DataFrame, host: pl.DataFrame, windows: list[Window]) -> list[Json]:
    """The longest gaps with the kernels around them and the host's part in them; starts count from their step's."""
    longest = gaps.sort("duration_ns", "start_ns", descending=[True, False]).head(_MAX_GAPS)
    begins = {window.step: window.start for window in windows}
    edges = [*longest["start_ns"], *(longest["start_ns"] + longest["duration_ns"])]
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("duration_ns")
    near = kernels.lazy().select("name", start, end_ns=end)
    beside = near.filter(start.is_in(edges) | pl.col("end_ns").is_in(edges)).collect()
    before = dict(beside.select("end_ns", "name").iter_rows())
    after = dict(beside.select("start_ns", "name").iter_rows())
    return [
        {
            "step": row["step"],
            "start_us": (row["start_ns"] - begins[row["step"]]) / 1000,
            "duration_us": row["duration_ns"] / 1000,
            "cause": row["cause"],
            "before": _short(before.get(row["start_ns"])),
            "after": _short(after.get(row["start_ns"] + row["duration_ns"])),
            "host_event": _short(_event(host, row["cause"], row["start_ns"], row["duration_ns"])),
        }
        for row in longest.iter_rows(named=True)
    ]


def _event(host: pl.DataFrame, cause: str, start: int, length: int) -> str | None:
    """Of the ranges that are the cause, the one that covers most of the gap; of equal ones the innermost."""
    shared = pl.min_horizontal("end_ns", start + length) - pl.max_horizontal("start_ns", start)
    found = host.filter(
        (pl.col("kind") == cause) & (pl.col("end_ns") > start - 1) & (pl.col("start_ns") < start + length)
    )
    found = found.with_columns(shared=shared, own=pl.col("end_ns") - pl.col("start_ns"))
    best = found.sort("shared", "own", descending=[True, False]).head(1)
    return best["name"][0] if best.height else None


def _short(name: str | None) -> str | None:
    return name[:_MAX_TEXT] if name else None
