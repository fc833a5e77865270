from __future__ import annotations

import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
for folder in (HERE, os.path.join(ROOT, "agents")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from agent_double import TOKEN, Server  # noqa: E402


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch, tmp_path):
    """No proxy, token or state of this machine reaches a test."""
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith("STEPSCOPE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STEPSCOPE_STATE", str(tmp_path / "state"))


@pytest.fixture
def server():
    running = Server()
    yield running
    running.stop()


@pytest.fixture
def run_agent(capfd, server):
    """Runs the command line against the server; (exit code, standard output, standard error)."""
    from stepscope_agent.cli import main

    def run(*arguments, url=None, token=TOKEN):
        given = ["--server", url or server.url, "--token", token, "--project", "demo", "--retry-for", "5"]
        code = main(list(arguments[:1]) + given + list(arguments[1:]))
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def shared_dumps():
    folder = os.path.join(os.environ.get("STEPSCOPE_SHARED") or os.path.join(ROOT, "..", "shared"), "dumps")
    if not os.path.isdir(folder):
        pytest.skip("no real dumps at ../shared/dumps")
    return folder
