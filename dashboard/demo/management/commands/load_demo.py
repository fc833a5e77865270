"""Sends the demo's runs to a server through the agent, as a training host would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from dashboard.demo.files import write_chapter
from dashboard.demo.story import AFTER_UPGRADE, BEFORE_UPGRADE, REFERENCE, STORY, Chapter
from dashboard.runs.models import Run

WAIT_S = 600


class Command(BaseCommand):
    help = "Loads the demo project's runs into a running server. Doing it again changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--server", required=True, help="address of the server, e.g. http://127.0.0.1:8000")
        parser.add_argument("--token", required=True, help="agent token of the project, with the upload scope")
        parser.add_argument("--project", required=True, help="short name of the project")
        parser.add_argument("--wait", action="store_true", help="end only when the last run is analysed")

    def handle(self, *args: Any, **options: Any) -> None:
        for chapter in STORY:
            # the upgrade is judged against the run before it, which must be analysed by then
            wait = chapter.key == BEFORE_UPGRADE or (options["wait"] and chapter.key == AFTER_UPGRADE)
            with tempfile.TemporaryDirectory(prefix="stepscope-demo-") as folder:
                send(chapter, Path(folder), options["server"], options["token"], options["project"], wait=wait)
            if chapter.key == REFERENCE:
                mark_reference(options["project"], chapter)
            self.stdout.write(f"{chapter.key}  {chapter.name}")


def send(chapter: Chapter, folder: Path, server: str, token: str, project: str, *, wait: bool) -> None:
    """Write a chapter's files under `folder` and upload them. CommandError with the agent's words when it fails."""
    files = write_chapter(folder, chapter)
    command = [sys.executable, "-m", "stepscope_agent", "upload", str(files.dumps), "--project", project]
    command += ["--run", chapter.name, "--run-key", chapter.key]
    command += ["--config", str(files.config), "--log", str(files.log), "--timeout", str(WAIT_S)]
    command += ["--wait"] if wait else []
    done = subprocess.run(command, env=_environment(folder, server, token), capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{chapter.key}: the agent ended with {done.returncode}: {done.stderr.strip()[-500:]}")


def _environment(folder: Path, server: str, token: str) -> dict[str, str]:
    """The agent's settings; its token stays off the command line, which everybody on the machine can read."""
    agents = Path(settings.BASE_DIR) / "agents"
    state = {"STEPSCOPE_SERVER": server, "STEPSCOPE_TOKEN": token, "STEPSCOPE_STATE": str(folder / "state")}
    return {**os.environ, **state, "PYTHONPATH": str(agents)}


def mark_reference(project: str, chapter: Chapter) -> None:
    """Make that run the one precision is compared with, unless the project has one or lives on another server."""
    runs = Run.objects.filter(project__slug=project)
    if not runs.filter(is_reference=True).exists():
        runs.filter(key=chapter.key).update(is_reference=True)
