"""An agent's word of itself, taken in."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count
from django.utils import timezone

from dashboard.accounts.models import Project
from dashboard.hosts import requests
from dashboard.hosts.models import Agent, AgentRun, CaptureRequest, silent_since
from dashboard.hosts.schemas import HeartbeatIn
from dashboard.runs.models import Run

BUSY_SECONDS = 5
"""How soon an agent that has a capture to make should be back."""


def heard(project: Project, body: HeartbeatIn) -> dict[str, Any]:
    """Note what the agent tells; the answer to it."""
    with transaction.atomic():
        agent = _note(project, body)
        _note_runs(agent, body)
    waiting = requests.open_requests(agent)
    every = settings.HEARTBEAT_SECONDS
    return {
        "every_s": min(every, BUSY_SECONDS) if waiting else every,
        "requests": _rows(waiting),
    }


def _note(project: Project, body: HeartbeatIn) -> Agent:
    told = {
        "host": body.host,
        "version": body.version or "",
        "npus": [npu.model_dump(exclude_none=True) for npu in body.npus],
        "driver": body.driver or "",
        "spool": body.spool,
        "trouble": body.trouble or "",
        "last_seen": timezone.now(),
    }
    agent, _ = Agent.objects.update_or_create(project=project, uid=body.agent, defaults=told)
    return agent


def _note_runs(agent: Agent, body: HeartbeatIn) -> None:
    now = timezone.now()
    told = {run.key: run for run in body.runs}
    known = Run.objects.filter(project=agent.project_id, key__in=told).order_by("pk").values_list("pk", "key")
    rows = [
        AgentRun(agent=agent, run_id=pk, step=told[key].step, via=told[key].via or "", first_seen=now, last_seen=now)
        for pk, key in known
    ]
    AgentRun.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["agent", "run"], update_fields=["step", "via", "last_seen"]
    )
    AgentRun.objects.filter(agent=agent).exclude(run__in=[row.run_id for row in rows]).delete()


def _rows(waiting: list[CaptureRequest]) -> list[dict[str, Any]]:
    since = silent_since()
    counts = dict(
        AgentRun.objects.filter(run__in=[one.run_id for one in waiting], last_seen__gte=since)
        .values_list("run")
        .annotate(Count("id"))
    )
    return [requests.as_json(one, counts.get(one.run_id, 1)) for one in waiting]
