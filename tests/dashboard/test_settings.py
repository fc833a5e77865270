from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_the_deployment_check_is_clean_behind_https():
    secret = "".join(chr(65 + number % 58) for number in range(60))
    done = manage("check", "--deploy", "--fail-level", "WARNING", SECRET_KEY=secret, STEPSCOPE_URL="https://x.example")
    assert done.returncode == 0, done.stderr


def test_a_server_without_a_secret_key_refuses_to_serve():
    environment = {name: text for name, text in os.environ.items() if name != "SECRET_KEY"}
    done = subprocess.run(
        [sys.executable, "-c", "import dashboard.wsgi"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0 and "SECRET_KEY" in done.stderr


FULL_COLLECTIONS = """
import gc, sys
{start}
full = lambda: gc.get_stats()[2]["collections"]
before, kept = full(), []
for number in range(300_000):
    kept.append([number])
    if number % 1_000 == 0:
        kept.clear()
print(gc.get_freeze_count(), full() - before)
"""


WEB = "import dashboard.wsgi; dashboard.wsgi.warming.join()"
WORKER = "import dashboard.celery; dashboard.celery.app.Worker(loglevel='CRITICAL')"


@pytest.mark.parametrize("start", [WEB, WORKER], ids=["web", "worker"])
def test_what_is_there_after_the_start_is_never_walked_by_the_garbage_collector_again(start):
    done = subprocess.run(
        [sys.executable, "-c", FULL_COLLECTIONS.format(start=start)],
        cwd=ROOT,
        env={**os.environ, "SECRET_KEY": "only-for-tests"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    frozen, collections = map(int, done.stdout.split())
    assert frozen > 50_000
    assert collections <= 1


def test_models_and_migrations_agree():
    assert manage("makemigrations", "--check", "--dry-run").returncode == 0


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/accounts/login/", "/admin/login/"])
def test_pages_carry_a_strict_policy(client, path):
    policy = client.get(path)["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
