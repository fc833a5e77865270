"""What an older version wrote of notices and answers is still there after an upgrade."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

OLD = [("alerts", "0003_alerts_by_time")]


def newest():
    return MigrationExecutor(connection).loader.graph.leaf_nodes("alerts")


@pytest.fixture(autouse=True)
def left_as_it_was(transactional_db):
    yield
    migrate(newest())


def migrate(to):
    executor = MigrationExecutor(connection)
    others = [leaf for leaf in executor.loader.graph.leaf_nodes() if leaf[0] != "alerts"]
    executor.migrate(to)
    return MigrationExecutor(connection).loader.project_state([*others, *to]).apps


def test_the_log_of_notices_and_the_answers_to_alerts_are_kept():
    old = migrate(OLD)
    project = old.get_model("accounts", "Project").objects.create(slug="gpt", name="GPT")
    run = old.get_model("runs", "Run").objects.create(project=project, key="run", name="run")
    capture = old.get_model("runs", "Capture").objects.create(run=run, key="step-1")
    alerts = old.get_model("alerts", "Alert").objects
    alert = alerts.create(project=project, capture=capture, metric="mfu")
    at = datetime(2026, 10, 1, tzinfo=UTC)
    answered = alerts.create(
        project=project, capture=capture, metric="hfu", state="expected", note="CANN", decided_at=at
    )
    channel = old.get_model("alerts", "Channel").objects.create(project=project, name="hook", url="json://x")
    deliveries = old.get_model("alerts", "Delivery").objects
    told, test = deliveries.create(channel=channel, alert=alert), deliveries.create(channel=channel)

    apps = migrate(newest())
    decided = apps.get_model("alerts", "Decision").objects.values_list("alert", "state", "note", "created")
    assert list(decided) == [(answered.pk, "expected", "CANN", at)]
    new = apps.get_model("alerts", "Delivery").objects
    assert [one.pk for one in new.get(pk=told.pk).alerts.all()] == [alert.pk]
    assert (new.get(pk=told.pk).is_test, new.get(pk=test.pk).is_test) == (False, True)
