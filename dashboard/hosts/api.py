"""The agent's calls beside uploading: its heartbeat, and what became of a capture it was asked for."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from dashboard.accounts.models import Scope
from dashboard.hosts import heartbeat, requests
from dashboard.hosts.models import Agent, CaptureRequest
from dashboard.hosts.schemas import HeartbeatAnswer, HeartbeatIn, ReportIn, RequestAnswer
from dashboard.ingest.api_upload import ERRORS, Id, caller_of
from dashboard.ingest.auth import find_project
from dashboard.ingest.errors import NotFound

router = Router()


@router.post("/projects/{slug}/agents", response={200: HeartbeatAnswer, **ERRORS}, operation_id="agent_heartbeat")
def agent_heartbeat(request: HttpRequest, slug: str, body: HeartbeatIn) -> dict[str, Any]:
    """An agent tells how it is; the answer says when to call again and which captures people ask for."""
    caller = caller_of(request, Scope.UPLOAD)
    project = find_project(caller, slug)
    caller.check_role(project)
    return heartbeat.heard(project, body)


@router.post("/capture-requests/{request_id}", response={200: RequestAnswer, **ERRORS}, operation_id="report_request")
def report_request(request: HttpRequest, request_id: Id, body: ReportIn) -> dict[str, Any]:
    """What an agent has done about a request. The answer holds what counts: another agent may have settled the step."""
    caller = caller_of(request, Scope.UPLOAD)
    found = CaptureRequest.objects.filter(pk=request_id, run__project__in=caller.projects())
    row = found.select_related("run__project").first()
    if row is None:
        raise NotFound("capture request")
    caller.check_role(row.run.project)
    agent = Agent.objects.filter(project=row.run.project, uid=body.agent).first() if body.agent else None
    row = requests.report(row, agent, body.state, body.reason, body.first_step)
    return {"request": requests.as_json(row)}
