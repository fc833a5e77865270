"""The agent as a guest on its host: how much of the network, processor, disk and memory it takes."""

from __future__ import annotations

import os
import platform
import socket
import threading

import pytest
from stepscope_agent import spool
from stepscope_agent.transport import Transport

from agent_double import TOKEN
from agent_dumps import write, write_torch
from test_cluster_faults import run
from test_watch import Agent, finished

IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
IDLE_CLASS = 3
WATCH_AND_TELL = """
import ctypes, os, sys
from stepscope_agent import cli
code = cli.main()
print(os.getpriority(os.PRIO_PROCESS, 0), ctypes.CDLL(None).syscall(%d, 1, 0) >> 13)
sys.exit(code)
"""


def test_bytes_leave_no_faster_than_the_cap(tmp_path, server):
    """The clock of the test moves only while the agent waits, so all that was sent had to be waited for."""
    root = write_torch(tmp_path, rank=0)
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "memory_record.csv"), os.urandom(300000))
    finished(root)
    agent = Agent(tmp_path, server)
    agent.http.bytes_per_s = 1000.0
    before = agent.clock.now
    assert agent.look() == 1
    assert server.state.wire_bytes > 300000
    assert agent.clock.now - before == pytest.approx(server.state.wire_bytes / 1000.0)


@pytest.mark.skipif(platform.machine() not in IOPRIO_GET, reason="another number of the call here")
def test_a_watching_agent_gives_way_to_the_training(tmp_path, server):
    code = WATCH_AND_TELL % IOPRIO_GET[platform.machine()]
    done = run(tmp_path, server, "watch", tmp_path, "--once", code=code)
    assert done.returncode == 0, done.stderr
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert done.stdout.split()[-2:] == [str(min(19, mine + 10)), str(IDLE_CLASS)]


def test_the_memory_of_dumps_has_a_bound_and_keeps_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "MOST_ROWS", 3)
    kept = spool.Spool(str(tmp_path / "watch.json"))
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        kept.put(str(tmp_path / str(number)), spool.SENT)
    kept.forget_missing()
    kept.save()
    again = spool.Spool(str(tmp_path / "watch.json"))
    assert [os.path.basename(root) for root in again.dumps] == ["2", "3", "4"]


def test_a_connection_that_the_server_closed_meanwhile_costs_no_word():
    """Servers close connections that are idle for some seconds; a heartbeat comes every thirty."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2)
    closed = threading.Semaphore(0)

    def answer_twice():
        for _ in range(2):
            connection, _ = listener.accept()
            received = b""
            while not received.endswith(b"{}"):
                received += connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            connection.close()
            closed.release()

    thread = threading.Thread(target=answer_twice, daemon=True)
    thread.start()
    http = Transport("http://127.0.0.1:%d" % listener.getsockname()[1], TOKEN)
    for _ in range(2):
        answer = http.try_once("POST", "/projects/demo/agents", {})
        assert answer is not None
        assert answer.status == 200
        assert closed.acquire(timeout=20)
    http.close()
    thread.join(20)
    listener.close()
