"""The life of a capture request: asked, handed out, reported on, linked to its capture, timed out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from dashboard.accounts.models import Project, User
from dashboard.hosts.models import OPEN_STATES, Agent, AgentRun, CaptureRequest, RequestState, silent_since
from dashboard.runs.models import Capture, Run

UNANSWERED = timedelta(minutes=15)
UNFINISHED = timedelta(hours=24)
"""A window may be asked for hours ahead, and analysing raw data takes its time."""
LEAD_SECONDS = 15
LEAD_SECONDS_OF_MANY = 60
"""How far ahead a window must begin. Other hosts hear of it a heartbeat later."""
ORDER = {state: place for place, state in enumerate(OPEN_STATES)}


def ask(run: Run, user: User, **wanted: Any) -> CaptureRequest | None:
    """A new request; None while another of the run is open."""
    try:
        with transaction.atomic():
            return CaptureRequest.objects.create(run=run, asked_by=user, **wanted)
    except IntegrityError:
        return None


def take_back(request: CaptureRequest, user: User) -> bool:
    """End an open request; its agent hears of it at the next heartbeat."""
    return end(request, RequestState.FAILED, f"taken back by {user.get_username()}")


def end(request: CaptureRequest, state: str, reason: str) -> bool:
    still_open = CaptureRequest.objects.filter(pk=request.pk, state__in=OPEN_STATES)
    return bool(still_open.update(state=state, reason=reason, ended=timezone.now()))


def live_agents(run: Run) -> list[AgentRun]:
    """Who has the run in hand now, the one that can make a capture first."""
    since = silent_since()
    rows = AgentRun.objects.filter(run=run, last_seen__gte=since, agent__last_seen__gte=since).select_related("agent")
    return sorted(rows, key=lambda row: (not row.via, row.agent.host))


def open_requests(agent: Agent) -> list[CaptureRequest]:
    """What an agent should be at: open requests of the runs it has in hand."""
    runs = AgentRun.objects.filter(agent=agent, last_seen__gte=silent_since()).values("run")
    return list(CaptureRequest.objects.filter(run__in=runs, state__in=OPEN_STATES).select_related("run").order_by("id"))


def runs_asked(project: Project) -> QuerySet[CaptureRequest, int]:
    """Runs of the project for which a capture is asked for and has not come yet."""
    return CaptureRequest.objects.filter(run__project=project, state__in=OPEN_STATES).values_list("run", flat=True)


def as_json(request: CaptureRequest, agents: int = 1) -> dict[str, Any]:
    return {
        "id": request.pk,
        "run_key": request.run.key,
        "kind": request.kind,
        "first_step": request.first_step,
        "steps": request.steps,
        "ranks": request.ranks,
        "level": request.level,
        "state": request.state,
        "lead_s": LEAD_SECONDS if agents < 2 else LEAD_SECONDS_OF_MANY,
    }


def report(
    request: CaptureRequest, agent: Agent | None, state: str, reason: str, first_step: int | None
) -> CaptureRequest:
    """Take an agent's word on a request. Repeating it is harmless; a state never goes back.

    The first agent that accepts settles the first step for all. A dump that arrives after all makes even a failed
    request an uploaded one; nothing else wakes an ended one.
    """
    with transaction.atomic():
        row = CaptureRequest.objects.select_for_update(of=("self",)).select_related("run").get(pk=request.pk)
        now = timezone.now()
        if state == RequestState.UPLOADED:
            _arrived(row, now)
        elif row.is_open and state == RequestState.FAILED:
            row.state, row.reason, row.ended = state, reason, now
        elif row.is_open and ORDER[RequestState(state)] > ORDER[RequestState(row.state)]:
            row.state, row.reason = state, reason
        if row.is_open or row.agent is None:
            row.agent = row.agent or agent
        if row.is_open and row.first_step is None and first_step is not None:
            row.first_step = first_step
        if row.state != RequestState.REQUESTED:
            row.accepted = row.accepted or (now if row.state in ORDER else None)
        if row.state == RequestState.COLLECTING:
            row.collecting = row.collecting or now
        row.save()
    return row


def _arrived(row: CaptureRequest, now: Any) -> None:
    row.capture = Capture.objects.filter(run=row.run_id, key=row.capture_key).first() or row.capture
    if row.state != RequestState.UPLOADED:
        row.state, row.reason, row.ended = RequestState.UPLOADED, "", now


def expire() -> int:
    """Give up what nobody took or finished in time; a request whose capture is here after all is uploaded."""
    now, count = timezone.now(), 0
    for request in CaptureRequest.objects.filter(state__in=OPEN_STATES).select_related("run"):
        if now - request.created < (UNANSWERED if request.state == RequestState.REQUESTED else UNFINISHED):
            continue
        if Capture.objects.filter(run=request.run_id, key=request.capture_key).exists():
            report(request, None, RequestState.UPLOADED, "", None)
            continue
        unanswered = request.state == RequestState.REQUESTED
        reason = "no agent took it up in 15 minutes" if unanswered else "no dump came of it in 24 hours"
        count += end(request, RequestState.EXPIRED, reason)
    return count
