"""What a roll-up holds of each rank: little, and all that the judgement reads."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from analysis.cli import main
from analysis.report import capture_report
from analysis.synthetic import each_rank
from analysis.synthetic.spec import cluster
from dashboard.runs.rank_evidence import Keeper

RANKS = 4
MOST_BYTES_A_RANK = 15_000
MOST_BYTES_JUDGED = 20_000
"""Of a rank on top of that: what is worked out for it. Its lists alone would be five times as much."""


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the digest of each rank of a small job leaves, as text."""
    folder = tmp_path_factory.mktemp("ranks")
    spec = replace(cluster(RANKS), ai_cpu=True, mask_rebuilt=True)  # something to find
    made = [None for _ in each_rank(folder / "dumps", spec, steps=1, run={"soc": "Ascend910B3"})]
    assert len(made) == RANKS
    return [_digest(dump, folder / f"work-{dump.name}") for dump in sorted((folder / "dumps").iterdir())]


def _digest(dump: Path, work: Path) -> str:
    (work / "out").mkdir(parents=True)
    order = work / "files.json"
    files = {str(path.relative_to(dump)): str(path) for path in dump.rglob("*") if path.is_file()}
    order.write_text(json.dumps({"folder": dump.name, "rank": None, "device": None, "files": files}))
    main(["digest", "--files", str(order), "--out", str(work / "out"), "--stage", str(work / "stage")])
    return (work / "out" / "entry.json").read_text()


def report(results: list[tuple[Any, Any]]) -> dict[str, Any]:
    found = capture_report(results, config=None, run={}, series=[])
    return {key: value for key, value in found.items() if key != "ranks"}


def test_the_report_from_what_is_held_is_that_from_the_entries(digests):
    known = [json.loads(text) for text in digests]
    whole = report([(row["entry"], row["source"]) for row in known])
    with TemporaryFile() as file:
        keep = Keeper(file)
        held = report([(keep.entry(row["entry"]), keep.source(row["source"])) for row in known])
    assert json.loads(json.dumps(held)) == json.loads(json.dumps(whole))
    assert whole["findings"] and whole["cluster"]["compute_spread_ratio"] is not None


def test_a_rank_more_takes_little_memory(digests):
    with TemporaryFile() as file:
        keep = Keeper(file)

        def hold(count: int) -> list[Any]:
            rows = (json.loads(digests[number % RANKS]) for number in range(count))
            return [(keep.entry(row["entry"]), keep.source(row["source"])) for row in rows]

        first = hold(RANKS)
        tracemalloc.start()
        more = hold(20)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(first) == RANKS and len(more) == 20
        assert taken / 20 < MOST_BYTES_A_RANK


def test_judging_loads_no_more_than_a_few_ranks_at_a_time(digests):
    with TemporaryFile() as file:
        keep, many = Keeper(file), 40 * RANKS
        rows = (json.loads(digests[number % RANKS]) for number in range(many))
        held = [
            ({**keep.entry(row["entry"]), "rank": number}, keep.source(row["source"]))
            for number, row in enumerate(rows)
        ]
        report(held[:2])  # imports
        tracemalloc.start()
        report(held)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert file.seek(0, 2) > many * 15_000
        assert peak < many * MOST_BYTES_JUDGED
