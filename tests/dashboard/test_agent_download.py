"""The agent's archive as training hosts fetch it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from django.test import Client
from django.urls import reverse

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "/agent/stepscope-agent.pyz"


def test_the_downloaded_agent_runs(db: None, tmp_path: Path) -> None:
    answer = Client().get(ADDRESS)
    assert answer.status_code == 200
    assert answer["Content-Disposition"] == 'attachment; filename="stepscope-agent.pyz"'
    archive = tmp_path / "stepscope-agent.pyz"
    archive.write_bytes(answer.content)
    done = subprocess.run([sys.executable, "-I", archive, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("stepscope-agent "), done.stderr


def test_the_download_has_the_bytes_that_the_build_makes(db: None, tmp_path: Path) -> None:
    built = tmp_path / "built.pyz"
    subprocess.run([sys.executable, ROOT / "agents" / "build.py", built], check=True, capture_output=True, timeout=60)
    assert Client().get(reverse("ingest:agent_pyz")).content == built.read_bytes()


def test_an_agent_that_is_up_to_date_is_not_sent_again(db: None) -> None:
    first = Client().get(ADDRESS)
    again = Client().get(ADDRESS, headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_server_without_the_agents_sources_answers_404(db: None, settings: object, tmp_path: Path) -> None:
    from dashboard.ingest import agent

    agent.agent_archive.cache_clear()
    settings.BASE_DIR = tmp_path  # type: ignore[attr-defined]
    try:
        assert Client().get(ADDRESS).status_code == 404
    finally:
        agent.agent_archive.cache_clear()
