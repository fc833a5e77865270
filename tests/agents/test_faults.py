"""Faults of host and network that none of the other tests makes: full disk, name service, files that come and go."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys

import pytest
import stepscope_agent
from stepscope_agent import client

from agent_double import TOKEN
from agent_dumps import write, write_torch
from test_watch import Agent, finished

PACKAGE = os.path.dirname(os.path.dirname(stepscope_agent.__file__))


def no_space():
    """Every write to a file fails from here on, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def run(server, tmp_path, *arguments):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"}
    env.update(STEPSCOPE_STATE=str(tmp_path / "state"), STEPSCOPE_PROJECT="demo")
    env.update(STEPSCOPE_SERVER=server.url, STEPSCOPE_TOKEN=TOKEN)
    command = [sys.executable, "-m", "stepscope_agent"] + list(arguments)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, preexec_fn=no_space)


@pytest.mark.parametrize("command", [["upload", "--run", "r"], ["watch", "--once", "--run", "r"]])
def test_a_full_disk_of_the_host_does_not_keep_dumps_from_arriving(server, tmp_path, command):
    finished(write_torch(tmp_path / "jobs", rank=0))
    done = run(server, tmp_path, *(command + [str(tmp_path / "jobs")]))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert [dump["state"] for dump in server.state.dumps.values()] == ["uploaded"]


def test_a_name_that_does_not_resolve_is_tried_again(run_agent, server, tmp_path, monkeypatch):
    write_torch(tmp_path / "job", rank=0)
    real, left = socket.getaddrinfo, [2]

    def flaky(*arguments, **more):
        left[0] -= 1
        if left[0] >= 0:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return real(*arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", flaky)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r")
    assert (code, left[0] < 0) == (0, True)
    assert "no address for host 127.0.0.1; trying again" in err


def test_a_name_nobody_knows_is_exit_code_3_with_the_name(run_agent, tmp_path, monkeypatch):
    write_torch(tmp_path / "job", rank=0)

    def unknown(*arguments, **more):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    code, _, err = run_agent("upload", str(tmp_path / "job"), "--run", "r", url="http://stepscope.invalid")
    assert code == 3
    assert err.splitlines()[-1].endswith("cannot reach http://stepscope.invalid: no address for host stepscope.invalid")


def on_first_patch(monkeypatch, action):
    """`action` happens while the first file is on its way."""
    real, done = client._send_chunk, []

    def send(*arguments):
        if not done:
            done.append(action())
        return real(*arguments)

    monkeypatch.setattr(client, "_send_chunk", send)


def test_a_dump_deleted_while_it_is_sent_leaves_the_others_alone(server, tmp_path, monkeypatch):
    first, second = (write_torch(tmp_path, rank=rank) for rank in range(2))
    for root in (first, second):
        finished(root)
    agent = Agent(tmp_path, server)
    on_first_patch(monkeypatch, lambda: shutil.rmtree(first))
    assert agent.look() == 1
    assert agent.states() == {os.path.basename(second): "sent"}
    assert [dump["rank"] for dump in server.state.dumps.values() if dump["state"] == "uploaded"] == [1]


def test_a_dump_that_still_grows_is_sent_when_it_is_whole(server, tmp_path, monkeypatch):
    root = write_torch(tmp_path, rank=0)
    table = os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv")
    agent = Agent(tmp_path, server)
    agent.look()

    def grow():
        with open(table, "a") as stream:
            stream.write("2,Late,MatMul,AI_CORE,1,1,0,20\n")

    on_first_patch(monkeypatch, grow)
    assert agent.look(after=121) == 0
    assert list(agent.states().values()) == ["failed"]
    agent.look()  # it changed, so it has to rest again
    for row in agent.spool.dumps.values():
        row["again_at"] = 0
    agent.look(after=121)
    assert list(agent.states().values()) == ["sent"]
    with open(table, "rb") as stream:
        assert server.state.content("ASCEND_PROFILER_OUTPUT/kernel_details.csv") == stream.read()


def test_ten_thousand_small_files_are_no_burden(server, tmp_path):
    root = write_torch(tmp_path, rank=0)
    for number in range(10000):
        write(os.path.join(root, "PROF_1", "device_0", "data", "%d.slice" % (number % 100), str(number)), "x")
    finished(root)
    assert Agent(tmp_path, server).look() == 1
    (dump,) = server.state.dumps.values()
    assert len(dump["files"]) == 4  # the marker, the rank's info, two tables


def test_a_dump_of_hundreds_of_small_tables_is_sent_whole(server, tmp_path):
    root = write_torch(tmp_path, rank=0)
    for number in range(300):
        write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "table_%d.csv" % number), str(number))
    finished(root)
    assert Agent(tmp_path, server).look() == 1
    (dump,) = server.state.dumps.values()
    assert (len(dump["files"]), server.state.missing(dump)) == (304, [])


def test_a_host_renamed_between_two_looks_sends_nothing_twice(server, tmp_path, monkeypatch):
    finished(write_torch(tmp_path, rank=0))
    agent = Agent(tmp_path, server)
    assert agent.look() == 1
    sent = server.state.patched
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    agent.restart()
    finished(write_torch(tmp_path, rank=1))
    assert agent.look() == 1
    assert server.state.patched < 2 * sent + 100
    names = {beat["host"] for beat in server.state.beats}
    assert len({beat["agent"] for beat in server.state.beats}) == 1 and "renamed" in names
