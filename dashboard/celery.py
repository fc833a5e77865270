"""The Celery application. State lives in PostgreSQL; the broker only carries ids."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

app = Celery("stepscope")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
