from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time

import pytest
from stepscope_agent import claims, watch
from stepscope_agent.manifest import HashCache
from stepscope_agent.spool import Spool
from stepscope_agent.tail import Tail
from stepscope_agent.transport import Transport
from stepscope_agent.watch import Plan, Watcher

from agent_double import TOKEN, Server
from agent_dumps import write, write_torch


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Agent:
    """A watching agent whose clock the test moves; each `restart` begins with what is on disk."""

    def __init__(self, tmp_path, server, **plan):
        self.folder, self.server, self.more = tmp_path, server, plan
        self.clock, self.said = Clock(), []
        self.state = str(tmp_path / ".agent" / "watch.json")
        self.restart()

    def restart(self):
        plan = {"folders": [str(self.folder)], "server": self.server.url, "project": "demo", "run": "r"}
        plan["state"] = os.path.dirname(self.state)
        plan.update(self.more)
        self.spool = Spool(self.state)
        self.http = Transport(self.server.url, TOKEN, retry_for=1.0, clock=self.clock, sleep=self.clock.sleep)
        cache = HashCache(self.state + ".hashes")
        clocks = {"clock": self.clock, "wall": self.clock}
        self.watcher = Watcher(Plan(**plan), self.http, self.spool, cache, self.said.append, **clocks)

    def look(self, after=0.0):
        self.clock.now += after
        try:
            return self.watcher.once()
        finally:
            self.http.close()

    def states(self):
        return {os.path.basename(root): row["state"] for root, row in self.spool.dumps.items()}


@pytest.fixture
def agent(tmp_path, server):
    return Agent(tmp_path, server)


def finished(root, first=100, state="complete"):
    write(os.path.join(root, ".complete.json"), {"schema": 1, "state": state, "first_step": first, "last_step": first})


def test_a_marked_dump_is_sent_at_once(agent, server, tmp_path):
    finished(write_torch(tmp_path, rank=0))
    assert agent.look() == 1
    assert [(d["capture"], d["state"]) for d in server.state.dumps.values()] == [("step-100", "uploaded")]


def test_a_window_recorded_again_after_a_restart_of_the_training_is_a_capture_of_its_own(agent, server, tmp_path):
    """It crashed at step 130, went on from the checkpoint of step 50, and came to step 100 again; first dumps may be gone."""
    window, stamps = tmp_path / "step_100_102", ["20260101120000123", "20260101130000123", "20260101140000123"]
    for rank in (0, 1):
        finished(write_torch(window, rank=rank, stamp=stamps[0]))
    agent.look()
    for rank in (0, 1):
        finished(write_torch(window, rank=rank, stamp=stamps[1]))
    agent.look()
    shutil.rmtree(str(window))
    agent.restart()
    for rank in (0, 1):
        finished(write_torch(window, rank=rank, stamp=stamps[2]))
    agent.look()
    sent = [(dump["rank"], dump["capture"]) for dump in server.state.dumps.values()]
    assert sorted(sent) == [(rank, "step-100" + which) for rank in (0, 1) for which in ("", "-2", "-3")]


def test_a_dump_without_marker_has_to_rest(agent, server, tmp_path):
    root = write_torch(tmp_path, rank=0)
    assert agent.look() == 0
    assert agent.look(after=100) == 0
    with open(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv"), "a") as stream:
        stream.write("one more row\n")
    assert agent.look(after=100) == 0  # it was written to: the rest begins anew
    assert agent.look(after=119) == 0
    assert agent.look(after=2) == 1


def test_a_dump_rests_over_agents_that_look_once_each(agent, server, tmp_path):
    """As cron starts them: each begins with what the one before it saw."""
    root = write_torch(tmp_path, rank=0)
    agent.look()
    agent.restart()
    assert agent.look(after=100) == 0
    with open(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv"), "a") as stream:
        stream.write("one more row\n")
    agent.restart()
    assert agent.look(after=100) == 0
    agent.restart()
    assert agent.look(after=119) == 0
    agent.restart()
    assert agent.look(after=2) == 1


def test_a_clock_set_back_between_two_agents_lets_a_dump_rest_anew(agent, tmp_path):
    write_torch(tmp_path, rank=0)
    agent.look()
    agent.restart()
    agent.watcher.wall = lambda: agent.clock() - 3600
    assert agent.look() == 0
    assert agent.look(after=119) == 0
    assert agent.look(after=2) == 1


def test_the_end_of_the_profilers_log_shortens_the_rest(agent, tmp_path):
    root = write_torch(tmp_path, rank=0)
    write(os.path.join(root, "logs", "profiler_1.log"), "[INFO] TaskManager flow [cann_flow] [pid: 7] join\n")
    agent.look()
    assert agent.look(after=16) == 1


def test_a_clock_that_is_wrong_by_an_hour_does_not_matter(agent, tmp_path):
    root = write_torch(tmp_path, rank=0)
    for name in ("kernel_details.csv", "step_trace_time.csv"):
        ahead = time.time() + 3600
        os.utime(os.path.join(root, "ASCEND_PROFILER_OUTPUT", name), (ahead, ahead))
    agent.look()
    assert agent.look(after=121) == 1


def test_what_was_sent_is_not_sent_again_after_a_restart(agent, server, tmp_path):
    finished(write_torch(tmp_path, rank=0))
    agent.look()
    calls = len(server.state.calls)
    agent.restart()
    assert agent.look() == 0
    assert [path for _, path, _ in server.state.calls[calls:] if not path.endswith("/agents")] == []


def test_two_agents_on_one_folder_send_a_dump_once(agent, server, tmp_path):
    other = Agent(tmp_path, server)
    other.state = str(tmp_path / ".other" / "watch.json")
    other.restart()
    finished(write_torch(tmp_path, rank=0))
    assert (agent.look(), other.look()) == (1, 0)
    assert other.states() == {"host01_4242_20260101120000123_ascend_pt": "sent"}
    assert server.state.count("POST", "/complete") == 1


def test_a_dump_another_agent_is_sending_is_left_alone(agent, tmp_path):
    root = write_torch(tmp_path, rank=0)
    finished(root)
    assert claims.claim(root, agent.server.url, "demo", owner="otherhost:77:abc")
    assert agent.look() == 0
    assert agent.states() == {os.path.basename(root): "waiting"}


def test_the_claim_of_an_agent_that_died_is_taken_over(agent, tmp_path):
    root = write_torch(tmp_path, rank=0)
    finished(root)
    claims.claim(root, agent.server.url, "demo", owner="otherhost:77:abc")
    old = time.time() - claims.STALE_S - 60
    os.utime(os.path.join(root, claims.CLAIM), (old, old))
    assert agent.look() == 1


def test_the_claim_of_a_dead_process_of_this_host_is_taken_over_at_once(agent, tmp_path):
    root = write_torch(tmp_path, rank=0)
    finished(root)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    claims.claim(root, agent.server.url, "demo", owner="%s:%d:abc" % (socket.gethostname(), gone.pid))
    assert agent.look() == 1


def test_word_of_another_server_does_not_hold_a_dump_back(agent, tmp_path):
    root = write_torch(tmp_path, rank=0)
    finished(root)
    claims.mark_sent(root, "https://elsewhere.example", "demo", "r", "step-1")
    assert agent.look() == 1


def test_an_outage_of_hours_loses_nothing(agent, server, tmp_path):
    finished(write_torch(tmp_path, rank=0))
    server.state.fail("POST", "/projects", status=503, times=10000)
    waits = []
    for _ in range(12):
        assert agent.look() == 0
        waits.append(agent.watcher._not_before - agent.clock.now)
        agent.clock.now = agent.watcher._not_before
    assert all(wait <= 600 for wait in waits)
    assert waits[-1] >= 300
    assert "503" in agent.spool.agent["trouble"]
    server.state.faults.clear()
    assert agent.look() == 1
    assert "trouble" not in agent.spool.agent


def test_a_killed_upload_goes_on_after_a_restart(agent, server, tmp_path):
    root = write_torch(tmp_path, rank=0)
    content = b"0123456789abcdef" * 500000
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "memory_record.csv"), content)
    finished(root)
    server.state.fail("POST", "/complete", status=503, times=10000)
    assert agent.look() == 0
    sent = server.state.patched
    server.state.faults.clear()
    agent.restart()
    assert agent.look(after=600) == 1
    assert server.state.patched == sent


def test_a_revoked_token_stops_the_pass_and_is_told(agent, server, tmp_path):
    for rank in range(3):
        finished(write_torch(tmp_path, rank=rank))
    server.state.fail("POST", "/projects", status=401, times=100)
    assert agent.look() == 0
    assert server.state.count("POST", "/projects") == 1
    assert agent.spool.agent["trouble"]
    for _ in range(8):
        agent.look(after=700)
    server.state.faults.clear()
    assert agent.look(after=700) == 3  # with a new token all go, none was given up


def test_a_refused_dump_does_not_hold_up_the_others(agent, server, tmp_path):
    for rank in range(2):
        finished(write_torch(tmp_path, rank=rank))
    server.state.fail("POST", "/runs/17/dumps", status=413)
    assert agent.look() == 1
    assert sorted(agent.states().values()) == ["failed", "sent"]
    assert agent.look(after=10) == 0  # an hour later it is tried again


def test_raw_dumps_are_named_once(agent, tmp_path):
    write(tmp_path / "host01_1_20260101120000123_ascend_ms" / "PROF_1_A" / "device_0" / "x.data", "x")
    agent.look()
    agent.look()
    assert list(agent.states().values()) == ["skipped"]
    assert len(agent.said) == 1
    root, _, advice = agent.said[0].partition(": collected but not analysed: ")
    words = shlex.split(advice.partition("by hand on this host: ")[2])  # as a shell takes it
    assert (words[:2], words[3]) == (["python", "-c"], root)
    compile(words[2], "advice", "exec")


def test_raw_dumps_are_looked_into_again_only_when_somebody_analysed_them(agent, server, tmp_path, monkeypatch):
    root = tmp_path / "host01_1_20260101120000123_ascend_ms"
    write(root / "PROF_1_A" / "device_0" / "x.data", "x")
    write(root / "profiler_info_0.json", "{}")
    agent.look()
    looked = []
    monkeypatch.setattr(watch, "described", lambda dump, now: looked.append(dump.root))
    agent.look(after=10)
    assert looked == []
    monkeypatch.undo()
    write(root / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv", "Name\n")
    agent.look(after=10)
    assert agent.look(after=121) == 1


def test_raw_dumps_named_before_are_analysed_once_that_is_asked_for(tmp_path, server):
    write_raw(tmp_path)
    agent = analysing(tmp_path, server, "os.mkdir(out); open(out + '/kernel_details.csv', 'w').write('Name')")
    agent.more["analyse"] = False
    agent.restart()
    agent.look()
    assert list(agent.states().values()) == ["skipped"]
    agent.more["analyse"] = True
    agent.restart()
    agent.look()
    agent.watcher.finish_analyses()
    agent.http.close()
    assert list(agent.states().values()) == ["sent"]


def test_a_dump_deleted_meanwhile_is_forgotten(agent, server, tmp_path):
    root = write_torch(tmp_path, rank=0)
    agent.look()
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    assert agent.look(after=500) == 0
    assert agent.spool.dumps == {}


def test_late_ranks_join_the_capture_of_the_first(agent, server, tmp_path):
    write_torch(tmp_path, rank=0, stamp="20260101120000500")
    agent.look()
    agent.look(after=121)
    write_torch(tmp_path, rank=1, stamp="20260101120000400")  # earlier by its own host's clock
    agent.look()
    agent.look(after=121)
    assert {dump["capture"] for dump in server.state.dumps.values()} == {"20260101120000500"}


@pytest.mark.parametrize(
    ("below", "run"),
    [("job7/profiles", "job7"), ("job7", "job7"), ("step_100_102", "watched"), (".", "watched")],
)
def test_without_a_name_the_folder_below_the_watched_one_is_the_run(tmp_path, server, below, run):
    agent = Agent(tmp_path / "watched", server, run=None)
    finished(write_torch(tmp_path / "watched" / below, rank=0))
    assert agent.look() == 1
    assert list(server.state.runs) == [run]


def test_the_callbacks_run_name_is_taken(tmp_path, server):
    agent = Agent(tmp_path, server, run=None)
    root = write_torch(tmp_path / "x", rank=0)
    write(os.path.join(root, "stepscope_run.json"), {"run": "Llama2 7B"})
    finished(root)
    agent.look()
    assert list(server.state.runs) == ["Llama2-7B"]


def test_logs_are_followed(tmp_path, server):
    log = write(tmp_path / "worker_0.log", "step 1/25, loss: 2.5\nstep 2/25, lo")
    agent = Agent(tmp_path, server, logs=[str(tmp_path / "worker_*.log")])
    agent.look()
    assert sorted(server.state.steps["log"]) == [1]
    with open(log, "a") as stream:
        stream.write("ss: 2.25\nstep 3/25, loss: 2.0\n")
    agent.restart()
    agent.look()
    assert server.state.steps["log"] == {n: {"step": n, "loss": 2.75 - n / 4.0} for n in (1, 2, 3)}
    assert server.state.count("POST", "/steps") == 2


def test_records_of_the_callback_are_followed(tmp_path, server):
    for rank in (0, 1):
        write(tmp_path / "job7" / ("stepscope_steps_rank_%d.jsonl" % rank), '{"step":1,"loss":%d.5}\n' % rank)
    agent = Agent(tmp_path, server, run=None)
    agent.look()
    assert server.state.steps["callback"] == {1: {"step": 1, "loss": 0.5}}
    assert list(server.state.runs) == ["job7"]


def test_records_in_a_folder_of_one_rank_are_of_the_run_around_it(tmp_path, server):
    write(tmp_path / "job7" / "rank_0" / "stepscope_steps_rank_0.jsonl", '{"step":1,"loss":0.5}\n')
    Agent(tmp_path / "job7", server, run=None).look()
    assert list(server.state.runs) == ["job7"]


def test_records_of_the_rank_that_knows_the_loss_are_followed(tmp_path, server):
    """With pipeline stages the first rank never learns it."""
    for rank, loss in ((0, ""), (1, ""), (2, ',"loss":2.5'), (3, ',"loss":3.5')):
        write(tmp_path / "job7" / ("stepscope_steps_rank_%d.jsonl" % rank), '{"step":1,"step_time_ms":5%s}\n' % loss)
    Agent(tmp_path, server, run=None).look()
    assert server.state.steps["callback"] == {1: {"step": 1, "step_time_ms": 5, "loss": 2.5}}


def test_refused_dumps_are_not_even_looked_into_until_it_is_time(agent, server, tmp_path, monkeypatch):
    for rank in range(3):
        finished(write_torch(tmp_path, rank=rank))
    server.state.fail("POST", "/dumps$", status=413, times=3)
    assert agent.look() == 0
    looked = []
    monkeypatch.setattr(watch, "described", lambda dump, now: looked.append(dump.root))
    for _ in range(3):
        agent.look(after=10)
    assert looked == []
    monkeypatch.undo()
    for row in agent.spool.dumps.values():
        row["again_at"] = 0
    assert agent.look() == 3


def test_a_dump_refused_five_times_is_left_for_good(agent, server, tmp_path):
    finished(write_torch(tmp_path, rank=0))
    server.state.fail("POST", "/dumps$", status=413, times=100)
    for _ in range(8):
        for row in agent.spool.dumps.values():
            row["again_at"] = 0
        agent.look()
    assert server.state.count("POST", "/dumps$") == 5


def test_a_refused_dump_that_is_made_anew_is_tried_at_once(agent, server, tmp_path):
    root = write_torch(tmp_path, rank=0)
    finished(root)
    server.state.fail("POST", "/dumps$", status=413, times=5)
    for _ in range(6):
        for row in agent.spool.dumps.values():
            row["again_at"] = 0
        agent.look()
    assert agent.states() == {os.path.basename(root): "failed"}  # for good
    os.unlink(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "step_trace_time.csv"))
    assert agent.look() == 1


def test_records_go_to_the_run_the_callback_was_told(tmp_path, server):
    write(tmp_path / "job7" / "stepscope_steps_rank_0.jsonl", '{"step":1,"loss":0.5}\n')
    write(tmp_path / "job7" / "stepscope_run.json", {"schema": 1, "run": "Llama2 7B"})
    Agent(tmp_path, server, run=None).look()
    assert list(server.state.runs) == ["Llama2-7B"]


def test_records_are_sent_again_when_they_did_not_arrive(tmp_path, server):
    write(tmp_path / "worker_0.log", "step 1/25, loss: 2.5\n")
    agent = Agent(tmp_path, server, logs=[str(tmp_path / "worker_0.log")])
    server.state.fail("POST", "/steps", status=500, times=10000)
    agent.look()
    server.state.faults.clear()
    agent.look(after=601)
    assert server.state.steps["log"] == {1: {"step": 1, "loss": 2.5}}


def test_a_record_the_server_refuses_is_left_out_and_told(tmp_path, server):
    log = write(tmp_path / "worker_0.log", "".join("step %d/25, loss: 2.5\n" % step for step in range(1, 9)))
    agent = Agent(tmp_path, server, logs=[log])
    server.state.bad_steps = {5}
    agent.look()
    assert sorted(server.state.steps["log"]) == [1, 2, 3, 4, 6, 7, 8]
    assert [text for text in agent.said if "step 5 is left out" in text]
    assert "trouble" not in agent.spool.agent


def test_a_log_the_server_refuses_holds_up_nothing_and_is_tried_again(tmp_path, server):
    log = write(tmp_path / "worker_0.log", "step 1/25, loss: 2.5\n")
    finished(write_torch(tmp_path, rank=0))
    agent = Agent(tmp_path, server, logs=[log])
    server.state.fail("POST", "/steps", status=413)
    assert agent.look() == 1
    assert "made-up trouble" in agent.spool.logs[log]["error"]
    agent.look(after=10)
    assert server.state.count("POST", "/steps") == 1
    agent.spool.logs[log]["again_at"] = time.time() + 7200  # the clock was an hour ahead then
    agent.look()
    assert sorted(server.state.steps["log"]) == [1]
    assert "error" not in agent.spool.logs[log]


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_run_the_server_refuses_holds_up_no_other(tmp_path, server, status):
    agent = Agent(tmp_path, server, run=None)
    for name in ("a", "b"):
        finished(write_torch(tmp_path / name, rank=0))
    server.state.fail("POST", "/runs$", status=status)
    assert agent.look() == 1
    assert sorted(row["state"] for row in agent.spool.dumps.values()) == ["failed", "sent"]
    assert "trouble" not in agent.spool.agent


def test_a_packed_log_is_named_and_not_followed(tmp_path, server):
    write(tmp_path / "worker_0.log.1.gz", gzip.compress(b"step 1/25, loss: 2.5\n"))
    agent = Agent(tmp_path, server, logs=[str(tmp_path / "worker_0.log*")])
    agent.look()
    assert server.state.steps == {} and "is packed" in agent.said[0]


def tail_of(path, row):
    tail = Tail(str(path), row)
    records = [record["step"] for record in tail.read()]
    tail.keep()
    return records


def test_a_rotated_log_is_read_from_its_beginning(tmp_path):
    path, row = tmp_path / "a.log", {}
    write(path, "step 1/9, loss: 1.0\nstep 2/9, loss: 1.0\n")
    assert tail_of(path, row) == [1, 2]
    os.rename(str(path), str(path) + ".1")
    write(path, "step 3/9, loss: 1.0\n")
    assert tail_of(path, row) == [3]


def test_what_was_added_before_a_rotation_is_not_lost(tmp_path):
    path, row = tmp_path / "a.log", {}
    write(path, "step 1/9, loss: 1.0\n")
    assert tail_of(path, row) == [1]
    with open(str(path), "a") as stream:
        stream.write("step 2/9, loss: 1.0\nstep 3/9, loss: 1.0")
    os.rename(str(path), str(path) + ".1")
    write(path, "step 4/9, loss: 1.0\n")
    assert tail_of(path, row) == [2, 3]
    assert tail_of(path, row) == [4]
    assert tail_of(path, row) == []


def test_a_line_of_megabytes_and_one_without_an_end_stop_nothing(tmp_path, server):
    log = write(tmp_path / "a.log", "x" * 10_000_000 + "\nstep 1/9, loss: 1.0\nstep 2/9, loss:")
    agent = Agent(tmp_path, server, logs=[log])
    agent.look()
    assert sorted(server.state.steps["log"]) == [1]
    with open(log, "a") as stream:
        stream.write(" 2.0\n")
    agent.look()
    assert sorted(server.state.steps["log"]) == [1, 2]


def test_megabytes_without_a_step_do_not_keep_a_log_waiting(tmp_path, server):
    log = write(tmp_path / "a.log", "nothing of interest here\n" * 500_000 + "step 1/9, loss: 1.0\n")
    agent = Agent(tmp_path, server, logs=[log])
    agent.look()
    while agent.spool.logs[log]["offset"] < os.path.getsize(log):  # on a busy machine one look may not get to the end
        agent.look()
    assert sorted(server.state.steps["log"]) == [1]


def test_a_truncated_log_is_read_from_its_beginning(tmp_path):
    path, row = tmp_path / "a.log", {}
    write(path, "step 1/9, loss: 1.0\nstep 2/9, loss: 1.0\n")
    assert tail_of(path, row) == [1, 2]
    write(path, "step 1/9, loss: 3.0\n")
    assert tail_of(path, row) == [1]


def test_epochs_are_counted_on_over_a_restart(tmp_path):
    path, row = tmp_path / "a.log", {}
    write(path, "epoch: 1 step: 12, loss is 4.5\n")
    assert tail_of(path, row) == [12]
    with open(str(path), "a") as stream:
        stream.write("epoch: 2 step: 3, loss is 4.1\n")
    assert tail_of(path, json.loads(json.dumps(row))) == [15]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"dumps": {"/x": 3}, "logs": [], "agent": 1}', b"\xff"])
def test_a_spoilt_spool_begins_anew(tmp_path, content):
    spool = Spool(write(tmp_path / "watch.json", content))
    assert (spool.dumps, spool.logs, spool.agent) == ({}, {}, {})


def test_watch_once_and_status_on_the_command_line(run_agent, server, tmp_path, monkeypatch, capfd):
    from stepscope_agent.cli import main

    monkeypatch.setattr(watch, "step_down", lambda: None)  # the priority would stay low for the other tests
    root = write_torch(tmp_path / "jobs", rank=0)
    finished(root)
    server_options = ["--server", server.url, "--token", TOKEN, "--project", "demo", "--once"]
    assert main(["watch", str(tmp_path / "jobs")] + server_options) == 0
    capfd.readouterr()
    assert main(["status"]) == 0
    out = capfd.readouterr().out
    assert "sent     %s  %s/captures/1/" % (root, server.url) in out
    assert "1 sent" in out
    assert main(["status", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["counts"] == {"sent": 1}


def test_sigkill_in_the_middle_loses_nothing(server, tmp_path):
    """A real process is killed while it sends; the next one finishes the dump."""
    import stepscope_agent

    root = write_torch(tmp_path / "jobs", rank=0)
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "memory_record.csv"), os.urandom(16000000))
    finished(root)
    path = os.path.dirname(os.path.dirname(stepscope_agent.__file__))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "STEPSCOPE_STATE": str(tmp_path / "state")}
    env.update(STEPSCOPE_SERVER=server.url, STEPSCOPE_TOKEN=TOKEN, STEPSCOPE_PROJECT="demo")
    command = [sys.executable, "-m", "stepscope_agent", "watch", str(tmp_path / "jobs"), "--every", "0.2"]
    first = subprocess.Popen(command + ["--limit-rate", "8"], env=env, stderr=subprocess.DEVNULL)
    deadline = time.time() + 30
    while server.state.patched < 4000000 and time.time() < deadline:
        time.sleep(0.02)
    first.kill()
    first.wait()
    assert not any(dump["state"] == "uploaded" for dump in server.state.dumps.values())
    done = subprocess.run(command + ["--once"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [dump["state"] for dump in server.state.dumps.values()] == ["uploaded"]
    total = sum(row["size"] for row in next(iter(server.state.dumps.values()))["files"])
    assert server.state.patched == total


def test_a_server_that_comes_back_elsewhere_is_another_server(tmp_path, server):
    finished(write_torch(tmp_path, rank=0))
    Agent(tmp_path, server).look()
    other = Server()
    try:
        agent = Agent(tmp_path, other)
        agent.state = str(tmp_path / ".other" / "watch.json")
        agent.restart()
        assert agent.look() == 1
    finally:
        other.stop()


def write_raw(tmp_path, marked=True):
    root = str(tmp_path / "jobs" / "host01_4242_20260101120000123_ascend_ms")
    write(os.path.join(root, "PROF_1_A", "device_0", "x.data"), "x")
    write(os.path.join(root, "profiler_info_0.json"), "{}")
    if marked:
        finished(root, state="raw")
    return root


def write_mindspore(tmp_path, body):
    """A Python in whose `mindspore` the analysis does `body`."""
    home = tmp_path / "site" / "mindspore" / "profiler"
    write(
        home / "profiler.py",
        "import os, sys, time\ndef analyse(path):\n    out = path + '/ASCEND_PROFILER_OUTPUT'\n    " + body,
    )
    write(tmp_path / "site" / "mindspore" / "__init__.py", "")
    write(home / "__init__.py", "")
    python = write(tmp_path / "python", '#!/bin/sh\nPYTHONPATH=%s exec %s "$@"\n' % (tmp_path / "site", sys.executable))
    os.chmod(python, 0o755)
    return python


def analysing(tmp_path, server, body, **more):
    plan = {"folders": [str(tmp_path / "jobs")], "analyse": True, "python": write_mindspore(tmp_path, body)}
    return Agent(tmp_path, server, state=str(tmp_path / "state"), **plan, **more)


def marker_of(root):
    with open(os.path.join(root, ".complete.json")) as stream:
        marker = json.load(stream)
    return marker["state"], marker["reason"]


def test_raw_dumps_are_analysed_and_then_sent(tmp_path, server):
    root = write_raw(tmp_path)
    agent = analysing(tmp_path, server, "os.mkdir(out); open(out + '/kernel_details.csv', 'w').write('Name')")
    assert agent.look() == 0
    agent.watcher.finish_analyses()
    agent.http.close()
    assert marker_of(root) == ("complete", None)
    assert [(d["capture"], d["state"]) for d in server.state.dumps.values()] == [("step-100", "uploaded")]


def test_an_analysis_that_fails_keeps_the_raw_data_and_says_why(tmp_path, server):
    root = write_raw(tmp_path)
    agent = analysing(tmp_path, server, "raise SystemExit('msprof is not on PATH')")
    agent.look()
    agent.watcher.finish_analyses()
    state, reason = marker_of(root)
    assert state == "failed"
    assert reason.endswith("msprof is not on PATH")
    assert os.path.exists(os.path.join(root, "PROF_1_A", "device_0", "x.data"))
    agent.look()
    assert list(agent.states().values()) == ["skipped"]
    assert server.state.dumps == {}


def test_an_analysis_past_its_time_is_ended(tmp_path, server):
    root = write_raw(tmp_path)
    agent = analysing(tmp_path, server, "time.sleep(600)", analyse_limit_s=0.5)
    agent.look()
    process = agent.watcher._analysis.process
    agent.watcher.finish_analyses()
    assert process.poll() is not None
    assert "was ended" in marker_of(root)[1]


def test_raw_data_still_being_collected_are_left_alone(tmp_path, server):
    write_raw(tmp_path, marked=False)
    agent = analysing(tmp_path, server, "os.mkdir(out)")
    agent.look()
    assert agent.watcher._analysis is None
    agent.look(after=121)
    assert agent.watcher._analysis is not None
    agent.watcher.close()


def test_sigterm_is_a_clean_end(server, tmp_path):
    import stepscope_agent

    path = os.path.dirname(os.path.dirname(stepscope_agent.__file__))
    (tmp_path / "jobs").mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "STEPSCOPE_STATE": str(tmp_path / "state")}
    env.update(STEPSCOPE_SERVER=server.url, STEPSCOPE_TOKEN=TOKEN, STEPSCOPE_PROJECT="demo")
    root = write_torch(tmp_path / "jobs", rank=0)
    finished(root)
    command = [sys.executable, "-m", "stepscope_agent", "watch", str(tmp_path / "jobs"), "--every", "0.2"]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    assert "watching " in process.stderr.readline()
    assert "sent " in process.stderr.readline()
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


def test_an_ended_agent_sends_what_is_whole(server, tmp_path):
    """As the sidecar of a pod whose training is over: nobody will look again."""
    import stepscope_agent

    path = os.path.dirname(os.path.dirname(stepscope_agent.__file__))
    (tmp_path / "jobs").mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "STEPSCOPE_STATE": str(tmp_path / "state")}
    env.update(STEPSCOPE_SERVER=server.url, STEPSCOPE_TOKEN=TOKEN, STEPSCOPE_PROJECT="demo")
    command = [
        sys.executable,
        "-m",
        "stepscope_agent",
        "watch",
        str(tmp_path / "jobs"),
        "--every",
        "1000",
        "--run",
        "r",
    ]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    while not os.path.exists(str(tmp_path / "state" / "watch.json")) or not server.state.beats:
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)  # into its long pause; ended before it, the look under way sends all
    finished(write_torch(tmp_path / "jobs", rank=0))
    write(tmp_path / "jobs" / "stepscope_steps_rank_0.jsonl", '{"step": 7, "loss": 1.5}\n')
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.count("sent ")) == (0, 1)
    assert sorted(server.state.steps["callback"]) == [7]


def test_a_python_that_cannot_analyse_is_told_at_the_start(server, tmp_path, monkeypatch, capfd):
    from stepscope_agent.cli import main

    for name, value in (("SERVER", server.url), ("TOKEN", TOKEN), ("PROJECT", "demo")):
        monkeypatch.setenv("STEPSCOPE_" + name, value)
    begin = ["watch", str(tmp_path), "--once", "--analyse"]
    assert main(begin) == 0
    assert "%s has neither MindSpore nor torch_npu" % sys.executable in capfd.readouterr().err
    assert main(begin + ["--python", str(tmp_path / "none")]) == 2
    assert "--python %s cannot be run" % (tmp_path / "none") in capfd.readouterr().err
    write(tmp_path / "packages" / "torch_npu" / "__init__.py", "raise ImportError('not to be imported for this')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    assert main(begin) == 0
    assert "neither" not in capfd.readouterr().err
