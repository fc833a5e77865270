"""A training loop without MindSpore under the real callback. Run by test_agent.py.

    python fake_training.py FOLDER RUN STEPS DUMP [SECONDS [FIRST]]

Its profiler is a copy of the dump at DUMP; without FIRST it profiles what is asked for and no more.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from stepscope_agent.mindspore import StepscopeCallback


class Recording:
    def __init__(self, folder: str, dump: str) -> None:
        self.folder, self.dump = folder, dump

    def add_metadata(self, key: str, value: Any) -> None:
        pass

    def step(self) -> None:
        pass

    def finish(self) -> list[str]:
        root = os.path.join(self.folder, f"host_rank0_{os.getpid()}_20260101120000123_ascend_ms")
        shutil.copytree(self.dump, root)
        return [root]


class Api:
    """What the callback asks of MindSpore."""

    def __init__(self, dump: str) -> None:
        self.dump = dump

    def rank(self) -> int:
        return 0

    def world_size(self) -> int:
        return 1

    def device_target(self) -> str:
        return "CPU"

    def facts(self, params: Any) -> dict[str, Any]:
        return {"framework": "mindspore", "mode": "graph"}

    def twin(self, params: Any, own: Any) -> bool:
        return False

    def someone_elses_profiler(self, params: Any, own: Any) -> str | None:
        return None

    def profiler_at_work(self) -> str | None:
        return None

    def start(self, folder: str, worker: str, steps: int, options: Any) -> Recording:
        return Recording(folder, self.dump)

    def number(self, value: float) -> float:
        return value


class Context:
    def __init__(self) -> None:
        self.params: dict[str, Any] = {"cur_step_num": 0}

    def original_args(self) -> dict[str, Any]:
        return self.params


def main() -> None:
    folder, run, steps, dump = sys.argv[1:5]
    seconds = float(sys.argv[5]) if len(sys.argv) > 5 else 0.1
    first = int(sys.argv[6]) if len(sys.argv) > 6 else 10**6
    callback = StepscopeCallback(folder, first_step=first, run=run, min_free_bytes=0, api=Api(dump))
    context = Context()
    callback.on_train_begin(context)
    for step in range(1, int(steps) + 1):
        if Path(folder, "stop").exists():
            break
        context.params["cur_step_num"] = step
        callback.on_train_step_begin(context)
        time.sleep(seconds)
        context.params["net_outputs"] = 10.0 / step
        callback.on_train_step_end(context)
    callback.on_train_end(context)


main()
