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
