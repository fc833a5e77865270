"""Queue tasks: claim, delegate, record. What is to be done stands in PostgreSQL: a lost message costs a delay."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.db import DataError
from django.db.models import F
from django.utils import timezone

from dashboard.ingest import archives, queue, retention, sweeps
from dashboard.ingest.child import ClaimLost, DigestFailed
from dashboard.ingest.digest import digest, mark_failed
from dashboard.runs import rollup
from dashboard.runs.models import Capture, Dump, DumpState

logger = logging.getLogger(__name__)

ROLLUP = "dashboard.ingest.tasks.rollup_capture"
EVALUATE = "dashboard.alerts.tasks.evaluate_capture"
"""Sent by name: alerts know of captures, captures know nothing of alerts."""


@shared_task
def digest_dump(dump_id: int) -> None:
    """Digest a dump that waits, if no other worker has it."""
    if not Dump.objects.claim(dump_id):
        return
    dump = Dump.objects.select_related("capture__run").get(pk=dump_id)
    try:
        digest(dump)
    except DigestFailed as error:
        mark_failed(dump, str(error))
    except DataError as error:  # trying again would not help
        logger.exception("what the analysis of dump %s found cannot be stored", dump_id)
        mark_failed(dump, f"what the analysis found cannot be stored: {str(error).splitlines()[0]}")
    except ClaimLost:
        logger.info("dump %s was taken back while it was digested", dump_id)
        return
    except OSError as error:  # a full disk, no fault of the dump: the sweep tries again for as long as it takes
        logger.exception("dump %s cannot be digested now", dump_id)
        mine = Dump.objects.filter(pk=dump_id, state=DumpState.DIGESTING, claimed_at=dump.claimed_at)
        mine.update(error=str(error), attempts=F("attempts") - 1)
        return
    waiting = Dump.objects.filter(capture=dump.capture_id, state__in=(DumpState.UPLOADED, DumpState.DIGESTING))
    if not waiting.exists() and rollup.is_worth_it(Capture.objects.defer("report").get(pk=dump.capture_id)):
        queue.send_now(ROLLUP, dump.capture_id)


@shared_task
def rollup_capture(capture_id: int) -> None:
    """Sum up a capture that is due, then let the alert rules look at it if it is complete."""
    if rollup.rollup(capture_id) is not None:
        send_to_judge([capture_id])


@shared_task
def rollup_due_captures() -> None:
    for capture_id in rollup.due_captures():
        rollup_capture(capture_id)
    send_to_judge(rollup.to_judge())


def send_to_judge(captures: Iterable[int]) -> None:
    """Have the alert rules look at those that may be judged now. A broker that is away is asked again by the clock."""
    for capture in Capture.objects.filter(pk__in=captures, judge_due__lte=timezone.now()).only("judge_due"):
        if queue.send_now(EVALUATE, capture.pk):
            Capture.objects.filter(pk=capture.pk, judge_due=capture.judge_due).update(judge_due=None)


@shared_task
def unpack_archive(archive_id: int) -> None:
    """Make dumps of an archive that waits, if no other worker has it."""
    archives.unpack(archive_id)


@shared_task
def sweep_stuck_dumps() -> None:
    """Put back what a dead worker held; send again what the broker lost."""
    sweeps.release_dead(timedelta(seconds=2 * settings.SWEEP_SECONDS))
    sweeps.send_lost(timedelta(seconds=settings.SWEEP_SECONDS))
    archives.release_dead(timedelta(minutes=2))


@shared_task
def sweep_old_uploads() -> None:
    """End what was never finished, remove what nothing refers to or is past its keep."""
    yesterday = timezone.now() - timedelta(days=1)
    retention.end_abandoned(yesterday)
    retention.remove_old()
    retention.remove_unlisted(yesterday)
    retention.remove_strays(yesterday)
