"""The training log and the run config that go with a synthetic job, in the forms of MindSpore Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import cos, exp, pi
from pathlib import Path

import numpy as np

from analysis.synthetic.spec import GptSpec

WARMUP_STEPS = 20
COMPILE_MS = {"graph": 103_000, "pynative": 9_400, "torch": 8_100}


def step_flops(spec: GptSpec) -> int:
    """Model FLOPs of one optimiser step over all ranks: 6 per weight and token, 6 per score and width with half the
    scores masked; of experts those that a token is sent to."""
    if spec.mla:
        raise ValueError("step_flops knows models without latent attention only")
    ffn = spec.moe.topk * spec.moe.ffn + spec.moe.shared_ffn if spec.moe else spec.ffn
    matrices = 3 if spec.activation == "swiglu" else 2
    width = spec.heads * spec.head_dim
    projections = spec.hidden * (2 * width + 2 * spec.kv_heads * spec.head_dim)
    weights = spec.layers * (projections + matrices * spec.hidden * ffn) + spec.hidden * spec.vocab
    scores = spec.layers * width * spec.seq
    return 6 * (weights + scores) * spec.global_batch * spec.seq


def step_us_for(spec: GptSpec, mfu: float) -> int:
    """Step time in microseconds at which the job reaches that MFU."""
    return round(step_flops(spec) / (mfu * spec.peak_tflops * 1e12 * spec.world_size) * 1e6)


def write_log(
    path: Path,
    spec: GptSpec,
    *,
    steps: int,
    step_ms: float,
    at: datetime,
    profiled: tuple[int, int] | None = None,
    seed: int = 0,
    drift: float = 0.0,
) -> None:
    """Step lines of worker_0.log. `seed` moves the last digits only: the same data gives nearly the same loss.

    `profiled` steps are 6 % slower; `drift` is added to the loss step by step, as when precision is lost.
    """
    path.write_text("\n".join(_lines(spec, steps, step_ms, at, profiled, seed, drift)) + "\n", encoding="utf-8")


def _lines(
    spec: GptSpec,
    steps: int,
    step_ms: float,
    at: datetime,
    profiled: tuple[int, int] | None,
    seed: int,
    drift: float,
) -> Iterator[str]:
    data = np.random.default_rng(20_240_101)  # the order of the data is the same in every run
    own = np.random.default_rng([seed, 7])
    flops = step_flops(spec) / spec.world_size
    now = at
    yield _line(now, "mindformers/trainer/base_trainer.py:977", ".........Starting Training Model..........")
    for step in range(1, steps + 1):
        loss = _loss(step, data) * (1 + 2e-4 * own.standard_normal()) + drift * step
        norm = (1.1 + 38 * exp(-step / 9)) * (1 + 0.05 * data.standard_normal())
        time_ms = _step_time(spec, step, step_ms, profiled, own)
        now += timedelta(milliseconds=time_ms)
        yield _line(
            now,
            "mindformers/core/callback/callback.py:529",
            f"{{ Epoch:[  1/  2], step:[{step:5d}/{steps:5d}], loss: {loss:.3f}, per_step_time: {time_ms}ms, "
            f"lr: {_learning_rate(step, steps):.8g}, overflow cond: False, loss_scale: 1.0, global_norm: [{norm:.6f}], "
            f"train_throughput_per_npu: {flops / time_ms / 1e9:.3f}T",
        )


def _line(now: datetime, place: str, text: str) -> str:
    return f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d} - [{place}] - INFO - {text}"


def _loss(step: int, data: np.random.Generator) -> float:
    """From the logarithm of the vocabulary down, as a language model's first steps go."""
    return float(2.9 + 5.6 * exp(-step / 32) + 1.9 * exp(-step / 180) + 0.035 * data.standard_normal())


def _step_time(
    spec: GptSpec, step: int, step_ms: float, profiled: tuple[int, int] | None, own: np.random.Generator
) -> int:
    if step == 1:
        return COMPILE_MS[spec.mode]
    slowed = 1.06 if profiled and profiled[0] <= step <= profiled[1] else 1.0
    return round(step_ms * slowed * (1 + 0.002 * own.standard_normal()))


def _learning_rate(step: int, steps: int) -> float:
    top, end = 3e-4, 3e-5
    if step <= WARMUP_STEPS:
        return top * (step - 1) / WARMUP_STEPS
    return end + (top - end) * (1 + cos(pi * (step - WARMUP_STEPS) / (steps - WARMUP_STEPS))) / 2


def config_text(spec: GptSpec, model_name: str) -> str:
    """The run's YAML with model sizes, parallel split and launch mode of the spec."""
    seq_parallel, sink = str(spec.sequence_parallel), str(spec.sink and spec.mode == "graph")
    norms = "float32" if "norm" in spec.casts else "bfloat16"
    softmax = "float32" if "softmax" in spec.casts else "bfloat16"
    rotary = "float32" if "rotary" in spec.casts else "bfloat16"
    weights = "float32" if "weights" in spec.casts else "bfloat16"
    family = "Qwen3Moe" if spec.moe else "Llama"
    more = f"    offset: {list(spec.offset)}\n" if spec.offset else ""
    if spec.heads * spec.head_dim != spec.hidden:
        more += f"    head_dim: {spec.head_dim}\n"
    if spec.moe:
        more += f"    n_routed_experts: {spec.moe.experts}\n    num_experts_per_tok: {spec.moe.topk}\n"
        more += f"    moe_intermediate_size: {spec.moe.ffn}\n    router_aux_loss_coef: {spec.moe.aux_loss}\n"
    return f"""\
seed: 0
run_mode: 'train'

trainer:
  type: CausalLanguageModelingTrainer
  model_name: '{model_name}'

runner_config:
  epochs: 2
  batch_size: {spec.micro_batch}
  sink_mode: {sink}
  sink_size: 1

runner_wrapper:
  type: MFTrainOneStepCell
  use_clip_grad: True

optimizer:
  type: AdamW
  betas: [0.9, 0.95]
  eps: 1.e-8
  weight_decay: 0.1

lr_schedule:
  type: CosineWithWarmUpLR
  learning_rate: 3.e-4
  lr_end: 3.e-5
  warmup_steps: {WARMUP_STEPS}

use_parallel: {spec.world_size > 1}
parallel:
  parallel_mode: 1
  enable_parallel_optimizer: {spec.optimizer_shard}
parallel_config:
  data_parallel: {spec.dp}
  model_parallel: {spec.tp}
  pipeline_stage: {spec.pp}
  expert_parallel: {spec.ep}
  context_parallel: {spec.cp}
  use_seq_parallel: {seq_parallel}
  micro_batch_num: {spec.micro_batches}
micro_batch_interleave_num: 1

recompute_config:
  recompute: {spec.recompute}
  select_recompute: {bool(spec.recompute_modules)}

callbacks:
  - type: MFLossMonitor

context:
  mode: {0 if spec.mode == "graph" else 1}
  device_target: "Ascend"
  jit_config:
    jit_level: "{spec.jit_level}"

model:
  model_config:
    type: {family}Config
    batch_size: {spec.micro_batch}
    seq_length: {spec.seq}
    hidden_size: {spec.hidden}
    num_layers: {spec.layers}
    pp_interleave_num: {spec.interleave}
    num_heads: {spec.heads}
    n_kv_heads: {spec.kv_heads}
    vocab_size: {spec.vocab}
    intermediate_size: {spec.ffn}
    rms_norm_eps: 1.0e-5
    compute_dtype: "bfloat16"
    layernorm_compute_type: "{norms}"
    softmax_compute_type: "{softmax}"
    rotary_dtype: "{rotary}"
    param_init_type: "{weights}"
    use_flash_attention: {spec.fused_attention}
{more}  arch:
    type: {family}ForCausalLM
"""
