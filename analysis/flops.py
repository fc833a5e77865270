"""Floating-point operations of a training step from the model's sizes, and what share of the peak they reach.

The formula is Megatron-LM's with the causal half of attention (id "megatron_causal"), which MindSpore Transformers uses
in its log as well: matrix products only, forward + two backward, recomputation not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from analysis.entries import Json, number, rows, step_count
from analysis.entries import step_time_us as profiled_step_time_us
from analysis.thresholds import limit

if TYPE_CHECKING:
    from analysis.config import ModelConfig
    from analysis.peaks import Peak

FORMULA = "megatron_causal"
_TRAIN = 6  # multiply and add, once forward and twice backward


class _MissingSize(Exception):
    """Never leaves this module."""


@dataclass(frozen=True)
class ModelFlops:
    """Operations of one optimiser step over all devices, by part. They add up to `total`."""

    projections: float
    core: float
    dense_ffn: float
    experts: float
    logits: float
    mtp: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return self.projections + self.core + self.dense_ffn + self.experts + self.logits + self.mtp

    def with_recompute(self, recompute: str | None) -> float | None:
        """Operations really carried out: one more forward pass of the layers under "full", of the attention core under
        "selective". None for "partial" and for anything unknown."""
        layers = self.projections + self.core + self.dense_ffn + self.experts
        extra = {"none": 0.0, "full": layers / 3, "selective": self.core / 3}
        return self.total + extra[recompute] if recompute in extra else None


def model_flops(config: ModelConfig) -> ModelFlops | None:
    """Operations per optimiser step of the whole model; None while a size is missing."""
    try:
        return None if config.missing_sizes else _model_flops(config)
    except _MissingSize:
        return None


def _model_flops(config: ModelConfig) -> ModelFlops:
    layers, mtp = _n(config.layers), config.mtp_layers or 0
    tokens = _n(config.global_batch) * _n(config.seq_length)
    dense, moe = _layer_counts(config, layers, mtp)
    projections, core = _latent_attention(config) if config.mla else _attention(config)
    matrices = 3 if config.gated else 2
    hidden = _n(config.hidden)
    routed = _n(config.moe_ffn) * _n(config.experts_per_token) + (config.shared_ffn or 0) if moe else 0
    return ModelFlops(
        projections=_TRAIN * tokens * (layers + mtp) * projections,
        core=_TRAIN * tokens * (layers + mtp) * core,
        dense_ffn=_TRAIN * tokens * dense * hidden * _n(config.ffn) * matrices if dense else 0.0,
        experts=_TRAIN * tokens * moe * hidden * routed * matrices,
        logits=_TRAIN * tokens * hidden * _n(config.vocab) * (1 + mtp),
        mtp=_TRAIN * tokens * mtp * (3 * hidden + 2 * hidden * hidden),
    )


def _n(value: int | None) -> int:
    """A size the formula cannot do without."""
    if value is None:
        raise _MissingSize
    return value


def _layer_counts(config: ModelConfig, layers: int, mtp: int) -> tuple[int, int]:
    """(dense, mixture-of-experts) layers; prediction layers are of the last layer's kind."""
    if not config.experts:
        return layers + mtp, 0
    dense = min(config.dense_layers or 0, layers)
    moe = layers - dense
    return (dense, moe + mtp) if moe else (dense + mtp, 0)


def _attention(config: ModelConfig) -> tuple[float, float]:
    """Multiply-adds of one token in one layer, forward: (projections, core with the causal half)."""
    hidden, width = _n(config.hidden), _n(config.heads) * _n(config.head_dim)
    keys_values = 2 * _n(config.kv_heads) * _n(config.head_dim)
    return hidden * (width + keys_values) + width * hidden, width * _n(config.seq_length)


def _latent_attention(config: ModelConfig) -> tuple[float, float]:
    """The same for multi-head latent attention."""
    hidden, heads = _n(config.hidden), _n(config.heads)
    key = _n(config.qk_nope_dim) + _n(config.qk_rope_dim)
    value = _n(config.v_head_dim)
    rank = config.q_lora_rank
    query = rank * (hidden + heads * key + 1) if rank else hidden * heads * key
    latent = _n(config.kv_lora_rank)
    keys_values = latent * (hidden + heads * (_n(config.qk_nope_dim) + value) + 1) + hidden * _n(config.qk_rope_dim)
    return query + keys_values + heads * value * hidden, _n(config.seq_length) * heads * (key + value) / 2


def log_step_time_us(series: Sequence[Json], window: tuple[int, int] | None = None) -> float | None:
    """Median of `unprofiled_steps_us`; None without any."""
    times = unprofiled_steps_us(series, window)
    return median(times) if times else None


def unprofiled_steps_us(series: Sequence[Json], window: tuple[int, int] | None = None) -> list[float]:
    """Step times of a log in order, without the first step of the run, leading warm-up and the `window` of profiled
    (first, last) steps: those are slowed by the profiler."""
    timed = sorted(
        (int(step["step"]), value)
        for step in series
        if step.get("step") is not None and (value := number(step, "step_time_ms")) is not None and value > 0
    )
    times = [value for step, value in timed if step > 1 and not (window and window[0] <= step <= window[1])]
    while len(times) > 1 and times[0] > limit("warmup_factor") * median(times[1:]):
        times.pop(0)
    return [time * 1000.0 for time in times]


def utilisation(
    *,
    config: ModelConfig | None,
    devices: int | None,
    step_time_us: float | None,
    step_time_source: str | None = None,
    measured_flops: float | None = None,
    peak: Peak | None = None,
    heads: Sequence[Json] = (),
) -> Json:
    """The report's "flops" of one rank.

    `devices`: number of devices of the run (world size). `measured_flops`: operations of this rank in one step from
    kernel shapes, `heads` those of its attention kernels. `step_time_source`: "log" (unprofiled steps) or "profile".
    `error` tells of an impossible or contradictory value, which is then null.
    """
    wrong = _another_model(config, heads)
    model = model_flops(config) if config is not None and not wrong else None
    count, errors = _devices(config, devices)
    errors += wrong
    rate = _rate(model.total / count if model and count else None, step_time_us)
    measured_rate = _rate(measured_flops, step_time_us)
    found: Json = {
        "model_flops_per_step": model.total if model else None,
        "formula": FORMULA if model else None,
        "measured_flops": measured_flops,
        "peak_tflops": peak.tflops if peak else None,
        "peak_dtype": peak.dtype if peak else None,
        "peak_source": peak.source if peak else None,
        "mfu": _share("MFU", rate, peak, errors),
        "hfu": _share("HFU", measured_rate, peak, errors),
        "tflops_per_device": rate if rate is not None else measured_rate,
        "devices": count,
        "step_time_us": step_time_us,
        "step_time_source": step_time_source if step_time_us is not None else None,
        "error": "; ".join(errors) or None,
    }
    return found


def _rate(flops: float | None, step_time_us: float | None) -> float | None:
    """TFLOPS of one device."""
    return flops / step_time_us / 1e6 if flops is not None and step_time_us else None


def _devices(config: ModelConfig | None, devices: int | None) -> tuple[int | None, list[str]]:
    """Devices that share the step. A config for another number of devices than the dump's is not used."""
    said = config.devices if config is not None else None
    if said and devices and said != devices:
        return None, [f"the config splits over {said} devices, the run has {devices}"]
    return devices or said, []


def _another_model(config: ModelConfig | None, heads: Sequence[Json]) -> list[str]:
    """What contradicts the config in the attention kernels of a rank: none of them has the heads that it says. `heads`:
    their number and the width of all of them on this rank."""
    if config is None or config.mla or not config.heads or not config.head_dim or not heads:
        return []
    width = config.heads * config.head_dim
    for row in heads:
        ranks, rest = divmod(width, row["width"]) if row["width"] else (0, 1)
        if not rest and _may_split(config, ranks) and row["count"] in (None, config.heads // ranks):
            return []
    seen, shared = heads[0], f" over {config.tp} tensor parallel ranks" if (config.tp or 1) > 1 else ""
    kernels = f"{seen['count']} of {seen['width'] // seen['count']}" if seen["count"] else f"{seen['width']} in all"
    return [
        f"the config is of another model: it says {config.heads} heads of {config.head_dim}{shared}, attention kernels "
        f"have {kernels}"
    ]


def _may_split(config: ModelConfig, ranks: int) -> bool:
    """Whether the config may split heads over so many ranks: tensor parallel ones, under Ulysses context ranks too."""
    if config.tp and config.cp:
        return ranks in (config.tp, config.tp * config.cp)
    return ranks % (config.tp or 1) == 0


def _share(what: str, rate: float | None, peak: Peak | None, errors: list[str]) -> float | None:
    if rate is None or peak is None:
        return None
    share = rate / peak.tflops
    if share <= 1:
        return share
    errors.append(f"{what} of {share:.0%} is impossible: config, step time or peak ({peak.source}) is wrong")
    return None


CAUSAL, FULL = "causal", "full"


def _measured(entry: Mapping[str, Any], config: ModelConfig | None) -> tuple[float | None, str | None]:
    """Operations of a step by the kernels' shapes, and what masks of 2048 x 2048 over 2048 tokens were taken for, where
    there are such: compressed causal ones, whose attention counts as half, unless the config says that masks are whole
    (sparse modes 0 and 1). The entry may be one that was judged before."""
    measured, assumed = number(entry, "flops", "measured_flops"), number(entry, "facts", "attention", "assumed_flops")
    if measured is None or not assumed:
        return measured, None
    half = assumed / step_count(entry)
    causal = measured - half if (entry.get("flops") or {}).get("attention_mask") == FULL else measured
    whole = config is not None and config.sparse_mode in (0, 1)
    return (causal + half, FULL) if whole else (causal, CAUSAL)


def rank_utilisation(
    entry: Mapping[str, Any],
    *,
    config: ModelConfig | None,
    devices: int | None,
    series: Sequence[Json] = (),
    window: tuple[int, int] | None = None,
    peak: Peak | None = None,
) -> Json:
    """`utilisation` of a rank entry, by the log's step time where there is one, else the median profiled step."""
    logged = log_step_time_us(series, window)
    time = logged if logged is not None else profiled_step_time_us(entry)
    measured, mask = _measured(entry, config)  # shapes are the same with and without profiler
    found = utilisation(
        config=config,
        devices=devices,
        step_time_us=time,
        step_time_source="log" if logged is not None else "profile",
        measured_flops=measured,
        peak=peak,
        heads=rows(entry, "facts", "attention", "heads"),
    )
    return {**found, "attention_mask": mask}
