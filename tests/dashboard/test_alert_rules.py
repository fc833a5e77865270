from __future__ import annotations

import pytest

from dashboard.alerts.rules import BY_METRIC, Rule, failed_items, regressed, told_once


@pytest.mark.parametrize(
    ("metric", "old", "new", "expected"),
    [
        ("cast_ratio", 0.03, 0.04, True),  # up by exactly one point
        ("cast_ratio", 0.03, 0.0399, False),
        ("cast_ratio", 0.0495, 0.0501, True),  # passes 5 %
        ("cast_ratio", 0.0495, 0.05, False),
        ("cast_ratio", 0.08, 0.085, False),  # was over 5 % already
        ("cast_ratio", 0.12, 0.03, False),
        ("mfu", 0.40, 0.388, True),  # 3 % of 0.40 is 0.012
        ("mfu", 0.40, 0.389, False),
        ("mfu", 0.22, 0.41, False),
        ("device_ratio", 0.90, 0.87, True),
        ("device_ratio", 0.90, 0.875, False),
        ("step_time_ns", 1_000_000_000, 1_030_000_000, True),
        ("step_time_ns", 1_000_000_000, 1_029_000_000, False),
        ("peak_memory_bytes", 40 * 2**30, 42 * 2**30, True),
        ("peak_memory_bytes", 40 * 2**30, 41 * 2**30, False),
        ("mfu", None, 0.3, False),
        ("mfu", 0.3, None, False),
        ("mfu", 0.0, 0.0, False),
    ],
)
def test_default_rules(metric, old, new, expected):
    assert regressed(BY_METRIC[metric], old, new) is expected


def test_an_item_counts_only_from_pass_to_fail():
    old = {"a": "pass", "b": "unknown", "c": "fail", "d": "pass"}
    new = {"a": "fail", "b": "fail", "c": "fail", "d": "unknown"}
    assert failed_items(old, new) == ["a"]
    assert failed_items(old, new, ("b", "d")) == []


def test_a_rule_watches_what_it_names():
    assert Rule("mfu", "high").watches([], "", None)
    assert not Rule("mfu", "high", enabled=False).watches([], "", None)
    nightly = Rule("mfu", "high", tag="nightly", model_name="Llama", least_devices=8)
    assert nightly.watches(["a", "nightly"], "llama", 8)
    assert not nightly.watches(["a"], "llama", 8)
    assert not nightly.watches(["nightly"], "llama2", 8)
    assert not nightly.watches(["nightly"], "llama", 4)
    assert not nightly.watches(["nightly"], "llama", None)


def test_one_thing_is_told_once():
    assert told_once(["mfu", "step_time_ns"]) == ["mfu"]
    assert told_once(["step_time_ns", "item:graph_sink"]) == ["step_time_ns", "item:graph_sink"]
    assert told_once(["cast_ratio", "item:dtype_cast"]) == ["cast_ratio"]
