"""What the numbers on pages are called, what they mean and how they are written. Definitions: docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

Text = str | Promise


@dataclass(frozen=True)
class Metric:
    """`kind` picks the unit: duration (ns), percent (0 to 1), bytes, number. `better` is the good direction."""

    key: str
    label: Text
    help: Text
    kind: str
    better: str
    short: Text = ""


METRICS = {
    metric.key: metric
    for metric in (
        Metric(
            "step_time_ns",
            _("Step time"),
            _(
                "Wall time of one optimiser step, median over the judged steps (warm-up left out). "
                "From the training log where there is one, since profiling slows a step down."
            ),
            "duration",
            "low",
        ),
        Metric(
            "mfu",
            _("MFU"),
            _(
                "Model FLOPs utilisation: the FLOPs the model needs per step / (step time x devices x peak). "
                "Recomputation does not count."
            ),
            "percent",
            "high",
        ),
        Metric(
            "hfu",
            _("HFU"),
            _("Hardware FLOPs utilisation: FLOPs counted from kernel shapes / (step time x peak)."),
            "percent",
            "high",
        ),
        Metric(
            "tflops_per_device",
            _("TFLOPS per device"),
            _("Model FLOPs a device gets through per second, in 10^12."),
            "number",
            "high",
        ),
        Metric(
            "device_ratio",
            _("Device ratio"),
            _("Share of the step in which the device works: 1 - free / step time. The checklist asks for over 85 %."),
            "percent",
            "high",
        ),
        Metric(
            "compute_ratio",
            _("Compute ratio"),
            _("Share of the step in which the device computes."),
            "percent",
            "high",
        ),
        Metric(
            "exposed_communication_ratio",
            _("Exposed communication"),
            _("Share of the step spent in communication that no computing hides."),
            "percent",
            "low",
        ),
        Metric(
            "cast_ratio",
            _("Cast share"),
            _("Time in Cast kernels / time in all compute kernels. The checklist asks for under 5 %."),
            "percent",
            "low",
        ),
        Metric(
            "movement_ratio",
            _("Data movement share"),
            _("Time in kernels that only move or convert data (Cast, Transpose, Slice, Concat ...) / compute time."),
            "percent",
            "low",
        ),
        Metric(
            "peak_memory_bytes",
            _("Peak memory"),
            _("Largest amount of device memory reserved during the capture, over its ranks."),
            "bytes",
            "low",
        ),
        Metric(
            "recoverable_ns",
            _("Recoverable"),
            _("Time per step that fixing what failed would win. Findings that share kernels are counted once."),
            "duration",
            "low",
        ),
    )
}

CHECKLIST = {
    "dtype_cast": (_("Uniform dtype"), _("Cast share of device compute stays below 5 %.")),
    "graph_sink": (
        _("Graph mode and sink"),
        _("Graph mode and data sink are on; the device ratio is over 85 %."),
    ),
    "fused_attention": (_("Fused attention"), _("Attention runs as FlashAttention kernels.")),
    "ffn_parallel": (
        _("FFN parallel split"),
        _("FFN shapes and communication match what the parallel configuration needs."),
    ),
    "attention_mask": (
        _("Attention mask"),
        _("The mask comes from the framework, has the right shape and is not rebuilt in every layer."),
    ),
    "weight_alignment": (_("Weight alignment"), _("Layer outputs were compared with the source framework.")),
    "warmup_mfu": (_("Warm-up and MFU"), _("Judged steps leave out warm-up and compile; MFU is recorded.")),
    "precision_regression": (
        _("Precision regression"),
        _("Loss and gradient norm follow the reference run."),
    ),
}

FINDINGS = {
    "constant_work": _("Repeated constant work"),
    "ai_cpu": _("Kernels on AI CPU"),
    "movement": _("Data movement"),
    "block_dim": _("Cores left idle"),
    "dynamic_shape": _("Dynamic shapes"),
    "fusible": _("Operators to fuse"),
    "frequency_drop": _("Lower clock"),
    "expert_load": _("Uneven experts"),
    "exposed_communication": _("Exposed communication"),
    "slow_rank": _("Slow rank"),
    "slow_link": _("Slow link"),
    "compute_spread": _("Uneven compute"),
    "stage_imbalance": _("Uneven pipeline stages"),
    "pipeline_bubble": _("Pipeline bubble"),
    "small_packets": _("Small packets"),
    "byte_alignment": _("Unaligned packets"),
    "bandwidth_contention": _("Bandwidth contention"),
    "retransmission": _("Retransmission"),
    "synchronize": _("Host synchronisation"),
    "op_compile": _("Operator compilation"),
    "memory_alloc": _("Memory allocation"),
    "garbage_collection": _("Garbage collection"),
    "data_wait": _("Waiting for data"),
    "variables": _("Environment variables"),
}

VERDICTS = {
    "compute": _("Compute bound"),
    "scheduling": _("Scheduling bound"),
    "mostly_scheduling": _("Mostly scheduling"),
    "communication": _("Communication bound"),
    "input": _("Input bound"),
    "mixed": _("Mixed"),
}

LOSSES = {
    "scheduling": _("waiting for the host"),
    "free": _("waiting for the host"),
    "communication": _("exposed communication"),
    "exposed_communication": _("exposed communication"),
    "communication_not_overlapped": _("exposed communication"),
    "input": _("waiting for data"),
    "bubble": _("pipeline bubble"),
    "compute": _("computing"),
}

BLOCKS = {
    "norm_attention": _("Attention norm"),
    "qkv": pgettext_lazy("block", "QKV"),
    "position": _("Position"),
    "attention_core": _("Attention core"),
    "attention_out": _("Attention out"),
    "residual": _("Residual"),
    "norm_ffn": _("FFN norm"),
    "ffn_up": _("FFN up"),
    "activation": _("Activation"),
    "ffn_down": _("FFN down"),
    "moe_router": _("MoE router"),
    "moe_dispatch": _("MoE dispatch"),
    "moe_experts": _("MoE experts"),
    "movement": _("Data movement"),
    "communication": _("Communication"),
    "embedding": _("Embedding"),
    "final_norm": _("Final norm"),
    "head_loss": _("Head and loss"),
    "optimizer": _("Optimizer"),
    "gradient_sync": _("Gradient sync"),
    "other": _("Other"),
}

PASSES = {
    "forward": _("Forward"),
    "backward": _("Backward"),
    "recompute": _("Recompute"),
    "none": _("Outside passes"),
}

METHODS = {
    "scope": _("scope names in kernel names"),
    "scope_map": _("the scope map of the final graph"),
    "trace": _("trace correlation"),
    "structure": _("the repeating structure of kernels"),
    "neighbours": _("neighbouring kernels"),
}

RANK_METRICS = {
    "step_time_ns": _("Step time"),
    "computing_ns": _("Computing"),
    "communication_not_overlapped_ns": _("Exposed communication"),
    "free_ns": _("Free"),
    "device_ratio": _("Device ratio"),
    "cast_ratio": _("Cast share"),
}

FRAMEWORKS = {"mindspore": "MindSpore", "torch_npu": "PyTorch (torch_npu)", "msprof": "msprof"}
MODES = {"graph": "GRAPH", "pynative": "PYNATIVE"}
