"""The call by which a pipeline of builds asks whether it may go on."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from dashboard.alerts import gate
from dashboard.alerts.judge import RECENT
from dashboard.ingest.api_read import refuse_nul
from dashboard.ingest.api_upload import ERRORS, Id
from dashboard.ingest.auth import Caller, find_capture
from dashboard.ingest.errors import ApiError
from dashboard.runs.models import CaptureState

router = Router()


@router.get("/captures/{capture_id}/gate", response={200: dict[str, Any], **ERRORS}, operation_id="get_gate")
def get_gate(request: HttpRequest, capture_id: Id, against: str = "") -> dict[str, Any]:
    """Whether a pipeline of builds may go on: the capture by the project's alert rules against those before it, or
    against the run with the key `against`. `verdict`: `pass`, `fail`, `unsure` (worse, but no further than it may lie
    by chance) or `unknown` (nothing to compare with). Writes nothing down, tells nobody."""
    caller: Caller = request.auth  # type: ignore[attr-defined]
    capture = find_capture(caller, capture_id)
    refuse_nul(against)
    if capture.state != CaptureState.READY:
        raise ApiError(409, "incomplete", f"the capture is {capture.state}: it cannot be judged yet")
    baseline = gate.baseline_of(capture, against)
    verdicts = gate.judge_build(capture, baseline)
    return {
        "gate": {
            "verdict": gate.overall(verdicts),
            "baseline": [{"id": one.pk, "key": one.key, "run": one.run.key} for one in baseline[-RECENT:]],
            "rules": [verdict.as_json() for verdict in verdicts],
        }
    }
