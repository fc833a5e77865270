from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest
from django.core.management import call_command

from dashboard.accounts.management.commands.first_access import read_access
from dashboard.accounts.models import AgentToken, Member, Project, Role, User
from dashboard.services import Service
from dashboard.supervisor import (
    LOG_BYTES,
    Refused,
    Supervisor,
    born_at,
    check_port,
    close_files,
    only_one,
    stop_leftovers,
    trim_log,
)

DEADLINE = 30


def poll(condition):
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def program(tmp_path, code: str, name: str = "child") -> Service:
    return Service(name, "", [sys.executable, "-c", code], tmp_path / f"{name}.log")


WAITS = "import signal; signal.pause()"


@pytest.fixture
def supervisor(tmp_path):
    said: list[str] = []
    made = Supervisor(tmp_path, said.append)
    made.said = said
    yield made
    made.stop()


def test_a_child_that_dies_is_said_and_started_again_with_growing_waits(tmp_path, supervisor):
    supervisor.add(program(tmp_path, "raise SystemExit(3)"))
    child = supervisor.children[0]
    waits = set()
    poll(lambda: supervisor.keep() or waits.add(child.wait) or len(waits) == 3)
    assert sorted(waits) == [0.5, 1.0, 2.0]
    assert "child ended" in supervisor.said[0] and str(tmp_path / "child.log") in supervisor.said[0]


def test_stop_ends_all_children_in_the_opposite_order_and_forgets_them(tmp_path, supervisor):
    order = tmp_path / "order"
    code = (
        "import signal, sys; signal.signal(15, lambda *_: (open(sys.argv[1], 'a').write(sys.argv[2]), sys.exit())); "
        "print('up', flush=True); signal.pause()"
    )
    for name in "abc":
        service = program(tmp_path, code, name)
        service.command += [str(order), name]
        supervisor.add(service)
        poll(lambda service=service: "up" in service.last_words())
    assert (tmp_path / "up.pids").exists()
    supervisor.stop()
    assert order.read_text() == "cba"
    assert not any(child.service.running for child in supervisor.children)
    assert not (tmp_path / "up.pids").exists()


def test_a_child_that_ignores_the_signal_is_killed_with_what_it_started(tmp_path):
    code = (
        "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN); "
        f"print(subprocess.Popen([sys.executable, '-c', {WAITS!r}]).pid, flush=True); signal.pause()"
    )
    service = program(tmp_path, code)
    service.start()
    grandchild = int(poll(lambda: service.last_words().strip()))
    service.stop(0.1)
    assert service.process.returncode == -signal.SIGKILL
    poll(lambda: born_at(grandchild) is None)


@pytest.mark.skipif(not os.path.exists("/usr/bin/setpriv"), reason="no setpriv on this machine")
def test_a_child_ends_when_its_parent_is_killed(tmp_path):
    code = (
        "import sys; from pathlib import Path; from dashboard.services import Service; "
        f"s = Service('x', '', [sys.executable, '-c', {WAITS!r}], Path(sys.argv[1])); s.start(); "
        "print(s.process.pid, flush=True); s.process.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    poll(lambda: os.readlink(f"/proc/{pid}/exe").rpartition("/")[2].startswith("python"))
    parent.kill()
    parent.communicate()
    poll(lambda: born_at(pid) is None)


def test_the_next_start_ends_what_a_killed_one_left(tmp_path, supervisor):
    service = program(tmp_path, WAITS)
    supervisor.add(service)
    stop_leftovers(tmp_path)
    poll(lambda: not service.running)


def test_a_pid_that_belongs_to_another_process_by_now_is_left_alone(tmp_path):
    service = program(tmp_path, WAITS)
    service.start()
    (tmp_path / "up.pids").write_text(f'[[{service.process.pid}, "1"]]')
    stop_leftovers(tmp_path)
    assert service.running
    service.stop(0)


@pytest.mark.parametrize("text", ["", "nonsense", "{}", "[1]"])
def test_a_damaged_note_of_pids_does_not_stop_the_start(tmp_path, text):
    (tmp_path / "up.pids").write_text(text)
    stop_leftovers(tmp_path)


def test_only_one_holds_a_folder(tmp_path):
    with only_one(tmp_path), pytest.raises(Refused, match="already runs"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


def test_a_taken_port_is_noticed():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        with pytest.raises(Refused, match=f"Port {port} on 127.0.0.1 is taken"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_a_long_log_is_put_aside(tmp_path):
    log = tmp_path / "web.log"
    with log.open("wb") as file:
        file.truncate(LOG_BYTES + 1)
    trim_log(log)
    assert not log.exists() and (tmp_path / "web.log.1").stat().st_size == LOG_BYTES + 1


@pytest.mark.django_db
def test_first_access_makes_an_owner_a_project_and_a_token_once(tmp_path, client, settings):
    settings.SITE_URL = "http://127.0.0.1:8001"
    path = tmp_path / "access.json"
    call_command("first_access", path)
    access = read_access(path)
    assert access["url"] == "http://127.0.0.1:8001"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    user = User.objects.get(username=access["username"])
    assert user.check_password(access["password"])
    token = AgentToken.objects.find(access["token"])
    assert (token.project.slug, set(token.scopes)) == (access["project"], {"upload", "read"})
    assert Member.objects.get(project=token.project, user=user).role == Role.OWNER
    settings.SITE_URL = "http://127.0.0.1:8002"
    call_command("first_access", path)
    assert read_access(path) == {**access, "url": "http://127.0.0.1:8002"}
    assert (User.objects.count(), Project.objects.count(), AgentToken.objects.count()) == (1, 1, 1)


@pytest.mark.django_db
@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"token": "sst_000000000000_x"}', '{"token": 5}'])
def test_a_lost_access_file_brings_a_new_token_and_never_a_new_password(tmp_path, text):
    path = tmp_path / "access.json"
    call_command("first_access", path)
    before = read_access(path)
    path.unlink() if text is None else path.write_text(text)
    call_command("first_access", path)
    after = read_access(path)
    assert after["password"] is None
    assert after["token"] != before["token"] and AgentToken.objects.find(after["token"])
    assert User.objects.get().check_password(before["password"])


@pytest.fixture
def kept_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_nobody_else_reads_logs_and_notes(tmp_path, kept_umask):
    (tmp_path / "logs").mkdir()
    for name in ("postgres.log", "up.pids", "logs/web.log"):
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(0o644)
    close_files(tmp_path)
    with only_one(tmp_path):
        made = Supervisor(tmp_path, print)
        made.add(program(tmp_path, "print('secret')"))
        poll(lambda: (tmp_path / "child.log").read_text())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
        made.stop()
    assert {"postgres.log", "up.pids", "web.log", "child.log", "up.lock"} <= set(modes)
    assert set(modes.values()) == {0o600}
