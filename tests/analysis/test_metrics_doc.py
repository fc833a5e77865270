"""docs/metrics.md defines every field of the report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.config import ModelConfig
from analysis.findings import RULES
from analysis.report import capture_report
from analysis.thresholds import THRESHOLDS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
# Values under these are names of groups, variables and losses, or free-form evidence.
FREE = re.compile(
    r"(evidence|environment|groups|device_info|extra_losses|cores|alignment|expert_load|free_causes)(\[\])?$"
)
STEP = {
    "step": "1",
    "step_time_us": 100.0,
    "computing_us": 60.0,
    "communication_not_overlapped_us": 10.0,
    "free_us": 30.0,
}


def sections() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for block in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]:
        name = block.splitlines()[0].strip("` ")
        found[name] = set(re.findall(r"^\| `([a-z_0-9A-Z]+)` \|", block.split("\n## ")[0], re.MULTILINE))
    return found


def undefined(value: object, path: str = "top") -> set[str]:
    """Paths of keys without an entry."""
    if isinstance(value, list):
        return {key for item in value for key in undefined(item, path + "[]")}
    if not isinstance(value, dict) or FREE.search(path):
        return set()
    known = sections().get(_alias(path), set())
    missing = {f"{path}.{key}" for key in value if key not in known}
    below = [undefined(item, key if path == "top" else f"{path}.{key}") for key, item in value.items()]
    return missing.union(*below)


def _alias(path: str) -> str:
    return "ranks[]." + path if path.startswith("bottleneck") else path


def test_every_key_of_a_small_report_is_defined():
    entry = {
        "rank": 0,
        "steps": [STEP],
        "flops": {},
        "facts": {"steps": 1, "constants": {"exposed_us": 20.0, "by_type": [{"type": "Cos"}]}},
        "collectives": [],
    }
    source = {
        "missing": [{"file": "x", "hides": [], "how": "y"}],
        "warnings": [],
        "parallel": {"pp": 2},
        "world_size": 2,
    }
    series = [{"step": 1, "loss": 1.0, "overflow": False, "loss_scale": 1.0, "nonfinite": ["lr"]}]
    report = capture_report([(entry, source)], config=ModelConfig("m"), run={}, series=series)
    assert undefined(report) == set()
    assert report["fix_first"]["items"]


@pytest.mark.real
@pytest.mark.parametrize(
    "path",
    [
        "msinsight-llm-pp2dp2",
        "mstt-advisor/compute_advice",
        "mindspore-ascend-synthetic/fake-graph-O0-sched-Level1",
        "msinsight-torch-ddp2/text/level1",
    ],
)
def test_every_key_of_a_real_report_is_defined(dumps, path):
    log = dumps / "training-logs" / "mindformers-pynative-deepseekv3-2npu-worker.log"
    command = [sys.executable, "-m", "analysis", "report", str(dumps / path), "--json", "--log", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert undefined(json.loads(done.stdout)) == set()


def test_every_threshold_is_listed_with_its_value():
    for name, threshold in THRESHOLDS.items():
        assert f"| `{name}` | {threshold.value:g} | {threshold.unit or '-'} | {threshold.source} |" in TEXT


def test_every_finding_is_described():
    for rule in RULES:
        name = "environment" if rule.__name__ == "variables" else rule.__name__
        assert f"| `{name}` |" in TEXT


def test_no_field_is_defined_without_words():
    assert not re.findall(r"^\| `\w+` \| [^|]* \| *\|$", TEXT, re.MULTILINE)
