"""Step records of training log and callback: stored in bulk, known values never lost to unknown ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import connection, transaction

from dashboard.runs.models import SUMMED_FIELDS, Run, StepSums

LARGEST = 1e300
"""Numbers beyond it are no measurements, and a mean of a few of them is out of PostgreSQL's range: taken as unknown."""
LONGEST_MS = 1e11
VALUES = ("loss", "lr", "global_norm", "step_time_ns", "tflops_per_device", "loss_scale", "overflow")
SUMS_LOCK = 5_090
"""First half of the keys of advisory locks on runs' sums, the second is the run."""
TYPES = ("float8", "float8", "float8", "bigint", "float8", "float8", "boolean")


def store_steps(run: Run, source: str, steps: Iterable[Mapping[str, Any]], *, update: bool = True) -> int:
    """Store records ({"step", "loss", "step_time_ms", ...}); the number of steps. A later record of a step updates it.

    With `update=False` values already known stay: the ranks of a capture each bring the same steps.
    """
    merged: dict[int, dict[str, Any]] = {}
    for step in steps:
        known = {key: value for key, value in step.items() if value is not None and _is_sane(key, value)}
        merged.setdefault(step["step"], {}).update(known)
    rows = [merged[number] for number in sorted(merged)]  # one order of locks for all writers
    if not rows:
        return 0
    for row in rows:
        time = row.pop("step_time_ms", None)
        row["step_time_ns"] = None if time is None else round(time * 1e6)
    columns = [[row.get(name) for row in rows] for name in VALUES]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_statement(update), [run.pk, source, [row["step"] for row in rows], *columns])
        if changed := {step // StepSums.STEPS for (step,) in cursor.fetchall()}:
            # One at a time: sums are taken over rows that another writer may have added to the same block.
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [SUMS_LOCK, run.pk % (1 << 31)])
            cursor.execute(SUMS, {"run": run.pk, "blocks": sorted(changed), "steps": StepSums.STEPS})
    return len(rows)


def _is_sane(key: str, value: Any) -> bool:
    if key == "step_time_ms":
        return bool(0 <= value <= LONGEST_MS)
    return not isinstance(value, float) or abs(value) <= LARGEST


def _statement(update: bool) -> str:
    columns = ", ".join(VALUES)
    arrays = ", ".join(f"%s::{kind}[]" for kind in TYPES)
    given, known = ("excluded", "runs_steprecord") if update else ("runs_steprecord", "excluded")
    merged = {name: f"coalesce({given}.{name}, {known}.{name})" for name in VALUES}
    assignments = ", ".join(f"{name} = {value}" for name, value in merged.items())
    changed = ", ".join(merged.values())
    current = ", ".join(f"runs_steprecord.{name}" for name in VALUES)
    return f"""
        INSERT INTO runs_steprecord (run_id, step, source, {columns})
        SELECT %s, step, %s, {columns} FROM unnest(%s::bigint[], {arrays}) AS given(step, {columns})
        ON CONFLICT (run_id, step) DO UPDATE SET source = excluded.source, {assignments}
        WHERE ({current}) IS DISTINCT FROM ({changed})
        RETURNING step
    """


def _sums_statement() -> str:
    names = [f"{name}_{kind}" for name in SUMMED_FIELDS for kind in ("sum", "count")]
    sums = ", ".join(f"sum({name}::float8), count({name})" for name in SUMMED_FIELDS)
    changes = ", ".join(f"{name} = excluded.{name}" for name in ("first_step", *names))
    return f"""
        INSERT INTO runs_stepsums (run_id, block, first_step, {", ".join(names)})
        SELECT run_id, block, min(step), {sums}
        FROM unnest(%(blocks)s::bigint[]) AS changed(block) JOIN runs_steprecord
            ON run_id = %(run)s AND step >= block * %(steps)s AND step < (block + 1) * %(steps)s
        GROUP BY run_id, block
        ON CONFLICT (run_id, block) DO UPDATE SET {changes}
    """


SUMS = _sums_statement()
