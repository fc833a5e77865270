"""What keeps a dump from being forgotten: dead workers show by their heartbeat, lost messages by a short queue."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.ingest import queue
from dashboard.runs.models import Capture, Dump, DumpState

logger = logging.getLogger(__name__)

DIGEST = "dashboard.ingest.tasks.digest_dump"
MOST_AT_ONCE = 1_000


def silent(field: str, age: timedelta) -> Q:
    """Rows whose last sign, the time in `field`, is older than `age`. By the database's clock, since those of hosts
    differ; a sign from a time yet to come was left by a clock that has been set back, and is one of nobody."""
    return Q(**{f"{field}__lt": Now() - age}) | Q(**{f"{field}__gt": Now() + age})


def release_dead(age: timedelta) -> int:
    """Dumps whose worker gave no sign for `age` wait again, or fail after the attempts that are allowed."""
    dead = Dump.objects.filter(silent("heartbeat", age), state=DumpState.DIGESTING)
    return sum(_release(dump, age) for dump in dead.only("attempts", "claimed_at", "capture_id", "error"))


def _release(dump: Dump, age: timedelta) -> bool:
    mine = Dump.objects.filter(pk=dump.pk, state=DumpState.DIGESTING, claimed_at=dump.claimed_at)
    same = mine.filter(silent("heartbeat", age))
    if dump.attempts < settings.DIGEST_ATTEMPTS:
        if same.update(state=DumpState.UPLOADED, uploaded_at=timezone.now(), progress=0):
            logger.warning("the worker of dump %s is gone; attempt %s follows", dump.pk, dump.attempts + 1)
            queue.send_now(DIGEST, dump.pk)
            return True
        return False
    with transaction.atomic():
        reason = f"given up after {dump.attempts} attempts: {dump.error or 'the worker ended while it was digested'}"
        if same.update(state=DumpState.FAILED, error=reason):
            Capture.objects.filter(pk=dump.capture_id).update(rollup_due=True)
    return False


def send_lost(age: timedelta) -> int:
    """Send dumps that wait longer than `age` again when the queue is shorter than they are many: messages were lost.

    As many as are missing, those that wait longest first. A few of them may be in a worker's hands.
    """
    waiting = Dump.objects.filter(silent("uploaded_at", age), state=DumpState.UPLOADED)
    count, queued = waiting.count(), queue.waiting()
    if not count or queued is None or queued >= count:
        return 0
    longest = waiting.order_by("uploaded_at").values_list("pk", flat=True)
    return sum(queue.send_now(DIGEST, pk) for pk in longest[: min(count - queued, MOST_AT_ONCE)])
