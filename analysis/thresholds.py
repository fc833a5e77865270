"""Every threshold of checklist and findings, as data: what it is, its unit and where the number comes from.

Sources: "checklist" is the product's own definition (docs/metrics.md), "advisor" is the default of the public
msprof-analyze advisor, "practice" is a published guide or measurement named in the text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """A limit. `value` is in `unit`; "ratio" is 0 to 1."""

    value: float
    unit: str
    source: str


def _t(value: float, unit: str, source: str) -> Threshold:
    return Threshold(value, unit, source)


THRESHOLDS: dict[str, Threshold] = {
    # checklist
    "cast_ratio": _t(0.05, "ratio", "checklist: Cast share of device compute below 5 %"),
    "device_ratio": _t(0.85, "ratio", "checklist: the device works in more than 85 % of the step"),
    "long_sequence": _t(2048, "tokens", "checklist: from here on attention needs the fused path"),
    "fused_speedup": _t(
        2.0, "times", "practice: published FlashAttention training speed-ups are 2 to 4; the low end is used"
    ),
    "compressed_mask": _t(2048, "tokens", "checklist: side of the compressed attention mask of FlashAttentionScore"),
    "alignment_cosine": _t(0.99, "ratio", "practice: MindStudio Probe, usual cosine of an aligned tensor"),
    "alignment_cosine_floor": _t(0.9, "ratio", "practice: MindStudio Probe, below this a tensor is never aligned"),
    "alignment_absolute_error": _t(0.001, "", "practice: MindStudio Probe, with a low cosine a larger error fails"),
    "alignment_absolute_ceiling": _t(1.0, "", "practice: MindStudio Probe, a larger error always fails"),
    "alignment_relative_error": _t(0.01, "ratio", "practice: MindStudio Probe, usual maximum relative error"),
    "warmup_factor": _t(
        1.5, "times", "checklist: a leading step longer than this times the median of the rest is warm-up"
    ),
    "loss_relative_difference": _t(0.02, "ratio", "practice: mean relative loss difference accepted in migrations"),
    "loss_drift": _t(0.01, "ratio", "checklist: growth of the relative loss difference from first to second half"),
    "norm_relative_difference": _t(0.10, "ratio", "practice: global norm is noisier than loss"),
    "precision_steps": _t(100, "steps", "checklist: fewer common steps prove nothing"),
    # verdict
    "scheduling": _t(0.30, "ratio", "checklist: free share from which a step is bound by scheduling"),
    "mostly_scheduling": _t(0.15, "ratio", "checklist: free share from which a step is mostly bound by scheduling"),
    "communication": _t(0.15, "ratio", "checklist: exposed communication share"),
    "still_ratio": _t(0.5, "ratio", "practice: from here on collectives mostly wait and do not move bytes"),
    "input_queue_empty": _t(0.30, "ratio", "checklist: share of steps with an empty device queue"),
    "queue_starved": _t(0.20, "ratio", "practice: MindSpore's own advice on its data pipeline"),
    "compute": _t(0.90, "ratio", "checklist: compute share of a compute-bound step"),
    "compute_low": _t(0.85, "ratio", "checklist: the same when free time is below compute_free"),
    "compute_free": _t(0.10, "ratio", "checklist: free share below which compute_low is enough"),
    # findings
    "free_ratio": _t(0.10, "ratio", "advisor: free time share of the step"),
    "severity_high": _t(0.05, "ratio", "advisor: share of the step from which an issue is of high priority"),
    "severity_medium": _t(0.03, "ratio", "advisor: share of the step from which an issue is of medium priority"),
    "rank_spread": _t(0.05, "ratio", "advisor: (max - min) / mean between ranks"),
    "stage_imbalance": _t(0.05, "ratio", "advisor: compute spread between pipeline stages"),
    "ai_cpu_us": _t(20.0, "us", "advisor: an AI CPU kernel longer than this"),
    "block_dim_us": _t(20.0, "us", "advisor: block number is only judged for kernels longer than this"),
    "bound_us": _t(20.0, "us", "advisor: what binds a kernel is only asked of those longer than this"),
    "bound_pipe": _t(0.80, "ratio", "advisor: a kernel is bound by its busiest unit from here on"),
    "bound_vector": _t(0.70, "ratio", "advisor: the same for vector unit and copies of the vector core"),
    "bound_fixpipe": _t(0.75, "ratio", "advisor: the same for the copies out of the matrix unit"),
    "scalar_others": _t(
        0.5,
        "ratio",
        "practice: the scalar unit also issues what others do and waits for it; it binds a kernel where they reach "
        "less than this share of their own thresholds",
    ),
    "unbound_ratio": _t(0.05, "ratio", "practice: share of the step in kernels that keep no unit busy"),
    "scalar_ratio": _t(0.01, "ratio", "practice: share of the step in kernels held up by their scalar unit"),
    "dynamic_ratio": _t(0.10, "ratio", "practice: below this share dynamic shapes do not matter"),
    "constant_repeats": _t(
        3, "times", "practice: once for the cold start, once for a second shape; from here it is repetition"
    ),
    "sdma_small_bytes": _t(16e6, "bytes", "advisor: an SDMA packet below 16 MB is small"),
    "rdma_small_bytes": _t(1e6, "bytes", "advisor: an RDMA packet below 1 MB is small"),
    "small_packet_ratio": _t(0.20, "ratio", "advisor: share of small packets by count"),
    "sdma_alignment": _t(512, "bytes", "advisor: SDMA payloads are fast in multiples of this"),
    "sdma_bandwidth": _t(14.4, "GB/s", "advisor: 0.8 of 18 GB/s; below it while matmuls run there is contention"),
    "rdma_retransmission_ms": _t(4000.0, "ms", "advisor: a single RDMA operation longer than this was retransmitted"),
    "memory_ops_us": _t(10_000.0, "us", "advisor: allocation and release calls in a step"),
    "data_loading_us": _t(10_000.0, "us", "advisor: data loading in a step"),
    "sync_ratio": _t(0.01, "ratio", "practice: share of the step idle behind synchronisation worth a look"),
    "gc_us": _t(1000.0, "us", "advisor: a garbage collection in a step"),
    "fusible_count": _t(5, "times", "advisor: a sequence seen more often than this"),
    "fusible_ratio": _t(0.01, "ratio", "advisor: share of the step of a fusible sequence"),
    "affinity_ratio": _t(0.01, "ratio", "advisor: share of the step of sequences that have a fused operator"),
    "collective_pieces": _t(
        4, "pieces", "practice: a fused product and collective overlap but for one piece of each; few are usual"
    ),
    "sync_batch_norm_count": _t(20, "times", "advisor: SyncBatchNorm in a step"),
    "silent_gap_us": _t(200_000.0, "us", "advisor: a gap longer than this with no sign of the host"),
    "frequency_drop": _t(0.05, "ratio", "advisor: mean AI Core clock below the rated one"),
    "vote_ratio": _t(0.50, "ratio", "practice: a rank that is last in most of its collectives is slow"),
    "vote_count": _t(5, "collectives", "practice: fewer votes prove nothing"),
    "wait_spread": _t(0.05, "ratio", "advisor: spread of elapsed times inside one collective"),
    "volume_tolerance": _t(
        1.01,
        "times",
        "practice: real dumps meet the exact need to 0.03 %; padding of messages and buckets is far below 1 %",
    ),
    "volume_bytes": _t(1e6, "bytes", "practice: scalars and flags of a step carry less"),
    "link_ratio": _t(0.80, "ratio", "practice: a link below this share of the typical bandwidth is slow"),
    "link_bytes": _t(1e6, "bytes", "practice: smaller transfers measure latency, not bandwidth"),
    "movement_ratio": _t(0.15, "ratio", "practice: data movement share of compute worth a look"),
    "expert_load": _t(1.5, "times", "practice: busiest expert against the mean"),
}


def limit(name: str) -> float:
    """Value of the threshold `name`; KeyError when there is none of that name."""
    return THRESHOLDS[name].value
