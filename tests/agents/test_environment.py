from __future__ import annotations

import subprocess

import pytest
from stepscope_agent.environment import allowed_environment, git_commit, masked_command, masked_config

from agent_dumps import write


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
