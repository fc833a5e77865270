"""Agent and server read training logs with code of their own (one file to copy here, Polars' neighbours there): they
must come to the same records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stepscope_agent.client import STEP_KEYS
from stepscope_agent.logs import read_log_file

from analysis.readers.train_log import read_log

NAMES = [
    "megatron-npu-llama65b-2023-32npu.log",
    "mindformers-2023-llama_7b_lora-1npu.log",
    "mindformers-pynative-deepseekv3-2npu-worker.log",
    "mindformers-pynative-prefixed-worker.log",
    "mindformers-r1.5-llama2_13b-8npu-worker_0.log",
    "mindformers-r1.6-llama3_1_8b-skip-data-8npu.log",
    "mindformers-r1.8-qwen3_8b_lora-1npu-user-extract.txt",
    "mindrlhf-2024-llama2_7b_rm-8npu-info.log",
    "mindspeed-llm-fsdp2-2026.log",
    "mindspore-models-inceptionv3-losstime.log",
    "mindspore2.10-cpu-lossmonitor-timemonitor.log",
    "mindyolo-2024-8npu-overflow.log",
]
"""Named one by one, so that a test's name says which log it is about; none may be missing."""


def known(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a record says of the values that the protocol carries."""
    return [{key: row[key] for key in STEP_KEYS if row.get(key) is not None} for row in rows]


@pytest.mark.real
def test_every_log_is_compared(dumps: Path) -> None:
    assert sorted(path.name for path in (dumps / "training-logs").iterdir() if path.is_file()) == NAMES


@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
def test_agent_and_server_read_the_same(dumps: Path, name: str) -> None:
    path = dumps / "training-logs" / name
    server, agent = known(read_log(path).steps), known(read_log_file(str(path)))
    assert agent == server
    assert server


def monitor(*epochs: tuple[int, int], every: int = 1, time: bool = False) -> str:
    """Lines of LossMonitor for (epoch, steps in it), with those of TimeMonitor after each epoch where `time`."""
    lines = []
    for epoch, steps in epochs:
        lines += [f"epoch: {epoch} step: {step}, loss is {epoch}.{step}" for step in range(every, steps + 1, every)]
        lines += [f"Train epoch time: {steps * 10}.0 ms, per step time: 10.0 ms"] if time else []
    return "\n".join(lines) + "\n"


MONITORS = {
    "without times": (monitor((1, 3), (2, 3), (3, 1)), [1, 2, 3, 4, 5, 6, 7]),
    "with times": (monitor((1, 3), (2, 3), time=True), [1, 2, 3, 4, 5, 6]),
    "epochs from 0": (monitor((0, 2), (1, 2)), [1, 2, 3, 4]),
    "every second step, with times": (monitor((1, 5), (2, 5), every=2, time=True), [2, 4, 7, 9]),
    "started again": (monitor((1, 2), (2, 2)) + monitor((1, 2), (2, 1)), [1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", MONITORS)
def test_steps_of_loss_monitor_count_on_over_epochs(name: str, tmp_path: Path) -> None:
    text, steps = MONITORS[name]
    (tmp_path / "train.log").write_text(text)
    server, agent = known(read_log(tmp_path / "train.log").steps), known(read_log_file(str(tmp_path / "train.log")))
    assert [row["step"] for row in server] == steps
    assert agent == server
