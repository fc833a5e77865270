"""One rank, one step: the timeline, the kernels as a table, and the step as a trace for other tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.views.decorators.http import require_GET

from dashboard.runs import kernel_rows, report_rows, timeline, timeline_export, timeline_words
from dashboard.runs.access import get_dump_or_404, swept_is_404
from dashboard.runs.metrics import PASSES
from dashboard.runs.models import Dump
from dashboard.runs.timeline_index import Index, open_index
from dashboard.runs.views.page import page

LARGEST = 1 << 62


@login_required
@require_GET
def step(request: HttpRequest, capture_id: int, rank: int) -> HttpResponse:
    """The page; its timeline fetches what it draws from the views below."""
    dump = get_dump_or_404(request.user, capture_id, rank)
    search = kernel_rows.KernelSearch.from_params(request.GET)
    context: dict[str, Any] = {
        "capture": dump.capture,
        "run": dump.capture.run,
        "dump": dump,
        "parts": report_rows.step_parts(dump.entry),
        "steps": dump.entry.get("steps") or [],
        **_choices(dump.entry),
        "types": sorted({str(row.get("type")) for row in dump.entry.get("op_types") or [] if row.get("type")}),
        "found": kernel_rows.kernels(dump, search),
        "search": search,
    }
    return page(request, "runs/step.html", context, dump.capture.run.project)


def _choices(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What the kernels table can be filtered by, beside types."""
    layers = entry.get("layers") or {}
    parts = layers.get("parts") or []
    blocks = {row.get("block") for part in parts for row in part.get("blocks") or []}
    return {
        "layer_count": layers.get("layer_count"),
        "layers": sorted({part["layer"] for part in parts if part.get("layer") is not None}),
        "blocks": sorted(block for block in blocks if block),
    }


@login_required
@require_GET
@swept_is_404
def step_timeline(request: HttpRequest, capture_id: int, rank: int) -> JsonResponse:
    """What the timeline must know before it draws: lanes, names and colours, steps, and where to look first."""
    dump, index = indexed(request, capture_id, rank)
    warmups = [str(row["step"]) for row in dump.entry.get("steps") or [] if row.get("warmup")]
    shown = timeline.chosen_step(index, request.GET.get("step", ""), warmups)
    flops = dump.entry.get("flops") or {}
    return json_response(
        {
            "version": dump.frames,
            "kernels": index.kernels,
            "end": index.end,
            "lanes": [timeline_words.lane_row(lane, dump.source) for lane in index.lanes if lane.kind != "computing"],
            "classes": timeline_words.class_rows(index),
            "families": timeline_words.family_rows(),
            "blocks": timeline_words.block_rows(index),
            "places": timeline_words.place_rows(index),
            "types": index.types,
            "passes": {key: str(name) for key, name in PASSES.items() if key != "none"},
            "steps": index.steps,
            "step": shown,
            "focus": _focus(request, index, shown),
            "gaps": timeline.gaps(index, shown[1], shown[2]),
            "causes": timeline_words.cause_rows(index, dump.entry.get("free_time")),
            "peak_tflops": flops.get("peak_tflops"),
            "words": timeline_words.sentences(),
        }
    )


def _focus(request: HttpRequest, index: Index, shown: list[Any]) -> tuple[int, int] | None:
    """Where the layer that the address names is first at work."""
    layer = request.GET.get("layer", "")
    if not (layer.isdecimal() and len(layer) < 6):
        return None
    return timeline.range_of_layer(index, int(layer), shown[1], shown[2], request.GET.get("block", ""))


@login_required
@require_GET
@swept_is_404
def step_boxes(request: HttpRequest, capture_id: int, rank: int) -> JsonResponse:
    """Boxes of a window; the browser keeps them, since a digest's kernels never change."""
    dump, index = indexed(request, capture_id, rank)
    begin, end = asked_range(request.GET)
    buckets = min(whole(request.GET, "buckets", timeline.BUCKETS), timeline.BUCKETS)
    response = json_response({"begin": begin, "lanes": timeline.boxes(index, begin, end, max(1, buckets))})
    if request.GET.get("v") == dump.frames:
        response["Cache-Control"] = "private, max-age=86400"
    return response


@login_required
@require_GET
@swept_is_404
def step_sums(request: HttpRequest, capture_id: int, rank: int) -> JsonResponse:
    """Sums of a range, and its longest gaps."""
    _dump, index = indexed(request, capture_id, rank)
    begin, end = asked_range(request.GET)
    return json_response({**timeline.sums(index, begin, end), "gaps": timeline.gaps(index, begin, end)})


@login_required
@require_GET
@swept_is_404
def step_find(request: HttpRequest, capture_id: int, rank: int) -> JsonResponse:
    """Kernels with a text in name or type."""
    dump, index = indexed(request, capture_id, rank)
    begin, end = asked_range(request.GET)
    text = request.GET.get("q", "").strip()[:100]
    if not text:
        return json_response({"total": 0, "rows": [], "starts": [], "lengths": []})
    return json_response(timeline.find(index, dump.frames, text, begin, end))


@login_required
@require_GET
@swept_is_404
def step_kernel(request: HttpRequest, capture_id: int, rank: int) -> JsonResponse:
    """One kernel with all its columns, by row or as the nearest to a time in a lane."""
    dump, index = indexed(request, capture_id, rank)
    row: int | None = whole(request.GET, "row", -1)
    if row == -1:
        row = timeline.nearest(index, whole(request.GET, "lane", -1), whole(request.GET, "at", 0))
    found = timeline.kernel(index, dump.frames, row) if row is not None and row >= 0 else None
    if found is None:
        raise Http404
    return json_response({"row": row, **found})


@login_required
@require_GET
@swept_is_404
def step_trace(request: HttpRequest, capture_id: int, rank: int) -> StreamingHttpResponse:
    """The kernels of a step, or of all, as a Chrome trace, which Perfetto and MindStudio Insight open."""
    dump, index = indexed(request, capture_id, rank)
    asked = request.GET.get("step", "")
    only = asked if asked in {str(label) for label, *_rest in index.steps} else None
    lanes = [timeline_words.lane_row(lane, dump.source) for lane in index.lanes]
    events = timeline_export.trace(index, dump.frames, lanes, dump.rank, only)
    packs = "gzip" in request.headers.get("Accept-Encoding", "")
    response = StreamingHttpResponse(
        timeline_export.gzipped(events) if packs else events, content_type="application/json"
    )
    if packs:
        response["Content-Encoding"] = "gzip"
    name = f"rank{dump.rank}" + (f"-step{''.join(c for c in only if c.isalnum())}" if only else "")
    response["Content-Disposition"] = f'attachment; filename="{name}.trace.json"'
    response["Vary"] = "Cookie, Accept-Encoding"
    return response


def indexed(request: HttpRequest, capture_id: int, rank: int) -> tuple[Dump, Index]:
    """The dump and the index of its kernels; 404 where either is not there for this person."""
    dump = get_dump_or_404(request.user, capture_id, rank)
    index = open_index(dump.frames)
    if index is None:
        raise Http404
    return dump, index


def asked_range(params: Mapping[str, str]) -> tuple[int, int]:
    """`begin` and `end` in ns; at least one ns apart."""
    begin = whole(params, "begin", 0)
    return begin, max(begin + 1, whole(params, "end", LARGEST))


def whole(params: Mapping[str, str], name: str, default: int) -> int:
    """A whole number of the address; `default` for what is none or is beyond all times."""
    text = params.get(name, "")
    digits = text.removeprefix("-")
    value = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else default
    return max(-LARGEST, min(value, LARGEST))


def json_response(value: Any) -> JsonResponse:
    response = JsonResponse(value, json_dumps_params={"ensure_ascii": False, "separators": (",", ":")})
    response["Cache-Control"] = "private, no-store"
    return response
