from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dashboard.ingest import child
from tests.live import wait_for


def no_beat(stage: str) -> None: ...


@pytest.fixture
def in_nursery(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process ids of the children that the nursery forked."""
    forked: list[int] = []
    real = child.Nursery.start

    def start(nursery: child.Nursery, order: dict[str, Any]) -> Any:
        made = real(nursery, order)
        assert made is not None
        forked.append(made.pid)
        return made

    monkeypatch.setattr(child.Nursery, "start", start)
    return forked


def order_of(folder: Path, data: bytes) -> list[str]:
    """The command that digests a dump whose kernel_details.csv holds these bytes."""
    file = folder / "blob"
    file.write_bytes(data)
    (folder / "out").mkdir(exist_ok=True)
    (folder / "files.json").write_text(
        f'{{"folder": "x_ascend_pt", "files": {{"ASCEND_PROFILER_OUTPUT/kernel_details.csv": "{file}"}}}}'
    )
    return ["digest", "--files", str(folder / "files.json"), "--out", str(folder / "out")]


KERNELS = (
    b"Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim\nMatMul,MatMulV2,AI_CORE,1,2,0,8\n"
)


def test_each_dump_gets_a_child_of_its_own_and_a_bad_one_harms_no_other(tmp_path, in_nursery):
    child.run_analysis(order_of(tmp_path, KERNELS), tmp_path, 0, no_beat)
    assert (tmp_path / "out" / "entry.json").exists()
    with pytest.raises(child.DigestFailed, match="kernel_details.csv"):
        child.run_analysis(order_of(tmp_path, b""), tmp_path, 0, no_beat)
    (tmp_path / "out" / "entry.json").unlink()
    child.run_analysis(order_of(tmp_path, KERNELS), tmp_path, 0, no_beat)
    assert (tmp_path / "out" / "entry.json").exists()
    assert len(set(in_nursery)) == 3


def test_limits_hold_for_the_nurserys_children(tmp_path, in_nursery, settings):
    settings.DIGEST_MEMORY_BYTES = 64 << 20
    with pytest.raises(child.DigestFailed, match=r"needed more than 64.0 MB"):
        child.run_analysis(order_of(tmp_path, KERNELS), tmp_path, 0, no_beat)


def test_a_nursery_that_was_killed_is_replaced(tmp_path, in_nursery):
    child.run_analysis(order_of(tmp_path, KERNELS), tmp_path, 0, no_beat)
    nursery = child._nursery
    assert nursery is not None
    os.kill(nursery.process.pid, signal.SIGKILL)
    wait_for(lambda: nursery.process.poll() is not None, "the nursery's end")
    child.run_analysis(order_of(tmp_path, KERNELS), tmp_path, 0, no_beat)
    assert child._nursery is not nursery and len(in_nursery) == 2


def polars_threads(children: list[int], seen: set[str], over: threading.Event) -> None:
    """Gather the names of the threads that work for Polars in the children, until `over`."""
    while not over.is_set():
        for pid in children:
            with suppress(OSError):  # a child, or one of its threads, that has just ended
                names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
                seen.update(name for name in names if name.startswith("polars-"))


@pytest.mark.parametrize("size", [1 << 20, 1 << 30])
def test_a_small_dump_is_worked_on_by_one_thread_and_a_large_one_by_several(tmp_path, in_nursery, size):
    seen, over = set[str](), threading.Event()
    watch = threading.Thread(target=polars_threads, args=(in_nursery, seen, over))
    watch.start()
    try:
        child.run_analysis(order_of(tmp_path, KERNELS), tmp_path, size, no_beat)
    finally:
        over.set()
        watch.join()
    several = max(1, min(4, os.cpu_count() or 1))
    assert len(seen) == (1 if size < 32 << 20 else several)
