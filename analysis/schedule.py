"""When a pipeline stage passed which micro-batch, forward and backward, and when it waited for its neighbours: one step
as the chart of a pipeline draws it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from analysis import spans

MAX_PASSES = 2048
_SHORT = 1000
"""Waits shorter than this part of the step are left out: a chart does not show them."""


def schedule(
    kernels: pl.DataFrame | None,
    communication: pl.DataFrame | None,
    judged: Collection[str | None],
    chunks: int | None = None,
) -> dict[str, Any] | None:
    """The report's `schedule`: the first judged step's passes and waits. None without transfers between stages, or
    where the kernels' micro-batches or starts are not known.

    `kernels` are placed (`part`, `pass`, `micro_batch`); `chunks` of the model on the stage. Times are us since
    `begin_ns`, the start of the step's first kernel.
    """
    if kernels is None or communication is None or "micro_batch" not in kernels.columns:
        return None
    transfers = communication.filter((pl.col("type") == "p2p") & pl.col("start_ns").is_not_null())
    if transfers.is_empty():
        return None
    placed = kernels.lazy().filter(pl.col("micro_batch").is_not_null())
    named = transfers["step"].unique().to_list()
    order = (
        placed.filter(pl.col("step").is_in(named, nulls_equal=True))
        .group_by("step").agg(pl.col("start_ns").min()).sort("start_ns").collect()["step"].to_list()
    )  # fmt: skip
    step = next((label for label in order if not judged or label in judged), None)
    if not order or (step is None and None not in order):
        return None
    of_step = pl.col("step").eq_missing(pl.lit(step, pl.String))
    columns = ("kind", "start_ns", "duration_ns", "pass", "micro_batch")
    rows = spans.with_end(kernels.lazy().filter(of_step).select(columns).collect())
    passes = _passes(rows, chunks or 1)
    if passes.is_empty() or passes.height > MAX_PASSES:
        return None
    begin, end = int(rows["start_ns"].min() or 0), int(rows["end_ns"].max() or 0)  # type: ignore[arg-type]
    waits = _waits(transfers.filter(of_step), rows.filter(pl.col("kind") == "compute"), (end - begin) // _SHORT)
    return {
        "step": step,
        "begin_ns": begin,
        "offset_us": (begin - int(kernels["start_ns"].min())) / 1000,  # type: ignore[arg-type]
        "length_us": (end - begin) / 1000,
        "passes": {
            **{key: passes[key].to_list() for key in ("pass", "micro_batch", "chunk")},
            **_since(passes, begin),
            "computing_us": [ns / 1000 for ns in passes["computing_ns"]],
        },
        "waits": _since(waits, begin),
    }


def _since(rows: pl.DataFrame, begin: int) -> dict[str, list[float]]:
    return {f"{name}_us": [(ns - begin) / 1000 for ns in rows[f"{name}_ns"]] for name in ("start", "end")}


def _passes(rows: pl.DataFrame, chunks: int) -> pl.DataFrame:
    """Compute kernels that follow each other in one direction for one micro-batch, as one pass; recomputation belongs
    to backward. Where the stage holds several chunks, a micro-batch's passes are those of its chunks in turn, the last
    chunk first in backward."""
    known = rows.filter(
        (pl.col("kind") == "compute") & pl.col("micro_batch").is_not_null() & (pl.col("pass") != "none")
    )
    backward = pl.col("pass").cast(pl.String) != "forward"
    turns = known.sort("start_ns").with_columns(backward=backward)
    new = pl.struct("backward", "micro_batch").rle_id()
    found = turns.group_by(turn=new, maintain_order=True).agg(
        pl.col("backward", "micro_batch", "start_ns").first(),
        pl.col("end_ns").max(),
        computing_ns=pl.col("duration_ns").sum(),
    )
    at = pl.int_range(pl.len()).over("backward", "micro_batch")
    agree = (pl.len().over("backward", "micro_batch") == chunks).all() & pl.lit(chunks > 1)
    chunk = pl.when("backward").then(chunks - 1 - at).otherwise(at)
    way = pl.when("backward").then(pl.lit("backward")).otherwise(pl.lit("forward"))
    return found.with_columns(chunk=pl.when(agree).then(chunk), **{"pass": way})


def _waits(transfers: pl.DataFrame, compute: pl.DataFrame, least_ns: int) -> pl.DataFrame:
    """When the stage stands in a transfer that moves no byte yet, and nothing computes."""
    still = (pl.col("elapse_ns") - pl.col("transit_ns")).clip(lower_bound=0)
    waiting = transfers.select("start_ns", end_ns=pl.col("start_ns") + pl.coalesce(still, "wait_ns"))
    inside = spans.merged(waiting.filter(pl.col("end_ns") > pl.col("start_ns")))
    if inside.is_empty():
        return inside
    # Idle within the waits: what neither compute nor the time outside them covers.
    first, last = inside["start_ns"][0], inside["end_ns"][-1]
    around = pl.DataFrame({"start_ns": [first - 1, last], "end_ns": [first, last + 1]}, schema=inside.schema)
    busy = compute.select("start_ns", "end_ns").filter((pl.col("end_ns") > first) & (pl.col("start_ns") < last))
    idle = spans.gaps(pl.concat([spans.gaps(inside), around, busy.cast(inside.schema)]))
    return idle.filter((pl.col("end_ns") - pl.col("start_ns") >= max(least_ns, 1)) & (pl.col("end_ns") <= last))


Visit = tuple[str, int, int]
"""(direction, micro-batch, chunk) of a pass through a stage."""


def ideal_end_us(stages: Sequence[Mapping[str, Any]]) -> float | None:
    """When the last pass of all stages would end, counted from the first, if transfers took no time: each stage makes
    the passes it made, as long as they were and in the same order, each as soon as its input is there.

    `stages`: `passes` of a schedule for every stage, in order. None where a pass is there twice, or waits for one that
    is not there.
    """
    orders = [_visits(passes) for passes in stages]
    chunks = 1 + max((visit[2] for order in orders for visit, _length in order), default=-1)
    done: dict[tuple[int, Visit], float] = {}
    at, clock = [0] * len(orders), [0.0] * len(orders)
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                visit, length = order[at[stage]]
                before = _input_of(stage, visit, len(orders), chunks)
                if (stage, visit) in done or (before is not None and before not in done):
                    break
                clock[stage] = max(clock[stage], done[before] if before is not None else 0.0) + length
                done[stage, visit] = clock[stage]
                at[stage] += 1
                moved = True
        if not moved:
            return None
    return max(clock, default=0.0) or None


def slip_us(stages: Sequence[Mapping[str, Any]], begins_us: Sequence[float]) -> float:
    """By how much a pass begins before the pass it needs has ended, at most: by so much the clocks of the stages' hosts
    differ, or more. 0 where all come in order. `begins_us`: where each stage's step begins on one axis."""
    chunks = 1 + max((chunk or 0 for passes in stages for chunk in passes["chunk"]), default=0)
    spans_: dict[tuple[int, Visit], tuple[float, float]] = {}
    for stage, (passes, begin) in enumerate(zip(stages, begins_us, strict=True)):
        keys = ("pass", "micro_batch", "chunk", "start_us", "end_us")
        for way, batch, chunk, start, end in zip(*(passes[key] for key in keys), strict=True):
            spans_.setdefault((stage, (way, batch, chunk or 0)), (begin + start, begin + end))
    early = [
        spans_[before][1] - start
        for (stage, visit), (start, _end) in spans_.items()
        if (before := _input_of(stage, visit, len(stages), chunks)) in spans_
    ]
    return max(0.0, *early) if early else 0.0


def _visits(passes: Mapping[str, Any]) -> list[tuple[Visit, float]]:
    keys = ("pass", "micro_batch", "chunk", "start_us", "end_us")
    rows = zip(*(passes[key] for key in keys), strict=True)
    return [((way, batch, chunk or 0), end - start) for way, batch, chunk, start, end in rows]


def _input_of(stage: int, visit: Visit, stages: int, chunks: int) -> tuple[int, Visit] | None:
    """The pass whose output this one needs: of the stage before, or of the last stage's chunk before; in backward of
    the next, which begins with the loss behind the last chunk. None for the first."""
    way, batch, chunk = visit
    if way == "forward":
        if stage:
            return stage - 1, visit
        return (stages - 1, (way, batch, chunk - 1)) if chunk else None
    if stage < stages - 1:
        return stage + 1, visit
    return (0, (way, batch, chunk + 1)) if chunk < chunks - 1 else (stage, ("forward", batch, chunk))
