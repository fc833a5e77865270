"""CPU time, wall time and memory of reports: of a rank with 1 034 800 kernels, against pandas reading the same file in
the same run; and of a small dump of several ranks.

Run as a script, on a machine with nothing else to do: CPU time says what the work costs, wall time also what the
neighbours take. The large file is made of the real rows of a dump (Stepscope's shared dumps), times shifted from step
to step; without those dumps nothing is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.common import ROOT, SHARED, busy

DUMP = SHARED / "dumps" / "msinsight-llm-pp2dp2"
REAL = DUMP / "rank_0_ascend_pt"
KERNELS = 1_034_800
STEP_COLUMN, START_COLUMN = 0, 9
SECONDS, PEAK_MIB = 5.0, 1024
SMALL_SECONDS = 1.0
MSPROF_ANALYZE_SECONDS = 150.0
"""What msprof-analyze takes for a file of this size."""
FASTER = 30
ROUNDS = 3
PANDAS = "import sys, pandas; pandas.read_csv(sys.argv[1])"
IMPORTS = (
    "import analysis.cli, analysis.rank, analysis.report, analysis.layers.scope, analysis.facts, analysis.checklist"
)


class Usage(NamedTuple):
    """What a child process took: seconds on the clock, seconds of processor (all threads, kernel's part included), MiB
    at its largest."""

    wall: float
    cpu: float
    peak: float


def write_large_dump(folder: Path) -> Path:
    """kernel_details.csv of 1 034 800 kernels, one step after the other, 0.9 s apart; the other files are left out."""
    header, *rows = (REAL / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").read_text(encoding="utf-8").splitlines()
    cells = [row.split(",", START_COLUMN + 1) for row in rows]
    output = folder / "host01_1_20260101120000123_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    path = output / "kernel_details.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write(header + "\n")
        written = 0
        for step in range(KERNELS // len(rows) + 1):
            for cell in cells[: KERNELS - written]:
                whole, _, part = cell[START_COLUMN].strip().partition(".")
                cell = [
                    str(13 + step),
                    *cell[1:START_COLUMN],
                    f"{int(whole) + step * 900_000}.{part}\t",
                    cell[START_COLUMN + 1],
                ]
                file.write(",".join(cell) + "\n")
            written += len(cells[: KERNELS - written])
    return path


def measure(*arguments: str | Path) -> Usage:
    """A Python child with these arguments, start and imports included."""
    before = time.perf_counter()
    child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(map(str, arguments))[:300]}")
    return Usage(time.perf_counter() - before, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def best(*arguments: str | Path) -> Usage:
    """The least of several runs, each figure on its own: neighbours only ever add."""
    runs = [measure(*arguments) for _ in range(ROUNDS)]
    return Usage(*(min(figures) for figures in zip(*runs, strict=True)))


def show(work: str, usage: Usage) -> None:
    print(f"{work}: {usage.cpu:.2f} s CPU, {usage.wall:.2f} s wall, {usage.peak:.0f} MiB peak", flush=True)


def judge(what: str, value: float, limit: float, unit: str) -> None:
    """PASS where the value is no higher than the limit."""
    print(f"  {'PASS' if value <= limit else 'MISS'}  {what}: {value:.2f} {unit} (at most {limit:g})", flush=True)


def large(folder: Path) -> None:
    """Report and digest of one large rank."""
    path = write_large_dump(folder)
    dump = path.parent.parent
    print(f"one rank: {KERNELS} kernels, {path.stat().st_size / 1e6:.0f} MB")
    report = best("-m", "analysis", "report", "--json", dump)
    show("report", report)
    judge("wall time", report.wall, SECONDS, "s")
    judge("CPU time of 2 cores", report.cpu, 2 * SECONDS, "s")
    judge("peak memory", report.peak, PEAK_MIB, "MiB")
    judge("of msprof-analyze's time", report.wall / MSPROF_ANALYZE_SECONDS, 1 / FASTER, f"(1/{FASTER})")
    pandas = best("-c", PANDAS, path)
    show("pandas.read_csv alone", pandas)
    shares = (f"{ours / theirs:.2f} of the {name}" for ours, theirs, name in _pairs(report, pandas))
    print(f"  report / pandas: {', '.join(shares)}")
    digest = best("-m", "analysis", "digest", *_digest(folder, dump))
    show("digest, Parquet written", digest)
    judge("peak memory", digest.peak, PEAK_MIB, "MiB")


def _pairs(report: Usage, pandas: Usage) -> Sequence[tuple[float, float, str]]:
    return [(getattr(report, name), getattr(pandas, name), name) for name in Usage._fields]


def _digest(folder: Path, dump: Path) -> list[str | Path]:
    files = {str(file.relative_to(dump)): str(file) for file in dump.rglob("*") if file.is_file()}
    order = folder / "files.json"
    order.write_text(json.dumps({"folder": dump.name, "files": files}), encoding="utf-8")
    return ["--files", order, "--out", folder / "frames"]


def small() -> None:
    """All ranks of a dump as it came, less the start of Python and the imports."""
    imports = best("-c", IMPORTS)
    show("start and imports", imports)
    report = best("-m", "analysis", "report", "--json", DUMP)
    show(f"report of {DUMP.name}", report)
    judge("wall time after imports", report.wall - imports.wall, SMALL_SECONDS, "s")


def main() -> None:
    if not REAL.is_dir():
        print("bench_report: skipped, the shared dumps are not here")
        return
    print(busy())
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-report-") as folder:
        large(Path(folder))
    small()
    print(busy())


if __name__ == "__main__":
    main()
