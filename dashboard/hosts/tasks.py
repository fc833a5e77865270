from __future__ import annotations

from celery import shared_task

from dashboard.hosts import requests


@shared_task
def expire_requests() -> None:
    requests.expire()
