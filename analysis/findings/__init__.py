"""What else is worth saying about a capture, beyond the checklist: one small function per rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from analysis.entries import Json
from analysis.findings import communication, environment, host, kernels, pipeline
from analysis.findings.view import Finding, View

if TYPE_CHECKING:
    from analysis.checklist import Evidence

RULES: tuple[Callable[[View], Finding | None], ...] = (
    kernels.constant_work,
    kernels.ai_cpu,
    kernels.movement,
    kernels.block_dim,
    kernels.unbound,
    kernels.scalar_bound,
    kernels.dynamic_shape,
    kernels.fusible,
    kernels.affinity,
    kernels.fused_collectives,
    kernels.sync_batch_norm,
    kernels.frequency_drop,
    kernels.expert_load,
    communication.exposed_communication,
    communication.slow_rank,
    communication.slow_link,
    communication.compute_spread,
    communication.stage_imbalance,
    communication.pipeline_bubble,
    communication.small_packets,
    communication.byte_alignment,
    communication.bandwidth_contention,
    communication.retransmission,
    host.synchronize,
    host.op_compile,
    host.memory_alloc,
    host.garbage_collection,
    host.conjectured_gc,
    host.data_wait,
    pipeline.data_pipeline,
    environment.variables,
)
_ORDER = {"high": 0, "medium": 1, "low": 2}


def findings(evidence: Evidence, cluster: Json | None = None) -> list[Json]:
    """All findings, the gravest and then the most costly first. `cluster`: the report's, where it is there already."""
    view = View(evidence, cluster)
    found = [finding for rule in RULES if (finding := rule(view)) is not None]
    rows = [finding.as_json(view.step_us) for finding in found]
    return sorted(rows, key=lambda row: (_ORDER[row["severity"]], -(row["recoverable_us"] or 0.0)))
