"""Step records of training log and callback: stored in bulk, known values never lost to unknown ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import connection, transaction

from dashboard.runs.models import Run

LARGEST = 1e300
"""Numbers beyond it are no measurements, and a mean of a few of them is out of PostgreSQL's range: taken as unknown."""
LONGEST_MS = 1e11
VALUES = ("loss", "lr", "global_norm", "step_time_ns", "tflops_per_device", "loss_scale", "overflow")
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
    """
