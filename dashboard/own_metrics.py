"""Figures of the server itself for Prometheus: what waits, how digests and notices go, what is stored.

All are read from PostgreSQL and the broker when they are asked for, by a few indexes: so they are the same from every
web process and host, and survive a restart. Rates are of the last hour.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from datetime import timedelta

from django.conf import settings
from django.db.models import Aggregate, Count, DurationField, ExpressionWrapper, F, Min, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dashboard.alerts.models import Alert, AlertState, Delivery
from dashboard.ingest import queue
from dashboard.ingest.models import Blob
from dashboard.runs.models import Capture, Dump, DumpState

LOOPBACK = ("127.0.0.1", "::1")
PASSED_ON = ("X-Forwarded-For", "X-Forwarded-Proto", "X-Real-Ip", "Forwarded", "Via")
REFUSED = "set STEPSCOPE_METRICS_TOKEN and send it as `Authorization: Bearer`\n"
WINDOW = timedelta(hours=1)
SHARES = (0.5, 0.95, 1.0)
UNDERWAY = (DumpState.RECEIVING, DumpState.UPLOADED, DumpState.DIGESTING, DumpState.FAILED)
WAITING = (DumpState.UPLOADED, DumpState.DIGESTING)


@never_cache
@require_GET
def metrics(request: HttpRequest) -> HttpResponse:
    """The figures as text, for whoever has the token, or for this machine itself where the operator says so."""
    if not _may_read(request):
        return HttpResponse(REFUSED, "text/plain", status=403)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _may_read(request: HttpRequest) -> bool:
    if settings.METRICS_TOKEN:
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(text.strip().encode(), settings.METRICS_TOKEN.encode())
    # A proxy on this machine makes everyone local, and need not say that it is one: so this is off by default.
    passed_on = settings.BEHIND_PROXY or any(name in request.headers for name in PASSED_ON)
    return settings.METRICS_LOCAL and not passed_on and request.META.get("REMOTE_ADDR") in LOOPBACK


class Percentile(Aggregate):
    """The values below which these shares of the rows lie."""

    function = "PERCENTILE_CONT"
    template = "%(function)s(ARRAY[0.5, 0.95, 1.0]) WITHIN GROUP (ORDER BY EXTRACT(EPOCH FROM %(expressions)s))"


class Figures(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from _queues()
        yield from _dumps()
        yield from _digests()
        yield from _bytes()
        yield from _alerts()


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """One figure; one that is not known is left out, never 0."""
    found = GaugeMetricFamily(f"stepscope_{name}", text)
    if value is not None:
        found.add_metric([], value)
    return found


def _by(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    found = GaugeMetricFamily(f"stepscope_{name}", text, labels=[label])
    for key, value in values:
        found.add_metric([key], value)
    return found


def _queues() -> Iterator[GaugeMetricFamily]:
    known = [(name, queue.waiting(name)) for name in ("celery", "digest")]
    told = [(name, value) for name, value in known if value is not None]
    yield _by("queue_length", "Tasks that no worker has taken yet.", "queue", told)


def _dumps() -> Iterator[GaugeMetricFamily]:
    counts = dict(Dump.objects.exclude(state=DumpState.DIGESTED).order_by().values_list("state").annotate(Count("id")))
    yield _by("dumps", "Dumps by state; digested ones are not counted.", "state",
              [(state.value, counts.get(state.value, 0)) for state in UNDERWAY])  # fmt: skip
    waiting = Dump.objects.exclude(state=DumpState.DIGESTED).filter(state__in=WAITING)
    oldest = waiting.aggregate(at=Min("uploaded_at"))["at"]
    age = (timezone.now() - oldest).total_seconds() if oldest else 0.0
    yield _gauge(
        "oldest_unprocessed_seconds", "Age of the oldest dump that waits for its analysis; 0: none waits.", age
    )
    yield _gauge("rollups_due", "Captures that wait to be summed up.", Capture.objects.filter(rollup_due=True).count())


def _digests() -> Iterator[GaugeMetricFamily]:
    took = ExpressionWrapper(F("digested_at") - F("claimed_at"), output_field=DurationField())
    done = Dump.objects.filter(digested_at__gte=timezone.now() - WINDOW).order_by()
    found = done.aggregate(count=Count("digested_at"), took=Percentile(took))
    yield _gauge("digested_last_hour", "Dumps analysed in the last hour.", found["count"])
    shares = zip(SHARES, found["took"] or (), strict=False)
    values = [(str(share), float(value)) for share, value in shares if value is not None]
    yield _by("digest_seconds", "What analyses of the last hour took, by quantile.", "quantile", values)


def _bytes() -> Iterator[GaugeMetricFamily]:
    stored = Blob.objects.aggregate(size=Sum("size", default=0))["size"]
    since = timezone.now() - WINDOW
    taken = Blob.objects.filter(created__gte=since).aggregate(size=Sum("size", default=0))["size"]
    yield _gauge("stored_bytes", "Bytes of sent files that are kept.", stored)
    yield _gauge("received_bytes_last_hour", "Bytes of files that arrived whole in the last hour.", taken)


def _alerts() -> Iterator[GaugeMetricFamily]:
    since = timezone.now() - WINDOW
    yield _gauge("alerts_open", "Alerts nobody has answered.", Alert.objects.filter(state=AlertState.OPEN).count())
    sent = Delivery.objects.filter(sent__gte=since, is_test=False, quiet=False).count()
    yield _gauge("notices_sent_last_hour", "Notices taken by their receivers in the last hour.", sent)
    waiting = Delivery.objects.filter(sent=None, gave_up=False).count()
    yield _gauge("notices_waiting", "Notices not sent yet, or tried and not taken yet.", waiting)
    lost = Delivery.objects.filter(gave_up=True, is_test=False, created__gte=timezone.now() - timedelta(days=1)).count()
    yield _gauge("notices_given_up_last_day", "Notices of the last day that no receiver took.", lost)
