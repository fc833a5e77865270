from __future__ import annotations

import json

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from dashboard.runs.access import CHANGERS, get_project_or_404, require_role
from dashboard.runs.views.page import page

_SMALLER = _("Send less at once: leave trace_view.json out, or send it with the agent, rank by rank.")
_AGAIN = _("Load this page again and sign in; if that does not help, your role in the project takes no uploads.")
HINTS = {
    **dict.fromkeys(("file_too_large", "dump_too_large", "too_many_files", "body_too_large"), _SMALLER),
    **dict.fromkeys(("bad_token", "csrf", "scope"), _AGAIN),
    "project_full": _("The project's space is used up: an owner can shorten what is kept, on its settings page."),
    "bad_name": _("A file has a name that no profiler writes; choose the folder ending in _ascend_ms or _ascend_pt."),
    "bad_request": _("What is wrong stands before the colon; mend that file or leave it out."),
    "conflict": _("Something else was sent under this name before: choose another run key."),
    "slow_down": _("The server has much to do: try again in a minute."),
    "network": _("The server could not be reached: check the network and press Upload again."),
    "analysis": _(
        "What arrived is no dump that can be analysed. A dump is the folder ending in _ascend_ms or _ascend_pt."
    ),
}
"""What a person can do about an upload that was refused, by the API's code for it."""


@login_required
@require_GET
def browser_upload(request: HttpRequest, slug: str) -> HttpResponse:
    """Drop an archive or a folder; upload.js sends it by tus to the API."""
    project = get_project_or_404(request.user, slug)
    require_role(request.user, project, *CHANGERS)
    context = {
        "hints": json.dumps({code: str(text) for code, text in HINTS.items()}, ensure_ascii=False),
        "max_file": settings.MAX_FILE_BYTES,
        "max_dump": settings.MAX_DUMP_BYTES,
        "max_config": settings.MAX_CONFIG_BYTES,
    }
    return page(request, "runs/upload.html", context, project)
