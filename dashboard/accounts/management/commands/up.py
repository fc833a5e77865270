"""Runs the whole product on this machine: PostgreSQL, Valkey, web, worker, beat, and the demo on first start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from dashboard.env import env_bool, env_secret, env_str
from dashboard.services import DEMO_LOADED, Service, secret_in, start_postgres, start_valkey
from dashboard.supervisor import Refused, Supervisor, check_port, close_files, only_one, stop_leftovers, trim_log

READY_SECONDS = 90
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        data, stop = settings.DATA_ROOT, threading.Event()
        for number in STOPS:
            signal.signal(number, lambda *_: stop.set())
        try:
            host, port = address()
            close_files(data)
            with only_one(data):
                stop_leftovers(data)
                check_port(host, port)
                supervisor = Supervisor(data, self.say)
                try:
                    self.run(data, host, port, supervisor, stop)
                finally:
                    self.say("Stopping")
                    supervisor.stop()
        except (Refused, RuntimeError) as error:
            raise CommandError(str(error)) from error

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def run(self, data: Path, host: str, port: int, supervisor: Supervisor, stop: threading.Event) -> None:
        (data / "logs").mkdir(mode=0o700, exist_ok=True)
        environment = start_stores(data, supervisor) | own_environment(data, host, port)
        for step in (["migrate", "--no-input"], ["collectstatic", "--no-input"]):
            if stop.is_set():
                return
            manage(data, environment, *step)
        manage(data, environment, "first_access", str(data / "access.json"))
        for service in programs(data, environment):
            supervisor.add(service)
        wait_until_ready(host, port, supervisor, stop)
        if stop.is_set():
            return
        self.greet(data)
        demo = load_demo(data, environment, supervisor, self.say)
        while not stop.wait(0.5):
            supervisor.keep()
            demo = watch_demo(data, demo, self.say)

    def greet(self, data: Path) -> None:
        access = json.loads((data / "access.json").read_text())
        self.say(f"\nStepscope is at {access['url']}")
        self.say(f"  sign in as {access['username']}, password {access['password'] or 'as it was set before'}")
        self.say(f"  token for agents: {access['token']} (project {access['project']})")
        self.say(f"  also in {data / 'access.json'}. Ctrl-C stops it; data stays in {data}\n")


def address() -> tuple[str, int]:
    text = env_str("PORT", "8000")
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise Refused(f"PORT must be a number from 1 to 65535, not {text!r}")
    return env_str("STEPSCOPE_BIND", "127.0.0.1"), int(text)


def start_stores(data: Path, supervisor: Supervisor) -> dict[str, str]:
    """Start the stores that no address was given for; the environment that names them all."""
    found = dict(os.environ)
    for name, start in (("DATABASE_URL", start_postgres), ("REDIS_URL", start_valkey)):
        if env_secret(name):
            continue
        service = start(data)
        supervisor.add(service)
        found[name] = service.url
    return found


def own_environment(data: Path, host: str, port: int) -> dict[str, str]:
    reached = "127.0.0.1" if host in {"0.0.0.0", "::"} else host
    return {
        "PORT": str(port),
        "STEPSCOPE_DATA": str(data),
        "SECRET_KEY": env_secret("SECRET_KEY") or secret_in(data / "secret.key"),
        "STEPSCOPE_URL": env_str("STEPSCOPE_URL") or f"http://{reached}:{port}",
        "STEPSCOPE_HOSTS": ",".join([*settings.ALLOWED_HOSTS, "127.0.0.1"]),  # our own look at /healthz, and the demo
        "PYTHONUNBUFFERED": "1",
    }


def manage(data: Path, environment: dict[str, str], *arguments: str) -> None:
    """Run one command of ours to its end; its output goes to a log that is shown when it fails."""
    log = data / "logs" / "setup.log"
    trim_log(log)
    with log.open("ab") as output:
        result = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=settings.BASE_DIR,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C waits for it: a migration is never cut
        )
    if result.returncode:
        raise RuntimeError(f"manage.py {arguments[0]} failed; {log} ends:\n{log.read_text(errors='replace')[-800:]}")


def programs(data: Path, environment: dict[str, str]) -> list[Service]:
    """The workers, the clock and the web server, in the order they start."""
    celery = [sys.executable, "-m", "celery", "--workdir", str(settings.BASE_DIR), "-A", "dashboard.celery"]
    beat = ["beat", "--schedule", str(data / "beat-schedule"), "--pidfile", "", "--loglevel", "INFO"]
    web = [sys.executable, "-m", "gunicorn", "--chdir", str(settings.BASE_DIR), "dashboard.wsgi"]
    web += ["--config", str(settings.BASE_DIR / "deploy" / "gunicorn.conf.py")]
    commands = {
        # Digests have workers of their own, so that many of them do not hold up the rest.
        "digester": celery + worker("digest", env_str("STEPSCOPE_WORKERS") or str(os.cpu_count() or 2)),
        "worker": celery + worker("celery", "2"),
        "beat": celery + beat,
        "web": web,
    }
    # A worker asked once by SIGTERM finishes what it digests; SIGQUIT drops it, and a sweep brings it back.
    stops = {"worker": signal.SIGQUIT, "digester": signal.SIGQUIT}
    return [
        Service(name, "", command, data / "logs" / f"{name}.log", None, stops.get(name, signal.SIGTERM), environment)
        for name, command in commands.items()
    ]


def worker(queue: str, concurrency: str) -> list[str]:
    options = ["--queues", queue, "--hostname", f"{queue}@%h", "--pool", "prefork", "--concurrency", concurrency]
    return ["worker", *options, "--loglevel", "INFO", "--without-gossip", "--without-mingle"]


def wait_until_ready(host: str, port: int, supervisor: Supervisor, stop: threading.Event) -> None:
    reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    web = supervisor.children[-1].service
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and not stop.is_set():
        if is_healthy(f"http://{reached}:{port}/healthz"):
            return
        if not web.running:
            break
        stop.wait(0.1)
    if not stop.is_set():
        raise RuntimeError(f"The web server does not answer; {web.log} ends:\n{web.last_words()}")


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def load_demo(data: Path, environment: dict[str, str], supervisor: Supervisor, say: Any) -> Service | None:
    """Start loading the demo when this folder has none yet and nobody declined it."""
    if not env_bool("STEPSCOPE_DEMO", True) or (data / DEMO_LOADED).exists():
        return None
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "load_demo"]
    command += ["--server", f"http://127.0.0.1:{environment['PORT']}"]
    demo = Service("demo", "", command, data / "logs" / "demo.log", env=environment)
    supervisor.add_passing(demo)
    say("The demo is being loaded; its runs appear one by one. The site can be used meanwhile.")
    return demo


def watch_demo(data: Path, demo: Service | None, say: Any) -> Service | None:
    if demo is None or demo.running or demo.process is None:
        return demo
    if demo.process.returncode == 0:
        (data / DEMO_LOADED).touch()
        say("The demo is loaded.")
    else:
        say(f"The demo could not be loaded, the next start tries again. Its log: {demo.log}")
    return None
