"""Time and memory of a whole report on a rank with 1 034 800 kernels, against pandas reading the same file in the
same run.

Run as a script. The file is made of the real rows of a dump (Stepscope's shared dumps), times shifted from step to
step;
without those dumps nothing is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("STEPSCOPE_SHARED", ROOT.parent / "shared"))
REAL = SHARED / "dumps" / "msinsight-llm-pp2dp2" / "rank_0_ascend_pt"
KERNELS = 1_034_800
STEP_COLUMN, START_COLUMN = 0, 9
REPORT = "import sys; from analysis.cli import main; sys.exit(main(['report', sys.argv[1], '--json']))"
PANDAS = "import sys, pandas; pandas.read_csv(sys.argv[1])"


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


def measure(code: str, argument: Path) -> tuple[float, float]:
    """(seconds, peak MiB) of a Python child that runs `code`, imports included."""
    before = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", code, str(argument)], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"failed: {code}")
    return time.perf_counter() - before, usage.ru_maxrss / 1024


def main() -> None:
    if not REAL.is_dir():
        print("bench_report: skipped, the shared dumps are not here")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write_large_dump(Path(folder))
        size = path.stat().st_size / 1e6
        seconds, peak = min(measure(REPORT, path.parent.parent) for _ in range(2))
        pandas_seconds, pandas_peak = measure(PANDAS, path)
    print(f"report: {KERNELS} kernels, {size:.0f} MB: {seconds:.2f} s, {peak:.0f} MiB peak (target 5 s, 1024 MiB)")
    print(f"pandas.read_csv alone: {pandas_seconds:.2f} s, {pandas_peak:.0f} MiB")
    print(f"report / pandas: {seconds / pandas_seconds:.2f} of the time, {peak / pandas_peak:.2f} of the memory")


if __name__ == "__main__":
    main()
