"""The run of a project whose loss and gradient norm the others are held against."""

from __future__ import annotations

from django.db import transaction

from dashboard.accounts.models import Project
from dashboard.runs.models import Capture, CaptureState, Run

JUDGED_ANEW = 50


class Taken(Exception):
    """Another run, of this key, is the project's reference."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def name(run: Run, *, replace: bool) -> None:
    """Make `run` the project's reference. Raises Taken when another is, unless it may be replaced."""
    with transaction.atomic():
        runs = Run.objects.filter(project=run.project_id)
        Project.objects.select_for_update().get(pk=run.project_id)
        other = runs.filter(is_reference=True).exclude(pk=run.pk).first()
        if other is not None and not replace:
            raise Taken(other.key)
        runs.filter(is_reference=True).exclude(pk=run.pk).update(is_reference=False)
        runs.filter(pk=run.pk).update(is_reference=True)
    judge_anew(run)


def drop(run: Run) -> None:
    """Leave the project without a reference, if `run` was it."""
    if Run.objects.filter(pk=run.pk, is_reference=True).update(is_reference=False):
        judge_anew(run)


def judge_anew(reference: Run) -> None:
    """Have the newest capture of the latest other runs rolled up again, by the sweep; older ones keep what was said."""
    latest = Run.objects.filter(project=reference.project_id, last_capture_at__isnull=False).exclude(pk=reference.pk)
    runs = list(latest.order_by("-last_capture_at").values_list("pk", flat=True)[:JUDGED_ANEW])
    ready = Capture.objects.filter(run__in=runs, state=CaptureState.READY)
    newest = ready.order_by("run", "-captured_at", "-id").distinct("run").values("pk")
    Capture.objects.filter(pk__in=list(newest.values_list("pk", flat=True))).update(rollup_due=True)
