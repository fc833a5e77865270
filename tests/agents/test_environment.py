from __future__ import annotations

import json
import subprocess

import pytest
from stepscope_agent.environment import allowed_environment, git_commit
from stepscope_agent.masks import masked_command, masked_config

from agent_dumps import write

try:
    import yaml
except ImportError:  # these tests also run where only pytest is
    yaml = None


def test_only_variables_of_the_list_are_told():
    environ = {
        "HCCL_ALGO": "level0:ring",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "x",
        "RANK_ID": "3",
        "PATH": "/bin",
    }
    assert allowed_environment(environ) == {"HCCL_ALGO": "level0:ring", "RANK_ID": "3"}


def test_a_listed_prefix_does_not_let_a_secret_out():
    environ = {"MS_TOKEN": "x", "ASCEND_API_KEY": "x", "HCCL_PASSWORD": "x", "MS_URL": "http://me:word@host/x"}
    assert allowed_environment(environ) == {"MS_URL": "http://***@host/x"}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["run.py", "--token", "abc", "--lr", "1"], "run.py --token *** --lr 1"),
        (["run.py", "--hub-token=abc"], "run.py --hub-token=***"),
        (["run.py", "--api_key", "abc"], "run.py --api_key ***"),
        (["run.py", "PASSWORD=abc", "x"], "run.py PASSWORD=*** x"),
        (["run.py", "https://me:word@host/path"], "run.py https://***@host/path"),
        (["run.py", "hf_abcdefghijklmnop"], "run.py ***"),
        (["run.py", "--tokenizer", "llama"], "run.py --tokenizer llama"),
    ],
)
def test_secrets_in_a_command_are_masked(arguments, shown):
    assert masked_command(arguments) == shown


def test_secrets_in_a_config_are_masked_and_tokenizer_settings_stay():
    text = 'pad_token: "<pad>"\npad_token_id: 0\nhub_token: abc\nauth:\n  password: "p q"\n  api_key: k\ntokenizer:\n  type: x\n'
    assert masked_config(text) == (
        'pad_token: "<pad>"\npad_token_id: 0\nhub_token: "***"\nauth:\n  password: "***"\n  api_key: "***"\n'
        "tokenizer:\n  type: x\n"
    )


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_the_commit_is_read_from_loose_packed_and_detached_heads(tmp_path):
    write(tmp_path / "a" / ".git" / "HEAD", "ref: refs/heads/main\n")
    write(tmp_path / "a" / ".git" / "refs" / "heads" / "main", COMMIT + "\n")
    write(tmp_path / "a" / "deep" / "er" / "x", "")
    write(tmp_path / "b" / ".git" / "HEAD", "ref: refs/heads/main\n")
    write(tmp_path / "b" / ".git" / "packed-refs", "# pack-refs\n%s refs/heads/main\n" % COMMIT)
    write(tmp_path / "c" / ".git" / "HEAD", COMMIT + "\n")
    for folder in ("a/deep/er", "b", "c"):
        assert git_commit(str(tmp_path / folder)) == COMMIT


def test_the_commit_agrees_with_git(tmp_path):
    if subprocess.run(["git", "init", "-q", str(tmp_path)]).returncode:
        pytest.skip("no git here")
    settings = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-C", str(tmp_path)]
    subprocess.run(["git"] + settings + ["commit", "-q", "--allow-empty", "-m", "x"], check=True)
    said = subprocess.run(["git"] + settings + ["rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert git_commit(str(tmp_path)) == said.stdout.strip()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hub: {access_token: abc, name: x}\n", 'hub: {access_token: "***", name: x}\n'),
        ("hub: {name: x, api_key: 'a, b'}\n", 'hub: {name: x, api_key: "***"}\n'),
        ("password: a, b # c\nlr: 1\n", 'password: "***"\nlr: 1\n'),
        ("secret: |\n  first\n\n  second\nlr: 1\n", 'secret: "***"\nlr: 1\n'),
        ("token: abc\n  and more\nlr: 1\n", 'token: "***"\nlr: 1\n'),
        ("tokens:\n  - abc\n  - def\nlr: 1\n", 'tokens:\n  - "***"\n  - "***"\nlr: 1\n'),
        ("tokens: [abc, def]\nlr: 1\n", 'tokens: "***"\nlr: 1\n'),
        ("- password: abc\n  name: x\n", '- password: "***"\n  name: x\n'),
        ("model: hf_abcdefghijklmnop\n", "model: <hidden>\n"),
        ("tokenizer:\n  bos_token: <s>\n  max_tokens: 3\n", "tokenizer:\n  bos_token: <s>\n  max_tokens: 3\n"),
        ('{\n  "hub_token": "abc",\n  "hidden_size": 64\n}\n', '{\n  "hub_token": "***",\n  "hidden_size": 64\n}\n'),
    ],
)
def test_secrets_are_hidden_however_yaml_writes_them(text, shown):
    assert masked_config(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token:\n  S3CR3T\nlr: 1\n", 'token:\n  "***"\nlr: 1\n'),
        ("token:\n  S3\n  CR3T\nlr: 1\n", 'token:\n  "***"\nlr: 1\n'),
        ("secrets:\n  a: S3CR3T\n  b: |\n    S3CR3T\nlr: 1\n", 'secrets:\n  a: "***"\n  b: "***"\nlr: 1\n'),
        ("secret_key: S3CR3T\n", 'secret_key: "***"\n'),
        ("hub: {secretKey: S3CR3T, hfToken: S3CR3T}\n", 'hub: {secretKey: "***", hfToken: "***"}\n'),
        ("access_key_id: S3CR3T\n", 'access_key_id: "***"\n'),
        ("obs:\n  ak: S3CR3T\n  sk: S3CR3T\n", 'obs:\n  ak: "***"\n  sk: "***"\n'),
        ("wandb.api_key: S3CR3T\n", 'wandb.api_key: "***"\n'),
        ("!!str token: S3CR3T\n", '!!str token: "***"\n'),
        ("Authorization: Bearer S3CR3T\n", 'Authorization: "***"\n'),
        ("note: send Bearer S3CR3T-S3CR3T\n", "note: send Bearer ***\n"),
        ("# token: S3CR3T\nlr: 1 # password: S3CR3T\n", "# token: ***\nlr: 1 # password: ***\n"),
        ("run: export WANDB_API_KEY=S3CR3T && x\n", "run: export WANDB_API_KEY=*** && x\n"),
        ("run: x --token S3CR3T --lr 1\n", "run: x --token *** --lr 1\n"),
        ("args: ['--token', 'S3CR3T', x]\n", "args: ['--token', \"***\", x]\n"),
        ("args:\n- --token\n- S3CR3T\n- x\n", 'args:\n- --token\n- "***"\n- x\n'),
        ("env:\n- name: API_KEY\n  value: S3CR3T\n", 'env:\n- name: API_KEY\n  value: "***"\n'),
        ('{"env": [{"name": "API_KEY", "value": "S3CR3T"}]}\n', '{"env": [{"name": "API_KEY", "value": "***"}]}\n'),
        ('{"token": [[["a"], "S3CR3T]"], "b"], "lr": 1}\n', '{"token": "***", "lr": 1}\n'),
        ('{"token": ["a", "S3CR3T"], "lr": 1}\n', '{"token": "***", "lr": 1}\n'),
        ('{\n  "token": [\n    "S3CR3T"\n  ],\n  "lr": 1\n}\n', '{\n  "token": "***",\n  "lr": 1\n}\n'),
        ("token: [a,\nS3CR3T]\nlr: 1\n", 'token: "***"\nlr: 1\n'),
        ("url: https://h/x?token=S3CR3T&n=1\n", "url: https://h/x?token=***&n=1\n"),
        ("url: https://h/x?sv=1&sig=S3CR3T\n", "url: https://h/x?sv=1&sig=***\n"),
        ("db: postgres://me:S3/CR3T@h/d\n", "db: postgres://***@h/d\n"),
        ("hook: https://hooks.slack.com/services/T0/S3CR3T\n", "hook: https://hooks.slack.com/***\n"),
        ("me: sst_0123456789ab_S3CR3TS3CR3T\n", "me: <hidden>\n"),
        (
            "x: |\n  -----BEGIN RSA PRIVATE KEY-----\n  S3CR3T\n  -----END RSA PRIVATE KEY-----\nlr: 1\n",
            "x: |\n  <hidden>\nlr: 1\n",
        ),
    ],
)
def test_secrets_are_hidden_wherever_a_config_may_hold_them(text, shown):
    assert masked_config(text) == shown
    if yaml is not None:
        assert yaml.safe_load(shown) is not None or shown.startswith("#")


@pytest.mark.parametrize(
    "text",
    [
        "use_pad_tokens: False\nuse_auth_token: true\n",
        "num_key_value_heads: 8\nqk_rope_head_dim: 64\nauthor: me\nmax_new_tokens: 3\npadToken: x\nimage_token_id: 5\n",
        "path: http://host:8000/a@b\ntask: {sk_dim: 1, ask: 2}\n",
    ],
)
def test_sizes_and_switches_stay_whatever_they_are_called(text):
    assert masked_config(text) == text


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["-H", "Authorization: Bearer S3CR3T"], "-H Authorization: ***"),
        (["--secret-key", "S3CR3T"], "--secret-key ***"),
        (["--wandb-key", "S3CR3T"], "--wandb-key ***"),
        (["password=a S3CR3T"], "password=***"),
        (["--config", '{"password": "S3CR3T"}'], '--config {"password": ***}'),
        (["bash", "-c", "train --token S3CR3T --lr 1"], "bash -c train --token *** --lr 1"),
    ],
)
def test_secrets_of_several_words_in_a_command_are_masked_whole(arguments, shown):
    assert masked_command(arguments) == shown


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_config_stays_json(indent):
    config = {
        "hub": {"token": 'x"y', "list": [1, {"password": {"k": [1, 2]}}, {"name": "API_KEY", "value": "q"}]},
        "run": "x --token S3CR3T",
        "line": 'TOKEN="S3CR3T" KEY=1',
        "size": 4,
    }
    assert json.loads(masked_config(json.dumps(config, indent=indent))) == {
        "hub": {"token": "***", "list": [1, {"password": "***"}, {"name": "API_KEY", "value": "***"}]},
        "run": "x --token ***",
        "line": 'TOKEN="***" KEY=1',
        "size": 4,
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"lr": {"a": 1,\n"token": "x"},\n"b": 1}\n', '{"lr": {"a": 1,\n"token": "***"},\n"b": 1}\n'),
        ('{"a": 1,\n "token": [\n  "x"]}\n', '{"a": 1,\n "token": "***"}\n'),
    ],
)
def test_brackets_that_close_behind_a_hidden_value_stay(text, shown):
    assert masked_config(text) == shown


def test_a_flow_of_yaml_over_several_lines_stays_one():
    assert masked_config("{\n  token: abc,\n  lr: 1\n}\n") == '{\n  token: "***",\n  lr: 1\n}\n'
