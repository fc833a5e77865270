"""Bytes a rank exchanges in a step in each dimension of the parallel split, against what its config needs.

Every communicator serves one dimension, told by its ranks, or where those are not known by the operation and by where
its collectives stand: inside layers, or behind them. Sizes are payloads: the tensor a collective works on. What a tool
counts lies between what leaves the device, (n - 1) / n of it in a ring of n ranks, and all of it; an all-reduce, which
reduces and then gathers, counts up to twice that. So every need is a range. With A = tokens of a micro-batch on a
device x hidden x bytes, L layers of the stage, m micro-batches and P parameters of the device:

- `tensor`: 4 A a layer and micro-batch (two all-reduces in each direction), 8 to 10 A with sequence parallel (gathers
  and scatters, the inputs gathered again for weight gradients or not); half more where all is recomputed; layers of
  experts may leave out their second half. First and last stage exchange up to 3 A a micro-batch for embedding and head,
  the last one also for layers that predict further tokens.
- `gradients`: gradients in 16 or 32 bits all-reduced, or reduce-scattered (once or for each micro-batch, by the number
  of operations) and weights gathered in 16 or 32 bits; an embedding that first and last stage share is all-reduced
  between them. P is that of the large matrices at least; at most also all norms and biases, routers, learned positions
  and rows that pad the vocabulary.
- `experts`: 4 A x experts per token for each layer of experts and micro-batch: there and back, in both directions.
  Half of it are the rank's own tokens, half those of its experts: anything from none to all of the group's.
- `pipeline`: A for each send and receive. A tool may count both or one. Chunks send as often as there are chunks.
- `context`: keys and values of all others forward; backward those again and their gradients. Or, with all-to-all
  (Ulysses), queries, keys, values and results in both passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.communication import operation
from analysis.entries import Json, number, rows
from analysis.stages import Held, held
from analysis.thresholds import limit

if TYPE_CHECKING:
    from analysis.config import ModelConfig

TENSOR, GRADIENTS, EXPERTS, PIPELINE, CONTEXT = "tensor", "gradients", "experts", "pipeline", "context"
WORDS = {
    TENSOR: "tensor parallel groups",
    GRADIENTS: "gradients and weights",
    EXPERTS: "experts",
    PIPELINE: "pipeline stages",
    CONTEXT: "context parallel groups",
}


class Needed(NamedTuple):
    """Bytes per rank and step."""

    low: float
    high: float


NOTHING = Needed(0.0, 0.0)


@dataclass
class Seen:
    """What one rank exchanged in a step for one dimension: bytes and number of calls by operation."""

    size: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    in_layers: bool = False

    @property
    def total(self) -> float:
        return sum(self.size.values())


EMPTY = Seen()


class _Sizes(NamedTuple):
    """Of one device: `state` is A, `calls` the micro-batches of a step, `held` the layers of its stage."""

    state: float
    calls: int
    held: Held


# What a rank exchanged


def measured(entry: Json, config: ModelConfig, groups: Mapping[str, Any] | None = None) -> dict[str, Seen] | None:
    """Bytes and operations per step by dimension; None where the dump tells no sizes, or the split is not known.
    Operations whose dimension cannot be told are under "unknown"."""
    if None in (config.tp, config.pp, config.cp):
        return None
    told = [row for row in rows(entry, "communication") if number(row, "size_bytes") is not None]
    if not told:
        return None
    steps = max(1, len(rows(entry, "steps")))
    placed = _places(entry)
    found: dict[str, Seen] = {}
    for row in told:
        name = "sendRecv" if row.get("type") == "p2p" else operation(str(row.get("op"))) or "other"
        group = str(row.get("group"))
        inside = placed.get(group[-3:])
        members = (groups or {}).get(group) or {}
        dimension = _by_ranks(members.get("ranks"), name, inside, config) or _by_place(name, inside, config)
        seen = found.setdefault(dimension, Seen())
        seen.size[name] += float(row["size_bytes"]) / steps
        seen.calls[name] += (number(row, "count") or 0.0) / steps
        seen.in_layers |= bool(inside)
    return found


def _places(entry: Json) -> dict[str, bool]:
    """Last digits of a communicator -> whether its collectives stand in layers, where kernels are placed."""
    found: dict[str, bool] = {}
    for row in rows(entry, "facts", "collectives", "groups"):
        if row.get("in_layers") is not None:
            found[str(row["group"])] = found.get(str(row["group"]), False) or row["in_layers"] > 0
    return found


def _by_ranks(ranks: object, name: str, inside: bool | None, config: ModelConfig) -> str | None:
    """Tensor parallel ranks are neighbours, then come context parallel, data parallel, and last the stages. Ranks that
    share a sequence also have the same weights: what stands behind layers, or moves no keys and values, is of those."""
    if not isinstance(ranks, list) or len(ranks) < 2 or config.devices is None:
        return None
    tp, cp, stage = config.tp or 1, config.cp or 1, config.devices // (config.pp or 1)
    if len({rank // stage for rank in ranks}) == len(ranks):
        return PIPELINE if name == "sendRecv" else GRADIENTS  # an embedding that two stages share
    if name == "allToAll" and (config.ep or 1) > 1 and len(ranks) != cp:
        return EXPERTS
    for size, inner, dimension in ((tp, 1, TENSOR), (cp, tp, CONTEXT)):
        if len(ranks) == size and len({rank // inner // size for rank in ranks}) == 1 and _step(ranks) == inner:
            return dimension if dimension == TENSOR or inside or name in ("sendRecv", "allToAll") else GRADIENTS
    return GRADIENTS if _step(ranks) % tp == 0 else None


def _step(ranks: list[Any]) -> int:
    return int(ranks[1]) - int(ranks[0])


def _by_place(name: str, inside: bool | None, config: ModelConfig) -> str:
    """Without ranks: by operation, and by whether the group's collectives stand in layers (None: not known)."""
    pp, cp, ep, tp = (size or 1 for size in (config.pp, config.cp, config.ep, config.tp))
    if name == "sendRecv":
        if cp == 1 or pp == 1:
            return PIPELINE if cp == 1 else CONTEXT
        return "unknown" if inside is None else CONTEXT if inside else PIPELINE
    if name == "allToAll":
        return EXPERTS if cp == 1 else CONTEXT if ep == 1 else "unknown"
    if tp == 1:
        return GRADIENTS
    return "unknown" if inside is None else TENSOR if inside else GRADIENTS


# What it has to exchange


def needed(config: ModelConfig, seen: Mapping[str, Seen], rank: int | None = None) -> dict[str, Needed] | None:
    """Range by dimension; None while a size or the split is not known. A dimension whose need cannot be worked out is
    absent."""
    counts = (config.layers, config.hidden, config.seq_length, config.micro_batch, config.micro_batches, config.devices)
    if None in counts or not _LAYERS.isdisjoint(config.missing):
        return None
    sizes, ends = _sizes(config, rank), _ends(config, rank)
    found = {
        TENSOR: _tensor(config, sizes, ends),
        GRADIENTS: _gradients(config, sizes, ends, seen.get(GRADIENTS, EMPTY), rank),
        EXPERTS: _experts(config, sizes),
        PIPELINE: _pipeline(config, sizes, ends),
        CONTEXT: _context(config, sizes, seen.get(CONTEXT, EMPTY)),
    }
    return {dimension: need for dimension, need in found.items() if need is not None}


_LAYERS = frozenset(("experts", "dense_layers", "mtp_layers", "stage_layers", "interleave"))
"""What tells how many layers of which kind a stage runs through, and how often."""


class _Ends(NamedTuple):
    """Fewest and most ends of the model (embedding, head) that the stage holds: 0, 1 or 2."""

    least: int
    most: int


def _ends(config: ModelConfig, rank: int | None) -> _Ends:
    pp = config.pp or 1
    if pp == 1:
        return _Ends(2, 2)
    stage = _stage(config, rank)
    if stage is None:
        return _Ends(0, 1)
    here = int(stage in (0, pp - 1))
    return _Ends(here, here)


def _stage(config: ModelConfig, rank: int | None) -> int | None:
    """Stages are blocks of consecutive ranks."""
    if rank is None or not config.devices or rank >= config.devices:
        return None
    return rank // (config.devices // (config.pp or 1))


def faults(entry: Json, config: ModelConfig, groups: Mapping[str, Any] | None = None) -> list[str]:
    """Dimensions whose bytes lie outside their range by more than the tolerance, in words."""
    have = measured(entry, config, groups)
    need = needed(config, have, entry.get("rank")) if have is not None else None
    if need is None or have is None:
        return []
    open_ = have["unknown"].total if "unknown" in have else 0.0
    tolerance = limit("volume_tolerance")
    found = []
    for dimension, (low, high) in need.items():
        size, name = have.get(dimension, EMPTY).total, WORDS[dimension]
        if size > high * tolerance and size > limit("volume_bytes"):
            found.append(f"{name} carry {_gb(size)} a step; the split needs at most {_gb(high)}")
        elif (size + open_) * tolerance < low:
            found.append(f"{name} carry {_gb(size)} a step; the split needs at least {_gb(low)}")
    return found


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _sizes(config: ModelConfig, rank: int | None) -> _Sizes:
    tokens = (config.seq_length or 0) * (config.micro_batch or 0) / (config.cp or 1)
    state = tokens * (config.hidden or 0) * _bytes(config)
    calls = (config.micro_batches or 1) * (config.gradient_accumulation or 1)
    return _Sizes(state, calls, held(config, _stage(config, rank)))


def _bytes(config: ModelConfig) -> int:
    return 4 if "32" in str(config.compute_dtype or "") else 2


def _ring(ranks: int | None) -> float:
    """Share of a gathered or scattered tensor that leaves a rank in a ring."""
    return 1 - 1 / (ranks or 1)


def _twice(ranks: int | None) -> float:
    """The most that is counted for an all-reduced tensor."""
    return max(1.0, 2 * _ring(ranks))


def _again(config: ModelConfig) -> tuple[float, float]:
    """Fewest and most times that forward's exchanges run again, on top of once in each direction."""
    return {"none": (1.0, 1.0), "selective": (1.0, 1.0), "full": (1.5, 1.5)}.get(str(config.recompute), (1.0, 1.5))


def _tensor(config: ModelConfig, sizes: _Sizes, ends: _Ends) -> Needed:
    if (config.tp or 1) == 1:
        return NOTHING
    few, many, at_ends = (8.0, 10.0, 3.0) if config.sequence_parallel else (4.0, 4.0, 1.0)
    if config.sequence_parallel is None:
        many, at_ends = 10.0, 3.0
    least, most = _again(config)
    once = sizes.calls * sizes.state
    low = once * few * least * (sizes.held.dense[0] + sizes.held.moe[0] / 2)
    layers = sizes.held.layers[1] + (config.mtp_layers or 0) * min(1, ends.most)
    high = once * (many * most * layers + at_ends * ends.most)
    return Needed(low * _ring(config.tp), high * (1 if config.sequence_parallel else _twice(config.tp)))


class Parameters(NamedTuple):
    """Of one device: `shared` by all data parallel ranks, `experts` by those with the same experts, `end` of an
    embedding or a head; of an end also `padding` of the vocabulary and learned positions, at most."""

    shared: Needed
    experts: Needed
    end: float
    padding: float


def parameters(config: ModelConfig, rank: int | None = None) -> Parameters | None:
    """Parameters a device holds: the large matrices at least, at most all that models have (and parts of latent
    attention whole). None while a size is not known."""
    attention = _attention_parameters(config)
    if (
        attention is None
        or None in (config.hidden, config.layers, config.gated)
        or not _WIDTHS.isdisjoint(config.missing)
    ):
        return None
    hidden, matrices, tp = config.hidden or 0, 3 if config.gated else 2, config.tp or 1
    stage, further = held(config, _stage(config, rank)), config.mtp_layers or 0
    dense, shared = (matrices * hidden * (width or 0) / tp for width in (config.ffn, config.shared_ffn))
    experts = matrices * hidden * (config.moe_ffn or 0) * (config.experts or 0) / (config.ep or 1)
    low, high = (dense * stage.dense[end] + shared * stage.moe[end] for end in (0, 1))
    small = _small(config, stage, attention.high + max(dense, shared))
    return Parameters(
        Needed(attention.low * stage.layers[0] + low, attention.high * stage.layers[1] + high + small),
        Needed(experts * stage.moe[0], experts * (stage.moe[1] + further)),
        hidden * (config.vocab or 0) / tp,
        hidden * (_VOCABULARY_MULTIPLE + (config.seq_length or 0)),
    )


_WIDTHS = frozenset(("ffn", "moe_ffn", "shared_ffn", "vocab", "q_lora_rank"))
_VOCABULARY_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this on each tensor parallel rank."""


def _small(config: ModelConfig, stage: Held, layer: float) -> float:
    """The most that a device holds beside the large matrices of its layers: up to four norms and those of queries and
    keys, with weight and bias, biases of all products, routers, the final norm; layers of that size that predict
    further tokens, with the product that joins their inputs."""
    hidden, tp, ffn = config.hidden or 0, config.tp or 1, config.ffn or config.shared_ffn or 0
    width = ((config.heads or 0) + 2 * (config.kv_heads or config.heads or 0)) * _head_width(config)
    norms = 2 * (4 * hidden + 2 * _head_width(config) + (config.q_lora_rank or 0) + (config.kv_lora_rank or 0))
    biases = (width + (2 if config.gated else 1) * ffn) / tp + 2 * hidden
    router = (hidden + 1) * (config.experts or 0)
    further = config.mtp_layers or 0
    of_layers = (stage.layers[1] + further) * (norms + biases) + (stage.moe[1] + further) * router
    return of_layers + 2 * hidden + further * (layer + 2 * hidden * hidden)


def _head_width(config: ModelConfig) -> int:
    return config.head_dim or (config.qk_nope_dim or 0) + (config.qk_rope_dim or 0)


def _attention_parameters(config: ModelConfig) -> Needed | None:
    hidden, heads, tp = config.hidden or 0, config.heads, config.tp or 1
    if not config.mla:
        if None in (heads, config.kv_heads, config.head_dim):
            return None
        width, keys = (heads or 0) * (config.head_dim or 0), (config.kv_heads or 0) * (config.head_dim or 0)
        size = hidden * (2 * width + 2 * keys) / tp
        return Needed(size, size)
    if None in (heads, config.kv_lora_rank, config.qk_nope_dim, config.qk_rope_dim, config.v_head_dim):
        return None
    nope, rope, value = config.qk_nope_dim or 0, config.qk_rope_dim or 0, config.v_head_dim or 0
    rank, keys = config.q_lora_rank or 0, config.kv_lora_rank or 0
    queries = (heads or 0) * (nope + rope)
    up = (rank or hidden) * queries + keys * (heads or 0) * (nope + value) + (heads or 0) * value * hidden
    down = hidden * (rank + keys + rope)
    return Needed((up + down) / tp, up / tp + down)


def _gradients(config: ModelConfig, sizes: _Sizes, ends: _Ends, seen: Seen, rank: int | None) -> Needed | None:
    """Each parameter's gradient in 16 to 32 bits, and its weight again where ranks share out the update."""
    ranks = (config.dp or 1) * (config.cp or 1)
    own = parameters(config, rank)
    if own is None or (config.ep is None and config.experts):
        return NOTHING if ranks == 1 and (config.pp or 1) == 1 else None
    alike = max(1, ranks // (config.ep or 1))
    most = (own.shared.high + (own.end + own.padding) * ends.most, ranks), (own.experts.high, alike)
    few, many = _times(seen, sizes)
    # embedding and head may be one tensor that no rank shares out; experts may be split over tensor parallel ranks
    least = (
        (own.shared.low * few + own.end * min(1, ends.least), ranks),
        (own.experts.low / (config.tp or 1) * few, alike),
    )
    counted = [1.0 if seen.calls.get("reduceScatter") else _twice(n) for _, n in most]
    low = sum(2 * size * _ring(n) for size, n in least)
    high = sum(4 * many * size * factor for (size, n), factor in zip(most, counted, strict=True) if n > 1)
    tied = 4 * (own.end + own.padding) * ends.most * _twice(2) if (config.pp or 1) > 1 else 0.0
    return Needed(low, high + tied)


def _times(seen: Seen, sizes: _Sizes) -> tuple[float, float]:
    """How often each parameter goes through a collective, fewest and most: reduced, or scattered as often as the
    numbers of calls say, and gathered; in every micro-batch where layers gather their own weights."""
    scattered, gathered = seen.calls.get("reduceScatter", 0.0), seen.calls.get("allGather", 0.0)
    if seen.in_layers and gathered:
        return 2.0, 3.0 * sizes.calls
    if not scattered:
        return 1.0, 2.0 if gathered else 1.0
    if not gathered:
        return 1.0, float(sizes.calls)
    repeats = max(1.0, min(float(sizes.calls), float(scattered // gathered)))
    return repeats + 1, repeats + 1


def _experts(config: ModelConfig, sizes: _Sizes) -> Needed | None:
    if config.ep is None or (config.ep > 1 and config.experts is None):
        return None  # a config that is silent about experts says nothing of them
    if config.ep == 1 or not sizes.held.moe[1]:
        return NOTHING
    if config.experts_per_token is None:
        return None
    way = 2 * sizes.state * config.experts_per_token * sizes.calls
    least, most = _again(config)
    split = 1 / (config.tp or 1)  # with sequence parallel each rank sends its own part of the tokens
    low, high = (split, split) if config.sequence_parallel else (split, 1.0)
    layers = sizes.held.moe[1] + (config.mtp_layers or 0)
    return Needed(
        way * sizes.held.moe[0] * least * low * _ring(config.ep), (1 + config.ep) * way * layers * most * high
    )


def _pipeline(config: ModelConfig, sizes: _Sizes, ends: _Ends) -> Needed:
    pp, chunks = config.pp or 1, config.interleave or 1
    if pp == 1:
        return NOTHING
    split = 1 / (config.tp or 1)
    low, high = (split, split) if config.sequence_parallel else (split, 1.0)
    # two in each direction for a chunk in the middle; the model's ends have no neighbour
    times = 4 * chunks - 2 * ends.most, 4 * chunks - 2 * ends.least
    once = sizes.state * sizes.calls
    return Needed(once * low * times[0] / 2, once * high * times[1])


def _context(config: ModelConfig, sizes: _Sizes, seen: Seen) -> Needed | None:
    cp = config.cp or 1
    if cp == 1:
        return NOTHING
    if None in (config.heads, config.kv_heads, config.head_dim) or config.mla:
        return None
    token = sizes.state / (config.hidden or 1) * (config.head_dim or 0) / (config.tp or 1)
    queries, keys = token * (config.heads or 0), token * (config.kv_heads or 0)
    few, many = (layers * sizes.calls for layers in sizes.held.layers)
    least, most = _again(config)
    if "allToAll" in seen.size:
        once = 2 * (2 * queries + 2 * keys)
        return Needed(once * few * least * _ring(cp), once * many * most)
    if "sendRecv" not in seen.size:
        return Needed(2 * keys * (cp - 1) * few, 3 * cp * 2 * keys * most * many)
    # a tool counts sends, or sends and receives
    once = 2 * keys * (cp - 1)
    forward_again = 2 * (most - 1)
    return Needed(3 * once * few, 2 * (3 + forward_again + 2 / (cp - 1)) * once * many)
