"""The page of hosts, and what a run's page shows of captures asked for."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import get_owned_project_or_404, require_role, role_in, signed_in
from dashboard.accounts.models import Role
from dashboard.hosts import requests
from dashboard.hosts.forms import RequestForm
from dashboard.hosts.ledger import ledger
from dashboard.hosts.models import Agent, CaptureRequest
from dashboard.runs.access import CHANGERS, get_project_or_404, get_run_or_404
from dashboard.runs.models import Run
from dashboard.runs.views.page import say_errors

MOST_AGENTS = 500
LISTED = 10


@login_required
@require_GET
def hosts(request: HttpRequest, slug: str) -> HttpResponse:
    project = get_project_or_404(request.user, slug)
    agents = list(Agent.objects.filter(project=project).prefetch_related("runs__run")[:MOST_AGENTS])
    role = role_in(request.user, project)
    agents.sort(key=lambda agent: (not agent.is_silent, agent.host))
    context = {
        "project": project,
        "agents": agents,
        "silent": sum(agent.is_silent for agent in agents),
        "cards": ledger(project, agents),
        "is_owner": role == Role.OWNER,
        "may_ask": role in CHANGERS,
        "waiting": set(requests.runs_asked(project)),
    }
    return render(request, "hosts/hosts.html", context)


@login_required
@require_POST
def forget(request: HttpRequest, slug: str, agent_id: int) -> HttpResponse:
    """Take an agent that is no more from the list; one that still lives comes back by itself."""
    project = get_owned_project_or_404(request.user, slug)
    get_object_or_404(Agent, pk=agent_id, project=project).delete()
    return redirect("hosts:hosts", slug)


def run_requests(request: HttpRequest, run: Run, may_ask: bool | None = None) -> dict[str, Any]:
    """What `runs/_capture_requests.html` shows; `may_ask` when the page knows it already."""
    found = list(CaptureRequest.objects.filter(run=run).select_related("asked_by", "agent", "capture")[:LISTED])
    live = requests.live_agents(run)
    return {
        "run": run,
        "asked": found,
        "waiting": any(one.is_open for one in found),
        "live": live,
        "live_hosts": ", ".join(row.agent.host for row in live[:3]) + (" …" if len(live) > 3 else ""),
        "current_step": max((row.step for row in live if row.step is not None), default=None),
        "may_ask": role_in(request.user, run.project) in CHANGERS if may_ask is None else may_ask,
        "ask_form": RequestForm(),
    }


@login_required
@require_GET
def requests_of_run(request: HttpRequest, run_id: int) -> HttpResponse:
    """The part of a run's page that htmx asks for again while a request is open."""
    run = get_run_or_404(request.user, run_id)
    return render(request, "runs/_requests_list.html", run_requests(request, run))


@login_required
@require_POST
def ask(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_run_or_404(request.user, run_id)
    require_role(request.user, run.project, *CHANGERS)
    form = RequestForm(request.POST)
    if not form.is_valid():
        say_errors(request, form)
    elif not requests.live_agents(run):
        messages.error(request, _("No agent has this run in hand now."))
    elif requests.ask(run, signed_in(request.user), **form.wanted()) is None:
        messages.error(request, _("A capture of this run is already asked for."))
    else:
        messages.success(request, _("Asked for. The agent hears of it at its next heartbeat."))
    return redirect(f"{run.get_absolute_url()}#capture-requests")


@login_required
@require_POST
def take_back(request: HttpRequest, request_id: int) -> HttpResponse:
    row = get_object_or_404(CaptureRequest.objects.select_related("run__project"), pk=request_id)
    run = get_run_or_404(request.user, row.run_id)
    require_role(request.user, run.project, *CHANGERS)
    if requests.take_back(row, signed_in(request.user)):
        messages.success(request, _("Taken back."))
    else:
        messages.error(request, _("It has ended already."))
    return redirect(f"{run.get_absolute_url()}#capture-requests")
