"""What fixing things would win. Findings that save the same time are not added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis.entries import (
    Json,
    bubble_us,
    capture_step_time_us,
    exposed_us,
    free_us,
    judged_steps,
    mean,
    number,
    rows,
    step_count,
)
from analysis.entries import slowest as slowest_rank

KERNEL_MARKS = ("dtype_cast", "fused_attention", "attention_mask", "constant_work", "ai_cpu", "affinity")
"""Findings whose kernels are marked in facts["recovery"]: savings are unioned kernel by kernel."""
_FREE = ("graph_sink", "synchronize", "memory_alloc", "garbage_collection", "data_wait", "op_compile")
_TALK = ("exposed_communication", "slow_rank", "small_packets", "fused_collectives")
_BUBBLE = ("pipeline_bubble", "stage_imbalance")
_LEAST = 1e-4
"""Share of the step below which a saving is nothing to fix first: the finding alone tells of it."""


@dataclass(frozen=True)
class Saving:
    """One thing to fix. `us` is per step."""

    id: str
    source: str  # "checklist" or "finding"
    us: float
    summary: str
    summary_zh: str


def fix_first(ranks: Sequence[Json], checklist: Json, findings: Sequence[Json]) -> Json:
    """What to fix, largest saving first, with step time and MFU after it and all before it are fixed.

    Only checklist items that did not pass, and findings, with a known saving of 0.01 % of the step or more are ranked.
    `combined_us` counts shared
    time once, so the last one is the saving of everything together.
    """
    step = capture_step_time_us(ranks)
    entry = slowest_rank(ranks)
    mfu = number(entry, "flops", "mfu") if entry else None
    worth = [saving for saving in _savings(checklist, findings) if saving.us >= _LEAST * (step or 0.0)]
    savings = sorted(worth, key=lambda saving: -saving.us)
    items: list[Json] = []
    for index, saving in enumerate(savings):
        combined = union_us(ranks, savings[: index + 1])
        alone, together = _after(step, mfu, saving.us), _after(step, mfu, combined)
        items.append(
            {
                "id": saving.id,
                "source": saving.source,
                "summary": saving.summary,
                "summary_zh": saving.summary_zh,
                "recoverable_us": round(saving.us, 3),
                "mfu_after": alone[1],
                "combined_us": round(combined, 3),
                "combined_step_time_us": together[0],
                "combined_mfu_after": together[1],
            }
        )
    last = items[-1] if items else {}
    return {
        "step_time_us": step,
        "mfu": mfu,
        "items": items,
        "recoverable_us": last.get("combined_us", 0.0),
        "mfu_after": last.get("combined_mfu_after", mfu),
    }


def _savings(checklist: Json, findings: Sequence[Json]) -> list[Saving]:
    failed = [item for item in rows(checklist, "items") if item.get("status") != "pass"]
    named = [(item, "checklist") for item in failed] + [(finding, "finding") for finding in findings]
    return [
        Saving(str(row["id"]), source, us, str(row["summary"]), str(row.get("summary_zh") or row["summary"]))
        for row, source in named
        if (us := number(row, "recoverable_us")) is not None and us > 0
    ]


def _after(step: float | None, mfu: float | None, saved: float) -> tuple[float | None, float | None]:
    """Step time and MFU once `saved` us are gone; null where that leaves nothing or passes the peak."""
    if step is None or saved >= step:
        return None, None
    better = mfu * step / (step - saved) if mfu is not None else None
    return round(step - saved, 3), better if better is None or better <= 1 else None


def union_us(ranks: Sequence[Json], savings: Sequence[Saving]) -> float:
    """Time per step that all these savings together win.

    Kernel savings are unioned over the kernels they share. Free time, exposed communication and the pipeline's bubble
    are disjoint from kernels and from each other; inside each of them causes cannot be told apart, so only the largest
    counts, and no more than there is.
    """
    sums = {saving.id: saving.us for saving in savings}
    total = _kernel_union(ranks, {name: us for name, us in sums.items() if name in KERNEL_MARKS})
    for names, available in ((_FREE, free_us(ranks)), *_waits(ranks)):
        largest = max((us for name, us in sums.items() if name in names), default=0.0)
        total += min(largest, available) if available is not None else largest
    known = (*KERNEL_MARKS, *_FREE, *_TALK, *_BUBBLE)
    return total + max((us for name, us in sums.items() if name not in known), default=0.0)


def _mean(ranks: Sequence[Json], part: Callable[[Json], float | None]) -> float | None:
    return mean(part(step) for entry in ranks for step in judged_steps(entry))


def _waits(ranks: Sequence[Json]) -> list[tuple[tuple[str, ...], float | None]]:
    """Findings with what there is of the time that they share; without a measured bubble all is communication."""
    exposed, bubble = _mean(ranks, exposed_us), _mean(ranks, bubble_us)
    return [(_TALK, exposed), (_BUBBLE, bubble)] if bubble else [((*_TALK, *_BUBBLE), exposed)]


def _kernel_union(ranks: Sequence[Json], sums: dict[str, float]) -> float:
    """Each combination of marks counts once, with the largest part of it that one of its savings wins."""
    combos = [
        (set(row.get("marks") or ()), (number(row, "us") or 0.0) / step_count(entry))
        for entry in ranks
        for row in rows(entry, "facts", "recovery")
    ]
    with_facts = sum(bool(rows(entry, "facts", "recovery")) for entry in ranks) or 1
    marked = {name: sum(us for marks, us in combos if name in marks) / with_facts for name in sums}
    weights = {name: min(1.0, us / marked[name]) for name, us in sums.items() if marked[name]}
    union = sum(us * max((weights[name] for name in marks if name in weights), default=0.0) for marks, us in combos)
    return union / with_facts + sum(us for name, us in sums.items() if not marked[name])
