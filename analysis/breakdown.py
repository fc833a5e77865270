"""Step breakdown: what a step's time went to, and which steps count."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from analysis import spans
from analysis.pipeline import Bubbles
from analysis.schema import STEP_COLUMNS, polars_schema

WARMUP_FACTOR = 1.5
"""A leading step longer than this many medians of the rest is warm-up."""
DISAGREE_RATIO = 0.05
"""Sum of kernels and the profiler's own computing time may differ by this much before it is said."""


def steps_from_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Steps by our own union over kernel intervals, from each step's first kernel start to its last end.

    Kernels without a step belong to none, unless no kernel has one: then all are one step without a name.
    """
    rows = kernels.select(pl.col("step").cast(pl.Categorical), pl.col("kind") == "compute", "start_ns", "duration_ns")
    if rows["step"].null_count() < rows.height:
        rows = rows.filter(pl.col("step").is_not_null())
    timed = spans.with_end(rows).drop("duration_ns").with_columns(step=pl.col("step").fill_null(""))
    if timed.is_empty():
        return pl.DataFrame(schema=polars_schema(STEP_COLUMNS))
    window = timed.group_by("step").agg(start=pl.col("start_ns").min(), end=pl.col("end_ns").max())
    compute = spans.covered_by_ns(timed.filter("kind"), "step").rename({"covered_ns": "computing_ns"})
    talk = spans.covered_by_ns(timed.filter(~pl.col("kind")), "step").rename({"covered_ns": "communication_ns"})
    busy = spans.covered_by_ns(timed, "step").rename({"covered_ns": "busy"})
    joined = (
        window.join(compute, on="step", how="left").join(talk, on="step", how="left").join(busy, on="step", how="left")
    )
    joined = joined.sort("start").with_columns(pl.col("computing_ns", "communication_ns").fill_null(0))
    return joined.select(
        pl.when(pl.col("step") != "").then(pl.col("step").cast(pl.String)).alias("step"),
        "computing_ns",
        "communication_ns",
        communication_not_overlapped_ns=pl.col("busy") - pl.col("computing_ns"),
        overlapped_ns=pl.col("computing_ns") + pl.col("communication_ns") - pl.col("busy"),
        free_ns=pl.col("end") - pl.col("start") - pl.col("busy"),
        stage_ns=pl.lit(None, pl.Int64),
        bubble_ns=pl.lit(None, pl.Int64),
        preparing_ns=pl.lit(None, pl.Int64),
    )


def steps_without_parts(steps: Iterable[str]) -> pl.DataFrame:
    """Steps of which only the length is known: nothing tells what their time went to."""
    frame = pl.DataFrame({"step": list(steps)}, schema={"step": pl.String})
    absent = [pl.lit(None, pl.Int64).alias(column) for column in STEP_COLUMNS if column != "step"]
    return frame.with_columns(absent)


def kernel_sums(kernels: pl.DataFrame) -> dict[str | None, tuple[int, int]]:
    """Step -> (sum of compute kernel durations, of all kernel durations), ns. Steps of which none is known are left
    out."""
    compute = pl.when(pl.col("kind") == "compute").then(pl.col("duration_ns")).otherwise(0).alias("compute")
    known = kernels.lazy().filter(pl.col("duration_ns").is_not_null())
    rows = known.select("step", compute, total=pl.col("duration_ns"))
    sums = rows.group_by("step").agg(pl.col("compute").sum(), pl.col("total").sum()).collect()
    return {row["step"]: (row["compute"], row["total"]) for row in sums.iter_rows(named=True)}


Lengths = Mapping[str, tuple[float, str]]
"""Step -> (its length in us by a clock of its own, the file that told it)."""


def step_rows(
    steps: pl.DataFrame,
    source: str,
    sums: Mapping[str | None, tuple[int, int]],
    lengths: Lengths,
    bubbles: Bubbles | None = None,
) -> list[dict[str, Any]]:
    """The report's steps of a rank, times in us, in step order."""
    told = bubbles or Bubbles()
    rows = [_step_row(row, source, sums, lengths) | _bubble(row, source, told) for row in steps.iter_rows(named=True)]
    if all((row["step"] or "").isdecimal() and len(row["step"]) < 20 for row in rows):
        rows.sort(key=lambda row: int(row["step"]))
    return rows


def _step_row(
    row: Mapping[str, Any], source: str, sums: Mapping[str | None, tuple[int, int]], lengths: Lengths
) -> dict[str, Any]:
    computing, exposed, free = (
        _us(row[f"{name}_ns"]) for name in ("computing", "communication_not_overlapped", "free")
    )
    busy = computing + exposed if computing is not None and exposed is not None else None
    step_time = busy + free if busy is not None and free is not None else None
    told = lengths.get(row["step"] or "")
    if told is not None and (busy is None or told[0] >= busy):
        step_time, source = told
        free = round(step_time - busy, 3) if busy is not None else None
    kernel_sum = sums.get(row["step"])
    return {
        "step": row["step"],
        "step_time_us": _round(step_time),
        "computing_us": computing,
        "communication_us": _us(row["communication_ns"]),
        "communication_not_overlapped_us": exposed,
        "overlapped_us": _us(row["overlapped_ns"]),
        "free_us": free,
        "bubble_us": None,
        "bubble_source": None,
        "preparing_us": _us(row["preparing_ns"]),
        "device_ratio": ratio(busy, step_time),
        "compute_ratio": ratio(computing, step_time),
        "kernel_time_ratio": ratio(kernel_sum[1] / 1000, step_time) if kernel_sum else None,
        "source": source,
        "warmup": False,
    }


def _bubble(row: Mapping[str, Any], source: str, bubbles: Bubbles) -> dict[str, Any]:
    """Measured inside transfers, else the profiler's own figure; never more than the communication it is part of. The
    profiler's 0 says nothing about transfers that it does not count; more than there is inside transfers says that the
    file holds only some of them."""
    step, exposed = row["step"], row["communication_not_overlapped_ns"]
    bubble, where = row["bubble_ns"], source
    if step in bubbles.waits and (bubble or 0) <= bubbles.inside[step] * (1 + DISAGREE_RATIO):
        bubble, where = bubbles.waits[step], bubbles.source
    elif not bubble and (step in bubbles.untold or None in bubbles.untold):
        bubble = None
    if bubble is None:
        return {"bubble_us": None, "bubble_source": None}
    return {"bubble_us": _us(bubble if exposed is None else min(bubble, exposed)), "bubble_source": where}


def _us(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` of `whole`, or null where either is unknown or there is no whole."""
    return round(part / whole, 6) if part is not None and whole else None


def mark_warmup(rows: list[dict[str, Any]], first_of_run: bool) -> None:
    """Set `warmup` on the run's first step and on leading steps longer than 1.5 medians of the rest. One step alone
    always counts."""
    rest = sorted(row["step_time_us"] for row in rows if row["step_time_us"] is not None)
    for index, row in enumerate(rows[:-1]):
        own = row["step_time_us"]
        if own is not None:
            del rest[bisect_left(rest, own)]
        slow = own is not None and bool(rest) and own > WARMUP_FACTOR * _median(rest)
        if not (slow or (index == 0 and first_of_run)):
            return
        row["warmup"] = True


def _median(ordered: Sequence[float]) -> float:
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def disagreements(
    rows: Sequence[Mapping[str, Any]], sums: Mapping[str | None, tuple[int, int]], source: str
) -> list[str]:
    """One line per step whose compute kernels do not add up to the profiler's own computing time, by more than 5 %; or
    one for all where no kernel is of any of the steps."""
    named, told_steps = {step for step in sums if step is not None}, {row["step"] for row in rows}
    if named and told_steps - {None} and named.isdisjoint(told_steps):
        some, others = (", ".join(sorted(map(str, steps - {None}))[:4]) for steps in (named, told_steps))
        return [f"kernels are of steps {some}, {source} tells steps {others}: nothing of one is known of the other"]
    found = []
    for row in rows:
        told, sum_us = row["computing_us"], sums.get(row["step"], (None, None))[0]
        if not told or sum_us is None:
            continue
        own = sum_us / 1000
        if abs(own - told) > DISAGREE_RATIO * max(own, told):
            found.append(f"step {row['step']}: compute kernels sum to {own:.0f} us, {source} says {told:.0f} us")
    return found
