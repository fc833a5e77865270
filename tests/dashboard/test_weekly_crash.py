"""The weekly digest with real beat and workers, killed at the worst moment: each channel still gets its week."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dashboard.alert_data import Receiver, notice_server
from tests.live import LiveProduct, live, wait_for

pytestmark = pytest.mark.timeout(300)
SET_UP = "import json, sys, django; django.setup()\nfrom datetime import timedelta\nfrom django.utils import timezone\n"
PLAN = (
    SET_UP
    + """
from dashboard.accounts.models import Project
from dashboard.alerts.models import Channel, WeeklyDigest
channel = Channel.objects.create(project=Project.objects.get(slug="gpt"), name="lead", url=sys.argv[1])
due = timezone.now() - timedelta(days=int(sys.argv[2]))
WeeklyDigest.objects.create(channel=channel, enabled=True, even_quiet=True, due=due)
print(channel.pk)
"""
)
LOG = (
    SET_UP
    + """
from dashboard.alerts.models import Delivery
rows = Delivery.objects.filter(channel=sys.argv[1])
print(json.dumps([[row.attempts, row.sent is not None] for row in rows]))
"""
)
CLAIM_ENDS = (
    SET_UP
    + """
from dashboard.alerts.models import Delivery
Delivery.objects.filter(channel=sys.argv[1]).update(due=timezone.now())
"""
)


@pytest.fixture(scope="module")
def product() -> Iterator[LiveProduct]:
    with live(STEPSCOPE_SWEEP_SECONDS="1", STEPSCOPE_NOTICE_LOOPBACK_ALLOWED="1") as product:
        yield product


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with notice_server() as server:
        yield server


def log(product: LiveProduct, channel: str) -> Any:
    """Of each delivery to the channel, how often it was tried and whether it was sent."""
    return json.loads(product.python(LOG, channel))


def test_the_clock_and_the_workers_were_down_when_it_was_due(product: LiveProduct, receiver: Receiver) -> None:
    for part in ("beat", "worker"):
        product.kill(part)
    channel = product.python(PLAN, receiver.url, "20").strip()
    for part in ("worker", "beat"):
        product.start_part(part)
    wait_for(lambda: log(product, channel) == [[1, True]], "the digest in the log", 90)
    assert len(receiver.got) == 1 and receiver.got[0]["title"].startswith("GPT, week to ")
    product.kill("beat")  # it has to find its way from a schedule of its own again
    product.start_part("beat")
    second = product.python(PLAN, receiver.url, "1").strip()
    wait_for(lambda: log(product, second) == [[1, True]], "the digest of the second channel", 90)
    assert len(receiver.got) == 2 and len(log(product, channel)) == 1


def test_the_worker_is_killed_while_it_sends(product: LiveProduct, receiver: Receiver) -> None:
    receiver.answering.clear()
    channel = product.python(PLAN, receiver.url, "1").strip()
    wait_for(lambda: receiver.got, "the first try", 90)
    product.kill("worker")
    assert log(product, channel) == [[1, False]]
    receiver.answering.set()
    product.python(CLAIM_ENDS, channel)  # as two minutes later
    product.start_part("worker")
    wait_for(lambda: log(product, channel) == [[2, True]], "the second try", 120)
    assert len(receiver.got) == 2  # at least once: the first had arrived, nobody lived to write it down
