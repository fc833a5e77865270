"""What is neither JSON API nor tus: a sign of life for load balancers, and the retry button."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import get_owned_project_or_404
from dashboard.accounts.forms import RetentionForm
from dashboard.accounts.models import Role, User
from dashboard.ingest import intake, queue, retention
from dashboard.ingest.auth import Caller, find_dump
from dashboard.ingest.errors import ApiError, NotFound


@require_GET
def healthz(request: HttpRequest) -> HttpResponse:
    """200 while requests can be served: PostgreSQL answers. The broker's absence only delays work."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return JsonResponse({"status": "ok", "queued": queue.waiting()})


@login_required
@require_GET
def retention_preview(request: HttpRequest, slug: str) -> HttpResponse:
    """What a sweep would remove now under the days of this address; nothing is removed or saved."""
    project = get_owned_project_or_404(request.user, slug)
    form = RetentionForm(request.GET, instance=project)
    found = retention.removable(project, form.instance.retention) if form.is_valid() else None
    return render(request, "ingest/_retention_preview.html", {"found": found})


@login_required
@require_POST
def retry(request: HttpRequest, dump_id: int) -> HttpResponse:
    """Put a failed dump back in the queue, then show its capture."""
    from dashboard.runs.access import require_role

    assert isinstance(request.user, User)
    try:
        dump = find_dump(Caller(user=request.user), dump_id)
    except NotFound as error:
        raise Http404 from error
    require_role(request.user, dump.capture.run.project, Role.OWNER, Role.MEMBER)
    try:
        intake.retry(dump)
    except ApiError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The dump waits for analysis again."))
    return redirect(dump.capture)
