"""The Upload page with a job's launch script in place of a YAML."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.dumps import write_dump
from tests.e2e.conftest import Tab
from tests.e2e.test_run_config import SCRIPT
from tests.live import LiveProduct, wait_for

pytestmark = pytest.mark.browser


def test_a_launch_script_brings_mfu_and_leaves_its_secrets_out(live_product: LiveProduct, tab: Tab, tmp_path: Path):
    truth = write_dump(tmp_path / "job", mode="torch", steps=3, run={"soc": "Ascend910B3"})
    archive = shutil.make_archive(str(tmp_path / "rank0"), "zip", truth.folder.parent, truth.folder.name)
    (tmp_path / "train.sh").write_text(SCRIPT)
    tab.open(f"/projects/{live_product.project}/upload/")
    tab.fill("[name=run]", "by-script")
    tab.set_input_files("[name=config]", tmp_path / "train.sh")
    tab.set_input_files("[data-files]:not([webkitdirectory])", archive)
    tab.click("[data-upload] button[type=submit]")
    tab.click("[data-list] a", timeout=120_000)

    def judged() -> dict[str, Any]:
        (row,) = live_product.call("GET", "/runs?q=by-script")[1]["runs"]
        return dict(row) if row["metrics"]["mfu"] else {}

    row = wait_for(judged, "MFU of the run", 120)
    assert row["metrics"]["mfu"] < 1
    shown = live_product.call("GET", f"/runs/{row['id']}")[1]["run"]["config"]
    assert "--num-layers 2" in shown["text"]
    assert "do-not-send" not in shown["text"] and "/secret/place" not in shown["text"]


def test_a_refusal_says_in_the_readers_language_what_to_do(live_product: LiveProduct, tab: Tab, tmp_path: Path):
    (tmp_path / "rank0.zip").write_bytes(b"this is no archive")
    tab.context.add_cookies([{"name": "django_language", "value": "zh-hans", "url": live_product.url}])
    tab.open(f"/projects/{live_product.project}/upload/")
    tab.fill("[name=run]", "by-noise")
    tab.set_input_files("[data-files]:not([webkitdirectory])", str(tmp_path / "rank0.zip"))
    tab.click("[data-upload] button[type=submit]")
    hint = tab.locator("[data-list] .muted")
    hint.wait_for(timeout=120_000)
    assert "_ascend_ms" in hint.inner_text() and "dump" in hint.inner_text() and "目录" in hint.inner_text()
    tab.page.route("**/api/v1/**", lambda route: route.abort())
    tab.click("[data-upload] button[type=submit]")
    tab.locator("[data-list] .muted", has_text="网络").wait_for()
    tab.complaints.clear()  # the browser's own line about the address that nobody answered


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("large.yaml", b"a: b\n" * 2_000_000, "large.yaml: a config may be 1.0 MB at most"),
        ("noise.sh", b"\0\xff\xfe\0", "noise.sh: is not a run config"),
    ],
)
def test_a_config_that_is_none_is_refused_by_its_name(
    live_product: LiveProduct, tab: Tab, tmp_path: Path, name: str, content: bytes, said: str
):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "rank0.zip").write_bytes(b"PK")
    tab.open(f"/projects/{live_product.project}/upload/")
    tab.fill("[name=run]", "by-noise")
    tab.set_input_files("[name=config]", tmp_path / name)
    tab.set_input_files("[data-files]:not([webkitdirectory])", str(tmp_path / "rank0.zip"))
    tab.click("[data-upload] button[type=submit]")
    assert tab.locator("[data-list] .bad").inner_text().startswith(said)
    (complaint,) = tab.complaints
    assert "status of 4" in complaint  # the browser's own line about the refusal
    tab.complaints.clear()
