"""The main job on a real dump: agent -> tus -> Celery -> PostgreSQL -> a page in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Tab, Upload
from tests.live import LiveProduct

pytestmark = [pytest.mark.browser, pytest.mark.real]


def test_a_real_dump_becomes_a_page_that_tells_what_to_do(live_product: LiveProduct, tab: Tab, dumps: Path, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "agents"), "STEPSCOPE_TOKEN": live_product.token}
    done = subprocess.run(
        [sys.executable, "-m", "stepscope_agent", "upload", str(dumps / "msinsight-llm-pp2dp2"), "--server",
         live_product.url, "--project", live_product.project, "--run", "llm-pp2dp2", "--wait", "--timeout", "120"],
        env={**environment, "STEPSCOPE_STATE": str(tmp_path / "state")}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + live_product.logs()
    address = next(word for word in (done.stdout + done.stderr).split() if "/captures/" in word)

    # By the dump's own files: 231 290 us of computing, 5 998 us of Cast kernels, 19.6 % of the step free.
    tab.open(address)
    assert "Computing 231 ms" in tab.text(".hero .legend")
    assert "2.6 %" in tab.text(".tile:has-text('Cast share')")
    checks = tab.locator("#checklist .check")
    assert checks.count() == 8
    assert "Fail" in tab.text("#check-graph_sink") and "85.0 %" in tab.text("#check-graph_sink")
    assert "2.6" in tab.text("#check-dtype_cast")
    tab.open(f"{address}ranks/")
    assert "80.4 %" in tab.text("tbody tr:first-child")  # rank 0; the capture's own is the mean over both ranks
    capture = int(address.rstrip("/").rsplit("/", 1)[1])
    _status, report = live_product.call("GET", f"/captures/{capture}/report")
    first = next(row for row in report["ranks"] if row["rank"] == 0)
    assert first["steps"][0]["computing_us"] == pytest.approx(231_290, abs=1)


def test_it_is_compared_with_a_second_run_and_both_are_on_the_list_of_violations(
    live_product: LiveProduct, tab: Tab, dumps: Path, upload: Upload
):
    upload(dumps / "msinsight-llm-pp2dp2", "--run", "llm-pp2dp2")
    report = upload(dumps / "mstt-advisor" / "compute_advice", "--run", "compute-advice")
    failing = [item["id"] for item in report["checklist"]["items"] if item["status"] == "fail"]
    assert "dtype_cast" in failing

    tab.open(f"/projects/{live_product.project}/runs/")
    for run in ("llm-pp2dp2", "compute-advice"):
        tab.locator("tr", has_text=run).locator("[data-select]").check()
    tab.click("[data-selectbar] .primary")
    tab.wait_for_url("**/compare/?captures=*")
    tab.draw_all()
    assert "2.6 %" in tab.text() and "11.7 %" in tab.text()

    tab.open("/violations/")
    rows = tab.locator("tbody tr", has_text="compute-advice")
    assert rows.count() == len(failing)
    assert "11.7" in rows.filter(has_text="Uniform dtype").inner_text()
    rows.filter(has_text="Uniform dtype").locator("a").first.click()
    tab.wait_for_url("**/captures/*/#check-dtype_cast")
    tab.draw_all()
    assert "11.7" in tab.text("#check-dtype_cast")
