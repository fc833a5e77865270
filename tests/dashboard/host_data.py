"""Agents, cards that were slow and captures asked for, for tests that walk through all pages."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from dashboard.hosts.models import Agent, AgentRun, CaptureRequest, RequestState
from dashboard.runs.models import Dump, DumpState, Run
from tests.factories import make_capture, make_dump, make_user


def fill_hosts(run: Run, second: Run) -> None:
    """Two agents, one silent; a card slow in two runs and one in a single run; an open and two ended requests."""
    npus = [{"id": number, "chip": "910B3", "serial": f"S{number}", "health": "OK"} for number in range(8)]
    agent = Agent.objects.create(
        project=run.project, uid="a1", host="node01", version="0.1.0", driver="24.1.rc2", npus=npus, spool={"sent": 12}
    )
    AgentRun.objects.create(agent=agent, run=run, step=1200, via="callback")
    yesterday = timezone.now() - timedelta(days=1)
    alarm, trouble = [{**npus[0], "health": "Alarm"}], "cannot reach the server: connection refused"
    fields = {"uid": "a2", "host": "node02", "last_seen": yesterday, "npus": alarm, "trouble": trouble}
    Agent.objects.create(project=run.project, spool={"failed": 1, "waiting": 3}, **fields)
    for other, device, times in ((run, 3, 2), (second, 3, 2), (run, 5, 1)):
        for _ in range(times):
            capture = make_capture(other, captured_at=yesterday - timedelta(days=300))
            slow = {"slow": True, "slow_kind": "compute", "excess_ns": 42_000_000, "state": DumpState.DIGESTED}
            make_dump(capture, host="node01", device_id=device, **slow)
    person = make_user()
    asked = {"run": run, "asked_by": person, "agent": agent}
    reason = "step 40 has passed: the training is at 52"
    CaptureRequest.objects.create(
        **asked, state=RequestState.UPLOADED, first_step=100, capture=Dump.objects.all()[0].capture
    )
    CaptureRequest.objects.create(**asked, state=RequestState.FAILED, first_step=40, kind="steps", reason=reason)
    CaptureRequest.objects.create(**asked, state=RequestState.ACCEPTED, first_step=1300, ranks=[0, 8])
