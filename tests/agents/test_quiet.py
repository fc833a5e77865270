"""A look at folders in which nothing happens costs next to nothing, and misses nothing that happens after all."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from stepscope_agent import discover, folders, ground, spool
from stepscope_agent.folders import LISTED_S, SPREAD_S

from agent_dumps import write, write_torch
from test_watch import Agent, finished

MINUTE = 60.0


@pytest.fixture
def jobs(tmp_path):
    for number in range(3):
        finished(write_torch(tmp_path / "jobs" / ("job%d" % number), rank=0))
    return tmp_path / "jobs"


@pytest.fixture
def agent(tmp_path, jobs, server):
    """One whose folders have been quiet for a minute; its memory lies elsewhere."""
    agent = Agent(jobs, server, run=None)
    agent.state = str(tmp_path / "memory" / "watch.json")
    agent.restart()
    assert agent.look() == 3
    for _ in range(4):
        agent.look(after=15)
    return agent


def listed_in(agent, monkeypatch, after=10.0):
    """Folders that the next look lists."""
    seen, real = [], os.scandir
    monkeypatch.setattr(folders.os, "scandir", lambda folder: seen.append(folder) or real(folder))
    agent.look(after=after)
    monkeypatch.undo()
    return seen


def test_a_quiet_look_lists_no_folder_and_writes_nothing(agent, jobs, monkeypatch):
    before = os.stat(agent.state).st_mtime_ns
    assert listed_in(agent, monkeypatch) == []
    assert os.stat(agent.state).st_mtime_ns == before


def test_a_new_dump_is_found_by_the_next_look_and_only_its_folder_is_listed(agent, jobs, monkeypatch):
    finished(write_torch(jobs / "job1", rank=1))
    listed = set(listed_in(agent, monkeypatch))
    assert listed & {str(jobs), *(str(path) for path in jobs.iterdir())} == {str(jobs / "job1")}
    assert [row["state"] for row in agent.spool.dumps.values()] == ["sent"] * 4


def test_a_dump_in_a_new_folder_deep_below_is_found(agent, jobs):
    (jobs / "job2" / "later").mkdir()
    agent.look(after=10)
    finished(write_torch(jobs / "job2" / "later" / "rank_3", rank=3))
    assert agent.look(after=10) == 1


def test_a_folder_that_becomes_a_dump_is_one(agent, jobs):
    (jobs / "job2" / "loose").mkdir()
    for _ in range(3):
        agent.look(after=10)
    write(jobs / "job2" / "loose" / "kernel_details.csv", "Name\n")
    write(jobs / "job2" / "loose" / "profiler_info_5.json", "{}")
    agent.look(after=10)
    assert agent.look(after=121) == 1


def test_where_folders_keep_no_time_a_dump_is_found_within_five_minutes(agent, jobs):
    """As some object stores do, when they are mounted."""
    stat = os.stat(str(jobs / "job1"))
    finished(write_torch(jobs / "job1", rank=1))
    os.utime(str(jobs / "job1"), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert agent.look(after=10) == 0
    assert agent.look(after=LISTED_S + SPREAD_S) == 1
    assert LISTED_S + SPREAD_S <= 5 * MINUTE


def test_a_second_change_within_one_tick_of_a_coarse_clock_is_found(agent, jobs):
    os.utime(str(jobs / "job1"), (5000, 5000))  # something changed in it ...
    assert agent.look(after=10) == 0
    finished(write_torch(jobs / "job1", rank=1))
    os.utime(str(jobs / "job1"), (5000, 5000))  # ... and again, in the same second
    assert agent.look(after=3) == 1


def test_what_was_skipped_is_looked_at_again_within_a_minute_however_many_there_are(tmp_path, server, monkeypatch):
    monkeypatch.setattr(ground, "PARKED_EACH_LOOK", 1)
    for number in range(12):
        write(tmp_path / "jobs" / ("host01_%d_20260101120000123_ascend_pt" % number) / "PROF_1_A" / "x", "x")
    agent = Agent(tmp_path / "jobs", server, quiet_s=1.0)
    agent.look()
    agent.look(after=10)
    signs = []
    real = discover.results_sign
    monkeypatch.setattr("stepscope_agent.watch.results_sign", lambda root: signs.append(root) or real(root))
    for _ in range(6):
        agent.look(after=10)
    assert sorted(agent.states().values()) == ["skipped"] * 12
    assert len(signs) == 12
    assert len(set(signs)) == 12


def test_dumps_that_are_gone_are_forgotten_everywhere(agent, jobs):
    shutil.rmtree(str(jobs / "job0"))
    shutil.rmtree(str(jobs / "job1"))
    for _ in range(3):
        agent.look(after=LISTED_S + SPREAD_S)
    assert len(agent.spool.dumps) == 1
    assert set(agent.watcher.folders._places) - {str(jobs / ".agent")} == {str(jobs), str(jobs / "job2")}
    assert set(agent.watcher.ground._plain) == {str(jobs), str(jobs / "job2")}
    assert agent.watcher._quiet == {}


def test_a_folder_that_is_mounted_late_is_found(tmp_path, server):
    agent = Agent(tmp_path / "later", server)
    for _ in range(3):
        assert agent.look(after=30) == 0
    finished(write_torch(tmp_path / "later" / "job", rank=0))
    assert agent.look(after=10) == 1


def test_a_row_that_arrived_keeps_what_is_needed_later_alone(tmp_path):
    kept = spool.Spool(str(tmp_path / "watch.json"))
    kept.put("/a", spool.WAITING, seen=[1, 2, 3], seen_at=5, request=None)
    kept.put("/a", spool.SENT, capture="step-1", url="u", error=None)
    kept.save()
    again = spool.Spool(str(tmp_path / "watch.json"))
    assert set(again.dumps["/a"]) == {"state", "since", "capture", "url"}
    assert again.dumps == kept.dumps


def test_statuses_of_trainings_that_ended_are_read_once(agent, jobs, monkeypatch):
    from stepscope_agent import activity

    for rank in range(4):
        status = {"run": "r", "rank": rank, "step": 9, "pid": 1, "ended": True}
        write(jobs / "job0" / ("stepscope_status_rank_%d.json" % rank), status)
    agent.look(after=31)
    read, real = [], activity.read_json
    monkeypatch.setattr(activity, "read_json", lambda path: read.append(path) or real(path))
    agent.look(after=31)
    assert read == []
    write(jobs / "job0" / "stepscope_status_rank_2.json", {"run": "r", "step": 10, "pid": 2, "at": time.time()})
    agent.look(after=31)
    assert [os.path.basename(path) for path in read] == ["stepscope_status_rank_2.json"]


def test_folders_without_end_end_nothing(tmp_path, server):
    """A broken file system shows a folder in itself."""
    finished(write_torch(tmp_path / "jobs", rank=0))
    os.makedirs(str(tmp_path / "jobs" / "a"))
    here = os.getcwd()
    try:
        os.chdir(str(tmp_path / "jobs" / "a"))
        for _ in range(1500):  # longer than a path may be
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.chdir(here)
    try:
        assert Agent(tmp_path / "jobs", server).look() == 1
        assert len(discover.find_dumps(str(tmp_path / "jobs"))) == 1
    finally:
        # pytest removes what tests left by recursion, which ends at a thousand folders
        subprocess.run(["rm", "-rf", str(tmp_path / "jobs" / "a")], check=True)
