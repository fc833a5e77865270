"""Everything the callback wants from MindSpore, behind one small object: tests put another in its place.

MindSpore is imported inside the methods only. Names were tried on 2.10.0; private ones are wrapped.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any, Callable, Iterable, Mapping

DATA_PARALLEL_MODES = ("data_parallel", "stand_alone")
_SWITCHES = (
    "enable_graph_kernel",
    "graph_kernel_flags",
    "memory_optimize_level",
    "deterministic",
    "pynative_synchronize",
)
_PARALLEL = (
    "parallel_mode", "device_num", "global_rank", "pipeline_stages", "full_batch", "enable_parallel_optimizer",
    "gradients_mean", "comm_fusion", "grad_accumulation_step",
)  # fmt: skip
_PROFILER_CALLBACKS = ("DynamicProfilerMonitor", "ProfileMonitor", "StepsProfiler")


def quietly(ask: Callable[[], Any], otherwise: Any = None) -> Any:
    """What `ask` gives, `otherwise` when it fails: a fact about the run is never worth the run."""
    try:
        return ask()
    except Exception:
        return otherwise


class Recording:
    """One profiler window under way."""

    def __init__(self, profiler: Any, folder: str) -> None:
        self._profiler = profiler
        self._folder = folder
        self._before = set(_dumps(folder))

    def step(self) -> None:
        self._profiler.step()

    def add_metadata(self, key: str, value: Mapping[str, Any]) -> None:
        self._profiler.add_metadata_json(key, json.dumps(value, default=str))

    def finish(self) -> list[str]:
        """Stops, and analyses when that was asked for; the dump folders that came of it."""
        self._profiler.stop()
        self._profiler = None
        return [os.path.join(self._folder, name) for name in _dumps(self._folder) if name not in self._before]


class MindSporeApi:
    """MindSpore 2.7 to 2.10 as the callback sees it."""

    def rank(self) -> int:
        return self._communication("get_rank", "RANK_ID", 0)

    def world_size(self) -> int:
        return self._communication("get_group_size", "RANK_SIZE", 1)

    def device_target(self) -> str:
        return str(self._context("device_target"))

    def facts(self, params: Any) -> dict[str, Any]:
        """What stepscope_run.json tells about MindSpore itself; unknown things are absent or null."""
        import mindspore  # type: ignore[import-not-found]

        jit_config = quietly(lambda: dict(mindspore.context.get_jit_config()), {})
        return {
            "framework": "mindspore",
            "framework_version": mindspore.__version__,
            "cann_version": quietly(_cann_version),
            "mode": {0: "graph", 1: "pynative"}.get(self._context("mode")),
            "jit_level": jit_config.get("jit_level") or self._context("jit_level") or None,
            "jit": {"jit_config": jit_config, "jit_level": self._context("jit_level")},
            "sink": bool(params.get("dataset_sink_mode")),
            "sink_size": params.get("sink_size"),
            "soc": self._soc(),
            "device_target": self.device_target(),
            "device_id": self._context("device_id"),
            "switches": {name: self._context(name) for name in _SWITCHES},
            "parallel": self._parallel(),
            "auto_parallel": self._auto_parallel(),
            "model": _model(params),
            "data": _data(params),
        }

    def someone_elses_profiler(self, params: Any, own: Any) -> str | None:
        """Who else profiles in this process, in words; None when nobody does."""
        for name in ("MS_PROFILER_OPTIONS", "PROFILING_MODE", "MSMONITOR_USE_DAEMON"):
            if os.environ.get(name, "").strip().lower() not in ("", "0", "false", "off"):
                return "environment variable %s" % name
        for callback in _callbacks(params):
            if callback is not own and type(callback).__name__ in _PROFILER_CALLBACKS:
                return "callback %s" % type(callback).__name__
        return self.profiler_at_work()

    def profiler_at_work(self) -> str | None:
        """Which profiler runs in this process now; two at once spoil both, since they share its one state."""
        return "a mindspore.profiler of the training script" if quietly(_profiler_is_on, False) else None

    def twin(self, params: Any, own: Any) -> bool:
        """Whether a callback like this one goes before it in the same training."""
        for callback in _callbacks(params):
            if type(callback).__name__ == type(own).__name__:
                return callback is not own
        return False

    def steps_before(self, params: Any) -> int:
        """Steps made before this start, as far as is told when its first epoch begins.

        MindSpore counts epochs on and begins steps anew; the monitor of MindSpore Transformers knows `initial_step`, of
        the whole training or of the epoch.
        """
        if params.get("cur_step_num"):
            return 0  # it has counted them in
        tellers = [params.get("initial_step")] + [getattr(one, "initial_step", None) for one in _callbacks(params)]
        told = next((number for number in tellers if type(number) is int and number > 0), 0)
        epochs = (int(params.get("cur_epoch_num") or 1) - 1) * int(params.get("batch_num") or 0)
        return told if told >= epochs else epochs + told

    def start(self, folder: str, worker: str, steps: int, options: Mapping[str, Any]) -> Recording:
        """Starts a window of `steps` calls of step(). Each needs its own: a finished profiler cannot start again."""
        from mindspore import profiler as ms

        level = getattr(ms.ProfilerLevel, options["level"])
        config: dict[str, Any] = {
            "profiler_level": level,
            "aic_metrics": getattr(ms.AicoreMetrics, options["aic_metrics"]),
            "data_simplification": True,
            "export_type": [ms.ExportType.Text],
        }
        # The handler sets a process-wide folder when it is made, so it is made here and not earlier.
        handler = ms.tensorboard_trace_handler(
            folder, worker_name=worker, analyse_flag=bool(options["analyse"]), async_mode=False
        )
        profiler = ms.profile(
            activities=[ms.ProfilerActivity.CPU, ms.ProfilerActivity.NPU],
            with_stack=bool(options.get("with_stack")),
            profile_memory=bool(options.get("profile_memory")),
            start_profile=False,
            schedule=ms.schedule(wait=0, warmup=0, active=steps, repeat=1, skip_first=0),
            on_trace_ready=handler,
            experimental_config=ms._ExperimentalConfig(**config),
        )
        recording = Recording(profiler, folder)
        profiler.start()
        return recording

    def save_graphs(self, folder: str | None) -> None:
        """From now on compiled graphs are written to `folder`; None stops that."""
        import mindspore

        if folder is None:
            mindspore.set_context(save_graphs=0)
        else:
            mindspore.set_context(save_graphs=1, save_graphs_path=folder)

    def number(self, value: Any) -> float | None:
        """A scalar tensor's value. Waits until the device has it."""
        if hasattr(value, "asnumpy"):
            value = value.asnumpy()
        size = getattr(value, "size", 1)
        return float(value.reshape(-1)[0] if size == 1 and hasattr(value, "reshape") else value) if size == 1 else None

    def _communication(self, function: str, variable: str, otherwise: int) -> int:
        from mindspore import communication

        known = quietly(lambda: int(getattr(communication, function)()))
        if known is None or known == otherwise:  # not initialised: the launcher's word counts
            known = quietly(lambda: int(os.environ[variable]), otherwise)
        return int(known)

    def _context(self, name: str) -> Any:
        import mindspore

        return quietly(lambda: mindspore.get_context(name))

    def _soc(self) -> str | None:
        if self.device_target() != "Ascend":
            return None
        import mindspore

        name = quietly(lambda: mindspore.hal.get_device_name(self._context("device_id")))
        return str(name) if name else None

    def _auto_parallel(self) -> dict[str, Any]:
        import mindspore

        return {name: quietly(partial(mindspore.get_auto_parallel_context, name)) for name in _PARALLEL}

    def _parallel(self) -> dict[str, int]:
        """Sizes that MindSpore itself knows; tensor and expert parallelism are in the model's config, not here."""
        known = self._auto_parallel()
        stages, devices = known.get("pipeline_stages"), known.get("device_num")
        sizes = {"pp": stages} if isinstance(stages, int) else {}
        if known.get("parallel_mode") in DATA_PARALLEL_MODES and isinstance(devices, int) and stages in (None, 1):
            sizes.update({"dp": devices, "tp": 1, "cp": 1, "ep": 1})
        return sizes


def _cann_version() -> str | None:
    from mindspore.profiler.common.util import get_cann_version  # type: ignore[import-not-found]

    version = str(get_cann_version())
    return None if version in ("", "not known") else version


def _profiler_is_on() -> bool:
    from mindspore.profiler.profiler_interface import ProfilerInterface  # type: ignore[import-not-found]

    return bool(ProfilerInterface.is_initialized)


def _model(params: Any) -> dict[str, Any]:
    network, optimizer = params.get("network"), params.get("optimizer")
    return {
        "network": type(network).__name__ if network is not None else None,
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
        "parameters": quietly(lambda: sum(_volume(one.shape) for one in network.trainable_params())),
    }


def _data(params: Any) -> dict[str, Any]:
    dataset = params.get("train_dataset")
    return {
        "batches": quietly(lambda: int(dataset.get_dataset_size())),
        "batch_size": quietly(lambda: int(dataset.get_batch_size())),
    }


def _volume(shape: Iterable[int]) -> int:
    volume = 1
    for length in shape:
        volume *= int(length)
    return volume


def _callbacks(params: Any) -> list[Any]:
    manager = params.get("list_callback")
    return _flat(getattr(manager, "_callbacks", None) or [manager])


def _flat(callbacks: Iterable[Any]) -> list[Any]:
    found = []
    for callback in callbacks:
        found.extend(_flat(callback) if isinstance(callback, (list, tuple)) else [callback])
    return found


def _dumps(folder: str) -> list[str]:
    return sorted(
        name for name in quietly(lambda: os.listdir(folder), []) if name.endswith(("_ascend_ms", "_ascend_pt"))
    )
