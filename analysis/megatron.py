"""Sizes and parallel split of a Megatron or MindSpeed job, from its arguments.

Two forms are read: what the job prints when it starts (`num_layers ........ 32`), anywhere in its log, and what starts
it (`--num-layers 32`), anywhere in a script or command line. Printed arguments hold the defaults too; of a script those
are filled in here, as Megatron-LM documents them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analysis import stages

Count = Callable[[str, Any], int | None]
_PRINTED = re.compile(r"(?:^|[\s|\]])([a-z][a-z0-9_]*) \.{3,} ?([^\r\n]*)$", re.MULTILINE)
_PADDED = re.compile(r"> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d{1,12})\)")
_OPTION = re.compile(
    r"--([a-z][a-z0-9-]*)(?:[ \t=]+(\"[^\"\n]*\"|'[^'\n]*'|\$\([^\n]{0,200}?\)+|\(\S{0,400}\)|(?!--)[^\s\\;|&<>)]+))?"
)
_ASSIGNED = re.compile(r"(?<![\w$.{-])([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|\$\([^\n]{0,200}?\)+|[^\s;|&)]*)")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*|\d)|\{([A-Za-z_]\w*|\d)(?::?-([^}$]*))?\})")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_NEEDED = ("num_layers", "hidden_size")
_SPLIT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}
_VOCABULARY_STEP = 128
"""Megatron-LM's default of make_vocab_size_divisible_by."""
_EXPERTS_PER_TOKEN, _QUERY_GROUPS = 2, 1
"""Megatron-LM's defaults of moe_router_topk and num_query_groups."""
_OTHER_LAYOUTS = (
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
    "pipeline_num_transformer_layers",
)
"""Ways of sharing out layers over stages that are not read here."""


@dataclass(frozen=True)
class Arguments:
    """By name, with underscores: counts as int, switches as bool, the rest as text; None where the job prints None.
    `unknown` are given by a shell variable of which the script does not tell one value: they are nobody's default."""

    values: dict[str, Any]
    unknown: frozenset[str] = frozenset()
    printed: bool = False

    def get(self, name: str, default: Any = None) -> Any:
        """The value; where the argument is not given `default`, what Megatron-LM takes then. None where unknown."""
        value = self.values.get(name)
        return default if value is None and name not in self.unknown else value


def read_arguments(text: str) -> Arguments | None:
    """The arguments that a log prints or a script gives. None where `text` holds none of such a job."""
    printed = _typed(_PRINTED.findall(text))
    if all(name in printed for name in _NEEDED):
        padded = _PADDED.search(text)
        return Arguments({**printed, **({"padded_vocab_size": int(padded[1])} if padded else {})}, printed=True)
    code = _COMMENT.sub("", text)
    variables = _variables(code)
    given = {name.replace("-", "_"): _value(value, variables) for name, value in _OPTION.findall(code)}
    if not all(name in given for name in _NEEDED):
        return None
    known = _typed([(name, value) for name, value in given.items() if value is not None])
    return Arguments(known, frozenset(name for name, value in given.items() if value is None))


def _variables(code: str) -> dict[str, str | None]:
    """What a script sets a variable to; None where it does so in several ways, or by what it does not tell."""
    found: dict[str, str | None] = {}
    for name, text in _ASSIGNED.findall(code):
        bare = text.strip("\"'")
        variable = _VARIABLE.fullmatch(bare)
        value = variable[3] if variable else None if not bare or re.search(r"[$`]", bare) else bare
        found[name] = value if found.get(name, value) == value else None
    return found


def _value(text: str, variables: dict[str, str | None]) -> str | None:
    """What an option is given; None where the script does not tell."""
    if not text:
        return "True"  # a switch
    bare = text.strip("\"'")
    variable = _VARIABLE.fullmatch(bare)
    if variable:
        name = variable[1] or variable[2]
        return (variables[name] if name in variables else variable[3]) or None
    return None if bare in ("", "None") or re.search(r"[$`]", bare) else bare


def _typed(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    return {name: _plain(value.strip()) for name, value in pairs}


def _plain(text: str) -> Any:
    if re.fullmatch(r"\d{1,12}", text):
        return int(text)
    return {"None": None, "True": True, "False": False}.get(text, text)


def model_section(arguments: Arguments) -> dict[str, Any]:
    """The model's sizes in the words a run config has for them."""
    model = dict(arguments.values)
    grouped = arguments.get("group_query_attention") is True
    model["num_query_groups"] = arguments.get("num_query_groups", _QUERY_GROUPS) if grouped else None
    if arguments.get("multi_latent_attention") is not True:
        model.update(dict.fromkeys(_LATENT))
    if arguments.get("num_experts") or "num_experts" in arguments.unknown:
        model["moe_router_topk"] = arguments.get("moe_router_topk", _EXPERTS_PER_TOKEN)
        if "moe_intermediate_size" not in arguments.unknown:
            model["moe_ffn_hidden_size"] = arguments.get("moe_ffn_hidden_size", _ffn(arguments))
        model["first_k_dense_replace"] = _leading_dense(arguments)
    else:
        model.update(dict.fromkeys(_OF_EXPERTS))
    return {
        **model,
        "gated_linear_unit": arguments.get("swiglu") is True,
        "ffn_hidden_size": _ffn(arguments),
        "padded_vocab_size": _vocabulary(arguments),
        "vocab_size": None,  # products have the padded size
        "use_flash_attention": _either(arguments, "use_flash_attn", "use_fused_attn"),
        "compute_dtype": next((name for name in ("bf16", "fp16") if arguments.get(name) is True), None),
    }


_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_OF_EXPERTS = (
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_intermediate_size",
    "n_shared_experts",
    "moe_shared_expert_intermediate_size",
    "first_k_dense_replace",
)


def left_open(arguments: Arguments) -> frozenset[str]:
    """Names of arguments that matter for the sizes of this model and are unknown."""
    idle: set[str] = set()
    if arguments.get("group_query_attention") is not True:
        idle.add("num_query_groups")
    if arguments.get("multi_latent_attention") is not True:
        idle.update(_LATENT)
    if arguments.get("num_experts", 0) == 0:
        idle.update(_OF_EXPERTS)
    frequency = arguments.get("moe_layer_freq", 1)
    odd = {"first_k_dense_replace"} if "first_k_dense_replace" not in idle and _pattern(frequency) is None else set()
    return frozenset(arguments.unknown - idle | odd)


def _leading_dense(arguments: Arguments) -> int | None:
    """Layers without experts at the beginning, as either framework says it."""
    told = arguments.get("first_k_dense_replace")
    return told if told is not None else _pattern(arguments.get("moe_layer_freq", 1))


_LONGEST_PATTERN = 2000


def _pattern(frequency: Any) -> int | None:
    """Dense layers before those with experts, by `moe_layer_freq`: 1, or a list such as ([0]*3+[1]*58). None for layers
    that alternate."""
    if frequency == 1:
        return 0
    terms = re.findall(r"\[([01](?:,[01])*)\](?:\*(\d{1,3}))?", str(frequency).replace(" ", "")[:_LONGEST_PATTERN])
    layers = "".join(row.replace(",", "") * int(times or 1) for row, times in terms)
    return layers.count("0") if re.fullmatch(r"0*1+", layers) else None


def _ffn(arguments: Arguments) -> Any:
    """As given; else four times the hidden size, two thirds of that for a gated one, in steps of 64."""
    hidden = arguments.get("hidden_size")
    if not isinstance(hidden, int):
        return arguments.get("ffn_hidden_size")
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if arguments.get("swiglu") is True else 4 * hidden
    return arguments.get("ffn_hidden_size", usual)


def _vocabulary(arguments: Arguments) -> Any:
    """The padded size, which the last product has; None where the tokenizer alone knows it, or what it is padded to is
    unknown."""
    split, told = arguments.get(_SPLIT["tp"], 1), vocabulary_padding(arguments)
    return padded(*told, split) if told and isinstance(split, int) else arguments.get("padded_vocab_size")


def vocabulary_padding(arguments: Arguments) -> tuple[int, int] | None:
    """(size of the vocabulary, what the share of a tensor parallel rank is made a multiple of); None where the padded
    size is told, or one of the two is not."""
    bare, step = arguments.get("vocab_size"), arguments.get("make_vocab_size_divisible_by", _VOCABULARY_STEP)
    known = arguments.get("padded_vocab_size") is None and isinstance(bare, int) and isinstance(step, int)
    return (bare, step) if known and step else None


def padded(size: int, step: int, tp: int) -> int | None:
    """The vocabulary as `tp` tensor parallel ranks hold it together."""
    return -(-size // (step * tp)) * step * tp if tp else None


def _either(arguments: Arguments, *names: str) -> bool | None:
    """True where one of the switches is on, False where they are known to be off."""
    if any(arguments.get(name) is True for name in names):
        return True
    return False if arguments.printed else None


def split_section(arguments: Arguments, count: Count) -> dict[str, Any]:
    """Parallel split and batches, by our names; `count` makes a count of a value or refuses it. None is unknown."""
    split: dict[str, Any] = {ours: count(name, arguments.get(name, 1)) or None for ours, name in _SPLIT.items()}
    world = count("world_size", arguments.get("world_size"))
    inside = split["tp"] * split["pp"] * split["cp"] if all(split[one] for one in ("tp", "pp", "cp")) else None
    dp = count("data_parallel_size", arguments.get("data_parallel_size")) or None
    if dp is None and world and inside and world % inside == 0:
        dp = world // inside
    micro = count("micro_batch_size", arguments.get("micro_batch_size"))
    usual = micro * dp if micro and dp else None
    whole = count("global_batch_size", arguments.get("global_batch_size", usual))
    return {
        **split,
        "dp": dp,
        "micro_batch": micro,
        "global_batch": whole,
        "micro_batches": micro_batches(whole, micro, dp),
        "interleave": _interleave(arguments, split["pp"], count),
        "sequence_parallel": _either(arguments, "sequence_parallel"),
    }


def micro_batches(whole: int | None, micro: int | None, dp: int | None) -> int | None:
    """Micro-batches of a step; None where they are unknown or do not add up."""
    return whole // (micro * dp) if whole and micro and dp and whole % (micro * dp) == 0 else None


_CHUNK, _CHUNKS = "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"


def _interleave(arguments: Arguments, pp: int | None, count: Count) -> int | None:
    chunks = count(_CHUNKS, arguments.get(_CHUNKS))
    layers, chunk = count("num_layers", arguments.get("num_layers")), count(_CHUNK, arguments.get(_CHUNK))
    if chunks:
        return chunks
    return layers // pp // chunk if pp and layers and chunk and layers % (pp * chunk) == 0 else None


def open_split(arguments: Arguments, split: dict[str, Any]) -> list[str]:
    """Sizes of the split that are unknown, by our names."""
    found = [name for name in _SPLIT if split[name] is None]
    return [*found, *(["interleave"] if arguments.unknown & {_CHUNK, _CHUNKS} else [])]


_FIRST, _LAST, _LIST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "num_layer_list"
_NOOP = "noop_layers"


def real_layers(arguments: Arguments, count: Count) -> int | None:
    """Layers that compute: MindSpeed counts those that do nothing as well, and names them."""
    layers = count("num_layers", arguments.get("num_layers"))
    if layers is None or _NOOP in arguments.unknown:
        return None
    return layers - sum(place < layers for place in _numbers(arguments.get(_NOOP)))


def stage_layers(arguments: Arguments, split: dict[str, Any], count: Count) -> tuple[stages.Layout | None, bool]:
    """(layers over the stages where they are not shared out evenly or some compute nothing, whether that is known)."""
    layers, pp, chunks = count("num_layers", arguments.get("num_layers")), split["pp"], split["interleave"] or 1
    if any(arguments.get(name) for name in _OTHER_LAYOUTS):
        return None, False
    if arguments.unknown.intersection((*_OTHER_LAYOUTS, _FIRST, _LAST, _LIST, _NOOP)):
        return None, False
    first, last = count(_FIRST, arguments.get(_FIRST)), count(_LAST, arguments.get(_LAST))
    by_hand, idle = _numbers(arguments.get(_LIST)), _numbers(arguments.get(_NOOP))
    if first is None and last is None and not by_hand and not idle:
        return None, True
    if not layers or not pp or _CHUNK in arguments.unknown:
        return None, False
    if by_hand:
        layout = stages.listed(layers, pp, chunks, by_hand)
    elif first is None and last is None:
        layout = stages.even(layers, pp, chunks)
    else:
        layout = stages.with_ends(layers, pp, chunks, first, last)
    return stages.without(layout, set(idle)) if layout else None, layout is not None


def _numbers(text: Any) -> list[int]:
    return [] if text is None else [int(one) for one in re.findall(r"\d{1,6}", str(text))]


def recompute(arguments: Arguments) -> str | None:
    """ "full", "selective", "partial" (some layers of each stage) or "none"; None where a script does not say."""
    given = arguments.get("recompute_granularity")
    if given == "full" and arguments.get("recompute_method") == "block":
        return "partial"
    if given in ("full", "selective"):
        return str(given)
    return "none" if arguments.printed else None
