from __future__ import annotations

import os

import pytest
from stepscope_agent.captures import capture_keys, key_of
from stepscope_agent.discover import find_dumps

from agent_dumps import write, write_torch

FIRST, SECOND, THIRD = "20260101120000123", "20260101130000000", "20260101140000000"


def keys(path, given=None):
    """{(rank, time in the folder's name): capture key}"""
    found = capture_keys(find_dumps(str(path)), given)
    return {(dump.rank, dump.stamp): key for dump, key in found.items()}


def later(stamp, milliseconds):
    return str(int(stamp) + milliseconds)


def test_a_given_key_is_everybodys(tmp_path):
    write_torch(tmp_path, rank=0, stamp=FIRST)
    write_torch(tmp_path, rank=0, stamp=SECOND)
    assert set(keys(tmp_path, "before upgrade").values()) == {"before-upgrade"}


def test_the_training_step_of_the_marker_names_the_capture(tmp_path):
    for rank in (0, 1):
        root = write_torch(tmp_path, rank=rank, stamp=later(FIRST, rank))
        write(os.path.join(root, ".complete.json"), {"state": "complete", "first_step": 100, "last_step": 102})
    assert set(keys(tmp_path).values()) == {"step-100"}


def test_the_kth_dump_of_each_rank_is_of_the_kth_window(tmp_path):
    for rank in (0, 1):
        write_torch(tmp_path, rank=rank, stamp=later(FIRST, 5 - rank))
        write_torch(tmp_path, rank=rank, stamp=later(SECOND, rank))
    found = keys(tmp_path)
    assert found[(0, later(FIRST, 5))] == found[(1, later(FIRST, 4))] == later(FIRST, 4)
    assert found[(0, SECOND)] == found[(1, later(SECOND, 1))] == SECOND


def test_folders_per_rank_are_one_job(tmp_path):
    write_torch(tmp_path / "rank_0", rank=0, stamp=FIRST)
    write_torch(tmp_path / "rank_1", rank=1, stamp=later(FIRST, 9))
    assert set(keys(tmp_path).values()) == {FIRST}


def test_a_rank_that_missed_a_window_joins_the_nearest(tmp_path):
    for stamp in (FIRST, SECOND, THIRD):
        write_torch(tmp_path, rank=0, stamp=stamp)
    write_torch(tmp_path, rank=1, stamp=later(FIRST, 7))
    write_torch(tmp_path, rank=1, stamp=later(THIRD, 7))
    found = keys(tmp_path)
    assert found[(1, later(FIRST, 7))] == FIRST
    assert found[(1, later(THIRD, 7))] == THIRD
    assert found[(0, SECOND)] == SECOND


def test_two_jobs_with_the_same_time_are_told_apart(tmp_path):
    write_torch(tmp_path / "graph", rank=0, stamp=FIRST)
    write_torch(tmp_path / "pynative", rank=0, stamp=FIRST)
    found = capture_keys(find_dumps(str(tmp_path)))
    assert sorted(found.values()) == [FIRST + "-graph", FIRST + "-pynative"]


@pytest.mark.real
def test_without_times_the_parents_name_is_the_key(shared_dumps):
    found = capture_keys(find_dumps(os.path.join(shared_dumps, "msinsight-torch-ddp2")))
    assert sorted(set(found.values())) == ["db-level0", "db-level1", "text-level0", "text-level1"]
    assert len(found) == 8


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Llama2 7B, graph mode", "Llama2-7B-graph-mode"),
        ("__x__", "x"),
        ("模型", "unnamed"),
        ("a" * 200, "a" * 100),
        ("v1.2_b-3", "v1.2_b-3"),
    ],
)
def test_keys_have_the_protocols_form(text, key):
    assert key_of(text) == key
