"""Time of the step page's timeline on a rank with 1 000 000 kernels: the index, a view at each zoom as it travels,
the sums of a range, a search, one kernel.

Run as a script. The kernels are those of a synthetic step, repeated with times shifted from step to step.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.common import busy, line, work_folder

KERNELS = 1_000_000
MOST_MS, MOST_BOXES, TIMES = 200, 2048, 9
FRAMES = "1-000000000000"


def write_kernels(folder: Path) -> int:
    """kernels.parquet with KERNELS rows and communication.parquet; how many steps there are."""
    import polars as pl

    from analysis.dump import find_dumps
    from analysis.rank import read_rank
    from analysis.store import write_frames
    from analysis.synthetic import write_rank
    from analysis.synthetic.spec import llama2_7b
    from analysis.words import as_text

    write_rank(folder / "host01_1_20260101120000123_ascend_ms", llama2_7b(), steps=1, run={"soc": "Ascend910B3"})
    frames = read_rank(find_dumps(folder)[0]).frames
    kernels = as_text(frames["kernels"])
    steps = -(-KERNELS // kernels.height)
    span = int((kernels["start_ns"] + kernels["duration_ns"]).max() - kernels["start_ns"].min()) + 5_000_000
    moved = (
        kernels.with_columns(pl.col("start_ns") + number * span, step=pl.lit(str(100 + number)))
        for number in range(steps)
    )
    many = pl.concat(moved).head(KERNELS)
    write_frames(folder / "data" / "frames" / FRAMES, {"kernels": many, "communication": frames["communication"]})
    return steps


def slowest(work: Callable[[], Any], times: int = TIMES) -> tuple[float, float, Any]:
    """(longest of `times` runs but for the first, which warms caches; longest processor time, both in ms; result)."""
    wall, processor, found = [], [], None
    for _time in range(times + 1):
        before, before_cpu = time.perf_counter(), time.process_time()
        found = work()
        wall.append((time.perf_counter() - before) * 1000)
        processor.append((time.process_time() - before_cpu) * 1000)
    return max(wall[1:]), max(processor[1:]), found


def report(name: str, work: Callable[[], Any]) -> Any:
    wall, processor, found = slowest(work)
    line(f"timeline: {name}", f"{wall:.0f} ms, {processor:.0f} ms of processor", f"{MOST_MS} ms", wall > MOST_MS)
    return found


def packed(value: Any) -> bytes:
    return gzip.compress(json.dumps(value, separators=(",", ":")).encode(), 6)


def main() -> None:
    with work_folder("timeline") as folder:
        os.environ |= {"STEPSCOPE_DATA": str(folder / "data"), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
        os.environ.setdefault("SECRET_KEY", "only-for-benches-" + "x" * 40)
        steps = write_kernels(folder)
        import django

        django.setup()
        from dashboard.runs import timeline, timeline_index

        print(f"timeline: {KERNELS} kernels in {steps} steps, {busy()}")
        before = time.perf_counter()
        index = timeline_index.open_index(FRAMES)
        line("timeline: index at the first view", f"{time.perf_counter() - before:.1f} s")
        assert index is not None and index.kernels == KERNELS
        size = sum(path.stat().st_size for path in (folder / "data" / "frames" / FRAMES).glob("timeline*"))
        line("timeline: index on disk", f"{size / 1e6:.0f} MB")
        for part in (1, 8, 64, 1024, 65536):
            begin, span = (index.end // 3 if part > 1 else 0), index.end // part
            boxes = report(
                f"view of 1/{part} of the time",
                lambda begin=begin, span=span: timeline.boxes(index, begin, begin + span, 1024),
            )
            most = max((len(columns["s"]) for columns in boxes.values()), default=0)
            line(f"timeline: most boxes a lane at 1/{part}", str(most), str(MOST_BOXES), most > MOST_BOXES)
            report(f"the same, packed ({len(packed(boxes)) / 1e3:.0f} kB)", lambda boxes=boxes: packed(boxes))
        _label, begin, end = index.steps[steps // 2]
        report("sums of a step", lambda: timeline.sums(index, begin, end))
        sums = slowest(lambda: timeline.sums(index, 0, index.end), 3)[1]
        line("timeline: sums of everything", f"{sums:.0f} ms of processor")
        report("search in a step", lambda: timeline.find(index, FRAMES, "matmul", begin, end))
        everywhere = slowest(lambda: timeline.find(index, FRAMES, "matmul", 0, index.end), 3)[1]
        line("timeline: search in everything", f"{everywhere:.0f} ms of processor")
        report("one kernel", lambda: timeline.kernel(index, FRAMES, KERNELS // 2))


if __name__ == "__main__":
    main()
