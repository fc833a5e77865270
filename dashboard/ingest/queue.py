"""Sending work to the queue. Only ids travel, and only after the transaction that made the work is committed."""

from __future__ import annotations

import logging

from django.db import transaction

logger = logging.getLogger(__name__)


def send(task: str, *ids: int) -> None:
    """Send the task once the transaction is committed. A broker that is away costs a delay: sweeps read PostgreSQL."""
    transaction.on_commit(lambda: send_now(task, *ids), robust=True)


def send_now(task: str, *ids: int) -> bool:
    from dashboard.celery import app

    try:
        app.send_task(task, args=ids, retry=False)
    except Exception as error:  # kombu and redis raise a dozen kinds; none may undo what is committed
        logger.warning("%s %s is not queued, the sweep will: %s", task, ids, error)
        return False
    return True


def waiting(name: str = "digest") -> int | None:
    """Messages in a queue that no worker has taken; None when the broker does not answer."""
    from dashboard.celery import app

    try:
        with app.connection_for_read() as connection:
            return int(connection.default_channel.client.llen(name))  # type: ignore[attr-defined]
    except Exception as error:
        logger.warning("the broker does not say how many tasks wait: %s", error)
        return None
