"""Ranks of one window on several hosts come under one capture key, though hosts cannot talk and clocks differ."""

from __future__ import annotations

import os
import shutil

from stepscope_agent.captures import Windows, capture_keys
from stepscope_agent.discover import find_dumps
from stepscope_agent.watch import MOST_TRIES

from agent_dumps import write, write_torch
from test_watch import Agent

HOUR = 1 * 10**7  # in the digits of a folder's time


def write_rank(folder, rank, stamp, steps=(50, 52), world_size=4):
    info = {"rank_id": rank, "config": {}}
    root = write_torch(folder, rank=rank, stamp=str(stamp), info=info)
    write(os.path.join(root, "profiler_metadata.json"), {"distributed_args": {"rank": rank, "world_size": world_size}})
    rows = "".join(",%d,%d.5\n" % (step, rank + 1) for step in range(steps[0], steps[1] + 1))
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "step_trace_time.csv"), "Device_id,Step,Computing\n" + rows)
    return root


def write_host(folder, ranks, stamp, **more):
    for rank in ranks:
        root = write_rank(folder / "job", rank, stamp + rank, **more)
        write(
            os.path.join(root, ".complete.json"), {"schema": 1, "state": "complete"}
        )  # whole; of its steps it says nothing


def hosts(tmp_path, server):
    """Two hosts with folders and states of their own; the second's clock is an hour ahead."""
    return [Agent(tmp_path / name, server, run="r", state=str(tmp_path / name / "state")) for name in ("one", "two")]


def sent(server):
    captures = {}
    for dump in server.state.dumps.values():
        captures.setdefault(dump["capture"], []).append(dump["rank"])
    return {key: sorted(ranks) for key, ranks in captures.items()}


def test_a_window_on_two_hosts_is_one_capture(tmp_path, server):
    write_host(tmp_path / "one", (0, 1), 20260101120000123)
    write_host(tmp_path / "two", (2, 3), 20260101120000123 + HOUR)
    for agent in hosts(tmp_path, server):
        agent.look()
    assert sent(server) == {"profiler-step-50-52": [0, 1, 2, 3]}


def test_later_windows_are_other_captures_on_both(tmp_path, server):
    agents = hosts(tmp_path, server)
    for number, steps in enumerate([(50, 52), (50, 52), (90, 92)]):  # the second profiler counts from the same step
        write_host(tmp_path / "one", (0, 1), 20260101120000123 + number * HOUR, steps=steps)
        write_host(tmp_path / "two", (2, 3), 20260101120000123 + (number + 1) * HOUR, steps=steps)
        for agent in agents:
            agent.look()
            agent.restart()
    whole = [0, 1, 2, 3]
    assert sent(server) == {
        "profiler-step-50-52": whole, "profiler-step-50-52-2": whole, "profiler-step-90-92": whole,
    }  # fmt: skip


def test_a_rank_that_lost_a_window_does_not_count_on_from_a_lower_number(tmp_path, server):
    """Rank 1 crashed in the first window, ranks 2 and 3 of the other host did not; rank 0 lost the third."""
    agents = hosts(tmp_path, server)
    for number, here in enumerate([(0,), (0, 1), (1,), (0, 1)]):
        write_host(tmp_path / "one", here, 20260101120000123 + number * HOUR)
        write_host(tmp_path / "two", (2, 3), 20260101120000123 + (number + 1) * HOUR)
        for agent in agents:
            agent.look()
            agent.restart()
    name = "profiler-step-50-52"
    assert sent(server) == {
        name: [0, 2, 3], name + "-2": [0, 1, 2, 3], name + "-3": [1, 2, 3], name + "-4": [0, 1, 2, 3],
    }  # fmt: skip


def test_what_an_earlier_agent_counted_is_counted_on(tmp_path, server):
    write(tmp_path / "one" / "state" / "windows.json", {"r 0 50-52": ["20260101110000123"]})
    (agent, _) = hosts(tmp_path, server)
    write_host(tmp_path / "one", (0,), 20260101120000123)
    agent.look()
    assert sorted(sent(server)) == ["profiler-step-50-52-2"]


def test_windows_are_counted_on_when_older_dumps_are_gone(tmp_path, server):
    (agent, _) = hosts(tmp_path, server)
    write_host(tmp_path / "one", (0,), 20260101120000123)
    agent.look()
    shutil.rmtree(str(tmp_path / "one" / "job"))
    agent.look()
    agent.restart()
    write_host(tmp_path / "one", (0,), 20260101130000123)
    agent.look()
    assert sorted(sent(server)) == ["profiler-step-50-52", "profiler-step-50-52-2"]


def test_uploads_by_hand_on_two_hosts_meet_too(run_agent, tmp_path, server, monkeypatch):
    for day in (1, 2):
        for name, ranks, ahead in (("one", (0, 1), 0), ("two", (2, 3), HOUR)):
            folder = tmp_path / ("%s-%d" % (name, day))
            write_host(folder, ranks, 20260101120000123 + day * 10**9 + ahead)
            monkeypatch.setenv("STEPSCOPE_STATE", str(tmp_path / ("state-" + name)))
            assert run_agent("upload", str(folder), "--run", "nightly")[0] == 0
            assert run_agent("upload", str(folder), "--run", "nightly")[0] == 0  # again: nothing new
    whole = [0, 1, 2, 3]
    assert sent(server) == {"profiler-step-50-52": whole, "profiler-step-50-52-2": whole}


def test_a_job_that_is_whole_on_this_host_keeps_its_time(tmp_path):
    write_host(tmp_path, (0, 1), 20260101120000123, world_size=2)
    dumps = find_dumps(str(tmp_path))
    counts = Windows(str(tmp_path / "windows.json")).counts(dumps, lambda dump: "r")
    assert set(capture_keys(dumps, counts=counts).values()) == {"20260101120000123"}


def test_a_second_agent_on_a_shared_folder_goes_on_with_the_firsts_key(tmp_path, server):
    shared = tmp_path / "shared"
    agents = [Agent(shared, server, run="r", state=str(tmp_path / name)) for name in ("a", "b")]
    for number, agent in enumerate(agents):
        agent.state = str(tmp_path / ("state-%d" % number) / "watch.json")
        agent.restart()
    write_host(shared, (0, 1, 2), 20260101120000123)
    agents[0].look()
    write_host(shared, (3,), 20260101120000123)  # and now the folder shows all ranks
    agents[1].look()
    assert sent(server) == {"profiler-step-50-52": [0, 1, 2, 3]}


def write_whole_host(folder, name, mark):
    """A host of two devices recorded at once, in whose files no rank is told."""
    for device in (0, 1):
        table = folder / name / "PROF_1_A" / ("device_%d" % device) / "timeline" / "step_trace.csv"
        write(table, "Iteration\n%s\n" % mark)
    write(folder / name / "mindstudio_profiler_output" / "op_summary_20260101.csv", "Device_id,Op Name\n0,%s\n" % mark)


def test_a_second_host_whose_dump_tells_no_rank_hears_the_cure_and_its_dump_arrives_with_it(tmp_path, server):
    agents = hosts(tmp_path, server)
    for name, agent in zip(("one", "two"), agents):
        write_whole_host(tmp_path / name, "profile", name)
        agent.look()
        agent.look(after=121)
    assert sent(server) == {"profile": [0]}
    (row,) = agents[1].spool.dumps.values()
    assert row["state"] == "failed"
    assert "name the folder on each after its first rank, such as rank_0 and rank_8" in row["error"]
    os.rename(str(tmp_path / "two" / "profile"), str(tmp_path / "two" / "rank_2"))
    agents[1].look(after=10)
    agents[1].look(after=121)
    assert [dump["rank"] for dump in server.state.dumps.values()] == [0, 2]
    assert [row["state"] for row in agents[1].spool.dumps.values()] == ["sent"]


def test_a_second_host_is_not_tried_for_ever(tmp_path, server):
    agents = hosts(tmp_path, server)
    for name, agent in zip(("one", "two"), agents):
        write_whole_host(tmp_path / name, "profile", name)
        agent.look()
        agent.look(after=121)
    announced = server.state.count("POST", "/dumps$")
    for _ in range(12):
        for row in agents[1].spool.dumps.values():
            row["again_at"] = 0  # an hour has passed
        agents[1].look(after=3600)
        agents[1].look(after=121)
    assert server.state.count("POST", "/dumps$") == announced + MOST_TRIES - 1


def test_uploads_by_hand_of_two_such_hosts_hear_the_cure(run_agent, tmp_path):
    for name, code in (("one", 0), ("two", 4)):
        write_whole_host(tmp_path / name, "profile", name)
        done = run_agent("upload", str(tmp_path / name), "--run", "r", "--capture", "job")
        assert done[0] == code
    assert "such as rank_0 and rank_8" in done[2]
