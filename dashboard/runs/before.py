"""The run before a run: the newest earlier one of the same project, model and cards."""

from __future__ import annotations

from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import JSONObject

from dashboard.runs.models import Run

COMPARABLE = ("project", "model_name", "world_size")
DENOMINATOR = ("peak_tflops", "peak_dtype", "flops_formula")
"""What MFU is held under: two of them are compared where all of these are the same."""
VALUES = ("step_time_ns", "mfu", "device_ratio", "cast_ratio", "exposed_communication_ratio", "peak_memory_bytes")


def with_before(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Runs that `run_before` can tell the one before of, without a further query."""
    same: dict[str, Any] = {name: OuterRef(name) for name in COMPARABLE}
    earlier = Run.objects.filter(archived=False, last_capture_at__isnull=False, **same).exclude(model_name="")
    earlier = earlier.filter(last_capture_at__lt=OuterRef("last_capture_at")).order_by("-last_capture_at", "-id")
    told = JSONObject(**{name: name for name in ("id", "name", *VALUES, *DENOMINATOR)})
    return runs.annotate(before=Subquery(earlier.values(told=told)[:1]))


def run_before(run: Any) -> Run | None:
    """The run before one of `with_before`, with its name and values alone; None where there is none."""
    return Run(**run.before) if run.before else None


def value_before(run: Run, before: Run, field: str) -> float | None:
    """The earlier run's value that this one's may be held against; None for an MFU under another denominator."""
    same = all(getattr(run, name) == getattr(before, name) for name in DENOMINATOR)
    value: float | None = getattr(before, field) if same or field != "mfu" else None
    return value
