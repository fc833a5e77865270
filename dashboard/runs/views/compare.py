from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from analysis.thresholds import limit
from dashboard.runs import charts, compare_rows, pairs, queries, summary
from dashboard.runs.access import signed_in, visible_runs
from dashboard.runs.before import run_before, with_before
from dashboard.runs.models import Capture, Run
from dashboard.runs.templatetags.words import letter
from dashboard.runs.views.page import chart_response, number_list, page

MOST_KEYS = 200
"""Keys of a configuration that a page tells the differences of."""


@login_required
@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    """2 to 8 captures beside each other; `runs=`, or repeated `run=` in order of time, stand for each run's newest."""
    user = signed_in(request.user)
    chosen = request.GET.getlist("run")
    runs = number_list(",".join([request.GET.get("runs", ""), *chosen]))
    if runs:
        # Rows are ticked in no order that means anything; what came first is what the others are held against.
        ids = queries.newest_captures(user, runs, by_time=bool(chosen))
        if len(ids) > 1:
            return redirect(f"{reverse('runs:compare')}?captures={','.join(map(str, ids))}")
    captures = queries.compared(user, number_list(request.GET.get("captures", "")))
    if len(captures) < 2:
        return page(request, "runs/compare_empty.html", {"chosen": captures})
    entries = compare_rows.entries(captures)
    found = compare_rows.differences(captures, entries)
    focus = focus_of(request, len(captures))
    runs_of = [capture.run for capture in captures]
    keys = compare_rows.keys_of(runs_of)
    settings = compare_rows.setting_rows(runs_of)
    metrics, sentence = compare_rows.metric_rows(captures), compare_rows.sentence([captures[0], captures[focus]])
    changes = compare_rows.setup_changes(captures[0].run, captures[focus].run, keys)
    projects = {capture.run.project_id: capture.run.project for capture in captures}
    context = {
        "captures": captures,
        "ids": ",".join(str(capture.pk) for capture in captures),
        "focus": focus,
        "metrics": metrics,
        "summary": summary.of_comparison(captures, sentence, metrics, changes, focus, request.build_absolute_uri()),
        "refused": [] if compare_rows.same_denominator(captures) else compare_rows.denominators(captures),
        "sentence": sentence,
        "change": compare_rows.contributions(found, focus),
        "op_rows": compare_rows.table_rows(found["op_types"], ("type",), focus),
        "blocks": compare_rows.table_rows(found["blocks"], ("part", "block"), focus),
        "layers": compare_rows.table_rows(found["layers"], ("part", "layer"), focus, 12),
        "communication": compare_rows.table_rows(found["communication"], ("type", "op", "link"), focus),
        "checks": compare_rows.check_rows(captures, found, focus),
        "differing": [row for row in settings if row["differs"]],
        "same": [row for row in settings if not row["differs"]],
        "config_keys": compare_rows.config_key_rows(runs_of, keys)[:MOST_KEYS],
        "config": compare_rows.config_diff(captures[0].run, captures[focus].run),
    }
    return page(request, "runs/compare.html", context, next(iter(projects.values())) if len(projects) == 1 else None)


def focus_of(request: HttpRequest, count: int) -> int:
    """Which capture differences are shown of, by its letter in the address; else the last one."""
    named = request.GET.get("of", "")
    position = ord(named) - ord("A") if len(named) == 1 else 0
    return position if 0 < position < count else count - 1


@login_required
@require_GET
def run_pairs(request: HttpRequest, run_id: int) -> HttpResponse:
    """The part of the run page that tells what changed since the run before and offers comparisons; asked for once the
    page stands."""
    run = get_object_or_404(with_before(visible_runs(request.user)), pk=run_id)
    earlier = run_before(run)
    before = Run.objects.get(pk=earlier.pk) if earlier else None
    keys = compare_rows.keys_of([before, run]) if before else {}
    changes = compare_rows.setup_changes(before, run, keys)[:MOST_KEYS] if before else []
    return page(
        request, "runs/_pairs.html", {"pairs": pairs.pairs_of(run), "before": before, "changes": changes, "run": run},
        run.project,
    )  # fmt: skip


def _names(captures: list[Capture]) -> list[str]:
    return [f"{chr(65 + index)} · {capture.run.name}" for index, capture in enumerate(captures)]


@login_required
@require_GET
def compare_chart(request: HttpRequest, name: str) -> JsonResponse:
    captures = queries.compared(signed_in(request.user), number_list(request.GET.get("captures", "")))
    if name == "steps":
        entries = compare_rows.entries(captures)
        return chart_response(
            charts.compared_steps([letter(index + 1) for index in range(len(captures))], compare_rows.parts_of(entries))
        )
    if name == "layers":
        return chart_response(
            charts.compared_layers(_names(captures), compare_rows.layers_of(compare_rows.entries(captures)))
        )
    if name != "series":
        raise Http404
    return chart_response(_curves(captures, request.GET.get("value", ""), request.GET.get("align") == "first"))


CURVES = {
    "loss": ("loss", "number", 1.0),
    "norm": ("global_norm", "number", 1.0),
    "step_time": ("step_time_ns", "ms", 1e-6),
}


def _curves(captures: list[Capture], value: str, from_first: bool) -> charts.Spec:
    """A value by step of every run, over each other; `from_first`: steps count from each run's first record."""
    column, unit, scale = CURVES.get(value, CURVES["loss"])
    series, _stride = queries.run_series([capture.run_id for capture in captures], column)
    # Two captures of one run share a curve.
    named = {name: series.get(capture.run_id, []) for name, capture in zip(_names(captures), captures, strict=True)}
    if not any(named.values()):
        return charts.empty(_("None of these runs has sent this value by step."))
    known = {name: _aligned(points) if from_first else points for name, points in named.items() if points}
    drawn = charts.step_series(known, unit, scale)
    return charts.with_band(drawn, limit("loss_relative_difference")) if column == "loss" else drawn


def _aligned(points: list[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    return [(step - points[0][0], value) for step, value in points]
