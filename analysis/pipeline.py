"""The pipeline's bubble of a rank: how long it stands in transfers between stages while no byte moves and nothing
computes.

The profiler counts kernels that receive, the bytes' own time included, and nothing where one operation sends and
receives. A transfer first waits for its peer, then moves its bytes, so the wait is its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from analysis import spans
from analysis.spans import Islands


@dataclass(frozen=True)
class Bubbles:
    """What the transfers of a rank tell. `waits`: step -> ns of bubble; `inside`: step -> ns in transfers at all.
    `untold`: steps with transfers of which it is not known when they began, or neither how long they waited nor how
    long their bytes moved. `source`: the file."""

    waits: Mapping[str | None, int] = field(default_factory=dict)
    inside: Mapping[str | None, int] = field(default_factory=dict)
    untold: frozenset[str | None] = frozenset()
    source: str = ""


def bubbles(communication: pl.DataFrame | None, kernels: pl.DataFrame | None, source: str) -> Bubbles:
    """The bubble of each step with transfers between stages. Waits beside each other count once, and only where no
    compute kernel runs beside them."""
    if communication is None:
        return Bubbles()
    still = (pl.col("elapse_ns") - pl.col("transit_ns")).clip(lower_bound=0)
    transfers = communication.filter(pl.col("type") == "p2p").select(
        "step",
        "start_ns",
        end_ns=pl.col("start_ns") + pl.coalesce(still, "wait_ns"),
        left_ns=pl.col("start_ns") + pl.coalesce("elapse_ns", "wait_ns"),
    )
    untold = frozenset(transfers.filter(pl.col("end_ns").is_null())["step"].to_list())
    known = transfers.filter(~pl.col("step").is_in([*untold], nulls_equal=True))
    busy = _busy(kernels) if known.height else None  # sorting a million kernels takes its time
    waits: dict[str | None, int] = {}
    inside: dict[str | None, int] = {}
    for (step,), rows in known.group_by("step"):
        if step is None or isinstance(step, str):
            waits[step] = _idle_ns(rows, busy)
            inside[step] = spans.covered_ns(rows.select("start_ns", end_ns="left_ns"))
    return Bubbles(waits, inside, untold, source)


def _busy(kernels: pl.DataFrame | None) -> Islands | None:
    """When compute kernels run; None where that is not known."""
    if kernels is None:
        return None
    return spans.islands(spans.with_end(kernels.filter(pl.col("kind") == "compute").select("start_ns", "duration_ns")))


def _idle_ns(transfers: pl.DataFrame, busy: Islands | None) -> int:
    own = spans.islands(transfers)
    hidden = 0 if busy is None else int(busy.within(own.starts, own.ends).sum())
    return own.total - hidden
