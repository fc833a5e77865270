"""What the server tells Prometheus of itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from dashboard.alerts.models import Alert, Channel, Delivery
from dashboard.ingest.models import Blob
from dashboard.runs.models import Capture, DumpState
from tests.factories import make_capture, make_dump, make_project, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def read_here(settings: Any) -> None:
    settings.METRICS_LOCAL = True


def figures(**headers: str) -> dict[tuple[str, str], float]:
    """(name, label) -> value."""
    answer = Client().get("/metrics", headers=headers)
    assert answer.status_code == 200 and answer["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.content.decode())
    return {
        (sample.name.removeprefix("stepscope_"), next(iter(sample.labels.values()), "")): sample.value
        for family in families
        for sample in family.samples
    }


def test_dumps_are_told_by_state_with_the_age_of_the_oldest_that_waits():
    capture = make_capture(make_run())
    now = timezone.now()
    for rank, (state, minutes) in enumerate([("uploaded", 10), ("uploaded", 30), ("failed", 90), ("digested", 99)]):
        make_dump(capture, rank=rank, state=DumpState(state), uploaded_at=now - timedelta(minutes=minutes))
    Capture.objects.update(rollup_due=True)
    found = figures()
    counts = [found["dumps", state] for state in ("receiving", "uploaded", "digesting", "failed")]
    assert (counts, found["rollups_due", ""]) == ([0, 2, 0, 1], 1)
    assert 1800 <= found["oldest_unprocessed_seconds", ""] < 1900


def test_digests_of_the_last_hour_are_told_by_what_they_took():
    capture, now = make_capture(make_run()), timezone.now()
    for rank, (seconds, ago) in enumerate([(1, 5), (2, 10), (3, 20), (500, 70)]):
        ended = now - timedelta(minutes=ago)
        begun = ended - timedelta(seconds=seconds)
        make_dump(capture, rank=rank, state=DumpState.DIGESTED, claimed_at=begun, digested_at=ended)
    found = figures()
    assert (found["digested_last_hour", ""], found["digest_seconds", "0.5"], found["digest_seconds", "1.0"]) == (
        3,
        2,
        3,
    )


def test_what_is_not_known_is_left_out(settings: Any):
    found = figures()
    assert found["digested_last_hour", ""] == 0 and ("digest_seconds", "0.5") not in found
    assert found["oldest_unprocessed_seconds", ""] == 0


def test_bytes_alerts_and_notices():
    project, now = make_project(), timezone.now()
    for letter, size in ("a", 100), ("b", 7):
        Blob.objects.create(project=project, sha256=letter * 64, size=size)
    Blob.objects.filter(sha256="a" * 64).update(created=now - timedelta(hours=2))
    capture = make_capture(make_run(project))
    Alert.objects.create(project=project, capture=capture, metric="mfu")
    Alert.objects.create(project=project, capture=capture, metric="hfu", state="expected")
    channel = Channel.objects.create(project=project, name="hook", url="jsons://hooks.example.com/x")
    states = ({"sent": now}, {"sent": now - timedelta(hours=2)}, {}, {"gave_up": True}, {"sent": now, "is_test": True})
    for fields in states:
        Delivery.objects.create(channel=channel, **fields)
    found = figures()
    assert (found["stored_bytes", ""], found["received_bytes_last_hour", ""]) == (107, 7)
    assert found["alerts_open", ""] == 1
    names = ("notices_sent_last_hour", "notices_waiting", "notices_given_up_last_day")
    assert [found[name, ""] for name in names] == [1, 1, 1]


def test_without_a_token_nobody_reads_them_by_default(settings: Any):
    settings.METRICS_LOCAL = False
    answer = Client().get("/metrics")
    assert answer.status_code == 403 and b"STEPSCOPE_METRICS_TOKEN" in answer.content


def test_this_machine_reads_them_where_that_is_set_and_nobody_through_a_proxy(settings: Any):
    assert Client().get("/metrics").status_code == 200
    for header in ("x-forwarded-for", "x-forwarded-proto", "x-real-ip", "forwarded", "via"):
        assert Client().get("/metrics", headers={header: "10.0.0.9"}).status_code == 403
    assert Client(REMOTE_ADDR="10.0.0.9").get("/metrics").status_code == 403
    settings.BEHIND_PROXY = True
    assert Client().get("/metrics").status_code == 403


def test_with_a_token_it_alone_counts(settings: Any):
    settings.METRICS_TOKEN = "m" * 32
    assert Client().get("/metrics").status_code == 403
    for text in ("Bearer wrong", f"Basic {'m' * 32}", "Bearer", "Bearer \u00fc"):
        assert Client().get("/metrics", headers={"authorization": text}).status_code == 403
    settings.BEHIND_PROXY = True
    elsewhere = Client(REMOTE_ADDR="10.0.0.9", headers={"authorization": f"Bearer {'m' * 32}"})
    assert elsewhere.get("/metrics").status_code == 200


def test_a_look_costs_few_queries(django_assert_max_num_queries):
    with django_assert_max_num_queries(12):
        Client().get("/metrics")
