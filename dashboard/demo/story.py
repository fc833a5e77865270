"""The demo's story: a 7B model is moved to MindSpore on eight cards, week by week, until an upgrade undoes part of it.
Beside it a 13B model is spread over pipeline stages, and one with experts learns to use all of them.

Each chapter is one run. What it changes, how well it ran and what is to be seen stand in one row; dump, log and config
are made from that row, so that pages show these numbers because they measured them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from analysis.synthetic.log import step_us_for
from analysis.synthetic.spec import GptSpec, Moe

FIRST_DAY = datetime(2026, 10, 26, 9, 30, tzinfo=UTC)
LOG_STEPS = 200
FIRST_STEP = 101
"""First of the profiled steps; well after compile and warm-up."""
PROFILED_STEPS = 2
SOC = "Ascend910B3"
_LLAMA = {"head_dim": 128, "vocab": 32000, "seq": 4096}
MODELS: dict[str, dict[str, Any]] = {
    "llama2_7b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, **_LLAMA},
    "llama2_13b": {"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 40, "ffn": 13824, **_LLAMA},
    "qwen3_30b_a3b": {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 4, "vocab": 151936, "seq": 4096},
}
"""Published sizes; of the model with experts, a third of its layers, which four cards hold."""

_ALL_CASTS = frozenset({"weights", "norm", "rotary", "residual"})
_UNFUSED: dict[str, Any] = {"fused_attention": False, "mask": "full", "mask_rebuilt": True, "overlap_grad_sync": False}
_FULL_MASK: dict[str, Any] = {"mask": "full", "mask_rebuilt": True, "overlap_grad_sync": False}
_NO_OVERLAP: dict[str, Any] = {"overlap_grad_sync": False}


@dataclass(frozen=True)
class Chapter:
    """One run. `mfu` and `cast_ratio` are what the pages must show; `free_ratio` is the idle share of a step."""

    key: str
    name: str
    day: int
    mfu: float
    cast_ratio: float
    free_ratio: float
    casts: frozenset[str]
    changes: dict[str, Any] = field(default_factory=dict)
    mode: str = "graph"
    sink: bool = True
    cann: str = "8.2.RC1"
    mindspore: str = "2.7.1"
    commit: str = ""
    aligned: bool = True
    """Whether layer outputs were compared with the source framework before the run."""
    slow: dict[int, float] = field(default_factory=dict)
    """Ranks whose compute takes that many times longer."""
    healthy_mfu: float | None = None
    """What it would reach without the slow ranks."""
    model: str = "llama2_7b"
    ranks: tuple[int, ...] = (0,)
    """Those that are profiled."""
    steps: int = PROFILED_STEPS

    @property
    def at(self) -> datetime:
        return FIRST_DAY + timedelta(days=self.day, minutes=17 * self.day)

    @property
    def spec(self) -> GptSpec:
        spec = GptSpec(
            **{**MODELS[self.model], "dp": 8, "mode": self.mode, **self.changes},
            jit_level="O1" if self.sink else "O0",
            sink=self.sink,
            casts=self.casts,
            cast_ratio=self.cast_ratio,
            free_ratio=self.free_ratio,
            seed=self.day + 1,
        )
        return replace(spec, step_us=step_us_for(spec, self.healthy_mfu or self.mfu))


_NO_WEIGHTS = _ALL_CASTS - {"weights"}
_NORM_ROTARY = frozenset({"norm", "rotary"})
_NORM = frozenset({"norm"})
_ALL = tuple(range(8))
_EACH_STAGE = (0, 2, 4, 6)
_STAGES: dict[str, Any] = {"pp": 4, "tp": 2, "dp": 1, "sequence_parallel": True, "micro_batches": 8}
_UNEVEN = Moe(128, 8, 768, uneven=0.9, drawn=True)
_EVEN = replace(_UNEVEN, uneven=0.15, aux_loss=1e-2)

STORY = (
    # key, name, day, MFU, Cast share, free share, where casts stand, what else differs from the goal
    Chapter("llama2-7b-01", "First port, PyNative", 0, 0.220, 0.120, 0.220, _ALL_CASTS, _UNFUSED, "pynative", False,
            commit="5b1f0c2e", aligned=False),
    Chapter("llama2-7b-02", "Graph mode, no sink", 3, 0.246, 0.116, 0.120, _ALL_CASTS, _UNFUSED, sink=False,
            commit="90a4d7b1", aligned=False),
    Chapter("llama2-7b-03", "Graph mode with sink", 4, 0.259, 0.114, 0.060, _ALL_CASTS, _UNFUSED, commit="90a4d7b1",
            aligned=False),
    Chapter("llama2-7b-04", "Weights kept in BF16", 7, 0.274, 0.059, 0.060, _NO_WEIGHTS, _UNFUSED, commit="c2e86f05"),
    Chapter("llama2-7b-05", "FlashAttention", 9, 0.359, 0.066, 0.060, _NO_WEIGHTS, _FULL_MASK, commit="d41b9ae3"),
    Chapter("llama2-7b-06", "Compressed mask", 11, 0.376, 0.064, 0.060, _NO_WEIGHTS, _NO_OVERLAP, commit="e07c5512"),
    Chapter("llama2-7b-07", "Residual in BF16", 14, 0.385, 0.054, 0.060, _NORM_ROTARY, _NO_OVERLAP, commit="1f93ab70"),
    Chapter("llama2-7b-08", "Rotary in BF16", 16, 0.396, 0.034, 0.065, _NORM, _NO_OVERLAP, commit="27d0e4c8"),
    Chapter("llama2-7b-09", "Gradient sync beside backward", 18, 0.404, 0.032, 0.075, _NORM, commit="3c6688fa"),
    Chapter("llama2-7b-10", "Goal reached", 21, 0.410, 0.030, 0.070, _NORM, commit="48e2b19d"),
    Chapter("llama2-7b-tp2", "TP2 trial, all ranks profiled", 23, 0.315, 0.031, 0.070, _NORM,
            {"tp": 2, "dp": 4, "sequence_parallel": True, "micro_batch": 2}, commit="48e2b19d", slow={5: 1.12},
            healthy_mfu=0.345, ranks=_ALL, steps=1),
    Chapter("llama2-13b-pp4-01", "13B on four stages", 22, 0.286, 0.031, 0.060, _NORM,
            {**_STAGES, "offset": (-2, 0, 0, 2)}, commit="48e2b19d", model="llama2_13b", ranks=_EACH_STAGE, steps=1),
    Chapter("llama2-13b-pp4-02", "13B on four stages, layers even", 24, 0.320, 0.031, 0.060, _NORM, _STAGES,
            commit="48e2b19d", model="llama2_13b", ranks=_EACH_STAGE, steps=1),
    Chapter("qwen3-moe-ep4-01", "MoE trial, experts over four cards", 26, 0.199, 0.031, 0.070, _NORM,
            {"dp": 4, "ep": 4, "moe": _UNEVEN}, commit="48e2b19d", healthy_mfu=0.230, model="qwen3_30b_a3b",
            ranks=_ALL[:4], steps=1),
    Chapter("qwen3-moe-ep4-02", "MoE trial, load-balancing loss x 10", 27, 0.225, 0.031, 0.070, _NORM,
            {"dp": 4, "ep": 4, "moe": _EVEN}, commit="48e2b19d", healthy_mfu=0.230, model="qwen3_30b_a3b",
            ranks=_ALL[:4], steps=1),
    Chapter("llama2-7b-11", "Nightly", 25, 0.409, 0.031, 0.071, _NORM, commit="48e2b19d"),
    Chapter("llama2-7b-12", "Nightly after the CANN 8.3 upgrade", 28, 0.384, 0.074, 0.072, _NORM_ROTARY,
            cann="8.3.RC1", commit="48e2b19d"),
)  # fmt: skip

REFERENCE = STORY[0].key
"""The run whose loss the others are compared with."""
BEFORE_UPGRADE, AFTER_UPGRADE = STORY[-2].key, STORY[-1].key
