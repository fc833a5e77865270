"""MindSpore Transformers run configs (YAML) -> model sizes, parallel split and batch.

Sizes the file leaves out are named in `missing`, never guessed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import yaml

from analysis import megatron, stages
from analysis.errors import BadDump

MAX_TEXT = 1024 * 1024
MAX_NODES = 50_000

# Sizes in the order they are tried; families name the same thing differently.
_SIZES: dict[str, tuple[str, ...]] = {
    "layers": ("num_layers", "num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_heads", "num_attention_heads", "n_head", "n_heads"),
    "head_dim": ("head_dim", "kv_channels", "size_per_head"),
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "seq_length": ("seq_length", "pretrain_seqlen"),
    "experts": ("n_routed_experts", "num_experts", "num_moe_experts", "num_local_experts", "expert_num"),
    "experts_per_token": ("num_experts_per_tok", "moe_router_topk", "num_experts_chosen"),
    "moe_ffn": ("moe_intermediate_size", "moe_ffn_hidden_size"),
    "shared_experts": ("n_shared_experts", "shared_expert_num"),
    "shared_ffn": ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    "dense_layers": ("first_k_dense_replace",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_dim": ("qk_nope_head_dim", "qk_head_dim"),
    "qk_rope_dim": ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
    "v_head_dim": ("v_head_dim",),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_layers", "mtp_depth"),
}
_MOST_SPARSE_MODE = 8
_KV_HEADS = ("n_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_query_groups")
_GIVEN = {**_SIZES, "kv_heads": _KV_HEADS}
_GATED_ACTIVATIONS = {"silu", "swish", "swiglu", "fusedswiglu", "geglu", "reglu"}
_GATED_FAMILIES = (
    "llama",
    "qwen",
    "deepseek",
    "mixtral",
    "internlm",
    "baichuan",
    "glm4",
    "chatglm2",
    "chatglm3",
    "yi",
    "mistral",
)
_MLA_FAMILIES = ("deepseek_v2", "deepseek_v3", "deepseekv2", "deepseekv3")
_MLA_SIZES = ("kv_lora_rank", "qk_nope_dim", "qk_rope_dim", "v_head_dim")


SPLIT = ("tp", "pp", "cp", "ep", "interleave", "stage_layers")
"""Fields of the parallel split that may be missing; dp is not one: it follows from the number of devices."""


@dataclass(frozen=True)
class ModelConfig:
    """What a run's YAML says. None is "not said"; `missing` names what FLOPs per step or the parallel split would need
    and is not there. `stage_layers`: layers by chunk and stage, where they are not shared out evenly. `vocab_padding`:
    its size and what a tensor parallel rank's share is padded to a multiple of, as long as tp is not known.
    `from_script`: it is a Megatron job's script, which may leave to variables what the job's log prints."""

    name: str
    family: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    gated: bool | None = None
    vocab: int | None = None
    seq_length: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    gradient_accumulation: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    moe_ffn: int | None = None
    shared_experts: int | None = None
    shared_ffn: int | None = None
    dense_layers: int | None = None
    mla: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_dim: int | None = None
    qk_rope_dim: int | None = None
    v_head_dim: int | None = None
    mtp_layers: int | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    interleave: int | None = None
    stage_layers: stages.Layout | None = None
    vocab_padding: tuple[int, int] | None = None
    sequence_parallel: bool | None = None
    recompute: str | None = None
    flash_attention: bool | None = None
    sparse_mode: int | None = None
    compute_dtype: str | None = None
    mode: str | None = None
    sink: bool | None = None
    jit_level: str | None = None
    missing: tuple[str, ...] = ()
    from_script: bool = False

    @property
    def devices(self) -> int | None:
        """dp x tp x pp x cp; None when one of them is not known (EP shares these devices)."""
        if self.dp is None or self.tp is None or self.pp is None or self.cp is None:
            return None
        return self.dp * self.tp * self.pp * self.cp

    @property
    def missing_sizes(self) -> tuple[str, ...]:
        """What FLOPs per step would need and is not there; they do not depend on the split."""
        return tuple(name for name in self.missing if name not in SPLIT)

    def as_json(self) -> dict[str, Any]:
        """All fields, with lists for tuples."""
        layout = [list(row) for row in self.stage_layers] if self.stage_layers else None
        padding = list(self.vocab_padding) if self.vocab_padding else None
        return {**asdict(self), "stage_layers": layout, "vocab_padding": padding, "missing": list(self.missing)}


def config_from_json(data: Mapping[str, Any]) -> ModelConfig:
    """The reverse of `as_json`; keys it does not know are dropped."""
    known = {field.name for field in fields(ModelConfig)}
    kept = {key: value for key, value in data.items() if key in known}
    layout = tuple(tuple(row) for row in kept.get("stage_layers") or ()) or None
    padding = tuple(kept.get("vocab_padding") or ()) or None
    missing = tuple(kept.get("missing") or ())
    return ModelConfig(**{**kept, "missing": missing, "stage_layers": layout, "vocab_padding": padding})


def with_split(config: ModelConfig, parallel: Mapping[str, Any], world_size: int | None) -> ModelConfig:
    """The config with what it does not know of its split: as the job itself told it, and dp as the rest of its devices
    once all else is known. A vocabulary that waited for tp is padded."""
    told: dict[str, Any] = {
        name: size
        for name in ("tp", "pp", "cp", "ep")
        if getattr(config, name) is None and isinstance(size := parallel.get(name), int) and size > 0
    }
    if config.vocab_padding and "tp" in told:
        told |= {"vocab": megatron.padded(*config.vocab_padding, told["tp"]), "vocab_padding": None}
    known = replace(config, **told, missing=tuple(name for name in config.missing if name not in told))
    if known.dp is None and known.tp and known.pp and known.cp and world_size:
        dp, rest = divmod(world_size, known.tp * known.pp * known.cp)
        if dp and not rest:
            micro = known.micro_batches or megatron.micro_batches(known.global_batch, known.micro_batch, dp)
            return replace(known, dp=dp, micro_batches=micro)
    return known


def fingerprint(config: ModelConfig) -> str:
    """Twelve hex digits that change with model sizes, batch and parallel split, and with nothing else."""
    judged = asdict(config)
    for key in (
        "name",
        "family",
        "missing",
        "from_script",
        "mode",
        "sink",
        "jit_level",
        "flash_attention",
        "sparse_mode",
        "recompute",
        "compute_dtype",
    ):
        del judged[key]
    for key in ("stage_layers", "vocab_padding"):
        if judged[key] is None:
            del judged[key]  # a config that does not say it keeps the digits it had before there was the field
    return hashlib.sha256(json.dumps(judged, sort_keys=True).encode()).hexdigest()[:12]


def read_config(text: str, name: str) -> ModelConfig:
    """Reads a MindSpore Transformers YAML, graph-mode or PyNative shape, a model's config.json, or the arguments of a
    Megatron or MindSpeed job as its log prints them or its script gives them. BadDump when it is none of these."""
    _refuse_long(text, name)
    arguments = megatron.read_arguments(text)
    if arguments is not None:
        return _from_arguments(arguments, name)
    data = _load(text, name)
    model = _model_of(data)
    pynative = isinstance(data.get("parallelism"), dict)
    values: dict[str, Any] = {field: _size(model, names, name) for field, names in _SIZES.items()}
    values.update(family=_family(model), gated=_gated(model), flash_attention=_flag(model, "use_flash_attention"))
    values.update(compute_dtype=_word(model.get("compute_dtype")), sparse_mode=_sparse_mode(model))
    values.update(_split(data, model, name))
    values.update(_launch(data, pynative), recompute=_recompute(data))
    _complete(values, model, name)
    values["stage_layers"], known = _stage_layers(data, model, values)
    values["missing"] = (*_missing(values), *(() if known else ("stage_layers",)))
    return ModelConfig(name=name, **values)


def _split(data: dict[str, Any], model: dict[str, Any], name: str) -> dict[str, Any]:
    """Parallel split and batches. A model's own config.json has none."""
    if model is data:
        return dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "global_batch"))
    if isinstance(data.get("parallelism"), dict):
        return _pynative_split(data, name)
    return _graph_split(data, model, name)


def _from_arguments(arguments: megatron.Arguments, name: str) -> ModelConfig:
    def count(key: str, value: Any) -> int | None:
        return _int(value, key, name)

    model = megatron.model_section(arguments)
    values: dict[str, Any] = {field: _size(model, names, name) for field, names in _SIZES.items()}
    values.update(gated=model["gated_linear_unit"], flash_attention=model["use_flash_attention"])
    values.update(family=None, compute_dtype=model["compute_dtype"], recompute=megatron.recompute(arguments))
    values["sparse_mode"] = _sparse_mode(model)
    split = megatron.split_section(arguments, count)
    layout, known = megatron.stage_layers(arguments, split, count)
    values.update(split, layers=megatron.real_layers(arguments, count), stage_layers=layout)
    values["vocab_padding"] = megatron.vocabulary_padding(arguments) if values["vocab"] is None else None
    left_open = megatron.left_open(arguments)
    unknown = [field for field, names in _GIVEN.items() if left_open.intersection(names) and values.get(field) is None]
    _complete(values, model, name, unknown)
    split_unknown = [*megatron.open_split(arguments, split), *([] if known else ["stage_layers"])]
    values["missing"] = tuple(dict.fromkeys([*_missing(values), *unknown, *split_unknown]))
    values["from_script"] = not arguments.printed
    return ModelConfig(name=name, **values)


def model_name(text: str, name: str) -> str | None:
    """What a run's YAML calls its model; None where it does not say. For texts that `read_config` has read."""
    if megatron.read_arguments(text) is not None:
        return None
    return _word(_section(_load(text, name), "trainer").get("model_name"))


def _refuse_long(text: str, name: str) -> None:
    if len(text) > MAX_TEXT:
        raise BadDump(name, f"is larger than {MAX_TEXT} characters")


def _load(text: str, name: str) -> dict[str, Any]:
    try:
        _refuse_bombs(text, name)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise BadDump(name, f"is not YAML: {_first_line(exc)}") from exc
    except (ArithmeticError, AttributeError, LookupError, TypeError) as exc:  # such as !!bool before what is none
        raise BadDump(name, "is not YAML: a tag and its value do not fit") from exc
    if not isinstance(data, dict):
        raise BadDump(name, "is not a run config: no keys at the top")
    if not any(isinstance(data.get(key), dict) for key in ("model", "model_config")) and not _is_model(data):
        raise BadDump(name, "is not a run config: it has no model section")
    return data


def _first_line(exc: Exception) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0]


def _refuse_bombs(text: str, name: str) -> None:
    """Walks the events, which never expand an alias, and weighs each alias by the size of what it stands for."""
    weights: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            total += weights.get(event.anchor or "", 1)
        elif isinstance(event, yaml.NodeEvent):
            total += 1
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                open_nodes.append((event.anchor, total - 1))
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            anchor, start = open_nodes.pop()
            if anchor:
                weights[anchor] = total - start
        if total > MAX_NODES:
            raise BadDump(name, f"has more than {MAX_NODES} values once its aliases are expanded")
        if len(open_nodes) > 100:
            raise BadDump(name, "is nested more than 100 deep")


def _section(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _is_model(data: Mapping[str, Any]) -> bool:
    """Whether the sizes stand at the top, as in the config.json that comes with a model's weights."""
    return any(key in data for key in _SIZES["layers"]) and any(key in data for key in _SIZES["hidden"])


def _model_of(data: dict[str, Any]) -> dict[str, Any]:
    model = _section(data, "model")
    inner = model.get("model_config") or data.get("model_config")
    if isinstance(inner, dict):
        return inner
    return data if not model and _is_model(data) else model


def _int(value: Any, key: str, name: str) -> int | None:
    """A count. "None" in quotes is written by some families and means null."""
    if value is None or value == "None" or value == "":
        return None
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise BadDump(name, f"{key} is {str(value)[:40]!r}, not a count")
    return value


def _size(model: Mapping[str, Any], names: tuple[str, ...], name: str) -> int | None:
    for key in names:
        value = _int(model.get(key), key, name)
        if value is not None:
            return value
    return None


def _flag(section: Mapping[str, Any], key: str) -> bool | None:
    value = section.get(key)
    return value if isinstance(value, bool) else None


def _sparse_mode(model: Mapping[str, Any]) -> int | None:
    """Of the fused attention kernel: as given, else 2 where the mask is compressed and 0 where it is not."""
    told, compressed = model.get("sparse_mode"), _flag(model, "use_attn_mask_compression")
    if isinstance(told, int) and not isinstance(told, bool) and 0 <= told <= _MOST_SPARSE_MODE:
        return told
    return None if compressed is None else 2 if compressed else 0


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _family(model: Mapping[str, Any]) -> str | None:
    architectures = model.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else architectures
    return _word(model.get("model_type")) or _word(model.get("type")) or _word(first)


def _gated(model: Mapping[str, Any]) -> bool | None:
    """Whether the FFN is gated (three matrices): said outright, by the activation, or by a family that always is."""
    said = _flag(model, "gated_linear_unit")
    if said is not None:
        return said
    activation = _word(model.get("hidden_act"))
    if activation is not None:
        return activation.lower() in _GATED_ACTIVATIONS
    family = (_family(model) or "").lower()
    return True if family.startswith(_GATED_FAMILIES) else None


def _graph_split(data: Mapping[str, Any], model: Mapping[str, Any], name: str) -> dict[str, Any]:
    split, runner = _section(data, "parallel_config"), _section(data, "runner_config")
    if data.get("use_parallel") is False:
        split = {}
    keys = {
        "dp": "data_parallel",
        "tp": "model_parallel",
        "pp": "pipeline_stage",
        "cp": "context_parallel",
        "ep": "expert_parallel",
    }
    values: dict[str, Any] = {field: _int(split.get(key), key, name) or 1 for field, key in keys.items()}
    batch = _int(runner.get("batch_size"), "batch_size", name)
    micro = _int(split.get("micro_batch_num"), "micro_batch_num", name)
    micro = 1 if values["pp"] == 1 else micro
    interleave = _int(data.get("micro_batch_interleave_num"), "micro_batch_interleave_num", name) or 1
    accumulation = _int(runner.get("gradient_accumulation_steps"), "gradient_accumulation_steps", name) or 1
    values.update(micro_batch=batch, micro_batches=micro, gradient_accumulation=accumulation, global_batch=None)
    if batch is not None and micro is not None:
        values["global_batch"] = batch * values["dp"] * micro * interleave * accumulation
    values["interleave"] = _int(model.get("pp_interleave_num"), "pp_interleave_num", name)
    values["sequence_parallel"] = _flag(split, "use_seq_parallel")
    return values


def _pynative_split(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    split, training = _section(data, "parallelism"), _section(data, "training")
    keys = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel", "ep": "expert_parallel"}
    values: dict[str, Any] = {field: _int(split.get(key), key, name) or 1 for field, key in keys.items()}
    shard = split.get("data_parallel_shard")
    replicate = _int(split.get("data_parallel_replicate"), "data_parallel_replicate", name) or 1
    shards = None if shard == -1 else _int(shard, "data_parallel_shard", name)  # -1: as many as there are devices
    local = _int(training.get("local_batch_size"), "local_batch_size", name)
    whole = _int(training.get("global_batch_size"), "global_batch_size", name)
    micro = _int(split.get("pipeline_parallel_microbatch_size"), "pipeline_parallel_microbatch_size", name)
    values.update(dp=shards * replicate if shards else None, global_batch=whole, micro_batch=local)
    if values["pp"] > 1 and micro and local:
        values.update(micro_batch=micro, micro_batches=local // micro)
    else:
        values["micro_batches"] = megatron.micro_batches(whole, local, values["dp"])
    values["interleave"] = _int(split.get("pipeline_parallel_interleave_num"), "pipeline_parallel_interleave_num", name)
    values["sequence_parallel"] = _flag(split, "sequence_parallel")
    return values


def _stage_layers(
    data: Mapping[str, Any], model: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[stages.Layout | None, bool]:
    """Layers by chunk and stage where the file says that they are not shared out evenly, and whether what it says could
    be read."""
    offset, by_hand = model.get("offset"), _section(data, "parallelism").get("pipeline_parallel_layers_per_stage")
    layers, pp, chunks = values["layers"], values["pp"], values.get("interleave") or 1
    if not (offset or by_hand) or not layers or not pp or pp == 1:
        return None, True
    if by_hand:
        plain = isinstance(by_hand, list) and all(type(count) is int for count in by_hand)
        layout = stages.listed(layers, pp, chunks, by_hand) if plain else None
    else:
        layout = stages.shifted(layers, pp, chunks, offset)
    return layout, layout is not None


def _launch(data: Mapping[str, Any], pynative: bool) -> dict[str, Any]:
    context = _section(data, "context")
    modes = {0: "graph", 1: "pynative", "GRAPH_MODE": "graph", "PYNATIVE_MODE": "pynative"}
    mode = context.get("mode")
    said = modes.get(mode) if isinstance(mode, (int, str)) else None
    return {
        "mode": "pynative" if pynative else said,
        "sink": _flag(_section(data, "runner_config"), "sink_mode"),
        "jit_level": _word(_section(context, "jit_config").get("jit_level")),
    }


def _recompute(data: Mapping[str, Any]) -> str | None:
    """ "full", "selective", "partial" (some layers) or "none"."""
    new = _section(data, "recompute")
    if new:
        return _word(new.get("mode"))
    old = _section(data, "recompute_config")
    whole, chosen = old.get("recompute"), old.get("select_recompute")
    if whole is True:
        return "full"
    if whole:
        return "partial"
    if chosen:
        return "selective"
    return "none" if "recompute" in old else None


def _complete(values: dict[str, Any], model: Mapping[str, Any], name: str, unknown: Collection[str] = ()) -> None:
    """Sizes that follow from others by the definition of the architecture, unless `unknown`: given, but not to be
    read."""
    values["kv_heads"] = _size(model, _KV_HEADS, name)
    if values["kv_heads"] is None and "kv_heads" not in unknown:
        values["kv_heads"] = values["heads"]
    hidden, heads = values["hidden"], values["heads"]
    if values["head_dim"] is None and "head_dim" not in unknown and hidden and heads and hidden % heads == 0:
        values["head_dim"] = hidden // heads
    if values["ffn"] is None:
        values["ffn"] = _llama_ffn(values, model, name)
    latent = _flag(model, "multi_latent_attention")
    family = (values["family"] or "").lower()
    values["mla"] = family.startswith(_MLA_FAMILIES) or values["kv_lora_rank"] is not None if latent is None else latent
    if values["shared_ffn"] is None and values["shared_experts"] and values["moe_ffn"]:
        values["shared_ffn"] = values["shared_experts"] * values["moe_ffn"]


def _llama_ffn(values: Mapping[str, Any], model: Mapping[str, Any], name: str) -> int | None:
    """Llama's rule of 2023, when only `multiple_of` is given: 2/3 of 4 h, times a factor, rounded up."""
    hidden: int | None = values["hidden"]
    multiple = _int(model.get("multiple_of"), "multiple_of", name)
    if not multiple or not hidden:
        return None
    width = 2 * 4 * hidden // 3
    factor = model.get("ffn_dim_multiplier")
    if isinstance(factor, (int, float)) and not isinstance(factor, bool):
        width = int(factor * width)
    return -(-width // multiple) * multiple


def _missing(values: Mapping[str, Any]) -> tuple[str, ...]:
    needed = ["layers", "hidden", "heads", "vocab", "seq_length", "global_batch", "gated"]
    needed += list(_MLA_SIZES) if values["mla"] else ["kv_heads", "head_dim"]
    if _has_experts(values):
        needed += ["experts", "experts_per_token", "moe_ffn"]
        needed += ["dense_layers", "shared_ffn"] if values["mla"] else []
    if values["dense_layers"] or not _has_experts(values):
        needed.append("ffn")
    needed += ["tp", "pp", "cp", "ep"]
    return tuple(field for field in needed if values[field] is None)


def _has_experts(values: Mapping[str, Any]) -> bool:
    """Whether any layer is a mixture of experts, as far as the file hints at it."""
    hinted = any(values[field] for field in ("experts", "experts_per_token", "moe_ffn"))
    leading_dense = values["dense_layers"] is not None and (values["layers"] or 0) > values["dense_layers"]
    return hinted or leading_dense
