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

TERMS: dict[str, tuple[Text, Text]] = {
    "computing_ns": (
        _("Computing"),
        _("Time of a step in which the device computes, whatever else it does meanwhile."),
    ),
    "communication_not_overlapped_ns": (
        _("Exposed communication"),
        _("Time of a step spent in communication that no computing hides, waiting for other pipeline stages included."),
    ),
    "free_ns": (_("Free"), _("Time of a step in which the device neither computes nor communicates.")),
    "checklist": (_("Checklist"), _("How many of the checklist's items pass, of those that could be judged.")),
    "verdict": (
        _("Verdict"),
        _(
            "What binds the step: computing, exposed communication, waiting for other pipeline stages, the host's "
            "scheduling (free time), or input. Mixed where no one loss stands out."
        ),
    ),
    "npu_hours": (
        _("NPU-hours"),
        _(
            "What it has cost so far: recoverable time a step x cards x steps run. Steps run are those that the step "
            "records span; without records, those up to the end of the newest capture."
        ),
    ),
    "elapse": (_("Elapsed"), _("From the start of the operation on this rank to its end: transit, wait and the rest.")),
    "transit": (_("Transit"), _("Time in which data went over the link.")),
    "wait": (_("Wait"), _("Time this rank waited for the others of the group to come.")),
    "bandwidth": (_("Bandwidth"), _("Bytes moved / transit time.")),
}
"""What else tables show in numbers: name and definition."""

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
    "unbound": _("No unit of the cores busy"),
    "scalar_bound": _("Held up by the scalar unit"),
    "dynamic_shape": _("Dynamic shapes"),
    "fusible": _("Operators to fuse"),
    "affinity": _("Fused operators not used"),
    "fused_collectives": _("Products and collectives to fuse"),
    "sync_batch_norm": _("Synchronised batch norms"),
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
    "conjectured_gc": _("Silent host"),
    "data_wait": _("Waiting for data"),
    "data_pipeline": _("Data pipeline"),
    "variables": _("Environment variables"),
    "environment": _("Environment variables"),
}

VERDICTS = {
    "compute": _("Compute bound"),
    "scheduling": _("Scheduling bound"),
    "mostly_scheduling": _("Mostly scheduling"),
    "communication": _("Communication bound"),
    "pipeline": _("Bound by the pipeline"),
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
    "embedding_gradients": _("Embedding gradients"),
    "pipeline_transfers": _("Pipeline transfers"),
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

FREE_CAUSES = {
    "gc": _("Garbage collection"),
    "data_wait": _("Waiting for data"),
    "memory_alloc": _("Memory allocation"),
    "sync": _("Host synchronisation"),
    "host_op": _("Host operators"),
    "launch_gap": _("Late launches"),
    "device_start": _("The device starts late"),
    "unknown": _("Free, cause unknown"),
    "other": _("Other free time"),
}

SLOW_KINDS = {
    "compute": _("it computes longer"),
    "host": _("its host launches late"),
    "unknown": _("the cause is not known"),
}

BOUNDS = {
    "mac": pgettext_lazy("unit", "Cube"),
    "vec": pgettext_lazy("unit", "Vector"),
    "scalar": pgettext_lazy("unit", "Scalar"),
    "memory": _("Memory"),
    "mte1": pgettext_lazy("unit", "Cube input"),
    "fixpipe": pgettext_lazy("unit", "Cube output"),
    "none": pgettext_lazy("unit", "No unit"),
}

SOURCES = {"log": _("from the training log"), "profile": _("from the profiled steps")}

CHANGES = {
    "computing": _("Computing"),
    "communication": _("Exposed communication"),
    "bubble": _("Pipeline bubble"),
    "free": _("Free"),
    "unaccounted": _("Not accounted for"),
}

CLASSES = {
    "cast": pgettext_lazy("class", "Cast"),
    "movement": _("Data movement"),
    "matmul": _("Matrix products"),
    "grouped_matmul": _("Grouped matrix products"),
    "conv": _("Convolutions"),
    "attention": _("Attention"),
    "attention_grad": _("Attention backward"),
    "softmax": pgettext_lazy("class", "Softmax"),
    "softmax_grad": _("Softmax backward"),
    "position": _("Position"),
    "position_grad": _("Position backward"),
    "norm": _("Norms"),
    "norm_grad": _("Norms backward"),
    "activation": _("Activation"),
    "activation_grad": _("Activation backward"),
    "elementwise": _("Elementwise"),
    "reduction": _("Reductions"),
    "random": _("Random numbers"),
    "embedding": _("Embedding"),
    "moe": _("Expert routing"),
    "optimizer": _("Optimizer"),
    "loss": _("Loss"),
    "communication": _("Communication"),
    "other": _("Other"),
}

EVIDENCE = {
    "rank": _("rank"),
    "exposure": _("overlap"),
    "dtype_pair": _("conversion"),
    "block": _("place"),
    "launch": _("launch"),
    "fault": _("fault"),
    "attention": _("attention"),
    "unfused": _("unfused"),
    "matmul": _("matrix product"),
    "collective": _("collective"),
    "operand": _("mask"),
    "builder": _("mask builder"),
    "layer": _("layer"),
    "source": _("source"),
    "steps": _("steps"),
    "mfu": _("MFU"),
    "missing": _("missing"),
    "loss": _("Loss"),
    "global_norm": _("gradient norm"),
}

FIGURES = {
    "cast_us": _("Cast"), "cast_ratio": _("Cast share"), "exposed_us": _("exposed"), "hidden_us": _("hidden"),
    "count": _("count"), "total_us": _("total"), "from": _("from"), "to": _("to"), "part": _("part"),
    "block": _("block"), "pass": _("pass"), "mode": _("mode"), "sink": _("sink"), "jit_level": _("JIT level"),
    "source": _("source"), "device_ratio": _("device ratio"), "type": _("type"), "class": _("class"),
    "input_shapes": _("input shapes"), "output_shapes": _("output shapes"), "kernels": _("kernels"),
    "shape": _("shape"), "dtype": _("dtype"), "profiled": _("profiled"), "judged": _("judged"),
    "warmup": _("warm-up"), "logged": _("logged"), "formula": _("formula"), "peak_tflops": _("peak TFLOPS"),
    "peak_dtype": _("peak dtype"), "peak_source": _("source of the peak"), "step_time_source": _("step time from"),
    "steps": _("steps"), "mean": _("mean"), "drift": _("drift"), "worst_step": _("worst step"), "worst": _("worst"),
    "name": _("name"), "cosine": _("cosine"), "max_absolute_error": _("largest absolute error"),
    "max_relative_error": _("largest relative error"), "aligned": _("aligned"), "tool": _("tool"), "file": _("file"),
    "in_layers": _("in layers"), "batch": _("batch"), "output_dtypes": _("output dtypes"),
}  # fmt: skip

HIDES = {
    "cast_ratio": _("Cast share"), "movement_ratio": _("Data movement share"), "layers": _("layers"),
    "op_types": _("operators by type"), "tflops": _("TFLOPS per device"), "step_time": _("Step time"),
    "steps of single kernels": _("steps of single kernels"), "bottleneck": _("verdict"), "mode": _("mode"),
    "jit_level": _("JIT level"), "sink": _("sink"), "environment": _("Environment"),
    "unprofiled step time": _("unprofiled step time"), "loss": _("Loss"), "communication": _("Communication"),
    "slow_ranks": _("slow ranks"), "slow_links": _("slow links"), "memory": _("memory curve"),
    "free time by cause": _("free time by cause"), "mfu": _("MFU"), "hfu": _("HFU"),
    "device_ratio": _("Device ratio"),
}  # fmt: skip

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
