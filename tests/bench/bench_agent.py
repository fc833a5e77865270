"""The agent: what watching 1 000 folders costs, upload of 1 GB against `gzip -1` of it, the callback.

The watched server is the tests' stand-in, so that only the agent is measured; the gigabyte goes to the real product.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.bench.common import ROOT, busy, line, measure, processor, python, wait_until_warm, work_folder

FOLDERS, IDLE_SECONDS, EVERY = 1_000, 180, 10
MOST_MIB, MOST_CORE = 30, 0.01
BYTES, MOST_RATIO, MOST_UPLOAD_MIB = 1_000_000_000, 1.3, 100
STEPS, MOST_US = 20_000, 10
ROUNDS, TRAINED = 7, 400
TRAINING_PYTHON = ROOT / ".venv-mindspore" / "bin" / "python"


def agent_environment(state: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "agents"),
        "STEPSCOPE_STATE": str(state),
        "STEPSCOPE_TOKEN": "agent-token",
    }


# Watching


def watching(folder: Path, refused: bool = False) -> None:
    """What a look costs when there is nothing to do: all sent, or all refused by the server."""
    sys.path.insert(0, str(ROOT / "tests" / "agents"))
    from agent_double import Server
    from agent_dumps import write_torch

    watched = folder / "watched"
    for rank in range(FOLDERS):
        write_torch(str(watched / f"job{rank // 8}"), rank=rank % 8, pid=1000 + rank)
    server = Server()
    server.state.limit = 1 if refused else None
    command = python("-m", "stepscope_agent", "watch", str(watched), "--server", server.url, "--project", "demo")
    command += ["--every", str(EVERY), "--quiet", "1"]
    agent = subprocess.Popen(command, env=agent_environment(folder / "state"), stderr=subprocess.DEVNULL)
    try:
        done = wait_until_done(server.state, "/dumps$" if refused else "/complete$")
        before, started = processor_seconds(agent.pid), time.monotonic()
        time.sleep(IDLE_SECONDS)
        core = (processor_seconds(agent.pid) - before) / (time.monotonic() - started)
        peak, now = memory_mib(agent.pid, "VmHWM"), memory_mib(agent.pid, "VmRSS")
    finally:
        agent.terminate()
        agent.wait(20)
        server.stop()
    word = "refused" if refused else "sent"
    what = f"watching {FOLDERS} folders idle, all {word}"
    memory = f"{now:.0f} MiB (largest {peak:.0f}, while {done} were {word})"
    line(f"{what}: memory", memory, f"{MOST_MIB} MiB", now > MOST_MIB)
    line(f"{what}: processor", f"{core:.2%} of a core, looking every {EVERY} s", "1 %", core > MOST_CORE)


def wait_until_done(state: Any, call: str, seconds: float = 300) -> int:
    """How many dumps had this call when all had it, or when the time is over."""
    deadline = time.monotonic() + seconds
    while (done := state.count("POST", call)) < FOLDERS and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(EVERY)
    return done


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, name: str) -> float:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(row for row in rows if row.startswith(f"{name}:")).split()[1]) / 1024


# Uploading


@contextmanager
def large_dump(folder: Path) -> Iterator[Path]:
    """A dump whose kernel_details.csv has a gigabyte of lines that differ, as real ones do."""
    output = folder / "host01_1_20260101120000123_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    names = ("aclnnMatmul_MatMulV3Common_MatMulV3", "aclnnCast_CastAiCore_Cast", "FlashAttentionScore", "RmsNorm")
    with (output / "kernel_details.csv").open("w", encoding="utf-8") as file:
        file.write("Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim\n")
        row = 0
        while file.tell() < BYTES:
            lines = []
            for _ in range(20_000):
                row += 1
                lines.append(f'1,{names[row % 4]},Cast,AI_VECTOR_CORE,{1767268800000000 + row * 7}.{row % 997:03d}\t,'
                             f'{row % 7919 / 10},{row % 31 / 10},40,"4096,{row % 512};1024",BF16\n')  # fmt: skip
            file.writelines(lines)
    yield output.parent


def uploading(folder: Path) -> None:
    from tests.live import LiveProduct

    product = LiveProduct(folder / "live", STEPSCOPE_LOG_LEVEL="WARNING", STEPSCOPE_DIGEST_SECONDS="1")
    try:
        with large_dump(folder / "gigabyte") as dump:
            product.start(pages=True)
            product.kill("worker")  # only the way there is measured
            file = dump / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
            command = python("-m", "stepscope_agent", "upload", str(dump), "--server", product.url, "--project", "gpt")
            environment = {**agent_environment(folder / "state"), "STEPSCOPE_TOKEN": product.token}
            command += ["--run", "big", "--capture", "step-1"]
            wait_until_warm(product)
            before = processor(product)
            with Peak(str(dump)) as peak:
                sent = measure(command, env=environment)
            spent = sum(processor(product).values()) - sum(before.values())
            packed = measure(["sh", "-c", f"gzip -1 < {file} > {folder}/packed.gz"])
    finally:
        product.stop()
    ratio = sent.seconds / packed.seconds
    line("upload of 1 GB over loopback", f"{sent}, the server's {spent:.2f} s; gzip -1 of it {packed}; {busy()}")
    told = f"{ratio:.2f} of wall, {sent.cpu / packed.cpu:.2f} of the agent's processor"
    line("upload / gzip -1", told, f"{MOST_RATIO}", ratio > MOST_RATIO)
    line("upload: largest memory of the agent", f"{peak.mib:.0f} MiB", f"{MOST_UPLOAD_MIB} MiB",
         peak.mib > MOST_UPLOAD_MIB)  # fmt: skip


class Peak:
    """Largest resident memory of the process with `mark` on its command line, while it runs. What the kernel tells of
    a child at its end is never less than what its parent had."""

    def __init__(self, mark: str) -> None:
        self.mark, self.mib, self.over = mark.encode(), 0.0, threading.Event()
        self.thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.over.wait(0.2):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError, StopIteration):
                    if self.mark in path.read_bytes() and int(path.parent.name) != os.getpid():
                        self.mib = max(self.mib, memory_mib(int(path.parent.name), "VmHWM"))


# The callback


def hooks(folder: Path) -> None:
    """Time of on_train_step_begin and _end between windows, MindSpore's answers left out, against empty hooks."""
    sys.path[:0] = [str(ROOT / "agents"), str(ROOT / "tests" / "agents")]
    from stepscope_agent.mindspore import StepscopeCallback
    from test_callback import Api, Context

    class Nothing:
        def on_train_step_begin(self, run_context: Any) -> None: ...

        def on_train_step_end(self, run_context: Any) -> None: ...

    def us_a_step(callback: Any) -> float:
        context, times = Context(cur_step_num=0, net_outputs=0.5), []
        for step in range(1, STEPS + 1):
            context.params["cur_step_num"] = step
            before = time.perf_counter_ns()
            callback.on_train_step_begin(context)
            callback.on_train_step_end(context)
            times.append((time.perf_counter_ns() - before) / 1e3)
        return median(times)

    callback = StepscopeCallback(str(folder), min_free_bytes=0, api=Api(), first_step=10 * STEPS)
    callback.on_train_begin(Context(cur_step_num=0))
    cost, nothing, again = us_a_step(callback), us_a_step(Nothing()), us_a_step(Nothing())
    line(
        "callback hooks a step",
        f"{cost:.1f} us (empty hooks {nothing:.1f} and {again:.1f})",
        f"{MOST_US} us",
        cost > MOST_US,
    )


def training(folder: Path) -> None:
    """Step time of a real training on CPU with an idle callback against one without. A round is three short runs, none,
    idle, none again, so that what the machine does meanwhile meets all; its cost is idle over the mean of both
    others, its control one of those over the other. Told is the median over the rounds, with the quartiles; missed
    when the cost lies above all that two equal runs differ by (the upper quartile of the control)."""
    if not TRAINING_PYTHON.exists():
        line("callback idle in a real training", f"not measured: no {TRAINING_PYTHON.parents[1].name} here")
        return
    idle = {"first_step": 10**6, "min_free_bytes": 0, "run": "bench"}
    costs, controls = [], []
    for number in range(ROUNDS):
        none, with_idle, again = (
            step_ms(folder / f"{number}-{place}", callback) for place, callback in enumerate((None, idle, None))
        )
        costs.append(2 * with_idle / (none + again) - 1)
        controls.append(max(none, again) / min(none, again) - 1)
    (low, cost, high), (_, control, bound) = quantiles(costs, n=4), quantiles(controls, n=4)
    line("callback idle in a real training", f"{cost:+.1%} of a step (quartiles {low:+.1%} to {high:+.1%})",
         f"{bound:.1%}: two equal runs differ by {control:.1%}", cost > bound)  # fmt: skip


def step_ms(folder: Path, callback: dict[str, Any] | None) -> float:
    folder.mkdir(parents=True)
    result, options = folder / "result.json", folder / "options.json"
    told = {"mode": "GRAPH_MODE", "steps": TRAINED, "output": str(folder / "profiles"), "callback": callback}
    options.write_text(json.dumps({**told, "result": str(result)}))
    program = [str(TRAINING_PYTHON), str(ROOT / "tests" / "mindspore" / "train_gpt.py"), str(options)]
    measure(program, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT / "agents")})
    return float(json.loads(result.read_text())["step_ms"])


def main() -> None:
    print(f"bench_agent: {busy()}")
    with work_folder("agent") as folder:
        hooks(folder / "callback")
        training(folder / "training")
        watching(folder / "sent")
        watching(folder / "refused", refused=True)
        uploading(folder)


if __name__ == "__main__":
    main()
