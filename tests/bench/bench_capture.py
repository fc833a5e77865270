"""A capture of many ranks from acknowledged to visible, through the real API and the whole product on this machine.

BENCH_RANKS is how many (1 000). Dumps are written and sent two ranks at a time; what is timed is the server: from the
last `complete` that it acknowledged, and from the first, to the capture being ready, and the largest memory of its
processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.common import busy, line, work_folder
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


def tus(product: LiveProduct, dump: int, name: str, data: bytes, sha256: str) -> None:
    from base64 import b64encode

    pairs = {"dump": str(dump), "name": name, "sha256": sha256}
    metadata = ",".join(f"{key} {b64encode(value.encode()).decode()}" for key, value in pairs.items())
    common = {"Authorization": f"Bearer {product.token}", "Tus-Resumable": "1.0.0"}
    create = {**common, "Upload-Length": str(len(data)), "Upload-Metadata": metadata}
    request = urllib.request.Request(f"{product.url}/api/v1/files", method="POST", data=b"", headers=create)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            location = answer.headers["Location"]
    except urllib.error.HTTPError as error:
        if error.code == 409:  # another rank has just sent the same content
            return
        raise
    patch = {**common, "Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    path = location[location.index("/api/") :]
    request = urllib.request.Request(f"{product.url}{path}", method="PATCH", data=data, headers=patch)
    urllib.request.urlopen(request, timeout=120).close()


def send(product: LiveProduct, run: int, rank: int, folder: Path) -> None:
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = [{"name": name, "size": len(data), "sha256": hashes[name]} for name, data in files.items()]
    body = {"capture": "step-10", "rank": rank, "world_size": RANKS, "folder": folder.name, "files": manifest}
    status, answer = product.call("POST", f"/runs/{run}/dumps", body)
    assert status in (200, 201), answer
    for missing in answer["missing"]:
        tus(product, answer["dump"]["id"], missing["name"], files[missing["name"]], missing["sha256"])
    status, answer = product.call("POST", f"/dumps/{answer['dump']['id']}/complete")
    assert status == 202, answer


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
    first = time.monotonic()
    with ThreadPoolExecutor(SENDERS) as senders:
        sent = [senders.submit(send, product, run, rank, path) for rank, path in dumps(folder)]
        for one in sent:
            one.result()
    last = time.monotonic()
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
    line("  largest memory", ", ".join(f"{name} {mib:.0f} MiB" for name, mib in sorted(memory.peak.items())))
    line("  ranks ready", f"{found['rank_count']}, failed {found['dumps']['failed']}; {note}")


def digested(product: LiveProduct, run: int) -> int:
    captures = product.call("GET", f"/runs/{run}/captures")[1]["captures"]
    return int(product.call("GET", f"/captures/{captures[0]['id']}")[1]["capture"]["dumps"]["digested"])


if __name__ == "__main__":
    main()
