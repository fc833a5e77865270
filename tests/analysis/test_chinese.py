"""Every sentence of a report has its twin in Chinese."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.chinese import PHRASES, chinese
from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.rank import read_rank
from analysis.report import capture_report
from tests.conftest import SHARED
from tests.dumps import write_job

CJK = re.compile(r"[\u3400-\u9fff]")
SENTENCES = ("summary", "advice", "how", "text", "error", "reason")


def report_of(folder: Path, **run: Any) -> dict[str, Any]:
    ranks = [read_rank(dump) for dump in find_dumps(folder)]
    return capture_report([(rank.entry, rank.source) for rank in ranks], config=None, run=run, series=[])


def untranslated(value: Any, path: str = "") -> Iterator[str]:
    """Where a sentence stands without Chinese beside it."""
    if isinstance(value, dict):
        for key, item in value.items():
            where = f"{path}.{key}"
            if key in SENTENCES and isinstance(item, str) and not CJK.search(str(value.get(f"{key}_zh") or "")):
                yield f"{where}: {item}"
            if key == "warnings":
                texts = value.get("warnings_zh") or []
                yield from (f"{where}: {text}" for text in texts if not CJK.search(text))
                if len(texts) != len(item):
                    yield f"{where}: {len(item)} warnings, {len(texts)} in Chinese"
            yield from untranslated(item, where)
    if isinstance(value, list):
        for item in value:
            yield from untranslated(item, path)


@pytest.mark.parametrize("en, zh", PHRASES)
def test_phrases_keep_their_order_of_places(en: str, zh: str):
    assert CJK.search(zh)
    assert zh.count("{}") in (en.count("{}"), 0)


def test_a_sentence_keeps_its_file_and_its_figures():
    assert chinese("a.csv: line 7: 31 cells where the header has 32") == "a.csv：第 7 行：有 31 个单元格，表头为 32 个"
    assert chinese("rank 3: a.csv: has no step times") == "rank 3：a.csv：没有单步耗时"
    assert chinese("Nobody has written this.") is None


def test_two_errors_of_one_rank_are_both_translated():
    errors = (
        "the config splits over 8 devices, the run has 4",
        "HFU of 120% is impossible: config, step time or peak (x) is wrong",
    )
    assert (
        chinese("; ".join(errors))
        == "配置按 8 张卡切分，而运行有 4 张卡；HFU 为 120% 不可能：配置、单步耗时或峰值（x）有误"
    )


@pytest.mark.parametrize(
    "knobs",
    [
        {"dp": 2},
        {
            "mode": "pynative",
            "sink": False,
            "fused_attention": False,
            "mask": "full",
            "mask_rebuilt": True,
            "ai_cpu": True,
        },
        {"mode": "torch", "pp": 2, "micro_batches": 2},
        {"tp": 2, "free_ratio": 0.4},
    ],
    ids=["graph", "unfused", "torch", "tp"],
)
def test_reports_of_synthetic_jobs_are_chinese_throughout(tmp_path: Path, knobs: dict[str, Any]):
    write_job(tmp_path, steps=2, **knobs)
    environment = {"ASCEND_LAUNCH_BLOCKING": "1"}
    assert list(untranslated(report_of(tmp_path, mode="pynative", environment=environment))) == []


@pytest.mark.real
def test_reports_and_errors_of_real_dumps_are_chinese_throughout():
    wrong = []
    for folder in sorted(path for path in (SHARED / "dumps").iterdir() if path.is_dir()):
        try:
            for dump in find_dumps(folder)[:6]:
                rank = read_rank(dump)
                found = capture_report([(rank.entry, rank.source)], config=None, run={}, series=[])
                wrong += [f"{folder.name} {where}" for where in untranslated(found)]
        except BadDump as error:
            wrong += [] if CJK.search(chinese(str(error)) or "") else [f"{folder.name}: {error}"]
    assert wrong == []
