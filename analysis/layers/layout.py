"""Where kernels are: one array per fact, and the codes the arrays hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.layers.blocks import BLOCKS
from analysis.layers.track import Bools, Ints

PARTS = (
    *("layer", "embedding", "final_norm", "head_loss", "optimizer", "gradient_sync", "other"),
    *("embedding_gradients", "pipeline_transfers"),
)
PASSES = ("forward", "backward", "recompute", "none")
COLUMNS = ("part", "layer", "block", "pass_", "micro_batch", "within")
PART_CODE = {name: code for code, name in enumerate(PARTS)}
BLOCK_CODE = {name: code for code, name in enumerate(BLOCKS)}
NONE = PASSES.index("none")
MOVEMENT = BLOCK_CODE["movement"]


@dataclass
class Layout:
    """Place of every kernel, in the order of the frame; -1 where unknown. All but layer and micro_batch are codes.

    `within` is the block around a kernel: what a Cast or a collective serves, which `block` calls by what it is.
    """

    part: Ints
    layer: Ints
    block: Ints
    pass_: Ints
    micro_batch: Ints
    within: Ints
    layers: int = 0
    micro_batches: int = 0
    steps: int = 0
    chunks: int = 1
    doubt: str | None = None
    """What the order of kernels leaves open, where it does."""
    reason: str | None = None
    disputed: Bools | None = None
    """Kernels that a scope map links to another layer than structure finds; the map is followed."""
    structural: Ints | None = None
    """Layer of every kernel by structure, where a scope map was followed."""

    @classmethod
    def empty(cls, count: int) -> Layout:
        part, layer, block, pass_, micro_batch, within = (np.full(count, -1, dtype=np.int64) for _ in COLUMNS)
        return cls(part, layer, block, pass_, micro_batch, within)

    def taken(self, rows: Ints) -> Layout:
        """The same with each column indexed."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})
