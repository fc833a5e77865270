"""What real clusters do to an agent: file systems that come and go, links, names, users, several agents, proxies."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time

import pytest
import stepscope_agent
from stepscope_agent import claims, discover, manifest
from stepscope_agent.errors import Unreachable
from stepscope_agent.transport import Transport

from agent_double import TOKEN, Server
from agent_dumps import write, write_torch
from test_watch import Agent, finished, write_raw

AGENTS = os.path.dirname(os.path.dirname(stepscope_agent.__file__))


def environment(tmp_path, server, **more):
    told = {"PATH": os.environ["PATH"], "PYTHONPATH": AGENTS, "STEPSCOPE_STATE": str(tmp_path / "state")}
    told.update(STEPSCOPE_SERVER=server.url, STEPSCOPE_TOKEN=TOKEN, STEPSCOPE_PROJECT="demo")
    return {**told, **more}


def run(tmp_path, server, *arguments, code=None, **more):
    program = ["-c", code] if code else ["-m", "stepscope_agent"]
    options = {name: more.pop(name) for name in ("preexec_fn", "cwd") if name in more}
    command = [sys.executable] + program + [str(one) for one in arguments]
    env = environment(tmp_path, server, **more)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, **options)
    assert "Traceback" not in done.stderr
    return done


def test_a_stale_handle_makes_a_dump_wait_and_nothing_of_it_is_left_out(server, tmp_path, monkeypatch):
    agent = Agent(tmp_path, server)
    root = write_torch(tmp_path, rank=0)
    finished(root)
    real = manifest.sha256_of

    def stale(path):
        if path.endswith("step_trace_time.csv"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path)

    monkeypatch.setattr(manifest, "sha256_of", stale)  # as NFS answers when the server's file was replaced
    for _ in range(8):
        assert agent.look(after=100) == 0
        for row in agent.spool.dumps.values():
            row["again_at"] = 0
    assert "Stale file handle" in agent.spool.dumps[root]["error"]
    monkeypatch.undo()
    assert agent.look() == 1  # after eight tries: only the server's refusals are counted
    (dump,) = server.state.dumps.values()
    assert len(dump["files"]) == 4


def test_a_folder_that_is_away_for_a_while_is_not_sent_again(server, tmp_path):
    agent = Agent(tmp_path / "jobs", server)
    agent.state = str(tmp_path / ".agent" / "watch.json")
    agent.restart()
    finished(write_torch(tmp_path / "jobs", rank=0))
    assert agent.look() == 1
    os.rename(str(tmp_path / "jobs"), str(tmp_path / "unmounted"))
    agent.look()
    os.rename(str(tmp_path / "unmounted"), str(tmp_path / "jobs"))
    calls = server.state.count("POST", "/dumps")
    assert agent.look() == 0
    assert server.state.count("POST", "/dumps") == calls
    assert list(agent.states().values()) == ["sent"]


def test_a_dump_renamed_while_it_is_sent_leaves_no_ghost(server, tmp_path):
    agent = Agent(tmp_path, server)
    root = write_torch(tmp_path / "a", rank=0)
    finished(root)
    tell = agent.watcher.heartbeat.beat
    agent.watcher.heartbeat.beat = lambda: (
        os.path.isdir(root) and os.rename(root, root.replace("_4242_", "_7777_")),
        tell(),
    )
    agent.look()
    agent.look(after=100)
    assert not os.path.exists(root)
    assert list(agent.states()) == [os.path.basename(root).replace("_4242_", "_7777_")]


def test_the_claim_of_another_version_is_understood(server, tmp_path):
    """One of before captures were told, and one that tells more than is known today."""
    old, new = write_torch(tmp_path / "old", rank=0), write_torch(tmp_path / "new", rank=0)
    for root in (old, new):
        finished(root)
    sent = {"owner": "host:1:x", "state": "sent", "server": server.url, "project": "demo"}
    write(os.path.join(old, claims.CLAIM), sent)
    write(os.path.join(new, claims.CLAIM), {**sent, "schema": 9, "run": "r", "capture": "step-1", "more": {"a": 1}})
    agent = Agent(tmp_path, server)
    assert agent.look() == 0
    assert sorted(row["state"] for row in agent.spool.dumps.values()) == ["sent", "sent"]


def test_a_spool_of_another_version_is_gone_on_with(server, tmp_path):
    root = write_torch(tmp_path / "jobs", rank=0)
    finished(root)
    spool = {"agent": {"id": "0" * 32, "later": 1}, "dumps": {root: {"state": "sent", "later": {}}}, "later": []}
    write(tmp_path / ".agent" / "watch.json", spool)
    agent = Agent(tmp_path / "jobs", server)
    agent.state = str(tmp_path / ".agent" / "watch.json")
    agent.restart()
    assert agent.look() == 0
    assert server.state.count("POST", "/dumps$") == 0


def test_a_clock_set_back_by_a_day_while_dumps_wait_delays_nothing(server, tmp_path):
    agent = Agent(tmp_path, server)
    finished(write_torch(tmp_path, rank=0))
    server.state.fail("POST", "/dumps$", status=413)
    assert agent.look() == 0
    for row in agent.spool.dumps.values():
        row["again_at"] += 86400
    assert agent.look() == 1


QUOTA = """
import errno, os, sys
from stepscope_agent import cli, manifest
def full(path, text):
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
manifest.write_pieces = full
import stepscope_agent.spool
stepscope_agent.spool.write_pieces = full
sys.exit(cli.main())
"""


def test_a_quota_that_is_used_up_keeps_nothing_from_arriving(server, tmp_path):
    finished(write_torch(tmp_path / "jobs", rank=0))
    done = run(tmp_path, server, "watch", tmp_path / "jobs", "--once", code=QUOTA)
    assert (done.returncode, len(server.state.dumps)) == (0, 1)


def test_an_umask_that_hides_all_keeps_the_agent_working(server, tmp_path):
    finished(write_torch(tmp_path / "jobs", rank=0))
    for _ in range(2):
        done = run(tmp_path, server, "watch", tmp_path / "jobs", "--once", preexec_fn=lambda: os.umask(0o777) and None)
        assert done.returncode == 0, done.stderr
    assert server.state.count("POST", "/complete") == 1


# Another user may not start our Python, but may go on in it.
AS_NOBODY = """
import os, sys
import _strptime, encodings.ascii, encodings.idna, encodings.latin_1, fcntl, shutil
from stepscope_agent import analyse, cli, watch
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(cli.main())
"""


@pytest.fixture
def open_folder():
    """A folder that every user may enter; pytest's own are closed."""
    import pathlib
    import shutil
    import tempfile

    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder = tempfile.mkdtemp(prefix="agent-user-")
    os.chmod(folder, 0o777)
    yield pathlib.Path(folder)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_sent_once_and_remembered(server, open_folder):
    root = write_torch(open_folder / "jobs", rank=0)
    finished(root)
    for _ in range(2):
        done = run(open_folder, server, "watch", open_folder / "jobs", "--once", code=AS_NOBODY)
        assert done.returncode == 0, done.stderr
    assert server.state.count("POST", "/complete") == 1
    assert not os.path.exists(os.path.join(root, claims.CLAIM))


def test_a_dump_of_another_user_is_told_and_the_others_go(server, open_folder):
    closed, partly = write_torch(open_folder / "jobs", rank=0), write_torch(open_folder / "jobs", rank=1)
    for root in (closed, partly):
        finished(root)
    os.chmod(closed, 0o700)
    os.chmod(os.path.join(partly, "ASCEND_PROFILER_OUTPUT", "step_trace_time.csv"), 0o600)
    done = run(open_folder, server, "watch", open_folder / "jobs", "--once", code=AS_NOBODY)
    assert done.returncode == 0, done.stderr
    assert [dump["rank"] for dump in server.state.dumps.values()] == [1]
    out = run(open_folder, server, "status", code=AS_NOBODY).stdout
    assert "this user may not read it" in out
    assert "step_trace_time.csv: Permission denied" in out


@pytest.mark.parametrize("name", ["two\nlines", "bell\a", "latin-\udce9"])
def test_a_name_no_terminal_takes_is_shown_and_the_dump_arrives(server, tmp_path, name):
    root = write_torch(tmp_path / "jobs" / name, rank=0)
    finished(root)
    write(os.path.join(root, "ASCEND_PROFILER_OUTPUT", name + ".csv"), "a\n")
    done = run(tmp_path, server, "watch", tmp_path / "jobs", "--once")
    assert done.returncode == 0, done.stderr
    (dump,) = server.state.dumps.values()
    assert len(dump["files"]) == 4 and not any(name in row["name"] for row in dump["files"])
    lines = run(tmp_path, server, "status").stdout.splitlines()
    assert len(lines) == 3 and lines[-1] == "1 sent"


def test_links_in_a_ring_end_nothing_and_links_out_of_it_are_not_followed(server, tmp_path):
    root = write_torch(tmp_path / "jobs" / "a", rank=0)
    finished(root)
    os.symlink(str(tmp_path / "jobs"), str(tmp_path / "jobs" / "a" / "up"))
    os.symlink("loop", str(tmp_path / "jobs" / "loop"))
    os.symlink(root, os.path.join(root, "ASCEND_PROFILER_OUTPUT", "self"))
    os.symlink("/etc/passwd", os.path.join(root, "ASCEND_PROFILER_OUTPUT", "secret.csv"))
    os.symlink("a", str(tmp_path / "jobs" / "latest"))
    agent = Agent(tmp_path / "jobs", server)
    assert agent.look() == 1
    (dump,) = server.state.dumps.values()
    assert [row["name"] for row in dump["files"] if "secret" in row["name"]] == []


def test_a_log_that_several_links_lead_to_is_read_once(server, tmp_path):
    log = write(tmp_path / "job7" / "worker_0.log", "step 1/9, loss: 1.0\n")
    os.symlink("job7", str(tmp_path / "a_latest"))
    os.symlink("worker_0.log", str(tmp_path / "job7" / "current.log"))
    agent = Agent(tmp_path, server, run=None, logs=[str(tmp_path / "*" / "*.log")])
    agent.look()
    assert list(server.state.runs) == ["job7"]
    assert list(agent.spool.logs) == [log]


@pytest.mark.parametrize("token", [TOKEN + "\n", " " + TOKEN + "\r\n"])
def test_a_token_that_came_with_a_line_end_is_taken(server, tmp_path, token):
    finished(write_torch(tmp_path / "jobs", rank=0))
    assert run(tmp_path, server, "watch", tmp_path / "jobs", "--once", STEPSCOPE_TOKEN=token).returncode == 0
    assert len(server.state.dumps) == 1


def test_settings_may_be_written_as_toml(server, tmp_path):
    finished(write_torch(tmp_path / "jobs", rank=0))
    text = '[stepscope]\nserver = "%s"  # ours\ntoken = \'%s\'\nproject = "demo"\n' % (server.url, TOKEN)
    settings = write(tmp_path / "agent.toml", text)
    nothing = {"STEPSCOPE_SERVER": "", "STEPSCOPE_TOKEN": "", "STEPSCOPE_PROJECT": ""}
    done = run(tmp_path, server, "watch", tmp_path / "jobs", "--once", STEPSCOPE_SETTINGS=settings, **nothing)
    assert (done.returncode, len(server.state.dumps)) == (0, 1), done.stderr


def test_a_proxy_nobody_meant_is_named(server, tmp_path, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    http = Transport(server.url, TOKEN, retry_for=0.01)
    with pytest.raises(Unreachable, match="through the proxy proxy.invalid: no address for host proxy.invalid"):
        http.call("GET", "/captures/1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert Transport(server.url, TOKEN).call("GET", "/captures/1").status == 200


def test_a_server_at_an_address_of_ipv6_below_a_prefix(tmp_path):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    server = Server.__new__(Server)
    server.address_family = socket.AF_INET6
    try:
        server.__init__(prefix="/stepscope", host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    try:
        finished(write_torch(tmp_path / "jobs", rank=0))
        done = run(tmp_path, server, "watch", tmp_path / "jobs", "--once", STEPSCOPE_SERVER=server.url + "/")
        assert (done.returncode, len(server.state.dumps)) == (0, 1), done.stderr
    finally:
        server.stop()


def test_an_analysis_whose_program_is_missing_ends_nothing(server, tmp_path):
    write_raw(tmp_path)
    finished(write_torch(tmp_path / "jobs", rank=1))
    agent = Agent(tmp_path, server, analyse=True, python="/nowhere/python", state=str(tmp_path / "state"))
    assert agent.look() == 1
    assert [row["error"] for row in agent.spool.dumps.values() if row["state"] == "skipped"] == [
        "cannot be analysed: /nowhere/python: No such file or directory"
    ]


def test_a_project_nobody_knows_stops_the_pass_and_gives_up_no_dump(server, tmp_path):
    agent = Agent(tmp_path, server, project="mistyped")
    finished(write_torch(tmp_path, rank=0))
    for _ in range(8):
        assert agent.look(after=700) == 0
    assert "no such project" in agent.spool.agent["trouble"]
    agent.more["project"] = "demo"
    agent.restart()
    assert agent.look() == 1


def test_a_huge_log_does_not_hold_up_the_dumps(server, tmp_path):
    """20 GB of it, as a hole: nothing but zeros."""
    log = str(tmp_path / "a.log")
    with open(log, "wb") as stream:
        stream.truncate(20 * 10**9)
    finished(write_torch(tmp_path, rank=0))
    agent = Agent(tmp_path, server, logs=[log])
    began = time.monotonic()
    assert agent.look() == 1
    assert 0 < agent.spool.logs[log]["offset"] < 20 * 10**9
    assert time.monotonic() - began < 60
    json.dumps(agent.spool.logs)


def test_a_folder_that_vanishes_while_it_is_listed_is_empty(tmp_path):
    assert list(discover.walk(str(tmp_path / "gone"))) == []


def test_a_second_agent_of_the_same_memory_is_sent_away(server, tmp_path):
    finished(write_torch(tmp_path / "jobs", rank=0))
    command = [sys.executable, "-m", "stepscope_agent", "watch", str(tmp_path / "jobs"), "--every", "0.2"]
    first = subprocess.Popen(command, env=environment(tmp_path, server), stderr=subprocess.PIPE, text=True)
    try:
        assert "watching " in first.stderr.readline()
        assert "sent " in first.stderr.readline()
        status = run(tmp_path, server, "status").stdout
        assert status.splitlines()[0] == "an agent is watching %s" % (tmp_path / "jobs")
        done = run(tmp_path, server, "watch", tmp_path / "jobs", "--once")
        assert (done.returncode, "STEPSCOPE_STATE of its own" in done.stderr) == (2, True)
    finally:
        first.kill()
        first.communicate()
    status = run(tmp_path, server, "status").stdout.splitlines()
    assert (status[0], status[-1]) == ("no agent is watching", "1 sent")
    assert run(tmp_path, server, "watch", tmp_path / "jobs", "--once").returncode == 0  # as after kill -9


def test_a_refused_comparison_is_what_the_page_of_hosts_shows(server, tmp_path):
    agent = Agent(tmp_path, server)
    write(tmp_path / "stepscope_alignment.json", {"schema": 1, "compared": 1, "layers": []})
    server.state.fail("POST", "/runs$", status=413)
    agent.look()
    agent.look(after=60)
    assert server.state.beats[-1]["trouble"] == "stepscope_alignment.json: the server says: made-up trouble"
