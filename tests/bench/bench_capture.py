"""A capture of many ranks from acknowledged to visible, through the real API and the whole product on this machine.

BENCH_RANKS is how many (1 000). Dumps are written and sent two ranks at a time; what is timed is the server: from the
last `complete` that it acknowledged, and from the first, to the capture being ready, and the largest memory of its
processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.common import ROOT, busy, line, processor, wait_until_warm, work_folder
from tests.live import LiveProduct

RANKS = int(os.environ.get("BENCH_RANKS", "1000"))
MOST_SECONDS = 300
SENDERS = 2


def dumps(folder: Path) -> Iterator[tuple[int, Path]]:
    """Each rank's dump folder as soon as it is written."""
    from analysis.synthetic import each_rank
    from analysis.synthetic.spec import cluster

    known: set[Path] = set()
    for rank, _truth in enumerate(each_rank(folder, cluster(RANKS), steps=1, run={"soc": "Ascend910B3"})):
        (path,) = set(folder.iterdir()) - known
        known.add(path)
        yield rank, path


def send(product: LiveProduct, run: int, rank: int, folder: Path, http: Any) -> None:
    """As the agent does it."""
    from stepscope_agent import client
    from stepscope_agent.manifest import FileEntry

    entries = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        name, sha256 = str(path.relative_to(folder)), hashlib.sha256(data).hexdigest()
        entries.append(FileEntry(name, str(path), len(data), sha256))
    body = {"capture": "step-10", "rank": rank, "world_size": RANKS, "folder": folder.name}
    client.send_dump(http, run, {**body, "files": [entry.row() for entry in entries]}, entries)


@contextmanager
def senders(product: LiveProduct) -> Iterator[Callable[[int, int, Path], Future[None]]]:
    """What sends a rank's dump of a run in one of SENDERS threads, over one connection each."""
    sys.path.insert(0, str(ROOT / "agents"))
    from stepscope_agent.transport import Transport

    own = threading.local()

    def one(run: int, rank: int, path: Path) -> None:
        if not hasattr(own, "http"):
            own.http = Transport(product.url, product.token)
        send(product, run, rank, path, own.http)

    with ThreadPoolExecutor(SENDERS) as pool:
        yield lambda run, rank, path: pool.submit(one, run, rank, path)


class Memory(threading.Thread):
    """The largest resident memory of each part of the product, its children included, in MiB."""

    def __init__(self, product: LiveProduct) -> None:
        super().__init__(daemon=True)
        self.product, self.peak, self.going = product, dict[str, float](), True

    def run(self) -> None:
        while self.going:
            parts = {name: process.pid for name, process in self.product.processes.items()}
            for name, pid in parts.items():
                self.peak[name] = max(self.peak.get(name, 0.0), family_mib(pid))
            time.sleep(0.5)


def family_mib(pid: int) -> float:
    total = 0.0
    try:
        fields = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total = int(next(row for row in fields if row.startswith("Pss:")).split()[1]) / 1024
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, StopIteration):
        return total
    return total + sum(family_mib(int(child)) for child in children)


def per_rank(seconds: dict[str, float]) -> str:
    parts = ", ".join(f"{name} {1000 * spent / RANKS:.0f} ms" for name, spent in sorted(seconds.items()))
    return f"{parts}; together {1000 * sum(seconds.values()) / RANKS:.0f} ms"


def ready(product: LiveProduct, capture: int) -> dict[str, Any] | None:
    status, answer = product.call("GET", f"/captures/{capture}")
    assert status == 200, answer
    found: dict[str, Any] = answer["capture"]
    return found if found["state"] == "ready" else None


def main() -> None:
    note = busy()
    with work_folder("capture") as folder:
        product = LiveProduct(folder, STEPSCOPE_LOG_LEVEL="WARNING")
        try:
            product.start(pages=True)
            memory = Memory(product)
            memory.start()
            measure(product, folder / "dumps", memory, note)
        finally:
            product.stop()


def measure(product: LiveProduct, folder: Path, memory: Memory, note: str) -> None:
    _, answer = product.call("POST", f"/projects/{product.project}/runs", {"key": "cluster"})
    run = answer["run"]["id"]
    wait_until_warm(product)
    before, first = processor(product), time.monotonic()
    with senders(product) as start:
        for one in [start(run, rank, path) for rank, path in dumps(folder)]:
            one.result()
    last = time.monotonic()
    receiving = {name: spent - before[name] for name, spent in processor(product).items()}
    digested_by_then = digested(product, run)
    capture = product.call("GET", f"/runs/{run}/captures")[1]["captures"][0]["id"]
    deadline = last + 3600
    while (found := ready(product, capture)) is None and time.monotonic() < deadline:
        time.sleep(1)
    assert found is not None, json.dumps(product.call("GET", f"/captures/{capture}")[1])[:2000]
    end = time.monotonic()
    memory.going = False
    missed = end - first > MOST_SECONDS
    line(f"capture of {RANKS} ranks, first dump acknowledged to page ready", f"{end - first:.0f} s",
         f"{MOST_SECONDS} s, writing and sending them on the same 2 cores included", missed)  # fmt: skip
    line("  of that after the last dump was acknowledged", f"{end - last:.0f} s ({digested_by_then} digested by then)")
    whole = {name: spent - before[name] for name, spent in processor(product).items()}
    line("  processor a rank until the last was acknowledged", per_rank(receiving))
    line("  processor a rank in all", per_rank(whole))
    line("  largest memory", ", ".join(f"{name} {mib:.0f} MiB" for name, mib in sorted(memory.peak.items())))
    line("  ranks ready", f"{found['rank_count']}, failed {found['dumps']['failed']}; {note}")


def digested(product: LiveProduct, run: int) -> int:
    captures = product.call("GET", f"/runs/{run}/captures")[1]["captures"]
    return int(product.call("GET", f"/captures/{captures[0]['id']}")[1]["capture"]["dumps"]["digested"])


if __name__ == "__main__":
    main()
