"""What the benches share: services of their own, measuring a child process, and lines of the table."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.live import LiveProduct

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("STEPSCOPE_SHARED", ROOT.parent / "shared"))


def line(work: str, value: str, target: str = "", missed: bool = False) -> None:
    """One row of the table, as docs/benchmarks.md has them."""
    note = f" (target {target}{', MISSED' if missed else ''})" if target else ""
    print(f"{work}: {value}{note}", flush=True)


def busy() -> str:
    """A note for the table when others use the machine: load divided by processors."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return f"load {load:.1f} x the processors" + (" - BUSY, times are too high" if load > 1.5 else "")


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Used(NamedTuple):
    """What a child process took, start and imports included. Processor time hardly depends on who else is there.

    `mib` is never below what the bench itself had when it started the child: small values say nothing.
    """

    seconds: float
    cpu: float
    mib: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.cpu:.2f} s of processor), {self.mib:.0f} MiB"


def measure(command: Sequence[str], cwd: Path = ROOT, env: dict[str, str] | None = None) -> Used:
    """Run a child process to its end. SystemExit when it fails."""
    before = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if status:
            errors.seek(0)
            raise SystemExit(f"failed: {' '.join(command)[:300]}\n{errors.read().decode()[-2000:]}")
    return Used(time.perf_counter() - before, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


@contextmanager
def work_folder(name: str) -> Iterator[Path]:
    """A folder that is gone afterwards, and that PostgreSQL's own user may pass through when root runs it."""
    folder = Path(tempfile.mkdtemp(prefix=f"stepscope-bench-{name}-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def use(environment: dict[str, str]) -> None:
    """Set Django up for these services in this process."""
    os.environ.update(environment)
    import django

    django.setup()


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def wait_until_warm(product: LiveProduct) -> None:
    """Until its start no longer takes processor time, which is not the capture's."""
    deadline = time.monotonic() + 60
    spent = sum(processor(product).values())
    while time.monotonic() < deadline:
        time.sleep(1)
        before, spent = spent, sum(processor(product).values())
        if spent - before < 0.1:
            return


def processor(product: LiveProduct) -> dict[str, float]:
    """Seconds of processor that each part and what it started took so far."""
    assert product.postgres and product.postgres.process and product.valkey and product.valkey.process
    parts = {name: process.pid for name, process in product.processes.items()}
    parts |= {"postgres": product.postgres.process.pid, "valkey": product.valkey.process.pid}
    return {name: family_seconds(pid) for name, pid in parts.items()}


def family_seconds(pid: int) -> float:
    """Of a process, its children and those that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = {int(child) for thread in threads for child in (thread / "children").read_text().split()}
    except OSError:
        return 0.0
    own = sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own + sum(family_seconds(child) for child in children)
