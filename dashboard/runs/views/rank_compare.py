from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from dashboard.runs import charts, compare_rows, queries, rank_pairs
from dashboard.runs.access import get_capture_or_404
from dashboard.runs.models import Capture, Dump
from dashboard.runs.templatetags.words import letter
from dashboard.runs.views.capture import GRID_METRICS
from dashboard.runs.views.compare import focus_of
from dashboard.runs.views.page import chart_response, number_list, page


def _asked(request: HttpRequest, capture: Capture) -> list[Dump]:
    ranks = number_list(",".join(request.GET.getlist("ranks")), rank_pairs.MOST_RANKS)
    return rank_pairs.chosen(capture, ranks, queries.capture_ranks(capture))


@login_required
@require_GET
def compare_ranks(request: HttpRequest, capture_id: int) -> HttpResponse:
    """2 to 8 ranks of a capture beside each other, held against the first."""
    capture = get_capture_or_404(request.user, capture_id)
    dumps = _asked(request, capture)
    context = {"capture": capture, "run": capture.run, "ranks": dumps, "metrics": GRID_METRICS}
    if len(dumps) < 2:
        return page(request, "runs/rank_compare.html", context, capture.run.project)
    entries = rank_pairs.entries(dumps)
    found = rank_pairs.differences(entries)
    focus = focus_of(request, len(dumps))
    context |= {
        "asked": ",".join(str(dump.rank) for dump in dumps),
        "focus": focus,
        "sentence": rank_pairs.sentence(dumps[0], dumps[focus]),
        "change": compare_rows.contributions(found, focus),
        "op_rows": compare_rows.table_rows(found["op_types"], ("type",), focus),
        "shapes": compare_rows.table_rows(found["op_shapes"], ("type", "input_shapes"), focus),
        "blocks": compare_rows.table_rows(found["blocks"], ("part", "block"), focus),
        "layers": compare_rows.table_rows(found["layers"], ("part", "layer"), focus, 12),
        "communication": compare_rows.table_rows(found["communication"], ("type", "op", "link"), focus),
    }
    return page(request, "runs/rank_compare.html", context, capture.run.project)


@login_required
@require_GET
def rank_chart(request: HttpRequest, capture_id: int, name: str) -> JsonResponse:
    dumps = _asked(request, get_capture_or_404(request.user, capture_id))
    entries = rank_pairs.entries(dumps)
    if name == "steps":
        letters = [letter(index + 1) for index in range(len(dumps))]
        return chart_response(charts.compared_steps(letters, compare_rows.parts_of(entries)))
    if name != "layers":
        raise Http404
    names = [f"{letter(index)} · {_('rank %(rank)s') % {'rank': dump.rank}}" for index, dump in enumerate(dumps, 1)]
    return chart_response(charts.compared_layers(names, compare_rows.layers_of(entries)))
