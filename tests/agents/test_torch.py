"""Steps of a PyTorch loop, with stand-ins for torch and torch_npu: none of it has run on an NPU.

The stand-in of torch_npu's profiler takes no argument and knows no name but those of its documentation.
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from stepscope_agent import control
from stepscope_agent.discover import find_dumps
from stepscope_agent.logs import read_records_file
from stepscope_agent.torch import Steps, TorchApi

from test_requests import wish
from test_watch import Agent


class Handler:
    def __init__(self, folder, worker_name=None, analyse_flag=True):
        self.folder, self.worker_name, self.analyse_flag = folder, worker_name, analyse_flag


class Profile:
    """Leaves a dump when its schedule is over, as torch_npu does."""

    made = []

    def __init__(self, activities, schedule, on_trace_ready, profile_memory, experimental_config):
        self.schedule, self.handler, self.config, self.steps = schedule, on_trace_ready, experimental_config, 0
        self.state = "new"
        Profile.made.append(self)

    def start(self):
        self.state = "running"

    def add_metadata_json(self, key, value):
        self.metadata = {key: json.loads(value)}

    def step(self):
        self.steps += 1

    def stop(self):
        self.state = "stopped"
        name = "%s_1_20260101120000%03d_ascend_pt" % (self.handler.worker_name, len(Profile.made))
        output = os.path.join(
            self.handler.folder, name, "ASCEND_PROFILER_OUTPUT" if self.handler.analyse_flag else "PROF_1"
        )
        os.makedirs(output)
        with open(os.path.join(output, "kernel_details.csv"), "w") as stream:
            stream.write("Name\n")


def named(*names):
    return SimpleNamespace(**{name: name for name in names})


@pytest.fixture
def npu(monkeypatch):
    """A process whose torch sees rank 2 of 8 and an NPU."""
    profiler = SimpleNamespace(
        profile=Profile,
        schedule=lambda wait, warmup, active, repeat, skip_first: active,
        tensorboard_trace_handler=Handler,
        _ExperimentalConfig=lambda export_type, profiler_level, aic_metrics, data_simplification: (
            export_type, profiler_level, aic_metrics,
        ),
        ExportType=named("Text", "Db"),
        ProfilerLevel=named("Level0", "Level1", "Level2"),
        AiCMetrics=named("AiCoreNone", "PipeUtilization"),
        ProfilerActivity=named("CPU", "NPU"),
    )  # fmt: skip
    torch, torch_npu = ModuleType("torch"), ModuleType("torch_npu")
    torch.__version__, torch_npu.__version__, torch_npu.profiler = "2.5.1", "2.5.1.post1", profiler
    torch.distributed = SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 8)
    torch_npu.npu = SimpleNamespace(get_device_name=lambda: "Ascend910B3", current_device=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    monkeypatch.setattr(Profile, "made", [])
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


class Loss:
    """A tensor that counts how often somebody waits for it."""

    waits = 0

    def __init__(self, value):
        self.value = value

    def item(self):
        Loss.waits += 1
        return self.value


def train(steps, count, first=1):
    for number in range(first, first + count):
        steps.step(loss=Loss(10.0 / number), lr=1e-4)


def settle(steps):
    assert steps._loop._writer.flush(60)


def test_windows_are_profiled_and_marked_with_their_steps(npu, tmp_path):
    with Steps(str(tmp_path), run="r", first_step=5, steps=2, every=10, ranks=[2], min_free_bytes=0) as steps:
        train(steps, 18)
    assert [(one.schedule, one.steps, one.state) for one in Profile.made] == [(2, 2, "stopped")] * 2
    assert Profile.made[0].config == ("Text", "Level1", "PipeUtilization")
    found = sorted(find_dumps(str(tmp_path)), key=lambda dump: dump.first_step)
    assert [(d.first_step, d.last_step, d.rank, d.world_size) for d in found] == [(5, 6, 2, 8), (15, 16, 2, 8)]
    assert {d.state for d in found} == {"raw"}  # as on an NPU always: the agent analyses them later
    assert found[0].framework == "torch_npu"
    meta = found[0].run_meta
    assert (meta["framework_version"], meta["soc"], meta["device_id"]) == ("2.5.1.post1", "Ascend910B3", 2)


def test_every_step_is_recorded_and_the_loss_seldom_waited_for(npu, tmp_path):
    Loss.waits = 0
    with Steps(str(tmp_path), run="r", first_step=10**6, loss_every=10, done=100) as steps:
        train(steps, 30, first=101)
    rows = read_records_file(str(tmp_path / "stepscope_steps_rank_2.jsonl"))
    assert [row["step"] for row in rows] == list(range(101, 131))
    known = {row["step"]: row["loss"] for row in rows if "loss" in row}
    assert known == {step: pytest.approx(10.0 / step) for step in (110, 120, 130)}
    assert Loss.waits == 3
    assert all(row["step_time_ms"] >= 0 and "data_wait_ms" not in row for row in rows)


def test_a_window_asked_for_is_recorded(npu, tmp_path):
    steps = Steps(str(tmp_path), run="r", first_step=10**6, min_free_bytes=0)
    train(steps, 3)
    settle(steps)
    wish(tmp_path, request=7, first_step=6, steps=2, ranks="all")
    steps._loop._control.look()
    settle(steps)
    train(steps, 6, first=4)
    steps.close()
    assert [(d.first_step, d.last_step, d.request) for d in find_dumps(str(tmp_path))] == [(6, 7, 7)]
    with open(str(tmp_path / (control.STATUS % 2))) as stream:
        status = json.load(stream)
    assert (status["request"]["state"], status["ended"], status["step"]) == ("done", True, 9)


def test_watch_sees_a_torch_training_as_any_other(npu, tmp_path, server):
    with Steps(str(tmp_path / "job"), run="Llama2 7B", first_step=10**6, loss_every=1) as steps:
        train(steps, 3)
        steps._loop._records.flush()
        settle(steps)
        Agent(tmp_path, server, run=None).look()
    assert list(server.state.runs) == ["Llama2-7B"]
    assert server.state.beats[-1]["runs"] == [{"key": "Llama2-7B", "step": 3, "via": "callback"}]


def test_without_torch_npu_steps_are_recorded_and_a_request_is_told_why_not(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    monkeypatch.setenv("RANK", "0")
    steps = Steps(str(tmp_path), run="r", first_step=5, ranks="all", min_free_bytes=0)
    settle(steps)
    wish(tmp_path, request=7, first_step=8, steps=2, ranks="all")
    steps._loop._control.look()
    settle(steps)
    train(steps, 12)
    steps.close()
    assert len(read_records_file(str(tmp_path / "stepscope_steps_rank_0.jsonl"))) == 12
    with open(str(tmp_path / (control.STATUS % 0))) as stream:
        status = json.load(stream)
    assert (status["off"], status["request"]["state"]) == (False, "failed")
    assert "torch_npu cannot be imported" in status["request"]["reason"]


def test_torch_npus_own_dynamic_profiling_is_left_alone(npu, monkeypatch, tmp_path):
    monkeypatch.setenv("PROF_CONFIG_PATH", "/tmp/x")
    with Steps(str(tmp_path), first_step=5, ranks="all", min_free_bytes=0) as steps:
        train(steps, 9)
    assert Profile.made == []


def test_no_error_reaches_the_training(npu, monkeypatch, tmp_path):
    monkeypatch.setattr(Profile, "start", lambda self: 1 / 0)
    with Steps(str(tmp_path), first_step=5, every=5, ranks="all", min_free_bytes=0) as steps:
        train(steps, 30)
        steps.step(loss="not a number")
    assert Profile.made and find_dumps(str(tmp_path)) == []


def test_the_sizes_of_megatron_are_told(monkeypatch):
    state = ModuleType("megatron.core.parallel_state")
    state.get_tensor_model_parallel_world_size = lambda: 4
    state.get_pipeline_model_parallel_world_size = lambda: 2
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    assert TorchApi().facts({})["parallel"] == {"tp": 4, "pp": 2}
