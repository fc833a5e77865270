"""Steps of a PyTorch training on NPUs: each is recorded, windows of them are profiled, also those asked for.

    from stepscope_agent.torch import Steps

    steps = Steps("/data/profiles", run="Llama2 7B", first_step=100, steps=3)  # after init_process_group
    for batch in loader:
        loss = train_step(batch)
        steps.step(loss=loss)
    steps.close()

The logic, its files and its rules are those of StepscopeCallback (mindspore.py): no network, and no error of it reaches
the training. Without torch_npu steps are recorded and nothing is profiled.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, Mapping

from stepscope_agent.mindspore import StepscopeCallback
from stepscope_agent.mindspore_api import Recording, quietly

VALUES = ("loss", "global_norm", "lr", "loss_scale", "overflow")
_DAEMONS = ("PROF_CONFIG_PATH", "KINETO_USE_DAEMON", "MSMONITOR_USE_DAEMON")
"""With them torch_npu's own dynamic profiling is at work."""
_MEGATRON = (
    ("tp", "get_tensor_model_parallel_world_size"),
    ("pp", "get_pipeline_model_parallel_world_size"),
    ("dp", "get_data_parallel_world_size"),
    ("cp", "get_context_parallel_world_size"),
    ("ep", "get_expert_model_parallel_world_size"),
)


class TorchApi:
    """What the callback wants to know of a training, asked of torch and torch_npu. Both are imported here only."""

    def rank(self) -> int:
        return self._distributed("get_rank", "RANK", 0)

    def world_size(self) -> int:
        return self._distributed("get_world_size", "WORLD_SIZE", 1)

    def device_target(self) -> str:
        return "CPU" if self.missing() else "NPU"

    def missing(self) -> str | None:
        """Why nothing can be profiled here."""
        try:
            import torch_npu  # type: ignore[import-not-found]  # noqa: F401
        except ImportError as exc:
            return "torch_npu cannot be imported, and only it profiles an NPU: %s" % exc
        return None

    def facts(self, params: Any) -> dict[str, Any]:
        """What stepscope_run.json tells about the framework; unknown things are null."""
        return {
            "framework": "torch_npu",
            "framework_version": quietly(lambda: str(sys.modules["torch_npu"].__version__)),
            "torch_version": quietly(lambda: str(sys.modules["torch"].__version__)),
            "soc": quietly(lambda: str(sys.modules["torch_npu"].npu.get_device_name())),
            "device_target": self.device_target(),
            "device_id": quietly(lambda: int(sys.modules["torch_npu"].npu.current_device())),
            "parallel": _megatron_sizes(),
        }

    def twin(self, params: Any, own: Any) -> bool:
        return False

    def someone_elses_profiler(self, params: Any, own: Any) -> str | None:
        for name in _DAEMONS:
            if os.environ.get(name, "").strip().lower() not in ("", "0", "false", "off"):
                return "environment variable %s" % name
        return None

    def profiler_at_work(self) -> str | None:
        return None  # torch_npu does not tell

    def start(self, folder: str, worker: str, steps: int, options: Mapping[str, Any]) -> Recording:
        """Starts a window of `steps` calls of step()."""
        import torch_npu

        npu = torch_npu.profiler
        config = npu._ExperimentalConfig(
            export_type=npu.ExportType.Text,
            profiler_level=getattr(npu.ProfilerLevel, options["level"]),
            aic_metrics=getattr(npu.AiCMetrics, options["aic_metrics"]),
            data_simplification=True,
        )
        profiler = npu.profile(
            activities=[npu.ProfilerActivity.CPU, npu.ProfilerActivity.NPU],
            schedule=npu.schedule(wait=0, warmup=0, active=steps, repeat=1, skip_first=0),
            on_trace_ready=npu.tensorboard_trace_handler(
                folder, worker_name=worker, analyse_flag=bool(options["analyse"])
            ),
            profile_memory=bool(options.get("profile_memory")),
            experimental_config=config,
        )
        recording = Recording(profiler, folder)
        profiler.start()
        return recording

    def number(self, value: Any) -> float | None:
        """A scalar's value. Of a tensor it waits until the device has it."""
        if value is None:
            return None
        return float(value.item() if hasattr(value, "item") else value)

    def _distributed(self, function: str, variable: str, otherwise: int) -> int:
        """Of the process group where there is one, else of the launcher."""
        torch = sys.modules.get("torch")
        if torch is not None and quietly(torch.distributed.is_initialized, False):
            return int(getattr(torch.distributed, function)())
        text = os.environ.get(variable, "")
        return int(text) if text.isdigit() else otherwise


class _Loop(StepscopeCallback):
    """The callback in a loop that tells only where a step ends: how long it waited for data is not known."""

    _tells_data_wait = False

    def _obstacle(self, grown: int, asked: bool) -> str | None:
        missing: str | None = self._api.missing()
        return missing or super()._obstacle(grown, asked)


class Steps:
    """Counts the steps of a training loop. Options are those of StepscopeCallback; `done`: steps made before."""

    def __init__(self, output: str, done: int = 0, api: Any = None, **options: Any) -> None:
        self._params: dict[str, Any] = {"cur_step_num": 0}
        self._loop = _Loop(output, outputs=VALUES, done=done, api=api or TorchApi(), **options)
        self._loop.on_train_begin(self)
        self._next()

    def original_args(self) -> dict[str, Any]:
        """For the callback, which asks MindSpore's run context so."""
        return self._params

    def step(self, **values: Any) -> None:
        """A step is over: call it once for each, with what is known of loss, global_norm, lr, loss_scale, overflow.

        Tensors are only read every `loss_every` steps, since that waits for the device.
        """
        self._params["net_outputs"] = tuple(values.get(name) for name in VALUES)
        self._loop.on_train_step_end(self)
        self._params["net_outputs"] = None
        self._next()

    def close(self) -> None:
        """The training is over. A window under way is ended."""
        self._params["cur_step_num"] -= 1
        self._loop.on_train_end(self)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _next(self) -> None:
        self._params["cur_step_num"] += 1
        self._loop.on_train_step_begin(self)


def _megatron_sizes() -> dict[str, int]:
    """How Megatron or MindSpeed split the job, where the training script runs on them."""
    state = sys.modules.get("megatron.core.parallel_state")
    sizes = {name: quietly(partial(_size, state, function)) for name, function in _MEGATRON} if state else {}
    return {name: size for name, size in sizes.items() if size is not None}


def _size(state: Any, function: str) -> int:
    return int(getattr(state, function)())
