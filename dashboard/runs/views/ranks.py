from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dashboard.runs import queries
from dashboard.runs.access import get_capture_or_404
from dashboard.runs.views.capture import GRID_METRICS
from dashboard.runs.views.page import page

RANKS_PER_PAGE = 128
ORDERS = ("rank", *GRID_METRICS)


@login_required
@require_GET
def ranks(request: HttpRequest, capture_id: int) -> HttpResponse:
    """Every rank of a capture as a table."""
    capture = get_capture_or_404(request.user, capture_id)
    order = request.GET.get("order", "rank")
    key = order.lstrip("-")
    key = key if key in ORDERS else "rank"
    by = F(key).desc(nulls_last=True) if order.startswith("-") else F(key).asc(nulls_last=True)
    dumps = Paginator(capture.dumps.only(*queries.DUMP_COLUMNS).order_by(by, "rank"), RANKS_PER_PAGE)
    context = {
        "capture": capture,
        "run": capture.run,
        "page": dumps.get_page(request.GET.get("page")),
        "order": key,
        "orders": ORDERS[1:],
        "descending": order.startswith("-"),
    }
    return page(request, "runs/ranks.html", context, capture.run.project)
