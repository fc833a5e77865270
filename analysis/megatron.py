"""Sizes and parallel split of a Megatron or MindSpeed job, from its arguments.

Two forms are read: what the job prints when it starts (`num_layers ........ 32`), anywhere in its log, and what starts
it (`--num-layers 32`), anywhere in a script or command line. Printed arguments hold the defaults too; of a script those
are filled in here, as Megatron-LM documents them.
"""

from __future__ import annotations

import re
from typing import Any

Arguments = dict[str, Any]
_PRINTED = re.compile(r"(?:^|[\s|\]])([a-z][a-z0-9_]*) \.{3,} ?([^\r\n]*)$", re.MULTILINE)
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:[ \t=]+(\"[^\"\n]*\"|'[^'\n]*'|(?!--)[^\s\\;|&<>]+))?")
_ASSIGNED = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=[\"']?(\d{1,12})[\"']?[ \t]*(?:#.*)?$", re.MULTILINE)
_VARIABLE = re.compile(r"^[\"']?\$\{?([A-Za-z_]\w*)(?::-(\d{1,12}))?\}?[\"']?$")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_NEEDED = ("num_layers", "hidden_size")
_SPLIT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}
_VOCABULARY_STEP = 128
"""Megatron-LM's default of make_vocab_size_divisible_by."""


def read_arguments(text: str) -> Arguments | None:
    """Arguments by name, with underscores: counts as int, switches as bool, the rest as text. None where `text` holds
    no arguments of such a job. Unknown shell variables leave their argument out."""
    if (printed := _typed(_PRINTED.findall(text))) and all(name in printed for name in _NEEDED):
        return {**printed, "printed": True}
    code = _COMMENT.sub("", text)
    variables = dict(_ASSIGNED.findall(code))
    given = [(name.replace("-", "_"), _value(value, variables)) for name, value in _OPTION.findall(code)]
    options = _typed([(name, value) for name, value in given if value is not None])
    return options if all(name in options for name in _NEEDED) else None


def _value(text: str, variables: dict[str, str]) -> str | None:
    if not text:
        return "True"  # a switch
    found = _VARIABLE.match(text)
    bare = (variables.get(found[1]) or found[2]) if found else text.strip("\"'")
    return None if bare is None or "$" in bare else bare


def _typed(pairs: list[tuple[str, str]]) -> Arguments:
    return {name: _plain(value.strip()) for name, value in pairs}


def _plain(text: str) -> Any:
    if re.fullmatch(r"\d{1,12}", text):
        return int(text)
    return {"None": None, "True": True, "False": False}.get(text, text)


def model_section(arguments: Arguments) -> Arguments:
    """The model's sizes in the words a run config has for them."""
    model = dict(arguments)
    grouped = arguments.get("group_query_attention") is True
    model["num_query_groups"] = arguments.get("num_query_groups") if grouped else None
    if arguments.get("multi_latent_attention") is not True:
        model.update(kv_lora_rank=None, q_lora_rank=None, qk_head_dim=None, qk_pos_emb_head_dim=None, v_head_dim=None)
    if arguments.get("num_experts") is None:
        model.update(moe_router_topk=None, moe_ffn_hidden_size=None, moe_shared_expert_intermediate_size=None)
    elif arguments.get("moe_ffn_hidden_size") is None:
        model["moe_ffn_hidden_size"] = _ffn(arguments)
    return {
        **model,
        "gated_linear_unit": arguments.get("swiglu") is True,
        "ffn_hidden_size": _ffn(arguments),
        "padded_vocab_size": _vocabulary(arguments),
        "use_flash_attention": _either(arguments, "use_flash_attn", "use_fused_attn"),
        "compute_dtype": next((name for name in ("bf16", "fp16") if arguments.get(name) is True), None),
    }


def _ffn(arguments: Arguments) -> Any:
    """As given; else four times the hidden size, two thirds of that for a gated one, in steps of 64."""
    given, hidden = arguments.get("ffn_hidden_size"), arguments.get("hidden_size")
    if given is not None or not isinstance(hidden, int):
        return given
    return int(4 * hidden * 2 / 3 / 64) * 64 if arguments.get("swiglu") is True else 4 * hidden


def _vocabulary(arguments: Arguments) -> Any:
    """The padded size, which the last product has; None where the tokenizer alone knows it."""
    padded, bare = arguments.get("padded_vocab_size"), arguments.get("vocab_size")
    if padded is not None or not isinstance(bare, int):
        return padded
    step = arguments.get("make_vocab_size_divisible_by") or _VOCABULARY_STEP
    split = arguments.get(_SPLIT["tp"]) or 1
    whole = step * split if isinstance(step, int) and isinstance(split, int) else 1
    return -(-bare // whole) * whole


def _either(arguments: Arguments, *names: str) -> bool | None:
    """True where one of the switches is on, False where they are known to be off."""
    if any(arguments.get(name) is True for name in names):
        return True
    return False if arguments.get("printed") else None


def split_section(arguments: Arguments, count: Any) -> Arguments:
    """Parallel split and batches, by our names; `count` makes a count of a value or refuses it."""
    split: Arguments = {ours: count(name, arguments.get(name)) or 1 for ours, name in _SPLIT.items()}
    world = count("world_size", arguments.get("world_size"))
    inside = split["tp"] * split["pp"] * split["cp"]
    dp = count("data_parallel_size", arguments.get("data_parallel_size"))
    if dp is None and world and world % inside == 0:
        dp = world // inside
    micro = count("micro_batch_size", arguments.get("micro_batch_size"))
    whole = count("global_batch_size", arguments.get("global_batch_size"))
    if whole is None and micro and dp:
        whole = micro * dp
    batches = whole // (micro * dp) if whole and micro and dp and whole % (micro * dp) == 0 else None
    return {
        **split,
        "dp": dp,
        "micro_batch": micro,
        "global_batch": whole,
        "micro_batches": batches,
        "interleave": _interleave(arguments, split["pp"], count),
        "sequence_parallel": _either(arguments, "sequence_parallel"),
    }


def _interleave(arguments: Arguments, stages: int, count: Any) -> int | None:
    name = "num_layers_per_virtual_pipeline_stage"
    layers, chunk = count("num_layers", arguments.get("num_layers")), count(name, arguments.get(name))
    return layers // stages // chunk if layers and chunk and layers % (stages * chunk) == 0 else None


def recompute(arguments: Arguments) -> str | None:
    """ "full", "selective" or "none"; None where a script does not say."""
    given = arguments.get("recompute_granularity")
    if given in ("full", "selective"):
        return str(given)
    return "none" if arguments.get("printed") else None
