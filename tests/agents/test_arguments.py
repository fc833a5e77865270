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
        "--swiglu",
        "--tensor-model-parallel-size 8",
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
