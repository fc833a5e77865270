"""The training callback: profiles windows of steps and records each step, without ever disturbing the training.

    from stepscope_agent.mindspore import StepscopeCallback
    model.train(epochs, dataset, callbacks=[StepscopeCallback("/data/profiles", first_step=100, steps=3)])

It only writes files; `stepscope-agent upload` or `watch` carry them to the server. What it writes and reads while steps
go by it does in a thread of its own (writer.py): only at the ends of a window does the training's thread touch files,
as the profiler does.
"""

from __future__ import annotations

import atexit
import functools
import logging
import math
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from typing import Any, Callable, Mapping, Sequence, TypeVar

from stepscope_agent import control, environment, masks, scope_map
from stepscope_agent.control import RUN_FILE, Wish
from stepscope_agent.errors import AgentError
from stepscope_agent.manifest import write_json, write_text
from stepscope_agent.mindspore_api import MindSporeApi, quietly
from stepscope_agent.records import MOST_WAITING, RecordFile
from stepscope_agent.run_config import CONFIG_FILE, config_on_command_line, read_config
from stepscope_agent.writer import Writer

log = logging.getLogger("stepscope")

MOST_ERRORS = 3
EARLIEST_STEP = 3  # before it, compiling would be what the window shows
LONGEST_SINK = 50
RECENT_STEPS = 15
"""Whose median is the pace told to the agent: the compile of the first step must not count."""
PATIENCE_S = 5.0
"""How long the training waits for the writer at most: where a window begins, and at the end of all steps."""
PROBE = ".stepscope_probe_rank_%d"
HANGS_S = 30.0
STEPS_FILE, MARKER, SCOPE_FILE = "stepscope_steps.jsonl", ".complete.json", "scope_map.json"

Hook = TypeVar("Hook", bound=Callable[..., None])


def _base() -> Any:
    """MindSpore's Callback, which Model.train insists on; without MindSpore a plain class, so that tests can run."""
    try:
        from mindspore.train import Callback  # type: ignore[import-not-found]
    except ImportError:
        return object
    return Callback


def _harmless(hook: Hook) -> Hook:
    """No error leaves the hook; after three the callback turns itself off and says so once."""

    @functools.wraps(hook)
    def guarded(self: StepscopeCallback, run_context: Any) -> None:
        if self._off:
            return
        try:
            hook(self, run_context)
        except Exception as exc:
            self._failed(exc)

    return guarded  # type: ignore[return-value]


class _Window:
    """A window being profiled: training steps `first` to `last`."""

    def __init__(self, first: int, last: int, calls: int, recording: Any, request: int | None = None) -> None:
        self.first = first
        self.last = last
        self.request = request  # whose wish it is
        self.calls = calls  # step() calls still to come
        self.recording = recording


class StepscopeCallback(_base()):  # type: ignore[misc]
    """Profiles steps `first_step` to `first_step + steps - 1`, again every `every` steps when given.

    `ranks`: None for the first rank of each pipeline stage, "all", or a list of ranks. `loss_every`: how often the loss
    is fetched, which waits for the device; around a window it always is, 0 means never else. `outputs` names what the
    network returns. `analyse`: whether raw data become tables at once; None does so on CPU only, since it stalls the
    training on an NPU, where the agent does it later. `run` names the run for the agent. `scope_map` saves the
    compiled graph once (slower to compile, 100 MB for a while) to tell which layer backward kernels belong to.
    `precision_steps`: the first so many steps are recorded with all that the network returns, to be compared step by
    step with the project's reference run, which trained on the same data; `reference` makes this run the reference
    where the project has none. `config` is the run's YAML, which brings MFU; without it the one that the command line
    names with --config, as run_mindformer.py is started. `model`, `parallel`: sizes for the run's metadata, as
    {"hidden": 4096, ...} and {"dp": 2, "tp": 1, ...}. `done`: steps made before this start, in a training that goes on
    from a checkpoint; None takes MindSpore's word (`initial_epoch`) and that of MindSpore Transformers.

    Windows that people ask for on the run's page come through a file that the agent leaves in `output`; the callback
    looks for it with one stat every two seconds, in the thread that writes.

    No attribute may be called begin, end, step_begin, step_end, epoch_begin or epoch_end: MindSpore calls those.
    """

    _tells_data_wait = True

    def __init__(
        self,
        output: str,
        first_step: int = 11,
        steps: int = 3,
        every: int | None = None,
        ranks: str | Sequence[int] | None = None,
        loss_every: int = 10,
        outputs: Sequence[str] = ("loss",),
        analyse: bool | None = None,
        level: str = "Level1",
        aic_metrics: str = "PipeUtilization",
        profile_memory: bool = False,
        model: Mapping[str, Any] | None = None,
        parallel: Mapping[str, int] | None = None,
        min_free_bytes: int = 5 * 10**9,
        keep_raw: int = 3,
        run: str | None = None,
        scope_map: bool = False,
        precision_steps: int = 0,
        reference: bool = False,
        config: str | None = None,
        done: int | None = None,
        api: Any = None,
    ) -> None:
        super().__init__()
        if steps < 1 or first_step < EARLIEST_STEP or (every is not None and every <= steps):
            raise ValueError("need steps >= 1, first_step >= %d and every > steps" % EARLIEST_STEP)
        self.done = done
        self.output = os.path.abspath(output)
        self.first_step, self.steps, self.every = first_step, steps, every
        self.ranks, self.loss_every, self.outputs = ranks, loss_every, tuple(outputs)
        self.analyse, self.level, self.aic_metrics, self.profile_memory = analyse, level, aic_metrics, profile_memory
        self.model, self.parallel = dict(model or {}), dict(parallel or {})
        self.min_free_bytes, self.keep_raw = min_free_bytes, keep_raw
        self.run, self.scope_map = run, scope_map
        self.precision_steps, self.reference, self.config = precision_steps, reference, config
        self._graphs: str | None = None
        self._api: Any = api or MindSporeApi()
        self._off = False
        self._process = 0
        self._offset: int | None = None  # between the framework's count of steps and ours
        self._errors = 0
        self._window: _Window | None = None
        self._next_first: int | None = None
        self._rank, self._world_size = 0, 1
        self._chosen = False
        self._commit: str | None = None
        self._writer = Writer(self._say)
        self._records: RecordFile | None = None
        self._last_step: int | None = None
        self._last_time: float | None = None
        self._began, self._waited = 0.0, 0.0
        self._said: set[str] = set()
        self._control: control.ControlFile | None = None
        self._wish: Wish | None = None
        self._answer: dict[str, Any] | None = None
        self._stranger: str | None = None
        self._next_word = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    @_harmless
    def on_train_begin(self, run_context: Any) -> None:
        params = run_context.original_args()
        if self._api.twin(params, self):
            self._off = True
            self._say("another StepscopeCallback is at work in this training: this one does nothing")
            return
        self._process = os.getpid()
        self._rank, self._world_size = self._api.rank(), self._api.world_size()
        if self._records is None:
            path = os.path.join(self.output, "stepscope_steps_rank_%d.jsonl" % self._rank)
            self._records = RecordFile(path, self._writer)
        self._leave_word(params)
        self._chosen = self._profiles_this_rank()
        self._stranger = self._api.someone_elses_profiler(params, self)
        if self._stranger and self._chosen:
            self._say("%s profiles this training: windows are left to it" % self._stranger)
        self._count_from(params, self.done or 0)
        if self._chosen and self.scope_map:
            self._graphs = tempfile.mkdtemp(prefix="stepscope-graphs-")
            self._api.save_graphs(self._graphs)
        if self._control is None:
            atexit.register(self._left)
        self._control = control.ControlFile(self.output, self._writer)
        self._tell(time.perf_counter())

    @_harmless
    def on_train_epoch_begin(self, run_context: Any) -> None:
        """MindSpore first tells here from which epoch on it trains. What was before (saving, evaluating) is no step."""
        if self._last_time is None and self.done is None:
            params = run_context.original_args()
            self._count_from(params, self._api.steps_before(params))
        self._last_time = time.perf_counter()

    @_harmless
    def on_train_step_begin(self, run_context: Any) -> None:
        now = time.perf_counter()
        self._waited = 0.0 if self._last_time is None else now - self._last_time
        if self._control is not None:
            if now - self._began >= control.LOOK_S:
                self._control.look()  # after a long step, the first above all, a wish may be for one that comes soon
            if self._control.news:
                self._take_up(self._control.news.popleft())
        if self._window is None and (self._next_first is not None or self._wish is not None):
            params = run_context.original_args()
            step = self._step(params)
            if self._wish is not None and step >= self._wish.first_step:
                self._open_window(params, self._wish)
                now = time.perf_counter()
            elif self._next_first is not None and step >= self._next_first and not self._would_be_in_the_way(step):
                self._open_window(params)
                now = time.perf_counter()
        self._began = now

    @_harmless
    def on_train_step_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        step = self._step(params)
        values = self._values(params, step)
        now = time.perf_counter()
        self._record(step, now, values)
        self._last_step, self._last_time = step, now
        if self._window is not None:
            self._advance(params, step)
            self._last_time = time.perf_counter()  # the profiler's own time is nobody's step time
        if now >= self._next_word:
            self._tell(now)

    @_harmless
    def on_train_end(self, run_context: Any) -> None:
        if os.getpid() != self._process:
            return  # a worker that was forked off, on its way out through the training's script
        if self._window is not None:
            self._close_window(run_context.original_args(), self._last_step or 0)
        if self._graphs is not None:
            shutil.rmtree(self._graphs, ignore_errors=True)
        self._end()

    def _left(self) -> None:
        """The process ends, perhaps by an error in the training: the last steps before it are wanted most."""
        if os.getpid() == self._process:
            self._end()

    def _end(self) -> None:
        if self._records is None:
            return
        self._writer.rest()
        self._records.flush()
        self._tell(time.perf_counter(), ended=True)
        if not self._writer.flush(PATIENCE_S):
            self._say(self._unanswered())
        if self._records.dropped:
            self._say("%d steps are not recorded, the oldest of those that waited" % self._records.dropped)

    def _unanswered(self) -> str:
        return "%s does not answer: the latest %d steps wait in memory for it" % (self.output, MOST_WAITING)

    def _take_up(self, wish: Wish | None) -> None:
        """Takes up a window that was asked for, or drops one that was taken back; says which."""
        self._wish = None
        if wish is None:
            self._answer = None
        elif not (self._chosen if wish.ranks is None else wish.ranks == "all" or self._rank in wish.ranks):
            self._reply(wish.request, control.NOT_ASKED)
        elif self._stranger:
            self._reply(wish.request, control.FAILED, "%s profiles this training" % self._stranger)
        elif wish.first_step <= (self._last_step or 0):
            passed = "rank %d heard of it at step %d" % (self._rank, self._last_step or 0)
            self._reply(wish.request, control.FAILED, passed)
        else:
            self._wish = wish
            self._reply(wish.request, control.WAITING)

    def _reply(self, request: int, state: str, reason: str = "") -> None:
        self._answer = {"id": request, "state": state, "reason": reason}
        self._tell(time.perf_counter())

    def _tell(self, now: float, ended: bool = False) -> None:
        """Leaves word for the agent how far this rank is."""
        status = {
            "schema": 1,
            "run": self.run,
            "rank": self._rank,
            "pid": os.getpid(),
            "step": self._last_step or 0,
            "step_time_ms": sorted(self._recent)[len(self._recent) // 2] if self._recent else None,
            "stranger": self._stranger,
            "off": self._off,
            "ended": ended,
            "dropped": self._records.dropped if self._records is not None else 0,
            "request": self._answer,
        }
        path = os.path.join(self.output, control.STATUS % self._rank)
        self._next_word = now + self._writer.pause(path, control.STATUS_S)
        self._writer.put(path, lambda: quietly(lambda: write_json(path, status)))
        if self._writer.hangs(HANGS_S):
            self._say(self._unanswered())

    def _step(self, params: Any) -> int:
        """The step of the whole training, which may have begun before this start."""
        return int(params.get("cur_step_num") or 0) + (self._offset or 0)

    def _count_from(self, params: Any, done: int) -> None:
        """`done` steps were made before this start. A callback that is used again goes on where it was."""
        told = int(params.get("cur_step_num") or 0)
        self._last_step = max(done + told, self._last_step or 0)
        self._offset = self._last_step - told
        if not self._chosen or self._stranger:
            return
        self._next_first = self._due_after(self._last_step)
        if self._next_first is None:
            self._say(
                "no window but those asked for: the training goes on behind step %d; give `every`" % self._last_step
            )

    def _would_be_in_the_way(self, step: int) -> bool:
        """Of a window asked for, which goes first: it has to begin at the same step on all ranks."""
        return self._wish is not None and step + self.steps > self._wish.first_step

    def _profiles_this_rank(self) -> bool:
        if self.ranks == "all":
            return True
        if self.ranks is not None:
            return self._rank in self.ranks
        stages = max(1, int(self.parallel.get("pp") or self._api.facts({}).get("parallel", {}).get("pp") or 1))
        return self._rank % max(1, self._world_size // stages) == 0

    def _due_after(self, step: int) -> int | None:
        """First step of the next window that begins after `step`."""
        if step < self.first_step:
            return self.first_step
        if self.every is None:
            return None
        return self.first_step + ((step - self.first_step) // self.every + 1) * self.every

    def _open_window(self, params: Any, wish: Wish | None = None) -> None:
        last_of_call = self._step(params)
        grown = max(1, last_of_call - (self._last_step or 0))
        first = last_of_call - grown + 1
        if wish is None:
            self._next_first = self._due_after(last_of_call)
        self._wish = None if wish is not None else self._wish
        obstacle = self._obstacle(grown, wish is not None)
        if obstacle:
            self._say(obstacle)
            if wish is not None:
                self._reply(wish.request, control.FAILED, obstacle)
            return
        calls = int(math.ceil((wish.steps if wish else self.steps) / float(grown)))
        last = last_of_call + (calls - 1) * grown
        folder = os.path.join(self.output, "step_%d_%d" % (first, last))
        os.makedirs(folder, exist_ok=True)
        options = {
            "level": wish.level if wish else self.level,
            "aic_metrics": self.aic_metrics,
            "analyse": self._analyses(),
            "profile_memory": self.profile_memory,
        }
        recording = self._api.start(folder, "%s_rank%d" % (socket.gethostname(), self._rank), calls, options)
        self._window = _Window(first, last, calls, recording, wish.request if wish else None)
        self._window.recording.add_metadata("stepscope", {"rank": self._rank, "first_step": first, "last_step": last})
        if wish is not None:
            self._reply(wish.request, control.COLLECTING)

    def _advance(self, params: Any, step: int) -> None:
        window = self._window
        if window is None:
            return
        window.recording.step()
        window.calls -= 1
        if window.calls <= 0:
            self._close_window(params, step)

    def _close_window(self, params: Any, step: int) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        folders = window.recording.finish()
        if not folders:
            raise RuntimeError("the profiler left no dump; its own log tells why")
        for folder in folders:
            self._describe(folder, params, window, min(window.last, step))
        if window.request is not None:
            self._reply(window.request, control.DONE)

    def _describe(self, folder: str, params: Any, window: _Window, last: int) -> None:
        """Puts what MindSpore does not write beside its files; the marker comes last."""
        meta = dict(self._run_meta(params), window={"first_step": window.first, "last_step": last})
        write_json(os.path.join(folder, RUN_FILE), meta)
        if self._records is not None:
            self._records.flush()
            self._records.copy_to(os.path.join(folder, STEPS_FILE))
        if self._graphs is not None:
            self._write_scope_map(os.path.join(folder, SCOPE_FILE))
        state, reason = self._outcome(folder)
        marker = {
            "schema": 1,
            "state": state,
            "first_step": window.first,
            "last_step": last,
            "rank": self._rank,
            "world_size": self._world_size,
            "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "reason": reason,
        }
        if window.request is not None:
            marker["request"] = window.request
        write_json(os.path.join(folder, MARKER), marker)

    def _write_scope_map(self, path: str) -> None:
        """From the graphs saved at compiling, once; they quote the model's source, so they never leave this host."""
        kept = os.path.join(self._graphs or "", SCOPE_FILE)
        if not os.path.exists(kept):
            quietly(lambda: scope_map.write_map(self._graphs or "", kept))
            self._api.save_graphs(None)
        if os.path.exists(kept):
            shutil.copyfile(kept, path)

    def _outcome(self, folder: str) -> tuple[str, str | None]:
        if not self._analyses():
            return "raw", None
        if quietly(lambda: os.listdir(os.path.join(folder, "ASCEND_PROFILER_OUTPUT")), []):
            return "complete", None
        return "failed", _last_errors(os.path.join(folder, "logs")) or "the profiler's analysis left no table"

    def _leave_word(self, params: Any) -> None:
        """The run's name for the agent and, of the first rank for all, its metadata and YAML, secrets hidden."""
        meta = None if self._rank else quietly(lambda: self._run_meta(params), {})
        self._writer.put(self.output, lambda: self._write_word(meta))

    def _write_word(self, meta: dict[str, Any] | None) -> None:
        told: dict[str, Any] = {"schema": 1, "reference": self.reference, **({"run": self.run} if self.run else {})}
        path = self.config or config_on_command_line(sys.argv)
        try:
            os.makedirs(self.output, exist_ok=True)
            if self.run or self.reference:
                write_json(os.path.join(self.output, RUN_FILE), told)
            self._commit = quietly(lambda: environment.git_commit(os.getcwd()))
            if meta is not None:
                write_json(os.path.join(self.output, control.JOB), {**meta, "git_commit": self._commit} if meta else {})
            if path and meta is not None:
                write_text(os.path.join(self.output, CONFIG_FILE), read_config(path)["text"])
        except AgentError as exc:
            self._say("the run's configuration is not left for the agent: %s" % exc)
        except OSError as exc:
            self._say("cannot write to %s: %s; nothing is recorded while that is so" % (self.output, exc.strerror))

    def _run_meta(self, params: Any) -> dict[str, Any]:
        meta: dict[str, Any] = {"schema": 1, **({"run": self.run} if self.run else {})}
        meta.update(self._api.facts(params))
        meta["model"] = {**(meta.get("model") or {}), **self.model}
        meta["parallel"] = {**(meta.get("parallel") or {}), **self.parallel}
        meta.update(
            rank=self._rank,
            world_size=self._world_size,
            host=socket.gethostname(),
            environment=environment.allowed_environment(os.environ),
            command=masks.masked_command([sys.executable] + sys.argv),
            python=sys.executable,
            git_commit=self._commit,
        )
        return meta

    def _values(self, params: Any, step: int) -> dict[str, float | bool]:
        """Loss and what else the network returns, on the steps where waiting for it is allowed."""
        if not self._fetches(step):
            return {}
        outputs = params.get("net_outputs")
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        values: dict[str, float | bool] = {}
        for name, output in zip(self.outputs, outputs):
            number = quietly(functools.partial(self._api.number, output))
            if number is not None and math.isfinite(number):
                values[name] = bool(number) if name == "overflow" else number
        return values

    def _fetches(self, step: int) -> bool:
        if step <= self.precision_steps:
            return True
        if self._window is not None and self._window.calls == 1:
            return True  # the last step of a window has to be done before the profiler stops
        if self._window is None and step + 1 in (self._next_first, self._wish and self._wish.first_step):
            return True
        return self.loss_every > 0 and step % self.loss_every == 0

    def _record(self, step: int, now: float, values: Mapping[str, Any]) -> None:
        if self._records is None:
            return
        grown = max(1, step - (self._last_step or 0))
        record: dict[str, Any] = {"step": step}
        record["step_time_ms"] = round((now - self._began + self._waited) * 1e3 / grown, 3)
        if self._tells_data_wait:
            record["data_wait_ms"] = round(self._waited * 1e3 / grown, 3)
        if self._records.recent:  # the first step compiles
            self._recent.append(record["step_time_ms"])
        record.update(values)
        self._records.add(record, now)
        if self._records.dropped:
            self._say(self._unanswered())

    def _analyses(self) -> bool:
        return self._api.device_target() == "CPU" if self.analyse is None else self.analyse

    def _obstacle(self, grown: int, asked: bool) -> str | None:
        """Why no window may be recorded now; raw ones that wait count only unless a person asked."""
        stranger = self._api.profiler_at_work()
        if stranger:
            return "a window is left out: %s is at work" % stranger
        raw_count = not asked and not self._analyses()
        told: list[tuple[int, int]] = []
        self._writer.put(PROBE, lambda: told.append(self._ground(raw_count)))
        if not self._writer.flush(PATIENCE_S):
            return self._unanswered()
        if not told:
            return "windows are skipped: nothing can be written to %s" % self.output
        if grown > LONGEST_SINK:
            return "a call trains %d steps at once: give Model.train a sink_size up to %d" % (grown, LONGEST_SINK)
        free, waiting = told[0]
        if free < self.min_free_bytes:
            return "windows are skipped: %s has %.1f GB free" % (self.output, free / 1e9)
        if waiting >= self.keep_raw:
            return "windows are skipped: %d raw ones wait to be analysed in %s" % (self.keep_raw, self.output)
        return None

    def _ground(self, raw_count: bool) -> tuple[int, int]:
        """Bytes free and, where they count, raw windows that wait; in the thread that writes. It writes too: a file
        system that hangs may still answer who reads."""
        os.makedirs(self.output, exist_ok=True)
        path = os.path.join(self.output, PROBE % self._rank)
        with open(path, "wb") as stream:
            stream.write(b".")
            stream.flush()
            os.fsync(stream.fileno())
        os.remove(path)
        return shutil.disk_usage(self.output).free, self._raw_waiting() if raw_count else 0

    def _raw_waiting(self) -> int:
        count = 0
        for window in os.listdir(self.output):
            if re.match(r"^step_\d+_\d+$", window):
                dumps = quietly(functools.partial(os.listdir, os.path.join(self.output, window)), [])
                own = [
                    name
                    for name in dumps
                    if "_rank%d_" % self._rank in name and name.endswith(("_ascend_ms", "_ascend_pt"))
                ]
                count += sum(
                    not os.path.isdir(os.path.join(self.output, window, n, "ASCEND_PROFILER_OUTPUT")) for n in own
                )
        return count

    def _failed(self, exc: Exception) -> None:
        self._errors += 1
        self._say("%s: %s; the training goes on" % (type(exc).__name__, exc))
        window, self._window = self._window, None
        if window is not None:
            quietly(window.recording.finish)
        asked = window.request if window is not None else self._asked()
        if asked is not None:
            self._reply(asked, control.FAILED, "%s: %s" % (type(exc).__name__, exc))
        if self._errors >= MOST_ERRORS:
            self._off = True
            self._tell(time.perf_counter())
            log.warning("Stepscope turned itself off after %d errors, the last: %r", self._errors, exc)

    def _asked(self) -> int | None:
        """The request that was under way when something went wrong."""
        self._wish = None
        at_work = self._answer is not None and self._answer["state"] in (control.WAITING, control.COLLECTING)
        return int(self._answer["id"]) if at_work and self._answer else None

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("Stepscope: %s", text)


def _last_errors(folder: str) -> str | None:
    """The last error lines of the profiler's own log."""
    lines: list[str] = []
    for name in sorted(quietly(lambda: os.listdir(folder), [])):
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
            lines += [line.strip() for line in stream if "[ERROR]" in line]
    return " | ".join(lines[-3:])[:1000] or None
