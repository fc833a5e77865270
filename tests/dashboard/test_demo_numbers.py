"""What the analysis says of the demo's runs is what the story did to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.cli import build_report
from dashboard.alerts.causes import Side, cause
from dashboard.demo.files import write_chapter
from dashboard.demo.story import AFTER_UPGRADE, BEFORE_UPGRADE, STORY

CHAPTERS = {chapter.key: chapter for chapter in STORY}


def report_of(folder: Path, key: str) -> dict[str, Any]:
    files = write_chapter(folder, CHAPTERS[key])
    return build_report(files.dumps, config=files.config, log=files.log)


def side(report: dict[str, Any]) -> Side:
    return Side(report["ranks"], {"CANN": report["source"]["cann_version"]})


def test_alert_after_the_upgrade_names_cast_its_block_and_the_version(tmp_path_factory: pytest.TempPathFactory) -> None:
    before = report_of(tmp_path_factory.mktemp("before"), BEFORE_UPGRADE)
    after = report_of(tmp_path_factory.mktemp("after"), AFTER_UPGRADE)
    why = cause("mfu", side(before), side(after))
    # The upgrade's one change is that rotary kernels get casts: they stand in the position block.
    assert "% of it is Cast in Position, +" in why.english
    assert " a layer, first seen with CANN 8.3.RC1 (8.2.RC1 before)." in why.english
    assert "首次出现于 CANN 8.3.RC1（之前 8.2.RC1）" in why.chinese


def test_slow_rank_of_the_demo_costs_what_its_compute_takes_longer(tmp_path: Path) -> None:
    (slow, factor), *_ = CHAPTERS["llama2-7b-tp2"].slow.items()
    report = report_of(tmp_path, "llama2-7b-tp2")
    (found,) = report["cluster"]["slow_ranks"]
    healthy = report["ranks"][0]["steps"][0]["computing_us"]
    assert found["rank"] == slow
    assert found["excess_us"] == pytest.approx((factor - 1) * healthy, rel=0.03)
    finding = next(row for row in report["findings"] if row["id"] == "slow_rank")
    assert finding["recoverable_us"] == found["excess_us"]
