"""Configurations as flat keys, and what changed from one to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.config_keys import LONGEST, KeyChange, changed_keys, config_keys

YAML = """
model:
  model_config:
    rotary_dtype: "bfloat16"
    use_flash_attention: True
optimizer: {betas: [0.9, 0.95], eps: 1.e-8, fused: null}
callbacks:
  - type: MFLossMonitor
  - type: CheckpointMonitor
    keep: 2
empty: {}
"""


def test_sections_become_dotted_keys_and_values_read_as_the_file_has_them():
    assert list(config_keys(YAML).items()) == [
        ("model.model_config.rotary_dtype", "bfloat16"),
        ("model.model_config.use_flash_attention", "True"),
        ("optimizer.betas", "[0.9, 0.95]"),
        ("optimizer.eps", "1e-08"),
        ("optimizer.fused", ""),
        ("callbacks.0.type", "MFLossMonitor"),
        ("callbacks.1.type", "CheckpointMonitor"),
        ("callbacks.1.keep", "2"),
        ("empty", "{}"),
    ]


def test_a_changed_an_added_and_a_gone_key_are_told_with_both_values():
    old = config_keys("a: 1\nb: {c: x, d: 2}\n")
    new = config_keys("b: {c: y, d: 2}\ne: 3\n")
    assert changed_keys(old, new) == [KeyChange("b.c", "x", "y"), KeyChange("e", None, "3"), KeyChange("a", "1", None)]


def test_comments_order_and_quotes_are_no_change():
    assert changed_keys(config_keys("a: 'x' # why\nb: 2\n"), config_keys("b: 2\n\na: x\n")) == []


def test_arguments_of_a_megatron_job_are_its_keys():
    old = config_keys("pretrain --num-layers 32 --hidden-size 4096 --bf16 --lr 1e-4")
    new = config_keys("pretrain --num-layers 32 --hidden-size 4096 --bf16 --lr 2e-4 --swiglu")
    assert changed_keys(old, new) == [KeyChange("lr", "1e-4", "2e-4"), KeyChange("swiglu", None, "True")]


@pytest.mark.parametrize("text", ["", "just words", "- a\n- b\n", "a: [", "a: !!bool b", "\x00"])
def test_a_text_that_is_no_configuration_has_no_keys(text):
    assert config_keys(text) == {}


@pytest.mark.real
def test_a_real_config_differs_from_itself_in_nothing_and_from_another_width_in_one_key(dumps: Path):
    path = next(
        path for path in sorted((dumps / "mindformers-yaml").rglob("*.y*ml")) if "hidden_size" in path.read_text()
    )
    text = path.read_text(encoding="utf-8")
    keys = config_keys(text)
    assert changed_keys(keys, config_keys(text)) == []
    name = next(name for name in keys if name.endswith(".hidden_size"))
    wider = text.replace(f"hidden_size: {keys[name]}", "hidden_size: 12345", 1)
    assert changed_keys(keys, config_keys(wider)) == [KeyChange(name, keys[name], "12345")]


def test_a_configuration_that_holds_itself_is_told_down_to_a_depth():
    assert config_keys("a: 1\nb: &b {c: *b}\n") == {"a": "1", "b" + ".c" * 49: "…"}
    assert config_keys("a: &a [[2], *a]\n")["a.1.1.0"] == "[2]"


def test_a_number_longer_than_can_be_written_is_not_told():
    assert config_keys(f"a: 0x{'f' * 6000}\nb: 2\n") == {"a": "…", "b": "2"}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        # Of 2^20 characters each of the values takes 60 003, so that there is room for 17 and the empty section.
        ("a: &a [" + "1, " * 20_000 + "1]\nb: [{}" + ", *a" * 4_000 + "]\n", 18),
        # And each of the names 60 000.
        ("? " + "c" * 60_000 + "\n: {" + "".join(f"k{number}: 1, " for number in range(3_000)) + "}\n", 17),
    ],
    ids=["values", "names"],
)
def test_words_that_are_repeated_thousands_of_times_end_a_configuration(text, count):
    assert len(config_keys(text)) == count


def test_a_configuration_too_long_to_be_read_in_time_has_no_keys():
    longest = "a: 1\n" + "#" * (LONGEST - 5)
    assert config_keys(longest) == {"a": "1"}
    assert config_keys(longest + "#") == {}
