"""MindSpore's scope names: what a kernel's name says of its layer, direction and module.

`[Gradients/][recompute_]Default/{attribute}-{CellClass}/.../{Primitive}-op{N}`; a list of cells adds
`layers-CellList/0-Layer`, old releases write `layers/0/...`. A launch event may stand in front (`...::`), the device's
kernel name behind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_PATH = re.compile(r"(?:^|::|/)((?:Gradients/)?(?:recompute_)?(?:Default|Expand)/.*?-op\d+)(?:/|$)")
_LIST = re.compile(r"(?:^|/)([\w.]+-\w*(?:CellList|SequentialCell)/|(?:layers?|blocks?|h)/)(\d{1,4})(?:-|/)")
_ATTENTION = re.compile("attention|attn", re.IGNORECASE)

_OUTSIDE = (
    (r"^optimizer|^_?optim", "optimizer"),
    (r"^_?(loss|criterion|cross_?entropy|ce_?loss|loss_fn|loss_func)\d*$", "head_loss"),
    (r"^(lm_head|head|output_layer|cls\d*|classifier)$", "head_loss"),
    (r"embed", "embedding"),
    (r"^(norm_out|final_norm|final_layernorm|ln_f|norm)$", "final_norm"),
)
_INSIDE = (
    (r"rotary|rope", "position"),
    (r"^(attention_norm|input_layernorm|input_norm|ln_?1|layer_?norm_?1|norm1)$", "norm_attention"),
    (r"^(ffn_norm|post_attention_layernorm|pre_mlp_layernorm|ln_?2|layer_?norm_?2|norm2)$", "norm_ffn"),
    (
        r"^(w[qkv]|w?_?qkv|[qkv]_proj|query|key|value|linear_(qkv|q|kv|k|v).*|q2l.*|l2q.*|kv2l|lkv2kv|l(q|kv)_norm)$",
        "qkv",
    ),
    (r"^(wo|o_proj|linear_proj|out_proj)$", "attention_out"),
    (r"router|^gate$", "moe_router"),
    (r"dispatch|permute", "moe_dispatch"),
    (r"expert|routed", "moe_experts"),
    (r"^(w2|down_proj|linear_fc2|projection|fc2|dense_4h_to_h)$", "ffn_down"),
    (r"^(w1|w3|gate_proj|up_proj|w_gate_hidden|linear_fc1|mapping|fc1|dense_h_to_4h)$", "ffn_up"),
    (r"^(act|activation.*|mul|silu|gelu)$", "activation"),
    (r"attention|attn", "attention_core"),
)
_PARTS, _BLOCKS = ([(re.compile(pattern), name) for pattern, name in rules] for rules in (_OUTSIDE, _INSIDE))


@dataclass(frozen=True)
class Scope:
    """One name, read. `layer` is null outside lists of cells; `part`, `block` where the path does not say."""

    backward: bool
    recompute: bool
    expanded: bool
    owner: str  # path of the list that holds the layer
    layer: int | None
    part: str | None
    block: str | None
    attention: bool


def scope_path(name: str) -> str | None:
    """The scope in a kernel's name, `-opN` included; null where there is none."""
    found = _PATH.search(name)
    return found[1] if found else None


def read_scope(name: str) -> Scope | None:
    """What a kernel's name says; null for names without a scope."""
    path = scope_path(name)
    return None if path is None else _read(path.rstrip("0123456789"))


# Kernels of one primitive in one cell have paths that differ in their last number alone.
@lru_cache(maxsize=200_000)
def _read(path: str) -> Scope:
    listed = _LIST.search(path)
    steps = [step.partition("-")[0].lower() for step in path[listed.end() if listed else 0 :].split("/")[:-1]]
    return Scope(
        backward=path.startswith("Gradients/"),
        recompute="recompute_Default" in path,
        expanded=path.startswith("Expand/"),
        owner=path[: listed.start()].split("Default", 1)[-1] if listed else "",
        layer=int(listed[2]) if listed else None,
        part=next(filter(None, map(_part_of, steps)), None) if not listed else "layer",
        # the innermost step that says something decides
        block=next(filter(None, map(_block_of, reversed(steps))), None) if listed else None,
        attention=bool(_ATTENTION.search(path)),
    )


# A model has a few dozen different steps, in tens of thousands of paths.
@lru_cache(maxsize=10_000)
def _part_of(step: str) -> str | None:
    return _told(step, _PARTS)


@lru_cache(maxsize=10_000)
def _block_of(step: str) -> str | None:
    return _told(step, _BLOCKS)


def _told(step: str, rules: Sequence[tuple[re.Pattern[str], str]]) -> str | None:
    return next((name for pattern, name in rules if pattern.search(step)), None)
