"""A dump of several devices through the running product: sent once by the agent, every device a rank of its capture."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.device_dumps import timeline_of, write_database
from tests.analysis.small_dumps import OUTPUT
from tests.e2e.conftest import Upload
from tests.live import LiveProduct, wait_for


def capture_of(live_product: LiveProduct, run: str) -> int:
    _status, runs = live_product.call("GET", f"/runs?q={run}")
    _status, captures = live_product.call("GET", f"/runs/{runs['runs'][0]['id']}/captures")
    return int(captures["captures"][0]["id"])


def ranks_when_ready(live_product: LiveProduct, capture: int, count: int) -> dict[int, float]:
    """Rank -> compute time, once the capture is summed up over that many ranks."""

    def ready() -> dict[int, float] | None:
        status, report = live_product.call("GET", f"/captures/{capture}/report")
        ranks = report.get("ranks") or [] if status == 200 else []
        return {row["rank"]: row["kernels"]["compute_us"] for row in ranks} if len(ranks) == count else None

    return wait_for(ready, f"a report of {count} ranks", 120) or {}


def test_each_device_of_a_database_is_a_rank(live_product: LiveProduct, upload: Upload, tmp_path: Path):
    root = write_database(tmp_path, f"{OUTPUT}/ascend_pytorch_profiler_8.db")
    upload(root, "--run", "two-devices-db")
    capture = capture_of(live_product, "two-devices-db")
    assert ranks_when_ready(live_product, capture, 2) == {8: 0.08, 9: 0.06}
    _status, told = live_product.call("GET", f"/captures/{capture}")
    assert told["capture"]["dumps"] == {"receiving": 0, "uploaded": 0, "digesting": 0, "digested": 2, "failed": 0}


def test_each_folder_of_a_device_is_a_rank(live_product: LiveProduct, upload: Upload, tmp_path: Path):
    for label, text in {**timeline_of(0, [10, 20], 500), **timeline_of(1, [40], 700)}.items():
        (tmp_path / "job" / label).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "job" / label).write_text(text)
    upload(tmp_path / "job", "--run", "two-device-folders")
    capture = capture_of(live_product, "two-device-folders")
    assert ranks_when_ready(live_product, capture, 2) == {0: 30.0, 1: 40.0}
