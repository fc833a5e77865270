from __future__ import annotations

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dashboard.runs.access import CHANGERS, get_project_or_404, require_role
from dashboard.runs.views.page import page


@login_required
@require_GET
def browser_upload(request: HttpRequest, slug: str) -> HttpResponse:
    """Drop an archive or a folder; upload.js sends it by tus to the API."""
    project = get_project_or_404(request.user, slug)
    require_role(request.user, project, *CHANGERS)
    context = {
        "max_file": settings.MAX_FILE_BYTES,
        "max_dump": settings.MAX_DUMP_BYTES,
        "max_config": settings.MAX_CONFIG_BYTES,
    }
    return page(request, "runs/upload.html", context, project)
