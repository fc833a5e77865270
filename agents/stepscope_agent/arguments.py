"""What a Megatron or MindSpeed job was started with, out of its script or its log: sizes and switches, nothing else.

Such files are full of paths, addresses and keys. Only arguments whose name is listed here leave the host, and only with
a value that is a number, a switch or one of a few words.
"""

from __future__ import annotations

import re

LARGEST_LOG = 32 << 20
"""The arguments stand at the top of a log; no more of it is read."""
_NAMES = frozenset(
    (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "group_query_attention",
        "num_query_groups",
        "kv_channels",
        "seq_length",
        "vocab_size",
        "padded_vocab_size",
        "make_vocab_size_divisible_by",
        "swiglu",
        "num_experts",
        "moe_router_topk",
        "moe_layer_freq",
        "moe_ffn_hidden_size",
        "moe_intermediate_size",
        "n_shared_experts",
        "moe_shared_expert_intermediate_size",
        "first_k_dense_replace",
        "multi_latent_attention",
        "kv_lora_rank",
        "q_lora_rank",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_pos_emb_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "mtp_num_layers",
        "micro_batch_size",
        "global_batch_size",
        "world_size",
        "data_parallel_size",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "num_layer_list",
        "noop_layers",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "pipeline_model_parallel_layout",
        "pipeline_num_transformer_layers",
        "sequence_parallel",
        "recompute_granularity",
        "recompute_method",
        "use_flash_attn",
        "use_fused_attn",
        "bf16",
        "fp16",
    )
)
_PRINTED = re.compile(r"(?:^|[\s|\]:])([a-z][a-z0-9_]*) \.{3,} ?(\S[^\r\n]{0,400})$")
_PADDED = re.compile(r"> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d{1,12})\)")
_OPTION = re.compile(
    r"--([a-z][a-z0-9-]*)(?:[ \t=]+(\"[^\"\n]*\"|'[^'\n]*'|\$\([^\n]{0,200}?\)+|\(\S{0,400}\)|(?!--)[^\s\\;|&<>)]+))?"
)
_ASSIGNED = re.compile(r"(?<![\w$.{-])([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|\$\([^\n]{0,200}?\)+|[^\s;|&)]*)")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*|\d)|\{([A-Za-z_]\w*|\d)(?::?-([^}$]*))?\})")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_PLAIN = re.compile(r"\d{1,12}|True|False|None|full|selective|uniform|block|[][(){}\d,+*]{1,400}")
_NEEDED = ("num_layers", "hidden_size")


def holds_arguments(path: str) -> bool:
    """Whether a file is a script or a log by its name; a run config is YAML or JSON."""
    return not path.lower().endswith((".yaml", ".yml", ".json"))


def arguments_of(path: str, most: int = LARGEST_LOG) -> str | None:
    """The arguments in the form in which the job prints them or the script gives them; None where there are none in the
    first `most` characters.

    Raises OSError where the file cannot be read.
    """
    with open(path, encoding="utf-8", errors="replace") as stream:
        return arguments_in(stream.read(most))


def arguments_in(text: str) -> str | None:
    """The same out of what a script or a log holds; of what this gives it gives the same again."""
    matches = map(_PRINTED.search, text.splitlines())
    found = {match.group(1): match.group(2).strip().replace(", ", ",") for match in matches if match}
    printed = _allowed(found)
    if all(name in printed for name in _NEEDED):
        padded = _PADDED.search(text)
        if padded:  # the tokenizer tells after the arguments are printed
            printed["padded_vocab_size"] = padded.group(1)
        return "".join("  %s %s %s\n" % (name, "." * max(3, 48 - len(name)), value) for name, value in printed.items())
    given = _options(text)
    if all(name in given for name in _NEEDED):
        return "".join(_option(name, value) for name, value in given.items())
    return None


def _options(text: str) -> dict[str, str]:
    """What a script gives, "None" where it does not tell: a variable that it leaves unset, or sets in several ways."""
    code = _COMMENT.sub("", text)
    variables = _variables(code)
    found = {name.replace("-", "_"): _value(value, variables) for name, value in _OPTION.findall(code)}
    plain = {name: value if value and _PLAIN.fullmatch(value) else "None" for name, value in found.items()}
    return _allowed(plain)


def _variables(code: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, text in _ASSIGNED.findall(code):
        bare = text.strip("\"'")
        variable = _VARIABLE.fullmatch(bare)
        value = variable.group(3) if variable else None if not bare or re.search(r"[$`]", bare) else bare
        found[name] = value if found.get(name, value) == value else None
    return found


def _value(text: str, variables: dict[str, str | None]) -> str | None:
    if not text:
        return "True"  # a switch
    bare = text.strip("\"'")
    variable = _VARIABLE.fullmatch(bare)
    if not variable:
        return bare
    name = variable.group(1) or variable.group(2)
    return variables[name] if name in variables else variable.group(3)


def _allowed(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(found.items()) if name in _NAMES and _PLAIN.fullmatch(value)}


def _option(name: str, value: str) -> str:
    return "--%s%s\n" % (name.replace("_", "-"), "" if value == "True" else " " + value)
