"""Arguments of Megatron and MindSpeed jobs, as scripts give them and as logs print them."""

from __future__ import annotations

import json

import pytest

from analysis.config import config_from_json, model_name, read_config, with_split
from analysis.errors import BadDump

SCRIPT = """\
#!/bin/bash
export WANDB_API_KEY=secret
NPUS_PER_NODE=8
TP=8        # one node
PP=2
SEQ_LEN=4096
# --num-layers 99 \\
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size $PP \\
    --sequence-parallel \\
    --num-layers 32 \\
    --hidden-size 4096 \\
    --ffn-hidden-size 11008 \\
    --num-attention-heads 32 \\
    --seq-length ${SEQ_LEN} \\
    --micro-batch-size 1 \\
    --global-batch-size ${GBS:-256} \\
    --vocab-size 32000 \\
    --tokenizer-model "${TOKENIZER}" \\
    --swiglu --use-flash-attn --bf16 \\
    --lr 1.25e-6
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS --distributed-backend nccl
"""


def printed(**arguments: object) -> str:
    """As Megatron-LM prints them when a job starts, between other lines of its log."""
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(arguments.items())]
    title = ["> initializing torch distributed ...", "------------------------ arguments ------------------------"]
    return "\n".join(
        [*title, *lines, "-------------------- end of arguments ---------------------", " iteration 1/ 10"]
    )


DENSE = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "group_query_attention": True,
    "num_query_groups": 8,
    "kv_channels": 128,
    "ffn_hidden_size": 14336,
    "swiglu": True,
    "seq_length": 8192,
    "padded_vocab_size": 128256,
    "micro_batch_size": 1,
    "global_batch_size": 128,
    "tensor_model_parallel_size": 4,
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 1,
    "data_parallel_size": 4,
    "world_size": 32,
    "num_experts": None,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 14336,
    "sequence_parallel": True,
    "num_layers_per_virtual_pipeline_stage": 4,
    "recompute_granularity": "selective",
    "bf16": True,
    "fp16": False,
}


def test_a_launch_script_gives_sizes_and_split():
    config = read_config(SCRIPT, "pretrain_llama2_7b.sh")
    assert (config.layers, config.hidden, config.ffn, config.heads, config.seq_length) == (32, 4096, 11008, 32, 4096)
    assert (config.kv_heads, config.head_dim, config.gated) == (32, 128, True)
    assert (config.tp, config.pp, config.cp, config.ep) == (8, 2, 1, 1)
    assert (config.micro_batch, config.global_batch) == (1, 256)
    assert config.vocab == 32768  # 32000 rounded up to a multiple of 128 x TP 8
    assert (config.sequence_parallel, config.flash_attention, config.compute_dtype) == (True, True, "bf16")
    assert config.dp is None  # how many devices there are stands nowhere in the script
    assert config.missing == ()


def test_printed_arguments_give_sizes_split_and_batches():
    config = read_config(printed(**DENSE), "train.log")
    assert (config.layers, config.hidden, config.ffn, config.vocab) == (32, 4096, 14336, 128256)
    assert (config.heads, config.kv_heads, config.head_dim) == (32, 8, 128)
    assert (config.dp, config.tp, config.pp, config.global_batch) == (4, 4, 2, 128)
    assert config.micro_batches == 32  # 128 / (1 x 4)
    assert config.interleave == 4  # 32 layers / 2 stages / 4 layers a chunk
    assert config.recompute == "selective"
    assert (config.experts, config.experts_per_token, config.moe_ffn) == (None, None, None)  # Megatron prints defaults
    assert config.missing == ()


def test_a_log_with_a_prefix_before_each_line_is_read():
    log = "\n".join(f"[default0]:{line}" for line in printed(**DENSE).splitlines())
    assert read_config(log, "train.log").layers == 32


def test_every_head_has_its_own_keys_unless_groups_are_on():
    config = read_config(printed(**{**DENSE, "group_query_attention": False, "num_query_groups": 1}), "train.log")
    assert config.kv_heads == 32


def test_experts_take_the_width_of_the_ffn_where_none_of_their_own_is_given():
    config = read_config(printed(**{**DENSE, "num_experts": 8, "moe_ffn_hidden_size": None}), "train.log")
    assert (config.experts, config.experts_per_token, config.moe_ffn) == (8, 2, 14336)


def test_latent_attention_counts_only_where_it_is_on():
    latent = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
    }
    off = read_config(printed(**DENSE, **latent, multi_latent_attention=False), "train.log")
    assert (off.mla, off.kv_lora_rank, off.v_head_dim) == (False, None, None)
    on = read_config(printed(**DENSE, **latent, multi_latent_attention=True), "train.log")
    assert (on.mla, on.kv_lora_rank, on.q_lora_rank, on.qk_nope_dim, on.qk_rope_dim) == (True, 512, 1536, 128, 64)


@pytest.mark.parametrize(("gated", "width"), [("--swiglu", 10880), ("", 16384)])
def test_the_width_a_script_leaves_out_is_megatrons_default(gated, width):
    """4 h, or two thirds of it down to a multiple of 64: 4 x 4096 x 2 / 3 = 10922.67, / 64 = 170.67."""
    config = read_config(f"--num-layers 2 --hidden-size 4096 --num-attention-heads 32 {gated}", "run.sh")
    assert config.ffn == width


GIVEN = {
    "num-layers": 8,
    "hidden-size": 512,
    "ffn-hidden-size": 1024,
    "num-attention-heads": 8,
    "kv-channels": 64,
    "seq-length": 1024,
    "micro-batch-size": 1,
    "global-batch-size": 8,
    "vocab-size": 32000,
    "tensor-model-parallel-size": 2,
    "pipeline-model-parallel-size": 2,
    "context-parallel-size": 1,
    "expert-model-parallel-size": 1,
}


def script(before="", switches="", **arguments):
    """A script that gives each argument; `None` leaves one out."""
    given = {**GIVEN, **{name.replace("_", "-"): value for name, value in arguments.items()}}
    options = " ".join(f"--{name} {value}" for name, value in given.items() if value is not None)
    return read_config(f"{before}\ntorchrun pretrain_gpt.py {options} {switches}\n", "run.sh")


@pytest.mark.parametrize("variable", ["$X", "${X}", '"$X"', "${X:-}", "$1", "$((A * B))", "$(nproc)", "`nproc`"])
def test_a_split_by_a_variable_nobody_set_is_unknown_and_not_one(variable):
    config = script(tensor_model_parallel_size=variable)
    assert config.tp is None
    assert config.missing == ("vocab", "tp")  # 32000 is padded to a multiple of 128 x TP
    assert config.from_script
    assert config.devices is None


def test_a_split_that_a_script_leaves_out_is_one():
    config = script(tensor_model_parallel_size=None)
    assert (config.tp, config.vocab, config.missing) == (1, 32000, ())


@pytest.mark.parametrize(
    ("before", "tp"),
    [
        ("TP=4", 4),
        ("TP=4; PP=2", 4),
        ("export PP=2 TP=4", 4),
        ("TP=${TP:-4}", 4),
        ("TP=$1", None),
        ("TP=4\nTP=8", None),
        ("if [ $BIG ]; then TP=8; else TP=4; fi", None),
        ("TP=4\nTP=$(nproc)", None),
        ("TP=4  # or TP=8", 4),
    ],
)
def test_a_variable_counts_where_the_script_gives_it_one_value(before, tp):
    assert script(before, tensor_model_parallel_size="$TP").tp == tp


def test_no_ranks_are_not_a_split():
    assert script(tensor_model_parallel_size=0).tp is None


@pytest.mark.parametrize(
    ("argument", "field"),
    [("ffn_hidden_size", "ffn"), ("kv_channels", "head_dim"), ("num_attention_heads", "heads")],
)
def test_a_size_by_a_variable_nobody_set_is_not_megatrons_default(argument, field):
    config = script(**{argument: "$X"})
    assert getattr(config, field) is None
    assert field in config.missing_sizes


def test_experts_by_a_variable_nobody_set_do_not_make_a_dense_model():
    config = script(num_experts="$NE", moe_router_topk=2)
    assert config.experts is None
    assert "experts" in config.missing_sizes
    assert script(moe_router_topk="$K").missing == ()  # without experts nothing depends on it


def test_a_script_takes_megatrons_defaults_of_experts_per_token_and_groups():
    assert script(num_experts=8).experts_per_token == 2
    assert script(num_experts=8, moe_router_topk="$K").missing == ("experts_per_token",)
    assert script(switches="--group-query-attention").kv_heads == 1
    unknown = script(switches="--group-query-attention", num_query_groups="$G")
    assert (unknown.kv_heads, unknown.missing) == (None, ("kv_heads",))


def test_layers_before_the_experts_are_told_by_a_pattern():
    config = script(num_experts=8, moe_layer_freq="'([0]*3+[1]*5)'")
    assert (config.dense_layers, config.missing) == (3, ())
    assert script(num_experts=8, moe_layer_freq=2).missing == ("dense_layers",)  # every second one


def test_layers_that_do_nothing_do_not_count():
    config = script(num_layers=8, noop_layers="0,7", pipeline_model_parallel_size=4)
    assert (config.layers, config.stage_layers) == (6, ((1, 2, 2, 1),))


@pytest.mark.parametrize(
    ("given", "layout"),
    [
        ({"decoder_first_pipeline_num_layers": 3}, ((3, 5),)),
        ({"decoder_first_pipeline_num_layers": 3, "decoder_last_pipeline_num_layers": 5}, ((3, 5),)),
        ({"decoder_last_pipeline_num_layers": 2, "pipeline_model_parallel_size": 4}, ((2, 2, 2, 2),)),
        ({"num_layer_list": "2,6"}, ((2, 6),)),
        ({"num_layer_list": "2,6", "num_virtual_stages_per_pipeline_rank": 2}, ((1, 3), (1, 3))),
    ],
)
def test_stages_may_hold_other_numbers_of_layers(given, layout):
    config = script(**given)
    assert (config.stage_layers, config.missing) == (layout, ())


@pytest.mark.parametrize(
    "given",
    [
        {"decoder_first_pipeline_num_layers": "$FIRST"},
        {"decoder_first_pipeline_num_layers": 9},
        {"num_layer_list": "2,2"},
        {"pipeline_model_parallel_layout": "Et|t"},
        {"noop_layers": "7", "pipeline_model_parallel_size": "$PP"},
    ],
)
def test_stages_that_do_not_add_up_or_are_told_otherwise_are_unknown(given):
    config = script(**given)
    assert config.stage_layers is None
    assert "stage_layers" in config.missing
    assert "stage_layers" not in config.missing_sizes  # operations of a step are the same however layers lie


def test_recomputing_a_block_of_layers_is_not_recomputing_all():
    assert script(recompute_granularity="full", recompute_method="uniform").recompute == "full"
    assert script(recompute_granularity="full", recompute_method="block").recompute == "partial"


def test_a_log_tells_the_padded_vocabulary_behind_its_arguments():
    told = {**DENSE, "padded_vocab_size": None, "vocab_size": 50257}
    tokenizer = "\n > padded vocab (size: 50257) with 687 dummy tokens (new size: 50944)"
    assert read_config(printed(**told) + tokenizer, "train.log").vocab == 50944


def test_what_the_job_told_of_its_split_fills_what_its_script_leaves_open():
    config = with_split(script(tensor_model_parallel_size="$TP"), {"tp": 4, "pp": 8}, 16)
    assert (config.tp, config.pp, config.dp) == (4, 2, 2)  # 16 devices / (4 x 2)
    assert config.micro_batches == 4  # 8 / (1 x 2)
    assert config.vocab == 32256  # the next multiple of 128 x 4
    assert config.missing == ()
    assert with_split(script(), {}, 6).dp is None  # six devices are no multiple of 2 x 2


def test_a_vocabulary_waits_for_the_split_that_it_is_padded_to():
    open_split = script(tensor_model_parallel_size="$TP")
    stored = config_from_json(json.loads(json.dumps(open_split.as_json())))
    assert stored == open_split
    assert with_split(stored, {"tp": 16}, None).vocab == 32768  # 128 x 16 x 16
    assert with_split(stored, {}, None).vocab is None
    unknown_step = script(tensor_model_parallel_size="$TP", make_vocab_size_divisible_by="$STEP")
    assert with_split(unknown_step, {"tp": 16}, None).missing == ("vocab",)


def test_variables_nobody_set_leave_a_size_unknown():
    config = read_config("--num-layers $LAYERS --num-layers 4 --hidden-size 512 --seq-length $((A*B))", "run.sh")
    assert config.layers == 4
    assert config.seq_length is None and "seq_length" in config.missing


def test_a_size_that_is_no_count_is_one_clear_error():
    with pytest.raises(BadDump, match=r"run.sh.*num_attention_heads is 'many', not a count"):
        read_config("--num-layers 4 --hidden-size 512 --num-attention-heads many", "run.sh")


def test_a_script_of_another_kind_is_no_config():
    with pytest.raises(BadDump, match="run.sh"):
        read_config("#!/bin/bash\ntorchrun train.py --lr 1e-4\n", "run.sh")


def test_a_model_that_stands_alone_names_what_a_step_needs_besides():
    text = '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, '
    config = read_config(text + '"intermediate_size": 128, "vocab_size": 100, "hidden_act": "silu"}', "config.json")
    assert (config.layers, config.hidden, config.ffn, config.kv_heads, config.gated) == (2, 64, 128, 4, True)
    assert config.missing_sizes == ("seq_length", "global_batch")
    assert set(config.missing) - set(config.missing_sizes) == {"tp", "pp", "cp", "ep"}  # a model has no split
    assert config.devices is None


def test_arguments_do_not_name_their_model_and_yaml_may():
    assert model_name(SCRIPT, "run.sh") is None
    assert model_name("model: {model_config: {}}\ntrainer: {model_name: llama2_7b}", "run.yaml") == "llama2_7b"
    assert model_name("model: {model_config: {}}", "run.yaml") is None


def test_no_data_parallel_ranks_are_unknown_ones():
    config = read_config(printed(**{**DENSE, "data_parallel_size": 0}), "train.log")
    assert (config.dp, config.devices) == (4, 32)  # 32 / (4 x 2)
    none = read_config(printed(**{**DENSE, "data_parallel_size": 0, "world_size": 0}), "train.log")
    assert (none.dp, none.devices, none.micro_batches) == (None, None, None)
