from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.config import MAX_TEXT, ModelConfig, config_from_json, fingerprint, read_config
from analysis.errors import BadDump

GRAPH = """
runner_config: {batch_size: 2, sink_mode: True, gradient_accumulation_steps: 3}
parallel_config: {data_parallel: 2, model_parallel: 4, pipeline_stage: 2, micro_batch_num: 8, use_seq_parallel: True}
micro_batch_interleave_num: 2
context: {mode: 0, jit_config: {jit_level: "O1"}}
recompute_config: {recompute: False, select_recompute: True}
model:
  model_config:
    type: LlamaConfig
    num_layers: 4
    hidden_size: 64
    num_heads: 8
    n_kv_heads: 2
    intermediate_size: 128
    vocab_size: 1000
    seq_length: 32
"""


def test_graph_mode_config():
    config = read_config(GRAPH, "run.yaml")
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (4, 64, 8, 2, 8)
    assert (config.dp, config.tp, config.pp, config.cp, config.ep, config.devices) == (2, 4, 2, 1, 1, 16)
    # samples per step: batch 2 x dp 2 x 8 micro-batches x interleave 2 x accumulation 3
    assert config.global_batch == 192
    assert (config.mode, config.sink, config.jit_level, config.recompute) == ("graph", True, "O1", "selective")
    assert config.gated is True
    assert config.missing == ()


def test_micro_batches_count_only_in_a_pipeline():
    assert read_config(GRAPH.replace("pipeline_stage: 2", "pipeline_stage: 1"), "run.yaml").global_batch == 24


def test_pynative_config_has_sizes_under_model_and_batches_under_training():
    config = read_config(
        """
training: {local_batch_size: 4, global_batch_size: 16}
parallelism: {data_parallel_shard: -1, tensor_parallel: 2, pipeline_parallel: 2, pipeline_parallel_microbatch_size: 1}
recompute: {mode: full}
model: {model_type: qwen3, num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 10, seq_length: 8,
        intermediate_size: 128, hidden_act: gelu}
""",
        "run.yaml",
    )
    assert (config.global_batch, config.micro_batch, config.micro_batches) == (16, 1, 4)
    assert config.dp is None and config.devices is None  # -1: as many as there are
    assert (config.tp, config.mode, config.gated, config.recompute) == (2, "pynative", False, "full")


def test_sizes_left_to_another_folder_are_named_not_guessed():
    text = (
        "pretrained_model_dir: /models/x\nrunner_config: {batch_size: 1}\nmodel: {model_config: {qkv_concat: True}}\n"
    )
    config = read_config(text, "run.yaml")
    assert config.hidden is None
    assert {"layers", "hidden", "heads", "kv_heads", "vocab", "seq_length", "gated", "ffn"} <= set(config.missing)


def test_family_that_mixes_experts_names_the_sizes_it_lacks():
    text = "model: {model_type: deepseek_v3, num_hidden_layers: 2, first_k_dense_replace: 1, hidden_size: 8}"
    assert {"experts", "experts_per_token", "moe_ffn", "kv_lora_rank"} <= set(read_config(text, "run.yaml").missing)


def test_llama_width_follows_from_multiple_of():
    text = "model: {model_config: {type: LlamaConfig, hidden_size: 4096, multiple_of: 256}}"
    assert read_config(text, "run.yaml").ffn == 11008  # the published width of Llama 7B


def test_none_in_quotes_means_not_said():
    assert read_config('model: {hidden_size: "None", num_layers: "4"}', "run.yaml").hidden is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1", "is not YAML"),
        ("", "no keys at the top"),
        ("- 1\n- 2", "no keys at the top"),
        ("a: 1", "no model section"),
        ("model: {hidden_size: wide}", "hidden_size is 'wide', not a count"),
        ("model: {hidden_size: -4}", "hidden_size is '-4', not a count"),
        ("model: {hidden_size: 1.5}", "not a count"),
        ("model: {hidden_size: '\u00b2'}", "not a count"),
        ("model: {hidden_size: '" + "9" * 5000 + "'}", "not a count"),
        ("model: {hidden_size: 2147483648}", "not a count"),
        ("model: !!python/object/apply:os.system ['true']", "is not YAML"),
        ("x" * (MAX_TEXT + 1), "is larger than"),
        ("[" * 200 + "]" * 200, "nested more than 100 deep"),
        ("\x00", "is not YAML"),
        ("model: !!timestamp x", "is not YAML: a tag and its value do not fit"),
        ("model: !!bool maybe", "is not YAML: a tag and its value do not fit"),
        ("model: {hidden_size: !!int ''}", "is not YAML: a tag and its value do not fit"),
    ],
)
def test_bad_input_is_one_clear_error(text, reason):
    with pytest.raises(BadDump) as caught:
        read_config(text, "run.yaml")
    assert str(caught.value).startswith("run.yaml: ")
    assert reason in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GRAPH)), st.text(max_size=6), st.integers(0, 40))
def test_damaged_config_is_read_or_refused_in_one_line(at, patch, cut):
    try:
        config = read_config(GRAPH[:at] + patch + GRAPH[at + cut :], "run.yaml")
    except BadDump as error:
        assert "\n" not in str(error)
    else:
        assert config.name == "run.yaml"


def test_alias_bomb_is_refused_before_it_grows():
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join(['*' + before] * 10)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)
    ]
    with pytest.raises(BadDump, match="aliases are expanded"):
        read_config("\n".join([*lines, "model: *h"]), "run.yaml")


def test_fingerprint_changes_with_sizes_and_split_only():
    config = read_config(GRAPH, "run.yaml")
    assert fingerprint(config) == fingerprint(replace(config, name="other.yaml", sink=False, jit_level="O2"))
    assert fingerprint(config) != fingerprint(replace(config, hidden=128))
    assert fingerprint(config) != fingerprint(replace(config, tp=2))
    assert len(fingerprint(config)) == 12


def test_config_survives_json():
    config = read_config(GRAPH, "run.yaml")
    assert config_from_json({**config.as_json(), "unheard_of": 1}) == config
    assert config_from_json({"name": "x", "missing": ["layers"]}) == ModelConfig("x", missing=("layers",))


# Read by eye from each file: layers, hidden, heads, kv heads, ffn, vocab, sequence, global batch, devices, any missing.
REAL = {
    "run_llama2_7b.yaml": (32, 4096, 32, 32, 11008, 32000, 4096, 2 * 2 * 16, 8, False),
    "finetune_llama3_1_8b.yaml": (32, 4096, 32, 8, 14336, 128256, 8192, 8, 8, False),
    "finetune_qwen2_5_7b_8k.yaml": (28, 3584, 28, 4, 18944, 152064, 8192, 4 * 16, 8, False),
    "finetune_glm4_9b.yaml": (40, 4096, 32, 2, 13696, 151552, 8192, 2 * 64, 8, False),
    "pretrain_qwen3_32b_4k.yaml": (64, 5120, 64, 8, 25600, 151936, 4096, 4, 16, False),
    "pynative_ds3.yaml": (12, 1792, 8, 8, 3072, 129280, 4096, 2, None, False),
    "pretrain_deepseek3_671b.yaml": (61, 7168, None, None, 18432, 129280, 4096, 4 * 32, 256, True),
    "llm_pretrain_moe_template.yaml": (None, None, None, None, None, None, None, 4, 8, True),
    "finetune_qwen3.yaml": (None, None, None, None, None, None, None, 4, 16, True),
    "profiler_test.yaml": (2, 64, 2, 2, 128, 128, 32, 2, None, True),
}


@pytest.mark.real
def test_real_configs(dumps):
    files = {path.name: path for path in (dumps / "mindformers-yaml").rglob("*.yaml")}
    assert set(files) == set(REAL)
    for name, path in files.items():
        c = read_config(path.read_text(encoding="utf-8"), name)
        sizes = (c.layers, c.hidden, c.heads, c.kv_heads, c.ffn, c.vocab, c.seq_length, c.global_batch, c.devices)
        assert (*sizes, bool(c.missing)) == REAL[name], name


@pytest.mark.real
def test_latent_attention_and_experts_of_a_real_config(dumps):
    path = next((dumps / "mindformers-yaml").rglob("pynative_ds3.yaml"))
    c = read_config(path.read_text(encoding="utf-8"), path.name)
    assert (c.mla, c.q_lora_rank, c.kv_lora_rank, c.qk_nope_dim, c.qk_rope_dim, c.v_head_dim) == (
        True,
        1536,
        512,
        128,
        64,
        192,
    )
    assert (c.experts, c.experts_per_token, c.moe_ffn, c.shared_ffn, c.dense_layers, c.mtp_layers) == (
        8,
        4,
        1024,
        1024,
        1,
        1,
    )


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        ("use_attn_mask_compression: True", 2),
        ("use_attn_mask_compression: False", 0),
        ("sparse_mode: 3", 3),
        ("sparse_mode: 0\n    use_attn_mask_compression: True", 0),
        ("sparse_mode: yes", None),
        ("sparse_mode: 99", None),
        ("num_layers: 2", None),
    ],
)
def test_the_sparse_mode_of_attention(lines, mode):
    assert read_config(f"model:\n  model_config:\n    {lines}\n", "m.yaml").sparse_mode == mode


def test_the_sparse_mode_of_a_mindspeed_job():
    script = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --sparse-mode 2"
    assert read_config(script, "run.sh").sparse_mode == 2
