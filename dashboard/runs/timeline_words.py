"""What the timeline's lanes, colours and panels are called. A colour is a slot of the palette, 1 to 8, and a shade."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from dashboard.runs.metrics import BLOCKS, CLASSES, FREE_CAUSES, PASSES
from dashboard.runs.templatetags.words import group_name
from dashboard.runs.timeline_index import Index, Lane

FAMILIES = {
    "matrix": (gettext_lazy("Matrix multiplication"), 1),
    "attention": (gettext_lazy("Attention"), 3),
    "vector": (gettext_lazy("Vector work"), 5),
    "cast": (pgettext_lazy("class", "Cast"), 6),
    "movement": (gettext_lazy("Data movement"), 7),
    "communication": (gettext_lazy("Communication"), 2),
    "optimizer": (gettext_lazy("Optimizer"), 4),
    "other": (gettext_lazy("Other"), 8),
}
FAMILY_OF = {
    name: family
    for family, names in {
        "matrix": "matmul grouped_matmul conv",
        "attention": "attention attention_grad softmax softmax_grad",
        "vector": "norm norm_grad activation activation_grad position position_grad elementwise reduction random",
        "cast": "cast",
        "movement": "movement",
        "communication": "communication",
        "optimizer": "optimizer",
    }.items()
    for name in names.split()
}
MORE_CLASSES = {
    "position": gettext_lazy("Position"),
    "position_grad": gettext_lazy("Position backward"),
    "softmax_grad": gettext_lazy("Softmax backward"),
}
BLOCK_COLOURS = {
    "norm_attention": (8, 0), "qkv": (1, 0), "position": (1, 1), "attention_core": (3, 0), "attention_out": (3, 1),
    "residual": (8, 1), "norm_ffn": (8, 0), "ffn_up": (4, 0), "activation": (4, 1), "ffn_down": (5, 0),
    "moe_router": (7, 1), "moe_dispatch": (7, 0), "moe_experts": (4, 0), "movement": (6, 0), "communication": (2, 0),
    "embedding": (5, 1), "final_norm": (8, 0), "head_loss": (7, 0), "optimizer": (4, 1), "gradient_sync": (2, 1),
    "embedding_gradients": (2, 2), "pipeline_transfers": (6, 1),
}  # fmt: skip
LAYER_SLOTS = (1, 3, 4, 5, 7)
"""Neighbouring layers differ; orange and red stay free for communication and Cast."""
PASS_SHADES = {"forward": 0, "backward": 1, "recompute": 2}
CAUSE_SLOTS = {"gc": 6, "data_wait": 2, "memory_alloc": 7, "sync": 4, "host_op": 5, "launch_gap": 1, "device_start": 3}


def class_rows(index: Index) -> list[list[Any]]:
    """[name, family] of each class code."""
    words = {**CLASSES, **MORE_CLASSES}
    names = [name or "" for name in index.classes]
    return [[str(words.get(name, name or _("unknown"))), FAMILY_OF.get(name, "other")] for name in names]


def family_rows() -> list[list[Any]]:
    """[key, name, slot] of each family of classes."""
    return [[key, str(name), slot] for key, (name, slot) in FAMILIES.items()]


def block_rows(index: Index) -> list[list[Any]]:
    """[key, name, slot, shade] of each block code."""
    return [
        [key or "", str(BLOCKS.get(key or "", key or _("not attributed"))), *BLOCK_COLOURS.get(key or "", (8, 2))]
        for key in index.blocks
    ]


def place_rows(index: Index) -> list[list[Any]]:
    """[name, short name, layer, slot, shade] of each place code."""
    many = len({place[3] for place in index.places if place[3] is not None}) > 1
    return [_place_row(*place, with_batch=many) for place in index.places]


def _place_row(
    part: str | None, layer: int | None, pass_: str | None, batch: int | None, *, with_batch: bool
) -> list[Any]:
    if part is None:
        return [_("not attributed"), "", None, 8, 2]
    is_layer = part == "layer" and layer is not None
    name = _("Layer %(n)s") % {"n": layer} if is_layer else str(BLOCKS.get(part, part))
    short = str(layer) if is_layer else name
    details = [str(PASSES[pass_])] if pass_ in PASSES and pass_ != "none" else []
    details += [_("micro-batch %(n)s") % {"n": batch}] if with_batch and batch is not None else []
    slot = LAYER_SLOTS[layer % len(LAYER_SLOTS)] if is_layer and layer is not None else BLOCK_COLOURS.get(part, (8,))[0]
    return [" · ".join([name, *details]), short, layer, slot, PASS_SHADES.get(pass_ or "", 0)]


def lane_row(lane: Lane, source: Mapping[str, Any]) -> dict[str, Any]:
    """How a lane is labelled: its name, and the full key where the name is cut."""
    return {"id": lane.number, "kind": lane.kind, "name": _lane_name(lane, source), "key": lane.key}


def _lane_name(lane: Lane, source: Mapping[str, Any]) -> str:
    if lane.kind == "compute":
        return _("Stream %(key)s") % {"key": lane.key} if lane.key else _("Compute")
    if lane.kind == "communication":
        name = group_name(lane.key, source)
        if not lane.key:
            return _("Communication")
        return _("Group …%(key)s") % {"key": lane.key[-3:]} if lane.key.startswith(name) else name
    names = {"steps": _("Steps"), "layers": _("Layers"), "blocks": _("Blocks"), "free": _("Free")}
    return names.get(lane.kind, lane.kind)


def cause_rows(index: Index, free_time: Mapping[str, Any] | None) -> list[list[Any]]:
    """[name, slot, ns per step] of each code of a cause; slot and ns are null where the dump tells none."""
    told = {row.get("cause"): row.get("us") for row in (free_time or {}).get("by_cause") or []}
    per_step = [told.get(cause) for cause in index.causes]
    return [
        [str(FREE_CAUSES.get(cause or "unknown", cause)), CAUSE_SLOTS.get(cause or ""),
         round(us * 1000) if isinstance(us, (int, float)) else None]
        for cause, us in zip(index.causes, per_step, strict=True)
    ]  # fmt: skip


def sentences() -> dict[str, str]:
    """What the page's script says."""
    return {
        "computing": _("Computing"),
        "exposed": _("Exposed communication"),
        "free": _("Free"),
        "kernels": _("Kernels"),
        "merged": _("%(n)s kernels, too narrow to draw one by one"),
        "busy": _("busy"),
        "gap": _("Nothing runs"),
        "endedBy": _("Ended by"),
        "longestGaps": _("Longest gaps"),
        "gapBefore": _("%(time)s before %(type)s"),
        "gaps": _("%(n)s gaps, too narrow to draw one by one"),
        "noneFound": _("No kernel matches."),
        "found": _("%(at)s of %(total)s"),
        "range": _("Selected range"),
        "byClass": _("By kind of kernel"),
        "byLayer": _("By layer"),
        "byBlock": _("By block"),
        "byCause": _("Free time by cause"),
        "cause": _("Cause"),
        "perStep": _("%(time)s per step"),
        "byType": _("By type"),
        "kernel": _("Kernel"),
        "utilisation": _("FLOPs utilisation"),
        "ofPeak": _("of %(peak)s TFLOPS"),
        "duration": _("Duration"),
        "start": _("Start"),
        "wait": _("Wait"),
        "type": _("Type"),
        "shapes": _("Shapes"),
        "place": _("Place"),
        "block": _("Block"),
        "core": _("Core"),
        "allColumns": _("All columns"),
        "before": _("Previous in this lane"),
        "after": _("Next in this lane"),
        "zoom": _("Zoom to it"),
        "close": _("Close"),
        "unknown": _("unknown"),
        "copied": _("Copied"),
        "outside": _("Not in a layer"),
        "notAttributed": _("not attributed"),
    }
