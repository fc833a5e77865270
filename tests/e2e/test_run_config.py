"""MFU in routine use: `watch` finds the run's configuration by itself; real agent, running product, synthetic dumps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dumps import write_dump
from tests.e2e.test_agent import Host, captures
from tests.live import LiveProduct, live, wait_for

SCRIPT = """\
export HUB_TOKEN=do-not-send
TP=1
torchrun pretrain_gpt.py --tensor-model-parallel-size ${TP} --num-layers 2 --hidden-size 512 \\
    --num-attention-heads 4 --ffn-hidden-size 1408 --swiglu --seq-length 2048 --vocab-size 4096 \\
    --micro-batch-size 1 --global-batch-size 1 --data-path /secret/place
"""
CONFIG = """\
model:
  model_config:
    type: LlamaConfig
    num_layers: 2
    hidden_size: 512
    num_heads: 4
    seq_length: 2048
    vocab_size: 4096
    intermediate_size: 1408
parallel_config: {data_parallel: 1, model_parallel: 1, pipeline_stage: 1}
runner_config: {batch_size: 1}
hub: {access_token: do-not-send}
"""


@pytest.fixture(scope="module")
def product() -> Iterator[LiveProduct]:
    with live() as running:
        yield running


@pytest.mark.parametrize(
    ("run", "name", "text", "mode"),
    [
        ("mindspore", "stepscope_config.yaml", CONFIG, "graph"),
        ("megatron", "stepscope_config.sh", SCRIPT, "torch"),
    ],
)
def test_what_lies_beside_the_dumps_brings_mfu(
    product: LiveProduct, tmp_path: Path, run: str, name: str, text: str, mode: str
) -> None:
    """FLOPs of both ways to say the same sizes are the same; the analysis package tests them by hand."""
    home = tmp_path / "jobs" / run
    truth = write_dump(home, mode=mode, steps=3, run={"soc": "Ascend910B3"})
    (truth.folder / ".complete.json").write_text('{"schema": 1, "state": "complete"}')
    (home / name).write_text(text)
    host = Host(product, tmp_path / "host")
    for _ in range(2):  # the first look sends the dump, which says which run this is
        assert host.run("watch", tmp_path / "jobs", "--once").code == 0

    def mfu() -> float | None:
        return next((one["metrics"]["mfu"] for one in captures(product, run) if one["state"] == "ready"), None)

    assert 0 < (wait_for(mfu, "a capture with MFU", 120) or 0) < 1
    (row,) = product.call("GET", f"/runs?q={run}")[1]["runs"]
    shown = product.call("GET", f"/runs/{row['id']}")[1]["run"]["config"]
    assert shown["name"] == name
    assert "do-not-send" not in shown["text"] and "/secret/place" not in shown["text"]
