"""Bytes a rank has to exchange in a step for the parallel split of its config, as a range, against what it exchanged.

Sizes are payloads: the tensor a collective works on. Tools count between (n - 1) / n of it (what leaves the device in a
ring of n) and all of it, so the low end of a range is the ring's share and the high end the payload. With A = tokens of
a micro-batch x hidden x bytes, L layers of a stage, m micro-batches of a step and P parameters of a device:

- tensor parallel: 4 A a layer and micro-batch (all-reduce), 8 to 10 A with sequence parallel (gathers and scatters);
  half more with full recomputation; experts in place of the FFN may need none of their half;
  embedding and head at most 4 A a micro-batch.
- data parallel: from 2 P bytes (one all-reduce of 16-bit gradients) to 8 P and 8 P again for every further
  micro-batch (32-bit gradients scattered each time, 32-bit weights gathered).
- expert parallel: 4 A x experts per token for each mixture layer and micro-batch (all-to-all there and back, forward
  and backward).
- pipeline: 1 to 4 A a micro-batch and model chunk (an edge that sends, a middle that sends and receives both ways),
  the low end divided by TP, which may send its part only.
- context parallel: keys and values of the others, forward once and backward twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from analysis.entries import Json, number, rows
from analysis.facts.collectives import operation
from analysis.thresholds import limit

if TYPE_CHECKING:
    from analysis.config import ModelConfig


class Needed(NamedTuple):
    """Bytes per rank and step."""

    low: float
    high: float


class _Sizes(NamedTuple):
    """Of one device: `state` is A, `calls` the micro-batches of a step, `dense` and `moe` the layers of its stage."""

    state: float
    calls: int
    dense: int
    moe: int


def needed(config: ModelConfig) -> dict[str, Needed] | None:
    """Range by kind: "collective" (tensor, data and context parallel), "allToAll", "p2p". None while a size or the
    split is not known."""
    if None in (config.layers, config.hidden, config.seq_length, config.micro_batch, config.devices):
        return None
    sizes = _sizes(config)
    tensor, data, context = _tensor(config, sizes), _data(config, sizes), _context(config, sizes)
    if data is None:
        return None
    together = Needed(tensor.low + data.low, tensor.high + data.high + context.high)
    pipeline = _pipeline(config, sizes)
    return {
        "collective": together,
        "allToAll": _experts(config, sizes),
        "p2p": Needed(pipeline.low, pipeline.high + context.high),
    }


def measured(entry: Json) -> dict[str, float] | None:
    """Bytes per step by the same kinds; None where the dump tells no sizes."""
    found = {"collective": 0.0, "allToAll": 0.0, "p2p": 0.0}
    told = [row for row in rows(entry, "communication") if number(row, "size_bytes") is not None]
    if not told:
        return None
    for row in told:
        name = operation(str(row.get("op")))
        kind = "p2p" if row.get("type") == "p2p" else "allToAll" if name == "allToAll" else "collective"
        found[kind] += float(row["size_bytes"])
    steps = max(1, len(rows(entry, "steps")))
    return {kind: size / steps for kind, size in found.items()}


def faults(entry: Json, config: ModelConfig) -> list[str]:
    """Kinds whose bytes lie outside the range by more than the tolerance, in words."""
    need, have = needed(config), measured(entry)
    if need is None or have is None:
        return []
    tolerance = limit("volume_tolerance")
    found = []
    for kind, (low, high) in need.items():
        name = {"collective": "collectives", "p2p": "sends and receives"}.get(kind, kind)
        if have[kind] > high * tolerance and have[kind] > limit("volume_bytes"):
            found.append(f"{name} carry {_gb(have[kind])} a step; the split needs at most {_gb(high)}")
        elif have[kind] * tolerance < low:
            found.append(f"{name} carry {_gb(have[kind])} a step; the split needs at least {_gb(low)}")
    return found


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _sizes(config: ModelConfig) -> _Sizes:
    tokens = (config.seq_length or 0) * (config.micro_batch or 0) / (config.cp or 1)
    layers = (config.layers or 0) // (config.pp or 1)
    dense = min(config.dense_layers or 0, layers) if config.experts else layers
    state = tokens * (config.hidden or 0) * _bytes(config)
    return _Sizes(state, (config.micro_batches or 1) * (config.gradient_accumulation or 1), dense, layers - dense)


def _bytes(config: ModelConfig) -> int:
    return 4 if "32" in str(config.compute_dtype or "") else 2


def _ring(ranks: int | None) -> float:
    return 1 - 1 / (ranks or 1)


def _tensor(config: ModelConfig, sizes: _Sizes) -> Needed:
    if (config.tp or 1) == 1:
        return Needed(0.0, 0.0)
    few, many = (8, 10) if config.sequence_parallel else (4, 4)
    again = 1.5 if config.recompute in ("full", "partial", None) else 1.0
    least = sizes.calls * sizes.state * few * (sizes.dense + sizes.moe / 2)
    # An all-reduce in a ring moves its payload twice: once to reduce, once to gather.
    most = sizes.calls * sizes.state * (many * again * (sizes.dense + sizes.moe) + 4)
    return Needed(least * _ring(config.tp), most * (1 if config.sequence_parallel else 2))


def parameters(config: ModelConfig) -> tuple[float, float] | None:
    """Of one device, (those of its layers without experts, all with experts, embedding and head)."""
    if config.mla or None in (config.heads, config.kv_heads, config.head_dim, config.hidden, config.layers):
        return None
    hidden, matrices, tp = config.hidden or 0, 3 if config.gated else 2, config.tp or 1
    width, keys = (config.heads or 0) * (config.head_dim or 0), (config.kv_heads or 0) * (config.head_dim or 0)
    sizes = _sizes(config)
    attention = hidden * (2 * width + 2 * keys) * (sizes.dense + sizes.moe)
    ffn = matrices * hidden * ((config.ffn or 0) * sizes.dense + (config.shared_ffn or 0) * sizes.moe)
    experts = matrices * hidden * (config.moe_ffn or 0) * (config.experts or 0) * sizes.moe / (config.ep or 1)
    ends = 2 * hidden * (config.vocab or 0)
    return (attention + ffn) / tp, (attention + ffn + experts + ends) / tp


def _data(config: ModelConfig, sizes: _Sizes) -> Needed | None:
    if (config.dp or 1) == 1:
        return Needed(0.0, 0.0)
    own = parameters(config)
    if own is None:
        return None
    return Needed(2 * own[0] * _ring(config.dp), 8 * own[1] * (1 + sizes.calls))


def _experts(config: ModelConfig, sizes: _Sizes) -> Needed:
    if config.ep is None or (config.ep > 1 and config.experts is None):
        return Needed(0.0, math.inf)  # a config that is silent about experts says nothing of them
    if config.ep == 1 or not sizes.moe:
        return Needed(0.0, 0.0)
    size = 4 * sizes.state * (config.experts_per_token or 1) * sizes.moe * sizes.calls
    again = 1.5 if config.recompute != "none" else 1.0
    # Ranks of one tensor parallel group may each send their part of the tokens.
    return Needed(size * _ring(config.ep) / (config.tp or 1), size * again)


def _pipeline(config: ModelConfig, sizes: _Sizes) -> Needed:
    if (config.pp or 1) == 1:
        return Needed(0.0, 0.0)
    once = sizes.state * sizes.calls
    return Needed(once / (config.tp or 1), 4 * once * (config.interleave or 1))


def _context(config: ModelConfig, sizes: _Sizes) -> Needed:
    cp = config.cp or 1
    if cp == 1:
        return Needed(0.0, 0.0)
    return Needed(0.0, 3 * 2 * (cp - 1) * sizes.state * (sizes.dense + sizes.moe) * sizes.calls)
