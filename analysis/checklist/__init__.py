"""The eight items of the acceleration checklist: one module each, all with the signature `check(evidence) -> Item`."""

from __future__ import annotations

from collections.abc import Callable

from analysis.checklist import (
    attention_mask,
    dtype_cast,
    ffn_parallel,
    fused_attention,
    graph_sink,
    precision_regression,
    warmup_mfu,
    weight_alignment,
)
from analysis.checklist.evidence import Evidence, Item, Text
from analysis.entries import Json

__all__ = ["CHECKS", "Evidence", "Item", "Text", "run_checklist"]

CHECKS: tuple[Callable[[Evidence], Item], ...] = (
    dtype_cast.check,
    graph_sink.check,
    fused_attention.check,
    ffn_parallel.check,
    attention_mask.check,
    weight_alignment.check,
    warmup_mfu.check,
    precision_regression.check,
)


def run_checklist(evidence: Evidence) -> Json:
    """The report's "checklist": score is passed / (passed + failed), null when every item is unknown."""
    items = [check(evidence) for check in CHECKS]
    passed, failed, unknown = (sum(item.status == s for item in items) for s in ("pass", "fail", "unknown"))
    return {
        "passed": passed,
        "failed": failed,
        "unknown": unknown,
        "score": passed / (passed + failed) if passed + failed else None,
        "items": [item.as_json() for item in items],
    }
