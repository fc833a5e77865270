"""Sizes out of scripts and logs: what is needed leaves the host, and nothing else."""

from __future__ import annotations

import pytest
from stepscope_agent import upload
from stepscope_agent.errors import AgentError

SCRIPT = """\
export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz
TP=8
torchrun --master_addr 10.0.0.1 pretrain_gpt.py \\
    --num-layers 32 --hidden-size=4096 --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size $PP --global-batch-size ${GBS:-256} \\
    --data-path /secret/place --wandb-api-key abc123 --swiglu --lr 1e-4
# --num-layers 99
"""


def config(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return upload.read_config(str(tmp_path / name))


def test_a_script_gives_sizes_and_switches_and_no_word_more(tmp_path):
    sent = config(tmp_path, "pretrain.sh", SCRIPT)
    assert sent["name"] == "pretrain.sh"
    assert sent["text"].splitlines() == [
        "--global-batch-size 256",
        "--hidden-size 4096",
        "--num-layers 32",
        "--pipeline-model-parallel-size None",
        "--swiglu",
        "--tensor-model-parallel-size 8",
    ]


@pytest.mark.parametrize(
    ("set_", "value"),
    [
        ("", "None"),
        ("TP=${TP:-4}\n", "4"),
        ("TP=$1\n", "None"),
        ("if [ $BIG ]; then TP=8; else TP=4; fi\n", "None"),
        ("TP=8 # all of a node\nTP=8\n", "8"),
        ("TP=$((2 * 4))\n", "None"),
    ],
)
def test_what_a_script_does_not_tell_leaves_as_unknown(tmp_path, set_, value):
    text = set_ + "run --num-layers 2 --hidden-size 64 --tensor-model-parallel-size $TP\n"
    assert config(tmp_path, "run.sh", text)["text"].splitlines()[-1] == "--tensor-model-parallel-size %s" % value


def test_sizes_that_are_no_plain_numbers_leave_as_unknown_and_lists_of_layers_as_they_are(tmp_path):
    text = "ARGS=(--num-layers 4 --hidden-size ${H} --moe-layer-freq '([0]*1+[1]*3)' --noop-layers 3 --seq-length 4k)"
    assert config(tmp_path, "run.sh", text)["text"].splitlines() == [
        "--hidden-size None",
        "--moe-layer-freq ([0]*1+[1]*3)",
        "--noop-layers 3",
        "--num-layers 4",
        "--seq-length None",
    ]


def test_the_padded_vocabulary_is_told_by_the_tokenizer_behind_the_arguments(tmp_path):
    lines = [
        "  %s ................ %s" % pair for pair in (("hidden_size", 8), ("num_layers", 2), ("noop_layers", "{0, 1}"))
    ]
    lines.append(" > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)")
    assert [line.split()[::2] for line in config(tmp_path, "train.log", "\n".join(lines))["text"].splitlines()] == [
        ["hidden_size", "8"],
        ["noop_layers", "{0,1}"],
        ["num_layers", "2"],
        ["padded_vocab_size", "50432"],
    ]


def test_the_arguments_a_job_printed_leave_without_its_paths_and_keys(tmp_path):
    log = "\n".join(
        [
            "using world size: 8",
            "  data_path ....................................... ['/secret/place']",
            "  hidden_size ..................................... 4096",
            "[default0]:  num_layers ...................................... 32",
            "  wandb_api_key ................................... abc123",
            "  num_experts ..................................... None",
            " iteration 1/ 100",
        ]
    )
    assert config(tmp_path, "train.log", log)["text"].split() == [
        *("hidden_size", "." * 37, "4096"),
        *("num_experts", "." * 37, "None"),
        *("num_layers", "." * 38, "32"),
    ]


def test_a_file_without_sizes_is_refused_and_stays(tmp_path):
    with pytest.raises(AgentError, match=r"secrets\.sh gives no --num-layers"):
        config(tmp_path, "secrets.sh", "export TOKEN=abc\n")


def test_a_run_config_is_yaml_by_its_name(tmp_path):
    text = "model:\n  model_config: {num_layers: 2}\n# --num-layers 3 --hidden-size 4\n"
    assert config(tmp_path, "run.yaml", text)["text"] == text
