"""Background work of alerts. Tasks carry ids; what is due stands in PostgreSQL, so a lost message is only late."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from dashboard.alerts.evaluate import evaluate
from dashboard.alerts.models import Delivery, WeeklyDigest
from dashboard.alerts.notices import deliver, queue_weekly
from dashboard.runs.models import Capture

SEND_SECONDS = 90


@shared_task
def evaluate_capture(capture_id: int) -> None:
    """Raise alerts for a capture that has just been rolled up."""
    capture = Capture.objects.select_related("run__project").filter(pk=capture_id).first()
    if capture is not None:
        evaluate(capture, deliver_notice.delay)


@shared_task(time_limit=SEND_SECONDS)
def deliver_notice(delivery_id: int) -> None:
    deliver(delivery_id)


@shared_task
def deliver_due_notices() -> None:
    """Send what is due and not on its way: first tries whose message was lost, and later tries."""
    due = Delivery.objects.filter(sent=None, gave_up=False, due__lte=timezone.now())
    for delivery_id in due.order_by("due").values_list("pk", flat=True)[:500]:
        deliver_notice.delay(delivery_id)


@shared_task
def queue_weekly_digests() -> None:
    """Make the deliveries of weeks that have ended. What the clock missed is made up for when it runs again."""
    due = WeeklyDigest.objects.filter(due__lte=timezone.now(), channel__active=True)
    for channel_id in due.values_list("pk", flat=True):
        queue_weekly(channel_id, deliver_notice.delay)


@shared_task
def forget_old_deliveries() -> None:
    """Keep the delivery log as long as the operator wants it. What is still to be sent stays."""
    old = timezone.now() - timedelta(days=settings.KEEP_DELIVERIES_DAYS)
    ended = Delivery.objects.exclude(sent=None, gave_up=False)
    ended.filter(created__lt=old).delete()
