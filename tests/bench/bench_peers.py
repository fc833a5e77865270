"""Reports against what people use today, on the same files in the same run: msprof-analyze, pandas, Python's json.

msprof-analyze lives in its own environment, tests/bench/.venv-peers, made on first use. Ratios are of processor time,
which hardly depends on what else the machine does; wall time is printed beside it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.bench_report import PANDAS, REAL, write_large_dump
from tests.bench.common import SHARED, Used, busy, line, measure, python, work_folder

PEERS = Path(__file__).resolve().parent / ".venv-peers"
PEER = "msprof-analyze==26.2.0"
LLM = SHARED / "dumps" / "msinsight-llm-pp2dp2"
TRACE_BYTES = 444_000_000
REPORT = "import sys; from analysis.cli import main; sys.exit(main(['report', sys.argv[1], '--json']))"
WITH_JSON = "import json, sys; len(json.load(open(sys.argv[1])))"
WITH_OURS = """
import sys
from pathlib import Path
from analysis.readers.trace_events import read_events
read_events(Path(sys.argv[1]), "trace_view.json", [])
"""


def peer() -> Path | None:
    """msprof-analyze's command; None when it cannot be installed here."""
    command = PEERS / "bin" / "msprof-analyze"
    if not command.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True, capture_output=True)
            subprocess.run([str(PEERS / "bin/pip"), "install", "-q", PEER], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"bench_peers: {PEER} cannot be installed: {error}")
            return None
    return command


def compare(work: str, ours: Used, theirs: Used, name: str, target: float) -> None:
    ratio = theirs.cpu / ours.cpu
    line(f"{work}: ours", str(ours))
    line(f"{work}: {name}", str(theirs))
    line(f"{work}: times faster", f"{ratio:.1f} (wall {theirs.seconds / ours.seconds:.1f}), memory"
         f" {ours.mib / theirs.mib:.2f} of theirs", f">= {target:g}", ratio < target)  # fmt: skip


def large(folder: Path, command: Path | None) -> None:
    path = write_large_dump(folder)
    dump = path.parent.parent
    ours = min((measure(python("-c", REPORT, str(dump))) for _ in range(2)), key=lambda used: used.cpu)
    compare("1 034 800 kernels", ours, measure(python("-c", PANDAS, str(path))), "pandas.read_csv alone", 1)
    if command is None:
        return
    # The advisor asks for files that say which profiler wrote the dump.
    for name in ("profiler_info_0.json", "profiler_metadata.json"):
        if (REAL / name).exists():
            shutil.copy(REAL / name, dump)
    advisor = [str(command), "advisor", "computation", "-d", str(dump), "-o", str(folder / "advisor")]
    compare("1 034 800 kernels", ours, measure(advisor, folder), "advisor computation", 30)


def job(folder: Path, command: Path | None) -> None:
    copy = folder / "llm"
    shutil.copytree(LLM, copy)
    ours = min((measure(python("-c", REPORT, str(copy))) for _ in range(3)), key=lambda used: used.cpu)
    line("LLM dump", str(ours), "<= 1 s after imports")
    if command is not None:
        cluster = [str(command), "cluster", "-m", "all", "-d", str(copy), "-o", str(folder / "cluster")]
        compare("LLM dump", ours, measure(cluster, folder), "cluster -m all", 9)


def trace(folder: Path) -> None:
    """trace_view.json of a real dump, its events repeated to 444 MB, read whole."""
    real = next((SHARED / "dumps").glob("msinsight-torch-ddp2/text/level1/**/trace_view.json"))
    events = json.loads(real.read_text(encoding="utf-8"))
    text = ",".join(json.dumps(event) for event in events)
    path = folder / "trace_view.json"
    with path.open("w", encoding="utf-8") as file:
        file.write("[" + text)
        while file.tell() < TRACE_BYTES:
            file.write("," + text)
        file.write("]")
    ours = measure(python("-c", WITH_OURS, str(path)))
    line("trace_view.json of 444 MB", str(ours), "3 s, 600 MiB", ours.seconds > 3 or ours.mib > 600)
    compare("trace_view.json of 444 MB", ours, measure(python("-c", WITH_JSON, str(path))), "json.load", 3)


def main() -> None:
    if not REAL.is_dir():
        print("bench_peers: skipped, the shared dumps are not here")
        return
    print(f"bench_peers: {busy()}")
    command = peer()
    with work_folder("peers") as folder:
        job(folder, command)
        trace(folder)
        large(folder, command)


if __name__ == "__main__":
    main()
