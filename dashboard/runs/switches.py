"""What to profile with, and to send with it, so that nothing of a capture stays unknown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.runs.models import Run

PROFILED = (
    "kernel_details",
    "step_trace_time",
    "communication",
    "memory_record",
    "trace_view",
    "dataset",
    "op_summary",
)
"""Beginnings of the names of files that the profiler writes."""
FOLDER = "/data/profiles"
OPTIONS = (
    ("run configuration", "--config RUN.yaml"),
    ("stepscope_steps", "--log worker_0.log"),
    ("trace_view", "--with-trace"),
    ("chip", "--soc CHIP"),
)
"""What the agent's upload is told for what is missing, by the beginning of its name."""

# The same calls as the agent's own, in agents/stepscope_agent/mindspore_api.py and torch.py.
CALLS = {
    "mindspore": """from mindspore import profiler as ms

with ms.profile(
    activities=[ms.ProfilerActivity.CPU, ms.ProfilerActivity.NPU],
    profile_memory=True,
    schedule=ms.schedule(wait=0, warmup=1, active=2, repeat=1, skip_first=100),
    on_trace_ready=ms.tensorboard_trace_handler("{folder}"),
    experimental_config=ms._ExperimentalConfig(
        profiler_level=ms.ProfilerLevel.Level1,
        aic_metrics=ms.AicoreMetrics.PipeUtilization,
        export_type=[ms.ExportType.Text],
    ),
) as profiler:
    for batch in dataset:
        train_step(batch)
        profiler.step()
""",
    "torch_npu": """from torch_npu import profiler as npu

with npu.profile(
    activities=[npu.ProfilerActivity.CPU, npu.ProfilerActivity.NPU],
    profile_memory=True,
    schedule=npu.schedule(wait=0, warmup=1, active=2, repeat=1, skip_first=100),
    on_trace_ready=npu.tensorboard_trace_handler("{folder}"),
    experimental_config=npu._ExperimentalConfig(
        profiler_level=npu.ProfilerLevel.Level1,
        aic_metrics=npu.AiCMetrics.PipeUtilization,
        export_type=npu.ExportType.Text,
    ),
) as profiler:
    for batch in loader:
        train_step(batch)
        profiler.step()
""",
}


def profiler_call(framework: str, missing: Sequence[Mapping[str, Any]]) -> str:
    """The call that makes the framework's profiler write all that is read here; "" where no profiler file is missing or
    the framework has no such call."""
    if not any(str(row.get("file") or "").startswith(PROFILED) for row in missing):
        return ""
    return CALLS.get(framework, "").replace("{folder}", FOLDER)


def upload_command(run: Run, missing: Sequence[Mapping[str, Any]]) -> str:
    """The agent's command that sends a dump of this run with what is missing beside it."""
    names = [str(row.get("file") or "") for row in missing]
    options = [option for name, option in OPTIONS if any(one.startswith(name) for one in names)]
    start = f"python3 stepscope-agent.pyz upload {FOLDER} --run-key {shlex.quote(run.key)}"
    return " ".join([start, *options])


def of(run: Run, missing: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Both, for a page."""
    return {"call": profiler_call(run.framework, missing), "upload": upload_command(run, missing)}
