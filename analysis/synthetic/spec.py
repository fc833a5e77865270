"""What a synthetic training job is: model sizes, parallel split, and how well or badly it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Group = Literal["tp", "cp", "dp", "pp", "ep", "world"]
CAST_SITES = ("weights", "norm", "rotary", "softmax", "residual")
RECOMPUTE_MODULES = ("core", "norm", "activation")


@dataclass(frozen=True)
class Moe:
    """Mixture of experts in place of the dense feed-forward."""

    experts: int
    topk: int
    ffn: int
    """Hidden size of one routed expert."""
    shared_ffn: int = 0
    aux_loss: float = 1e-3
    """Weight of the load-balancing loss."""
    uneven: float = 0.0
    """How far the load of a rank's experts swings about the mean, over layers and ranks; 0.5: from 0.5 to 1.5."""
    drawn: bool = False
    """Loads are drawn at random, two thirds for a rank and a third for a layer, in place of a wave over both."""


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek): low-rank queries and keys."""

    q_lora: int
    kv_lora: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class GptSpec:
    """One job. Sizes are of the whole model, before any split; `layers` is the total over all pipeline stages."""

    layers: int = 4
    hidden: int = 1024
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 128
    ffn: int = 2816
    vocab: int = 32000
    seq: int = 2048
    micro_batch: int = 1
    micro_batches: int = 1

    norm: Literal["rms", "layer"] = "rms"
    activation: Literal["swiglu", "gelu"] = "swiglu"
    qk_norm: bool = False
    rotary_per_layer: bool = True
    """torch only: Cos and Sin of the same angles again in every layer, as Megatron does."""
    moe: Moe | None = None
    mla: Mla | None = None
    dtype: Literal["bf16", "fp16"] = "bf16"

    fused_attention: bool = True
    mask: Literal["compressed", "full"] = "compressed"
    mask_rebuilt: bool = False
    """Whether every layer builds its own mask."""
    casts: frozenset[str] = frozenset()
    """Where precision is changed besides what the model needs: members of CAST_SITES."""
    cast_ratio: float | None = None
    """Make Cast kernels last so long that they are this share of compute; None leaves them as their bytes say."""
    ai_cpu: bool = False
    """One AI CPU kernel per micro-batch."""
    recompute: bool = False
    recompute_modules: frozenset[str] = frozenset()
    """What alone runs again for backward, where not all does: members of RECOMPUTE_MODULES."""
    encoder_layers: int = 0
    """Layers of an encoder in front, to whose output every other layer attends besides itself."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    """Ranks that share a sequence; keys and values go round in a ring."""
    offset: tuple[int, ...] = ()
    """Layers that each stage holds beyond the mean, as MindSpore Transformers' `offset`."""
    interleave: int = 1
    """Chunks of the model on a pipeline stage (virtual stages)."""
    defer_wgrad: bool = False
    """Weight gradients run after the pass of all layers, to fill the pipeline's bubble (zero-bubble schedules)."""
    sequence_parallel: bool = False
    optimizer_shard: bool = True
    """Each data parallel rank updates its share of the parameters (ZeRO-1, parallel optimizer)."""
    overlap_grad_sync: bool = True
    """Gradient reduction runs beside backward instead of after it."""

    mode: Literal["graph", "pynative", "torch"] = "graph"
    jit_level: str = "O1"
    sink: bool = True
    backward_scopes: Literal["first", "true"] = "first"
    """MindSpore gives every gradient kernel the scope of one instance; "true" is what it ought to be."""

    peak_tflops: float = 294.9
    cube_efficiency: float = 0.72
    attention_efficiency: float = 0.30
    memory_gbps: float = 800.0
    link_gbps: float = 150.0
    """Bandwidth of a collective inside a host, all links together."""
    step_us: int | None = None
    """Make the step last so long: compute is stretched to fit; None leaves durations as their work says."""
    free_ratio: float = 0.08
    """Share of the step in which the device does nothing, before waiting for other stages."""
    jitter: float = 0.01
    """Relative standard deviation of a kernel's duration."""
    seed: int = 1

    def __post_init__(self) -> None:
        parts = (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"), ("dp", "ep"), ("layers", "pp"))
        for whole, part in parts:
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(f"{whole} must be a multiple of {part}")
        if unknown := self.casts - frozenset(CAST_SITES):
            raise ValueError(f"unknown cast sites: {sorted(unknown)}")
        if unknown := self.recompute_modules - frozenset(RECOMPUTE_MODULES):
            raise ValueError(f"unknown modules to recompute: {sorted(unknown)}")
        if self.moe and self.moe.experts % self.ep:
            raise ValueError("experts must be a multiple of ep")
        if self.seq % (2 * self.cp) or (self.cp > 1 and not self.fused_attention):
            raise ValueError("context parallel needs fused attention and a sequence of a multiple of 2 x cp")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.interleave > 1 and (
            self.pp == 1 or self.stage_layers % self.interleave or self.micro_batches % self.pp
        ):
            raise ValueError("interleave needs stages, layers of a stage and micro-batches that it divides")
        if self.offset and (len(self.offset) != self.pp or sum(self.offset) or self.interleave > 1):
            raise ValueError("offset needs a number for each stage, which add up to 0, and no interleave")
        if (self.encoder_layers or self.defer_wgrad) and self.interleave > 1:
            raise ValueError("interleave goes neither with an encoder nor with deferred weight gradients")
        if self.encoder_layers and self.pp > 1:
            raise ValueError("an encoder needs a single pipeline stage")

    @property
    def world_size(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def stage_layers(self) -> int:
        return self.layers // self.pp

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one rank."""
        return self.seq * self.micro_batch // self.cp

    def chunk_layers(self, stage: int, chunk: int = 0) -> range:
        """Layers of the model, counted over all of it, that a chunk of a stage holds; an encoder's not among them."""
        size = self.stage_layers // self.interleave
        first = self.encoder_layers + (chunk * self.pp + stage) * size + sum(self.offset[:stage])
        return range(first, first + size + sum(self.offset[stage : stage + 1]))

    def local_layers(self, stage: int) -> list[int]:
        """Layers a stage holds, in the order in which the stage counts them."""
        chunks = [layer for chunk in range(self.interleave) for layer in self.chunk_layers(stage, chunk)]
        return [*range(self.encoder_layers), *chunks]

    @property
    def global_batch(self) -> int:
        """Sequences in a step over all ranks."""
        return self.micro_batch * self.micro_batches * self.dp

    def place(self, rank: int) -> tuple[int, int, int]:
        """(tp, dp, pp) index of a rank; tensor parallel ranks are neighbours, then context parallel ones, stages are
        farthest apart."""
        inner = self.tp * self.cp
        return rank % self.tp, rank // inner % self.dp, rank // (inner * self.dp)

    def stage(self, rank: int) -> int:
        return self.place(rank)[2]

    def group(self, kind: Group, rank: int) -> tuple[int, ...]:
        """Ranks that talk to `rank` in that kind of group, itself included, in order.

        Gradients are reduced over "dp", which holds the context parallel ranks too: all have the same weights.
        """
        t, d, p = self.place(rank)
        inner = self.tp * self.cp
        if kind == "world":
            return tuple(range(self.world_size))
        first, step, size = {
            "tp": (rank - t, 1, self.tp),
            "cp": (rank - rank % inner + t, self.tp, self.cp),
            "dp": (p * inner * self.dp + t, self.tp, self.cp * self.dp),
            "ep": (rank - (d % self.ep) * inner, inner, self.ep),
            "pp": (rank - p * inner * self.dp, inner * self.dp, self.pp),
        }[kind]
        return tuple(first + i * step for i in range(size))


def llama2_7b(**changes: object) -> GptSpec:
    """Llama-2-7B on eight cards, data parallel."""
    sizes = GptSpec(layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008, vocab=32000, seq=4096, dp=8)
    return replace(sizes, **changes)  # type: ignore[arg-type]


def cluster(ranks: int = 1000) -> GptSpec:
    """A job on many ranks, tensor parallel inside a host: about 2 500 kernels a rank in one step."""
    tp = 8 if ranks % 8 == 0 else 1
    sizes = GptSpec(layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=12288, vocab=32000, seq=4096)
    return replace(sizes, tp=tp, dp=ranks // tp, sequence_parallel=tp > 1)
