"""Heartbeats, and captures that people ask for: agent and callback together, with a stand-in for MindSpore."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from stepscope_agent import control
from stepscope_agent.captures import capture_keys
from stepscope_agent.discover import find_dumps
from stepscope_agent.heartbeat import identity
from stepscope_agent.mindspore import StepscopeCallback
from stepscope_agent.spool import Spool

from agent_dumps import write, write_torch
from test_callback import Api, Context
from test_watch import Agent, finished


class Training:
    """A training loop under the callback that the test moves on step by step; looking for a wish costs no waiting."""

    def __init__(self, folder, api=None, start=0, **options):
        self.folder = str(folder)
        options = dict({"first_step": 10**6, "run": "r", "min_free_bytes": 0}, **options)
        self.callback = StepscopeCallback(self.folder, api=api or Api(), **options)
        self.context = Context(cur_step_num=start)
        self.callback.on_train_begin(self.context)
        self.settle()

    def settle(self):
        assert self.callback._writer.flush(60)

    def train(self, steps):
        for _ in range(steps):
            if self.callback._control is not None:
                self.callback._control.look()
                self.settle()
            step(self)
        self.callback._recent.extend([1000.0] * 15)  # ms: what a step of a real training may take
        self.callback._tell(0.0)
        self.settle()

    def end(self):
        self.callback.on_train_end(self.context)

    def answer(self):
        with open(os.path.join(self.folder, control.STATUS % self.callback._rank)) as stream:
            return json.load(stream)["request"]


def step(training):
    training.context.params["cur_step_num"] += 1
    training.callback.on_train_step_begin(training.context)
    training.context.params["net_outputs"] = 1.0
    training.callback.on_train_step_end(training.context)


def wish(folder, request=7, first_step=20, steps=2, **more):
    write(os.path.join(str(folder), control.CONTROL), control.Wish(request, first_step, steps, **more).row())


def windows(folder):
    return sorted((dump.first_step, dump.last_step, dump.request) for dump in find_dumps(str(folder)))


def test_a_window_asked_for_is_recorded_at_its_step(tmp_path):
    training = Training(tmp_path)
    training.train(5)
    wish(tmp_path, first_step=8, steps=3, level="Level2")
    training.train(1)
    assert training.answer() == {"id": 7, "state": "waiting", "reason": ""}
    training.train(3)
    assert training.answer()["state"] == "collecting"
    training.train(1)
    assert training.answer()["state"] == "done"
    assert windows(tmp_path) == [(8, 10, 7)]
    assert training.callback._api.options["level"] == "Level2"
    assert list(capture_keys(find_dumps(str(tmp_path))).values()) == ["request-7"]


def test_the_callbacks_own_windows_go_on(tmp_path):
    training = Training(tmp_path, first_step=10, steps=2, every=10)
    training.train(12)
    wish(tmp_path, first_step=21, steps=2)  # in the middle of the own window of 20
    training.train(20)
    assert windows(tmp_path) == [(10, 11, None), (21, 22, 7), (23, 24, None), (30, 31, None)]


@pytest.mark.parametrize(
    ("ranks", "state"), [(None, "not asked"), ("all", "waiting"), ([0, 1], "waiting"), ([0], "not asked")]
)
def test_ranks_that_are_not_asked_say_so(tmp_path, ranks, state):
    training = Training(tmp_path, api=Api(rank=1, world_size=2))
    wish(tmp_path, ranks=ranks)
    training.train(1)
    assert training.answer()["state"] == state


def test_a_step_that_has_passed_is_refused(tmp_path):
    training = Training(tmp_path)
    training.train(30)
    wish(tmp_path, first_step=20)
    training.train(5)
    assert training.answer() == {"id": 7, "state": "failed", "reason": "rank 0 heard of it at step 30"}
    assert windows(tmp_path) == []


def test_a_wish_left_over_from_another_training_is_not_taken_up(tmp_path):
    wish(tmp_path)
    training = Training(tmp_path)
    training.train(30)
    assert (training.answer(), windows(tmp_path)) == (None, [])


def test_a_wish_taken_back_is_dropped(tmp_path):
    training = Training(tmp_path)
    training.train(1)
    wish(tmp_path)
    training.train(1)
    os.unlink(str(tmp_path / control.CONTROL))
    training.train(30)
    assert (training.answer(), windows(tmp_path)) == (None, [])


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"request": "7"}', '{"request": 7, "first_step": 0, "steps": 1}', b"\xff\xfe",
     '{"request": 7, "first_step": 5, "steps": 1, "ranks": {"a": 1}}', '{"request": true, "first_step": 5, "steps": 1}'],
)  # fmt: skip
def test_a_spoilt_control_file_does_no_harm(tmp_path, content):
    training = Training(tmp_path)
    write(tmp_path / control.CONTROL, content)
    training.train(30)
    assert (training.answer(), windows(tmp_path), training.callback._errors) == (None, [], 0)


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        (Api(stranger="callback DynamicProfilerMonitor"), "callback DynamicProfilerMonitor profiles this training"),
        (Api(broken="start"), "RuntimeError: profiler busy"),
        (Api(broken="finish"), "RuntimeError: the profiler left no dump; its own log tells why"),
        (Api(broken="step"), "OSError: no space left on device"),
    ],
)
def test_a_window_that_cannot_be_had_is_answered_with_the_reason(tmp_path, api, reason):
    training = Training(tmp_path, api=api)
    wish(tmp_path)
    training.train(30)
    assert training.answer() == {"id": 7, "state": "failed", "reason": reason}


def test_a_full_disk_is_told(tmp_path):
    training = Training(tmp_path, min_free_bytes=10**18)
    wish(tmp_path)
    training.train(30)
    assert training.answer()["reason"].startswith("windows are skipped: ")


def test_looking_costs_one_stat_in_two_seconds_and_never_in_the_trainings_thread(tmp_path, monkeypatch):
    looks = []

    def stat(path):
        if str(path) == str(tmp_path / control.CONTROL):
            looks.append(threading.current_thread().name)
        raise FileNotFoundError(path)

    monkeypatch.setattr(control, "os", SimpleNamespace(stat=stat, path=os.path))
    began = time.monotonic()
    callback, context = StepscopeCallback(str(tmp_path), api=Api()), Context(cur_step_num=0)
    callback.on_train_begin(context)
    while len(looks) < 4:
        context.params["cur_step_num"] += 1
        callback.on_train_step_begin(context)
        time.sleep(0.001)
        callback.on_train_step_end(context)
    assert len(looks) <= 2 + (time.monotonic() - began) / 2  # one more at the first step
    callback.on_train_end(context)
    assert callback._writer._round is None
    assert set(looks) == {"stepscope-writer"}


def in_a_row(agent, training, steps=400, looks=40):
    """Training and agent take turns until the request is over."""
    state = agent.server.state
    for _ in range(looks):
        training.train(steps // looks)
        agent.look(after=2)
        if state.requests[0]["state"] in ("uploaded", "failed"):
            return
    raise AssertionError(state.reports)


def asked(server, **more):
    row = {"id": 7, "run_key": "r", "kind": "next", "first_step": None, "steps": 2, "ranks": None, "level": "Level1"}
    server.state.requests.append(dict(row, state="requested", lead_s=15, **more))
    return server.state.requests[0]


@pytest.fixture
def agent(tmp_path, server):
    return Agent(tmp_path / "profiles", server)


def test_a_request_is_carried_out_and_its_states_are_told(tmp_path, server, agent):
    training = Training(tmp_path / "profiles")
    training.train(30)
    request = asked(server)
    in_a_row(agent, training)
    assert request["state"] == "uploaded"
    assert [state for _, state, _ in server.state.reports] == ["accepted", "collecting", "uploaded"]
    (dump,) = server.state.dumps.values()
    assert (dump["capture"], dump["state"]) == ("request-7", "uploaded")
    assert dump["ask"]["window"] == {"first_step": request["first_step"], "last_step": request["first_step"] + 1}
    assert not os.path.exists(str(tmp_path / "profiles" / control.CONTROL))
    assert agent.watcher.heartbeat.requests.jobs == {}


def test_a_request_waits_for_the_pace_that_comes_after_compiling(tmp_path, server, agent):
    training = Training(tmp_path / "profiles")
    asked(server)
    agent.look()
    step(training)
    training.callback._records.flush()
    training.callback._tell(0.0)
    training.settle()
    agent.look(after=2)
    assert server.state.reports == []  # all that is known is how long the first step took
    training.train(1)
    agent.look(after=2)
    # two steps are done and a step takes a second: 15 s for all ranks to hear of it, 5 s between two words of the rank
    assert server.state.requests[0]["first_step"] == 2 + 20 + 2
    in_a_row(agent, training)
    assert server.state.requests[0]["state"] == "uploaded"


def test_the_heartbeat_tells_how_the_agent_is(tmp_path, server, agent):
    training = Training(tmp_path / "profiles")
    training.train(30)
    agent.look()
    beat = server.state.beats[-1]
    assert (beat["host"], beat["npus"], beat["spool"]) == (os.uname().nodename, [], {})
    assert beat["runs"] == [{"key": "r", "step": 30, "via": "callback"}]
    training.end()
    agent.look(after=2)
    assert server.state.beats[-1]["runs"] == []


def test_a_training_that_gives_no_sign_is_no_longer_in_hand(tmp_path, server, agent):
    training = Training(tmp_path / "profiles")
    training.train(30)
    agent.look()
    agent.look(after=60)
    assert server.state.beats[-1]["runs"] != []
    agent.look(after=61)
    assert server.state.beats[-1]["runs"] == []
    training.train(1)
    agent.look(after=2)
    assert server.state.beats[-1]["runs"] != []


def test_a_followed_log_tells_the_step_and_no_way_to_capture(tmp_path, server):
    log = write(tmp_path / "job" / "worker.log", "")
    agent = Agent(tmp_path, server, logs=[log], run="r")
    with open(log, "w") as stream:
        stream.write("".join("epoch: 1 step: %d, loss is 2.0\n" % step for step in range(1, 41)))
    agent.look()
    assert server.state.beats[-1]["runs"] == [{"key": "r", "step": 40}]
    asked(server)
    agent.look(after=2)
    assert server.state.reports == [
        (7, "failed", "this training runs neither StepscopeCallback nor DynamicProfilerMonitor in a watched folder")
    ]


def test_the_failed_dump_and_the_servers_absence_are_troubles(tmp_path, server, agent):
    agent.spool.put(str(tmp_path / "profiles"), "failed", error="too large")
    agent.watcher.heartbeat.beat()
    assert server.state.beats[-1]["trouble"] == "profiles: too large"
    agent.spool.agent["trouble"] = "no answer in time"
    agent.clock.now += 2
    agent.watcher.heartbeat.beat()
    assert server.state.beats[-1]["trouble"] == "no answer in time"
    agent.http.close()


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_agent_says_so_before_there_is_anything_to_send(tmp_path, server, agent, status):
    server.state.fail("POST", "/agents$", status=status)
    agent.look()
    assert agent.said == ["the server says: made-up trouble"]
    assert agent.watcher.trouble.exit_code == 4
    assert Spool(agent.state).agent["trouble"] == "the server says: made-up trouble"
    agent.look(after=10)
    assert (agent.watcher.trouble, Spool(agent.state).agent.get("trouble")) == (None, None)
    assert len(server.state.beats) == 1


def test_a_server_that_cannot_be_reached_is_told_before_there_is_anything_to_send(tmp_path, agent):
    agent.http.port = 1
    agent.look()
    assert agent.said == ["cannot reach %s: connection refused" % agent.server.url]
    assert agent.watcher.trouble.exit_code == 3


def test_a_heartbeat_that_the_server_stumbles_over_holds_up_nothing(tmp_path, server, agent):
    server.state.fail("POST", "/agents$", status=500)
    finished(write_torch(tmp_path / "profiles", rank=0))
    assert agent.look() == 1
    assert agent.watcher.trouble is None


def test_a_connection_closed_while_idle_loses_no_heartbeat(tmp_path, server, agent):
    agent.watcher.once()  # unlike look(), keeps its connection
    agent.http._connection.sock.shutdown(socket.SHUT_RDWR)
    agent.clock.now += 2
    agent.watcher.once()
    agent.http.close()
    assert (agent.said, len(server.state.beats)) == ([], 2)


def test_the_agent_keeps_its_name_when_the_host_is_renamed(tmp_path, monkeypatch):
    spool = Spool(str(tmp_path / "watch.json"))
    first = identity(spool)
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    assert identity(Spool(str(tmp_path / "watch.json"))) == first
    monkeypatch.setattr("stepscope_agent.heartbeat._machine", lambda: "another machine with the same home folder")
    assert identity(Spool(str(tmp_path / "watch.json"))) != first


def test_two_agents_agree_on_the_first_step(tmp_path, server, agent):
    Training(tmp_path / "profiles").train(30)
    asked(server, first_step=5000)  # settled by the agent of another host
    agent.look()
    with open(str(tmp_path / "profiles" / control.CONTROL)) as stream:
        assert json.load(stream)["first_step"] == 5000


def test_a_step_behind_the_training_is_refused(tmp_path, server, agent):
    Training(tmp_path / "profiles").train(30)
    asked(server, first_step=31, kind="steps")
    agent.look()
    assert server.state.reports == [(7, "failed", "step 31 has passed: the training is at 30")]


def test_a_request_taken_back_leaves_no_control_file(tmp_path, server, agent):
    Training(tmp_path / "profiles").train(30)
    request = asked(server)
    agent.look()
    assert os.path.exists(str(tmp_path / "profiles" / control.CONTROL))
    request["state"] = "failed"
    agent.look(after=2)
    assert not os.path.exists(str(tmp_path / "profiles" / control.CONTROL))
    assert not agent.watcher.heartbeat.busy


def test_a_training_that_ends_first_is_told(tmp_path, server, agent):
    training = Training(tmp_path / "profiles")
    training.train(30)
    asked(server, first_step=5000)
    agent.look()
    training.train(1)
    training.end()
    agent.look(after=2)
    assert server.state.reports[-1] == (7, "failed", "the training ended before step 5000")


def test_a_callback_that_does_not_answer_is_told(tmp_path, server, agent, monkeypatch):
    Training(tmp_path / "profiles").train(30)
    asked(server)
    agent.look()
    agent.watcher.heartbeat.requests.now = lambda: 10**10
    agent.look(after=2)
    assert server.state.reports[-1] == (7, "failed", "the callback did not answer in 60 s")


def test_a_restarted_agent_goes_on_with_its_request(tmp_path, server, agent):
    training = Training(tmp_path / "profiles")
    training.train(30)
    asked(server)
    agent.look()
    agent.restart()
    in_a_row(agent, training)
    assert [state for _, state, _ in server.state.reports] == ["accepted", "collecting", "uploaded"]


def test_an_agent_that_lost_its_memory_still_links_the_dump(tmp_path, server, agent):
    training = Training(tmp_path / "profiles")
    training.train(30)
    request = asked(server)
    agent.look()
    training.train(5)
    shutil.rmtree(os.path.dirname(agent.state))
    request["state"] = "expired"
    agent.restart()
    wish_path = str(tmp_path / "profiles" / control.CONTROL)
    assert os.path.exists(wish_path)
    training.train(400 + request["first_step"])
    agent.look(after=2)
    assert server.state.reports[-1][:2] == (7, "uploaded")


def test_a_report_that_is_lost_is_made_again(tmp_path, server, agent):
    training = Training(tmp_path / "profiles")
    training.train(30)
    request = asked(server)
    server.state.fail("POST", "capture-requests", status=503, times=2)
    in_a_row(agent, training)
    assert request["state"] == "uploaded"


def test_raw_windows_end_a_request_when_nobody_analyses_them(tmp_path, server, agent):
    training = Training(tmp_path / "profiles", api=Api(target="Ascend", analysed=False))
    training.train(30)
    asked(server)
    for _ in range(40):
        training.train(10)
        for dump in find_dumps(str(tmp_path / "profiles")):
            write(os.path.join(dump.root, "PROF_1", "device_0", "x.data"), "x")
        agent.look(after=2)
        if server.state.reports[-1:] and server.state.reports[-1][1] == "failed":
            break
    assert server.state.reports[-1][2].startswith("collected but not analysed")


def dynamic(tmp_path, server, config, analyse=False):
    """A training whose log is followed and that runs MindSpore's DynamicProfilerMonitor."""
    home = tmp_path / "profiles" / "job"
    write(home / "profiler_config.json", config)
    agent = Agent(tmp_path / "profiles", server, run=None, logs=[str(home / "worker.log")], analyse=analyse)
    return home, agent


def log_until(home, step):
    with open(str(home / "worker.log"), "w") as stream:
        stream.write("".join("epoch: 1 step: %d, loss is 2.0\n" % number for number in range(1, step + 1)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"start_step": -1, "profiler_level": 0, "mstx": True}, {"profiler_level": 1, "mstx": True}),
        ({"start_step": -1, "profiler_level": "Level0"}, {"profiler_level": "Level1"}),
    ],
)
def test_the_dynamic_profiler_is_asked_where_it_runs(tmp_path, server, before, after):
    home, agent = dynamic(tmp_path, server, before)
    log_until(home, 40)
    agent.look()
    assert server.state.beats[-1]["runs"] == [{"key": "job", "step": 40, "via": "dynamic"}]
    request = asked(server, run_key_="")
    request["run_key"] = "job"
    agent.look(after=2)
    with open(str(home / "profiler_config.json")) as stream:
        config = json.load(stream)
    first = request["first_step"]
    assert first > 41
    wanted = dict(after, start_step=first, stop_step=first + 1, analyse=True, prof_path=str(home / "request_7"))
    assert config == wanted
    root = home / "request_7" / ("rank0_start%d_stop%d" % (first, first + 1)) / "host_1_20260101120000123_ascend_ms"
    write(root / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv", "Name\n")
    log_until(home, first + 10)
    for _ in range(3):
        agent.look(after=121)
    assert [state for _, state, _ in server.state.reports] == ["accepted", "collecting", "uploaded"]
    assert [dump["capture"] for dump in server.state.dumps.values()] == ["request-7"]


def test_a_dynamic_profiler_that_records_nothing_is_told(tmp_path, server):
    home, agent = dynamic(tmp_path, server, {})
    log_until(home, 40)
    agent.look()
    asked(server)["run_key"] = "job"
    agent.look(after=2)
    log_until(home, 100)
    agent.look(after=2)
    agent.watcher.heartbeat.requests.now = lambda: 10**10
    agent.look(after=2)
    assert server.state.reports[-1][2].startswith("DynamicProfilerMonitor recorded nothing; does it look at ")


def test_a_folder_nobody_may_write_is_told(tmp_path, server, agent, monkeypatch):
    Training(tmp_path / "profiles").train(30)
    asked(server)

    def refuse(path, value):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("stepscope_agent.requests.write_json", refuse)
    agent.look()
    assert server.state.reports[-1][1] == "failed"
    assert server.state.reports[-1][2].endswith("stepscope_control.json: Permission denied")
