"""What goes wrong around the agent, with the running product on the other side: nothing is lost, and each is told."""

# ruff: noqa: F811 (the fixture `started` is imported)
from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.dumps import write_dump
from tests.e2e.test_agent import MAKE_TOKEN, SEEN, SHORT, Done, Host, captures, received, started  # noqa: F401
from tests.live import ROOT, LiveProduct, live, wait_for

WATCH = ["--every", "0.2", "--quiet", "0.2"]
REVOKE = """
import sys, django
django.setup()
from django.utils import timezone
from dashboard.accounts.models import AgentToken
for token in AgentToken.objects.filter(project__slug=sys.argv[1]):
    token.revoked = timezone.now()
    token.save()
"""
SHIFTED = """
import sys, time, socket
real = time.time
time.time = lambda: real() + {ahead}
socket.gethostname = lambda: {name!r}
from stepscope_agent.cli import main
sys.exit(main())
"""
FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from stepscope_agent.cli import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def product() -> Iterator[LiveProduct]:
    with live(STEPSCOPE_HEARTBEAT_SECONDS="1") as running:
        yield running


class Way:
    """The way to the server, which breaks when told: `cut_after` bytes from the agent the connection is gone."""

    def __init__(self, product: LiveProduct) -> None:
        self.target, self.cut_after, self.cuts = ("127.0.0.1", product.port), 0, 0
        self.answers: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self.listener.accept()
            except OSError:
                return
            if self.answers:
                agent.recv(65536)
                agent.sendall(self.answers.pop())
                agent.close()
                continue
            server = socket.create_connection(self.target)
            threading.Thread(target=self._carry, args=(agent, server, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(server, agent, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, from_agent: bool) -> None:
        carried = 0
        try:
            while data := source.recv(65536):
                carried += len(data)
                if from_agent and self.cut_after and carried > self.cut_after:
                    self.cuts, self.cut_after = self.cuts + 1, 0
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def way(product: LiveProduct) -> Iterator[Way]:
    one = Way(product)
    yield one
    one.close()


def host_of(product: LiveProduct, tmp_path: Path, **settings: str) -> Host:
    (tmp_path / "job").mkdir(exist_ok=True)
    return Host(product, tmp_path / "host", **settings)


def write_whole(folder: Path, step: int = 1) -> Path:
    """A dump that its marker calls whole, with bytes that no other test has sent."""
    root = write_dump(folder).folder
    (root / "FRAMEWORK").mkdir(exist_ok=True)
    (root / "FRAMEWORK" / "own_0.txt").write_text(str(folder))
    (root / ".complete.json").write_text(json.dumps({"schema": 1, "state": "complete", "first_step": step}))
    return root


def write_large(folder: Path, megabytes: int = 24) -> Path:
    """One with a file that takes a while, since it cannot be packed."""
    root = write_whole(folder)
    (root / "FRAMEWORK" / "big_0.txt").write_bytes(os.urandom(megabytes << 20))
    return root


def ready(product: LiveProduct, run: str) -> Callable[[], bool]:
    return lambda: [capture["state"] for capture in captures(product, run)] == ["ready"]


def run_patched(host: Host, code: str, *arguments: object) -> Done:
    """The agent in a process whose surroundings are changed first."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=host.environment, capture_output=True, text=True, timeout=180)
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_connection_cut_in_the_middle_of_a_file_goes_on(product: LiveProduct, way: Way, tmp_path: Path) -> None:
    host = host_of(product, tmp_path, server=way.url)
    write_large(tmp_path / "job")
    way.cut_after = 9 * 2**20
    done = host.run("upload", tmp_path / "job", "--run", "cut", "--wait")
    assert (done.code, way.cuts) == (0, 1), done.err
    assert ready(product, "cut")()


def test_a_server_that_answers_500_is_tried_again(product: LiveProduct, way: Way, tmp_path: Path) -> None:
    host = host_of(product, tmp_path, server=way.url)
    write_dump(tmp_path / "job")
    way.answers = [b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"] * 3
    done = host.run("upload", tmp_path / "job", "--run", "oops", "--wait")
    assert done.code == 0 and "500" in done.err


def test_a_server_that_was_away_gets_what_came_meanwhile(product: LiveProduct, tmp_path: Path, started: Any) -> None:
    host = host_of(product, tmp_path)
    product.kill("web")
    process = host.start("watch", tmp_path / "job", "--run", "away", *WATCH)
    started(process)
    write_whole(tmp_path / "job" / "profiles")
    assert (errors := process.stderr) is not None
    wait_for(lambda: "connection refused" in errors.readline(), "word of the trouble")
    process.kill()  # the host is started anew meanwhile
    process.wait()
    product.start_part("web")
    product.wait_until_up()
    started(host.start("watch", tmp_path / "job", "--run", "away", *WATCH))
    wait_for(ready(product, "away"), "the dump of the outage", 120)


def test_a_full_disk_of_the_server_is_told_and_waited_out(product: LiveProduct, tmp_path: Path) -> None:
    host = host_of(product, tmp_path)
    write_whole(tmp_path / "job")
    product.extra["STEPSCOPE_MIN_FREE_BYTES"] = str(10**18)
    try:
        restart_web(product)
        done = host.run("upload", tmp_path / "job", "--run", "full", *SHORT)
    finally:
        del product.extra["STEPSCOPE_MIN_FREE_BYTES"]
        restart_web(product)
    assert done.code == 3 and "the server's disk is full" in done.err
    assert host.run("upload", tmp_path / "job", "--run", "full").code == 0


@pytest.fixture
def limited(product: LiveProduct) -> Iterator[Callable[..., None]]:
    """Starts the web server anew with other limits, until the test is over."""
    before = dict(product.extra)

    def limit(**settings: str) -> None:
        product.extra.update(settings)
        restart_web(product)

    yield limit
    product.extra.clear()
    product.extra.update(before)
    restart_web(product)


def line_of(host: Host, *words: str) -> str:
    """The one line of `status` that holds all the words."""
    (line,) = [one for one in host.run("status").out.splitlines() if all(word in one for word in words)]
    return line


def test_a_full_disk_of_the_server_does_not_end_the_watching(
    product: LiveProduct, tmp_path: Path, limited: Any
) -> None:
    host = host_of(product, tmp_path)
    limited(STEPSCOPE_MIN_FREE_BYTES=str(10**18))
    write_whole(tmp_path / "job" / "a")
    assert host.run("watch", tmp_path / "job", "--run", "507", "--once").code == 3
    assert "the server's disk is full" in line_of(host, "trouble")
    limited(STEPSCOPE_MIN_FREE_BYTES="0")
    assert host.run("watch", tmp_path / "job", "--run", "507", "--once").code == 0
    wait_for(ready(product, "507"), "the dump")
    assert "trouble" not in host.run("status").out


def test_what_is_too_large_is_told_and_everything_else_arrives(
    product: LiveProduct, tmp_path: Path, limited: Any
) -> None:
    """A file above the limit (413), a comparison that makes the meta of the run larger than the server takes (413)."""
    host = host_of(product, tmp_path)
    limited(STEPSCOPE_MAX_FILE_BYTES=str(1 << 20))
    write_large(tmp_path / "job" / "a", megabytes=2)
    write_whole(tmp_path / "job" / "b", step=2)
    huge = {"schema": 1, "compared": 1, "differing": 0, "layers": [{"name": "x" * (3 << 20), "aligned": True}]}
    (tmp_path / "job" / "stepscope_alignment.json").write_text(json.dumps(huge))
    watch = ["watch", tmp_path / "job", "--run", "413", "--once", *WATCH]
    assert host.run(*watch).code == 0
    wait_for(lambda: [c["key"] for c in captures(product, "413") if c["state"] == "ready"] == ["step-2"], "the other")
    assert "big_0.txt is 2.0 MB; a file may be 1.0 MB at most" in line_of(host, "failed", "/job/a/")
    assert "meta of 413 would be" in line_of(host, "stepscope_alignment.json")


def test_a_dump_that_is_here_with_other_content_is_told(product: LiveProduct, tmp_path: Path) -> None:
    """409: agents of two hosts have a rank 0 of one window."""
    for name in ("a", "b"):
        write_whole(tmp_path / name / "job", step=7)
        host = Host(product, tmp_path / f"host {name}")
        assert host.run("watch", tmp_path / name / "job", "--run", "409", "--once").code == 0
        wait_for(ready(product, "409"), "the first")
    assert "rank 0 of step-7 is digested with other files" in line_of(host, "failed", "/b/job/")


def test_too_many_calls_are_slowed_down_and_nothing_is_lost(product: LiveProduct, tmp_path: Path, limited: Any) -> None:
    """429 with Retry-After, while somebody else uses up what the token may call in a minute."""
    token = product.python(MAKE_TOKEN, "slow").strip()
    host = host_of(product, tmp_path, token=token, project="slow")
    limited(STEPSCOPE_CALLS_PER_MINUTE="4")
    write_whole(tmp_path / "job")
    call = urllib.request.Request(f"{product.url}/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
    told = threading.Event()

    def use_up() -> None:
        while not told.is_set():
            with suppress(urllib.error.HTTPError):
                urllib.request.urlopen(call, timeout=30).close()

    other = threading.Thread(target=use_up)
    other.start()
    process = host.start("watch", tmp_path / "job", "--run", "429", "--once")
    try:
        assert process.stderr is not None
        assert "watching" in process.stderr.readline()
        assert "more than 4 calls in a minute" in process.stderr.readline()
    finally:
        told.set()
        other.join()
        process.kill()
        process.communicate()
    wait_for(lambda: host.run("watch", tmp_path / "job", "--run", "429", "--once").code == 0, "room for its calls", 240)
    assert host.run("status").out.splitlines()[-1] == "1 sent"


def restart_web(product: LiveProduct) -> None:
    product.kill("web")
    product.start_part("web")
    product.wait_until_up()


def test_a_full_disk_of_the_host_keeps_nothing_from_arriving(product: LiveProduct, tmp_path: Path) -> None:
    host = host_of(product, tmp_path)
    write_dump(tmp_path / "job")
    done = run_patched(host, FULL_DISK, "upload", tmp_path / "job", "--run", "host full", "--wait")
    assert done.code == 0, done.err
    assert ready(product, "host-full")()


def test_a_clock_an_hour_ahead_and_a_new_name_change_nothing(product: LiveProduct, tmp_path: Path) -> None:
    host = host_of(product, tmp_path)
    for number, (ahead, name) in enumerate(((3600, "before"), (-3600, "after"))):
        write_whole(tmp_path / "job" / f"step_{number}", step=number + 1)
        code = SHIFTED.format(ahead=ahead, name=name)
        done = run_patched(host, code, "watch", tmp_path / "job", "--run", "shifted", "--once")
        assert done.code == 0, done.err
    assert sorted(capture["key"] for capture in captures(product, "shifted")) == ["step-1", "step-2"]
    agents = [agent for agent in json.loads(product.python(SEEN, "agents")) if agent["host"] in ("before", "after")]
    assert [agent["host"] for agent in agents] == ["after"]


def test_a_dump_deleted_while_it_is_sent_leaves_the_others_alone(
    product: LiveProduct,
    tmp_path: Path,
    started: Any,
) -> None:
    host = host_of(product, tmp_path)
    gone, stays = write_large(tmp_path / "job" / "a"), write_whole(tmp_path / "job" / "b", step=2)
    before = received(product)
    process = host.start("watch", tmp_path / "job", "--run", "deleted", "--limit-rate", "4", *WATCH)
    started(process)
    wait_for(lambda: received(product) > before, "bytes of the dump")
    shutil.rmtree(gone)
    wait_for(lambda: any(c["dumps"]["digested"] for c in captures(product, "deleted")), "the other dump", 120)
    assert stays.is_dir() and process.poll() is None


def test_a_dump_that_grows_while_it_is_sent_arrives_as_it_ends(
    product: LiveProduct, tmp_path: Path, started: Any
) -> None:
    host = host_of(product, tmp_path)
    root = write_large(tmp_path / "job" / "a")
    before = received(product)
    started(host.start("watch", tmp_path / "job", "--run", "grown", "--limit-rate", "8", *WATCH))
    wait_for(lambda: received(product) > before, "bytes of the dump")
    with (root / "FRAMEWORK" / "big_0.txt").open("ab") as big:
        big.write(b"the end\n")
    wait_for(ready(product, "grown"), "the whole dump", 180)


def test_a_token_revoked_while_watching_is_told_and_a_new_one_goes_on(product: LiveProduct, tmp_path: Path) -> None:
    token = product.python(MAKE_TOKEN, "revoking").strip()
    host = host_of(product, tmp_path, token=token, project="revoking")
    watch = ["watch", tmp_path / "job", "--run", "revoked", "--once"]
    assert host.run(*watch).code == 0
    product.python(REVOKE, "revoking")
    write_whole(tmp_path / "job" / "a")
    for _ in range(6):
        done = host.run(*watch)
    assert done.code == 4 and "the token is unknown, expired or revoked" in done.err
    again = Host(product, tmp_path / "host", token=product.python(MAKE_TOKEN, "revoking").strip(), project="revoking")
    done = again.run(*watch)
    assert done.code == 0 and "sent " in done.err


def test_ten_thousand_small_files_beside_a_dump_stay_there(product: LiveProduct, tmp_path: Path) -> None:
    host = host_of(product, tmp_path)
    root = write_dump(tmp_path / "job").folder
    for number in range(10_000):
        path = root / "PROF_1" / "device_0" / "data" / f"{number % 100}" / f"{number}.slice"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    done = host.run("upload", tmp_path / "job", "--run", "many", "--wait")
    assert done.code == 0, done.err
    assert ready(product, "many")()


def test_an_unknown_certificate_is_named_with_the_way_out(product: LiveProduct, tmp_path: Path) -> None:
    certificate = tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    port = socket.create_server(("127.0.0.1", 0))
    address = port.getsockname()
    port.close()
    web = [sys.executable, "-m", "gunicorn", "dashboard.wsgi", "--bind", f"{address[0]}:{address[1]}", "--threads", "2"]
    secure = subprocess.Popen(
        [*web, "--certfile", certificate, "--keyfile", tmp_path / "key.pem"],
        env=product.environment(), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: socket.socket().connect_ex(address) == 0, "the port")
        host = host_of(product, tmp_path, server=f"https://{address[0]}:{address[1]}")
        write_dump(tmp_path / "job")
        done = host.run("upload", tmp_path / "job", "--run", "tls", *SHORT)
        assert done.code == 3 and "is not trusted" in done.err and "--ca FILE" in done.err
        assert host.run("upload", tmp_path / "job", "--run", "tls", "--ca", certificate, "--wait").code == 0
    finally:
        secure.terminate()
        secure.wait(30)


def test_a_server_nobody_knows_is_told_by_its_name(product: LiveProduct, tmp_path: Path) -> None:
    host = host_of(product, tmp_path, server="http://stepscope.invalid")
    write_dump(tmp_path / "job")
    done = host.run("upload", tmp_path / "job", "--run", "dns", *SHORT)
    assert done.code == 3
    assert done.err.splitlines()[-1].endswith("no address for host stepscope.invalid")
