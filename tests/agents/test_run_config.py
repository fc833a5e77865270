"""The run's configuration on its way: left by the callback or by hand, secrets hidden, sent once."""

from __future__ import annotations

import os
import stat
import sys

import pytest
from stepscope_agent.manifest import write_json
from stepscope_agent.run_config import CONFIG_FILE, config_among, config_on_command_line

from agent_dumps import write_torch
from test_callback import Api, made, train
from test_watch import Agent, finished

YAML = "model:\n  model_config: {num_layers: 2}\nremote: {access_token: abc}\n"


@pytest.fixture
def yaml_file(tmp_path):
    path = tmp_path / "run_llama.yaml"
    path.write_text(YAML)
    return str(path)


def left(folder):
    with open(os.path.join(str(folder), CONFIG_FILE)) as stream:
        return stream.read()


def test_the_callback_leaves_the_yaml_of_its_command_line_without_secrets(tmp_path, yaml_file, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_mindformer.py", "--config", yaml_file, "--run_mode", "train"])
    train(made(tmp_path / "out", Api()), 2)
    assert "num_layers: 2" in left(tmp_path / "out")
    assert "abc" not in left(tmp_path / "out")


def test_the_callback_may_be_told_the_yaml(tmp_path, yaml_file):
    train(made(tmp_path / "out", Api(), config=yaml_file), 2)
    assert "num_layers: 2" in left(tmp_path / "out")


def test_one_rank_speaks_for_all(tmp_path, yaml_file):
    train(made(tmp_path / "out", Api(rank=1, world_size=2), config=yaml_file), 2)
    assert not (tmp_path / "out" / CONFIG_FILE).exists()


def test_a_yaml_that_cannot_be_read_stops_nothing(tmp_path, caplog):
    train(made(tmp_path / "out", Api(), config=str(tmp_path / "gone.yaml")), 2)
    assert "configuration is not left for the agent" in caplog.text
    assert (tmp_path / "out" / "stepscope_steps_rank_0.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--config", "{path}"], True),
        (["--config={path}"], True),
        (["--config"], False),
        (["--config", "gone.yaml"], False),
        (["--data", "{path}"], False),
    ],
)
def test_which_argument_names_the_yaml(yaml_file, arguments, found):
    named = config_on_command_line(["train.py"] + [argument.format(path=yaml_file) for argument in arguments])
    assert named == (yaml_file if found else None)


def test_names_under_which_a_configuration_is_taken():
    assert config_among(["a", "stepscope_config.sh", "stepscope_config.yaml"]) == "stepscope_config.sh"
    assert config_among(["stepscope_config.yaml.bak", ".stepscope-1", "config.yaml"]) is None


def test_watch_sends_what_was_left_once_and_again_when_it_changes(tmp_path, server):
    home = tmp_path / "jobs" / "llama"
    finished(write_torch(home, rank=0))
    (home / CONFIG_FILE).write_text(YAML)
    agent = Agent(tmp_path, server, folders=[str(tmp_path / "jobs")])
    agent.look()
    agent.look()
    assert list(server.state.configs.values()) == [{"name": CONFIG_FILE, "text": YAML.replace("abc", '"***"')}]
    posts = server.state.count("POST", r"/runs$")
    agent.look()
    assert server.state.count("POST", r"/runs$") == posts
    (home / CONFIG_FILE).write_text(YAML.replace("2", "3"))
    agent.look()
    (config,) = server.state.configs.values()
    assert "num_layers: 3" in config["text"]


def test_the_configuration_of_a_job_goes_with_dumps_folders_below_it(tmp_path, server):
    """MindSpore Transformers profiles into output/profile/rank_N; people leave the YAML in the job's folder."""
    home = tmp_path / "jobs" / "llama"
    finished(write_torch(home / "profile" / "rank_0", rank=0))
    (home / CONFIG_FILE).write_text(YAML)
    agent = Agent(tmp_path, server, folders=[str(tmp_path / "jobs")], run=None)
    agent.look()
    assert "num_layers: 2" in server.state.configs["llama"]["text"]


def test_a_script_that_gives_no_sizes_is_told_and_stays(tmp_path, server):
    home = tmp_path / "jobs" / "llama"
    finished(write_torch(home, rank=0))
    (home / "stepscope_config.sh").write_text("export TOKEN=abc\n")
    agent = Agent(tmp_path, server, folders=[str(tmp_path / "jobs")])
    agent.look()
    agent.look()
    assert server.state.configs == {}
    assert any("gives no --num-layers" in line for line in agent.said)
    assert list(agent.states().values()) == ["sent"]


PRINTED = (
    "  hidden_size ..................................... 512\n"
    "  num_layers ...................................... 2\n"
    "  wandb_api_key ................................... abc\n"
)
ITERATION = " iteration        1/      10 | elapsed time per iteration (ms): 20.0 | lm loss: 1.0E+01 |\n"


@pytest.fixture
def log(tmp_path):
    (tmp_path / "jobs" / "megatron").mkdir(parents=True)
    return tmp_path / "jobs" / "megatron" / "train.log"


def watching(tmp_path, server):
    return Agent(tmp_path, server, folders=[str(tmp_path / "jobs")], run=None, logs=[str(tmp_path / "jobs/*/*.log")])


def test_what_a_job_printed_at_the_top_of_its_log_is_sent_once(tmp_path, server, log):
    log.write_text("starting\n")
    agent = watching(tmp_path, server)
    agent.look()
    assert server.state.configs == {}
    log.write_text("starting\n" + PRINTED + ITERATION)
    agent.look()
    assert server.state.configs["megatron"]["name"] == "train.log"
    assert "num_layers" in server.state.configs["megatron"]["text"]
    assert "abc" not in server.state.configs["megatron"]["text"]
    posts = server.state.count("POST", r"/runs$")
    with log.open("a") as stream:
        stream.write("a line that is no step\n")
    agent.restart()
    agent.look()
    assert server.state.count("POST", r"/runs$") == posts


def test_a_configuration_that_was_left_counts_more_than_the_log(tmp_path, server, log):
    finished(write_torch(log.parent, rank=0))
    (log.parent / CONFIG_FILE).write_text(YAML)
    agent = watching(tmp_path, server)
    agent.look()
    agent.look()
    log.write_text(PRINTED + ITERATION)
    agent.look()
    assert server.state.configs["megatron"]["name"] == CONFIG_FILE


def test_files_for_each_other_are_readable_as_the_umask_has_it(tmp_path):
    before = os.umask(0o022)
    try:
        write_json(str(tmp_path / "control.json"), {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(str(tmp_path / "control.json")).st_mode) == 0o644


def test_metadata_of_a_run_arrive_when_its_training_begins(tmp_path, server, monkeypatch):
    """Long before the first dump; what holds for one rank alone stays out of them."""
    monkeypatch.setenv("HCCL_ALGO", "level0:ring")
    monkeypatch.setattr(sys, "argv", ["train.py", "--token", "abc"])
    callback = made(tmp_path / "profiles", Api(rank=0, world_size=8), run="llama", model={"hidden": 4096})
    train(callback, 1)
    train(made(tmp_path / "profiles", Api(rank=1, world_size=8), run="llama"), 1)
    agent = Agent(tmp_path / "profiles", server, run=None)
    agent.look()
    agent.look(after=10)
    meta = server.state.runs["llama"]["meta"]
    assert (meta["mode"], meta["world_size"], meta["model"]) == ("graph", 8, {"hidden": 4096})
    assert meta["environment"]["HCCL_ALGO"] == "level0:ring"
    assert meta["command"].endswith("train.py --token ***")
    assert not {"rank", "host", "device_id", "window", "schema"} & set(meta)
    assert agent.said == []
