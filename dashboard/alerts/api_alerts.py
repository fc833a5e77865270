"""Alerts for scripts: the inbox, one alert with what people made of it, and an answer to it."""

from __future__ import annotations

from typing import Annotated, Any

from django.conf import settings
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest
from ninja import Router
from pydantic import Field

from dashboard.accounts.models import Scope
from dashboard.alerts.models import Alert, AlertState, Decision
from dashboard.ingest.api_read import PER_PAGE, Page, page_of, refuse_nul
from dashboard.ingest.api_upload import ERRORS, Id, caller_of
from dashboard.ingest.auth import Caller
from dashboard.ingest.errors import NotFound
from dashboard.ingest.schemas import Body

router = Router()
LONG = ("capture__report", "capture__run__meta", "capture__run__config_text")


class DecisionIn(Body):
    """An answer to an alert; `open` takes the earlier one back."""

    state: Annotated[AlertState, Field(strict=False)]
    note: Annotated[str, Field(max_length=1000)] = ""


@router.get("/alerts", response={200: dict[str, Any], **ERRORS}, operation_id="list_alerts", tags=["alerts"])
def list_alerts(
    request: HttpRequest, project: str = "", state: AlertState | None = None, page: Page = 1
) -> dict[str, Any]:
    """Alerts, newest first, 50 a page; of one project or state where that is named."""
    alerts = _visible(caller_of(request, Scope.READ))
    refuse_nul(project)
    if project:
        alerts = alerts.filter(project__slug=project)
    if state:
        alerts = alerts.filter(state=state)
    rows, has_next = page_of(alerts, page, PER_PAGE)
    return {"alerts": [_row(alert) for alert in rows], "page": page, "next": page + 1 if has_next else None}


@router.get("/alerts/{alert_id}", response={200: dict[str, Any], **ERRORS}, operation_id="get_alert", tags=["alerts"])
def get_alert(request: HttpRequest, alert_id: Id) -> dict[str, Any]:
    """One alert with all answers it was given, the last one first."""
    return {"alert": _whole(_find(caller_of(request, Scope.READ), alert_id))}


@router.post(
    "/alerts/{alert_id}/decisions",
    response={200: dict[str, Any], **ERRORS},
    operation_id="decide_alert",
    tags=["alerts"],
)
def decide_alert(request: HttpRequest, alert_id: Id, body: DecisionIn) -> dict[str, Any]:
    """Acknowledge it, call it a false alarm, accept it as an expected change, or open it again."""
    caller = caller_of(request, Scope.TRIAGE)
    alert = _find(caller, alert_id)
    caller.check_role(alert.project)
    by = caller.token or caller.user
    assert by is not None
    alert.decide(body.state, body.note, by)
    return {"alert": _whole(_find(caller, alert_id))}


def _visible(caller: Caller) -> QuerySet[Alert]:
    alerts = Alert.objects.filter(project__in=caller.projects()).defer(*LONG)
    return alerts.select_related("project", "capture__run", "decided_by", "assignee")


def _find(caller: Caller, alert_id: int) -> Alert:
    decisions = Prefetch("decisions", Decision.objects.select_related("person"))
    alert = _visible(caller).prefetch_related(decisions).filter(pk=alert_id).first()
    if alert is None:
        raise NotFound("alert")
    return alert


def _row(alert: Alert) -> dict[str, Any]:
    run = alert.capture.run
    return {
        "id": alert.pk,
        "project": alert.project.slug,
        "url": f"{settings.SITE_URL}{alert.get_absolute_url()}",
        "created": alert.created,
        "state": alert.state,
        "metric": alert.metric,
        "old_value": alert.old_value,
        "new_value": alert.new_value,
        "change": alert.change,
        "confirmation": alert.confirmation or None,
        "cause": alert.cause or None,
        "run": {"id": run.pk, "key": run.key, "name": run.name},
        "capture": alert.capture_id,
        "previous": alert.previous_id,
        "escalates": alert.escalates_id,
        "assignee": alert.assignee.username if alert.assignee else None,
        "note": alert.note or None,
    }


def _whole(alert: Alert) -> dict[str, Any]:
    return {
        **_row(alert),
        "evidence": alert.evidence,
        "decisions": [
            {
                "state": decision.state,
                "note": decision.note or None,
                "person": decision.person.username if decision.person else None,
                "token": decision.token or None,
                "at": decision.created,
            }
            for decision in alert.decisions.all()
        ],
    }
