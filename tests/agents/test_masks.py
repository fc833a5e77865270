"""What somebody looks for who wants a secret out of a run's configuration or command line, however it is written."""

from __future__ import annotations

import json

import pytest
from stepscope_agent.masks import masked, masked_command, masked_config

S = "S3CR3Txyz"


def hidden(text: str) -> bool:
    return S not in masked_config(text)


@pytest.mark.parametrize(
    "text",
    [
        # names written with escapes
        '"pass\\u0077ord": %s\n',
        '{"pass\\u0077ord": "%s"}\n',
        '{"p\\u0061ss\\x77ord" : "%s"}\n',
        '"to\\U0000006ben": "%s"\n',
        '{"a": {"\\u0074oken": ["%s"]}}\n',
        # brackets over lines, with lone quotes in what is no string
        "hub: {note: it's,\n  password: %s, other: don't}\n",
        "hub: {note: it's, password: a\n  %s}\n",
        "hub: {note: 'it''s, {', password: it's\n  %s, b: 1}\n",
        'hub: {note: 6" disk, token: %s\n}\n',
        "hub: {\n  # it's a comment with a { in it\n  token: %s}\n",
        "hub: [a, {b: [c, 'd]'], api_key: [x, {y: %s}]}]\n",
        "hub: {? password : %s}\n",
        "hub: {password\n  : %s}\n",
        "hub: {a: x\n  password: %s}\n",
        "hub: {a: 1, token: &t %s}\n",
        "hub: {password: !!str %s}\n",
        "hub: {token:\n    - %s}\n",
        "hub: [unfinished\npassword: %s\n",
        "hub: {a: 'unfinished\npassword: %s\n",
        "run: |\n  {\n  'tis\n  password: %s\n  }\nlr: 'x'\n",
        '"lr": |-\n  {\n"password": |-\n  ]%s\n',
        "hub: {a: 1, password: ] %s}\n",
        'a:\n  - |-\n    [\n"password":\n- |-\n  ,%s\n',
        "a:\n- x: |-\n    [\n  password:\n  - |-\n    ,%s\n",
        "- - |\n    {\n  - password: >-\n      }%s\n",
        "run: |\n  {a: [\n  password: %s\n",
        # keys on their own lines, values on others
        "? password\n: %s\n",
        "- ? token\n  : %s\n",
        "password:\n    %s\n",
        "password:\n  - [%s]\n",
        'password: "a\n\n%s"\nlr: 1\n',
        "password: 'it''s\n%s'\nlr: 1\n",
        "password: |-\n  a\n\n  %s\nlr: 1\n",
        "password: >+2\n    a\n   %s\nlr: 1\n",
        "token: !secret\n  %s\n",
        # anchors and merges
        "base: &pw %s\nhub: {password: *pw}\n",
        "base: &pw\n  %s\nhub:\n  password: *pw\n",
        "base: {x: &pw %s}\npassword: *pw\n",
        "- &pw %s\n- password: *pw\n",
        "base: &b\n  token: %s\njob:\n  <<: *b\n",
        # commands of a shell
        'run: |\n  export DB_PASSWORD="first %s last"\n',
        "run: |\n  DB_PASSWORD='first %s last'\n",
        "run: |\n  export TOKEN=$'%s'\n",
        "run: |\n  TOKEN+=%s\n",
        "run: |\n  x --token '%s'\n",
        'run: |\n  x --token "first %s"\n',
        "run: |\n  x --token \\\n    %s \\\n    --lr 1\n",
        "run: |\n  wandb login %s\n",
        "run: |\n  wandb login --relogin '%s'\n",
        "run: |\n  setenv WANDB_API_KEY %s\n",
        "run: |\n  set -x WANDB_API_KEY %s\n",
        "run: |\n  sshpass -p '%s' ssh h\n",
        "run: |\n  machine h\n    login me\n    password %s\n",
        "run: |\n  os.environ['WANDB_API_KEY'] = '%s'\n",
        "run: |\n  wandb.login(key='%s')\n",
        "run: |\n  login(token='%s')\n",
        "run: |\n  mysql -u me -p%s db\n",
        "run: |\n  echo %s | docker login --password-stdin\n",
        "run: |\n  read -r TOKEN <<< '%s'\n",
        "run: |\n  TOKENS=(other '%s')\n",
        "run: |\n  curl -ume:%s h\n",
        # a text over lines
        "kept: ':\n    {'\npassword:\n- '}%s'\n",
        # lists of variables
        "env:\n  - name: HF_TOKEN\n    value: %s\n",
        "env:\n  - value: %s\n    name: HF_TOKEN\n",
        "env: [{name: HF_TOKEN, value: %s}]\n",
        "env: [{value: '%s', name: HF_TOKEN}]\n",
        '{"env": [{"value": "%s", "name": "HF_TOKEN"}]}\n',
        "env:\n  - HF_TOKEN=%s\n",
        "environment: {DB_PASS: %s}\n",
        "args: [--token, %s, x]\n",
        # commands, heredocs, files in files
        "run: |\n  cat > .netrc <<EOF\n  machine h login me password %s\n  EOF\n",
        "run: |\n  cat > x.ini <<EOF\n  password = %s\n  EOF\n",
        "run: curl -u me:%s https://h/x\n",
        "run: sshpass -p %s ssh h\n",
        "run: docker login -u me -p %s registry\n",
        "run: x --token=%s\n",
        "run: 'export AWS_SECRET_ACCESS_KEY=\"%s\"; x'\n",
        "run: git clone git+https://me:%s@h/r\n",
        "run: git clone https://%s@h/r\n",
        "run: curl -H 'Authorization: Bearer %s' h\n",
        "url: https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=%s\n",
        "url: https://open.feishu.cn/open-apis/bot/v2/hook/%s\n",
        "# password: %s\nlr: 1\n",
        "lr: 1  # the old token is TOKEN=%s\n",
        # names
        "db_pass: %s\n",
        "password_prod: %s\n",
        "hf_token_2: %s\n",
        "ssh_key: %s\n",
        "credentials_json: %s\n",
        "数据库密码: %s\n",
        "hub: {访问令牌: %s}\n",
        '{"auths": {"registry": {"auth": "%s"}}}\n',
        # ends of lines
        "lr: 1\rpassword: %s\r",
        "lr: 1\r\npassword:\r\n  %s\r\n",
        "lr: 1\u2028password: %s\n",
    ],
)
def test_nothing_of_a_secret_leaves(text):
    assert hidden(text.replace("%s", S))


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnopqrstuvwxyz",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0123456789",
        "sk-proj-abcdefghijklmnop",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "AIzaSyA0123456789abcdefghijklmnopqrstu",
        "glpat-abcdefghijklmnopqrst",
        "sk_live_abcdefghijklmnop",
        "xoxb-123456789012-abcdef",
        "hvs.CAESIabcdefghijklmnop",
    ],
)
def test_tokens_of_known_shape_are_hidden_wherever_they_stand(secret):
    for text in ("note: it is %s\n", "- %s\n", "x: {y: %s}\n", '["%s"]\n', "# %s\n", "run: |\n  f %s\n"):
        assert secret not in masked_config(text % secret)
    assert secret not in masked("say " + secret)
    assert secret not in masked_command(["run.py", secret])


@pytest.mark.parametrize("begin", ["RSA PRIVATE", "PRIVATE", "OPENSSH PRIVATE", "ENCRYPTED PRIVATE"])
def test_a_private_key_is_hidden_over_its_lines(begin):
    key = "-----BEGIN %s KEY-----\n  MIIabc\n  %s\n  -----END %s KEY-----" % (begin, S, begin)
    for text in ("x: |\n  %s\nlr: 1\n", 'x: "%s"\nlr: 1\n', "# %s\n"):
        assert hidden(text % key)
        assert hidden(text % key.partition("  -----END")[0])
    assert S not in masked(key)


@pytest.mark.parametrize(
    "arguments",
    [
        ["curl", "-u", "me:" + S, "h"],
        ["sshpass", "-p", S, "ssh"],
        ["bash", "-c", "x --token '%s'" % S],
        ["bash", "-c", 'TOKEN="a %s" x' % S],
        ["bash", "-c", "wandb login %s" % S],
        ["docker", "login", "-p", S],
        ["x", "--token=" + S],
        ["x", '--config={"password":"%s"}' % S],
        ["x", "--url", "https://me:%s@h" % S],
    ],
)
def test_nothing_of_a_secret_leaves_with_a_command(arguments):
    assert S not in masked_command(arguments)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("密码：password: abcd", "密码：***"),
        ("登录令牌：token = 'ab cd' x", "登录令牌：*** x"),
        ("token: ab cd", "token: *** cd"),
    ],
)
def test_a_name_behind_a_name_is_hidden_with_its_value(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the password for the registry is hunter2", "the password for the registry is ***"),
        ("The API key is: 9f8e7d6c. Keep it.", "The API key is: *** Keep it."),
        ("password was 'correct horse', ask me", "password was '***', ask me"),
        ("the secret is s3cr3t_X", "the secret is ***"),
        ("passphrase is camelCase", "passphrase is ***"),
        ("仓库的密码是 hunter2。", "仓库的密码是 ***。"),
        ("令牌：abcd-efgh", "令牌：***"),
        ("the password of the registry is kept in the vault", "the password of the registry is kept in the vault"),
        (
            "the pad token is <pad>, the number of tokens is 8192",
            "the pad token is <pad>, the number of tokens is 8192",
        ),
        ("the password is required", "the password is required"),
        ("每步令牌数为 4096", "每步令牌数为 4096"),
    ],
)
def test_a_secret_told_in_a_sentence_is_hidden_where_it_looks_like_no_word(text, shown):
    assert masked(text) == shown
    assert masked_config("note: |\n  %s\nlr: 1\n" % text) == "note: |\n  %s\nlr: 1\n" % shown
    assert json.loads(masked_config(json.dumps({"note": text}))) == {"note": shown}
    assert masked(shown) == shown


def test_a_comment_that_names_a_secret_tells_nothing_after_it():
    assert masked_config("lr: 1  # password: correct horse battery\n") == "lr: 1  # password: ***\n"


@pytest.mark.parametrize(
    "text",
    [
        "model: {layers: 2, note: it's, sizes: [1, 2]}\nlr: 1\n",
        "path: C:\\users\\x\nnote: 'a \\u0022'\n",
        'pattern: "a\\\\u0077"\n',
        "num_key_value_heads: 8\nkeys: [a, b]\nkey: 3\nvalue: 4\n",
        "forward: {pass_through: true}\ntokens_per_second: 3\ntoken_count: 4\nauth_type: none\n",
        "a: &x 1\nb: *x\n",
        "callbacks:\n  - type: MFLossMonitor\n  - {type: CheckpointMonitor, prefix: llama}\n",
        "lr: 1.e-5 # it's {small\nname: x\n",
        '{"note": [" #"], "pad_token": []}\n',
        "run: |\n  set -e\n  wandb login\n  x --pad-token '<pad>' --num-tokens 4\n",
    ],
)
def test_what_holds_no_secret_stays_as_it_is(text):
    assert masked_config(text) == text


def test_masking_again_changes_nothing():
    text = "hub: {password: a, x: [b]}\ntoken:\n  - c\nrun: x --token d\nurl: https://me:e@h\nk: hf_abcdefghijklmnop\n"
    once = masked_config(text)
    assert masked_config(once) == once


def test_lines_that_are_hard_to_read_take_no_long_time():
    """Each of these took minutes where an expression went back over the line again and again."""
    for piece in (
        "a.",
        "- ",
        ": ",
        "! ",
        "token ",
        "token" + " " * 99,
        "value: x" + " " * 99,
        "{",
        '"',
        "a://b:",
        "[a:",
        "[a" + " " * 99 + ",",
        "secret-",
        "echo " + " " * 999,
        "{name: ",
        "a: {\n",
        "the password for ",
        "the password is ",
        "密码",
        'token="a',
        "token='a\n",
        "--token \\\n",
        "wandb login ",
        "set -x token ",
        "login a\n",
        "a: |\n  [\n",
        " |" + " " * 99,
    ):
        text = piece * (20000 // len(piece))
        masked_config(text)
        masked(text)


try:
    import yaml
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ImportError:  # the agent's tests also run where only pytest is
    pass
else:
    HARMLESS = st.sampled_from(["lr", "layers", "note", "name_of_it", "pad_token", "num_key_value_heads"])
    SECRET = st.sampled_from(["password", "hub_token", "apiKey", "secret_key", "obs.sk", "credentials"])
    FILLING = st.text(st.sampled_from(list("abc '\"#:,-[]{}&*!|>%@\n\\é中")), max_size=12)
    PLAIN = st.one_of(st.integers(0, 9), FILLING)
    KEPT = st.recursive(
        PLAIN,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(HARMLESS, inner, max_size=3)),
        max_leaves=6,
    )
    LOST = st.recursive(
        FILLING.map(lambda text: text + S),
        lambda inner: st.one_of(st.lists(inner, min_size=1, max_size=3), st.dictionaries(HARMLESS, inner, min_size=1)),
        max_leaves=4,
    )
    CONFIGS = st.recursive(
        st.fixed_dictionaries({"kept": KEPT}),
        lambda inner: st.one_of(
            st.tuples(SECRET, LOST, HARMLESS, KEPT).map(lambda one: {one[2]: one[3], one[0]: one[1], "last": 1}),
            st.tuples(HARMLESS, inner, SECRET, LOST).map(lambda one: {one[0]: [one[1]], one[2]: one[3]}),
        ),
        max_leaves=3,
    )

    @settings(max_examples=400, deadline=None, derandomize=True)
    @given(
        CONFIGS, st.sampled_from([None, '"', "'", "|", ">"]), st.sampled_from([True, False, None]), st.integers(5, 80)
    )
    def test_whatever_way_yaml_is_written_no_secret_leaves(config, style, flow, width):
        text = yaml.safe_dump(config, default_style=style, default_flow_style=flow, width=width, allow_unicode=True)
        assert hidden(text), text

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(CONFIGS, st.sampled_from([None, 1, 4]), st.booleans())
    def test_json_stays_json_without_its_secrets(config, indent, ascii_only):
        shown = masked_config(json.dumps(config, indent=indent, ensure_ascii=ascii_only))
        assert S not in shown
        assert set(json.loads(shown)) == set(config)

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(
        st.text(st.sampled_from(list("ab '\"#:,-[]{}&*!|>?\n\\")), max_size=40), st.sampled_from(["%s", "  %s", "{%s}"])
    )
    def test_no_damage_before_a_line_lets_its_secret_out(damage, around):
        line = around % ("password: " + S)
        assert hidden(damage + "\n" + line + "\n"), damage
