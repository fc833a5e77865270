"""The Celery application. State lives in PostgreSQL; the broker only carries ids."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_init

from dashboard.warm import freeze

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

app = Celery("stepscope")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_init.connect
def _freeze(**_: Any) -> None:
    """After the tasks are imported and before the pool is forked, which then shares these pages with its parent."""
    freeze()
