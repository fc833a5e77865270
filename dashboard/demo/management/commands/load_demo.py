"""Sends the demo's runs to a server through the agent, as a training host would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from dashboard.demo.files import write_chapter
from dashboard.demo.story import AFTER_UPGRADE, BEFORE_UPGRADE, REFERENCE, STORY, Chapter
from dashboard.runs.models import Run

WAIT_S = 600


class Command(BaseCommand):
    help = "Loads the demo project's runs into a running server. Doing it again changes nothing."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--server", help="address of the server; else that of access.json in the data folder")
        parser.add_argument("--token", help="agent token of the project; else that of access.json")
        parser.add_argument("--project", help="short name of the project; else that of access.json")
        parser.add_argument("--wait", action="store_true", help="end only when the last run is analysed")

    def handle(self, *args: Any, **options: Any) -> None:
        target = Target.of(options)
        for chapter in STORY:
            # the upgrade is judged against the run before it, which must be analysed by then
            wait = chapter.key == BEFORE_UPGRADE or (options["wait"] and chapter.key == AFTER_UPGRADE)
            with tempfile.TemporaryDirectory(prefix="stepscope-demo-") as folder:
                send(chapter, Path(folder), target, wait=wait)
            if chapter.key == REFERENCE:
                mark_reference(target.project, chapter)
            self.stdout.write(f"{chapter.key}  {chapter.name}")
            self.stdout.flush()


class Target(NamedTuple):
    """Where the demo goes and what lets it in."""

    server: str
    token: str
    project: str

    @classmethod
    def of(cls, options: dict[str, Any]) -> Target:
        """What the options say, and for the rest the access file that the first start wrote."""
        path = settings.DATA_ROOT / "access.json"
        try:
            access = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            access = {}
        names = {"server": "url", "token": "token", "project": "project"}
        values = {name: options[name] or access.get(key) for name, key in names.items()}
        if missing := [f"--{name}" for name, value in values.items() if not value]:
            raise CommandError(f"give {', '.join(missing)}: {path} does not say")
        return cls(**values)


def send(chapter: Chapter, folder: Path, target: Target, *, wait: bool) -> None:
    """Write a chapter's files under `folder` and upload them. CommandError with the agent's words when it fails."""
    files = write_chapter(folder, chapter)
    command = [sys.executable, "-m", "stepscope_agent", "upload", str(files.dumps), "--project", target.project]
    command += ["--run", chapter.name, "--run-key", chapter.key]
    command += ["--config", str(files.config), "--log", str(files.log), "--timeout", str(WAIT_S)]
    command += ["--wait"] if wait else []
    done = subprocess.run(command, env=_environment(folder, target), capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{chapter.key}: the agent ended with {done.returncode}: {done.stderr.strip()[-500:]}")


def _environment(folder: Path, target: Target) -> dict[str, str]:
    """The agent's settings; its token stays off the command line, which everybody on the machine can read."""
    agents = Path(settings.BASE_DIR) / "agents"
    state = {
        "STEPSCOPE_SERVER": target.server,
        "STEPSCOPE_TOKEN": target.token,
        "STEPSCOPE_STATE": str(folder / "state"),
    }
    return {**os.environ, **state, "PYTHONPATH": str(agents)}


def mark_reference(project: str, chapter: Chapter) -> None:
    """Make that run the one precision is compared with, unless the project has one or lives on another server."""
    runs = Run.objects.filter(project__slug=project)
    if not runs.filter(is_reference=True).exists():
        runs.filter(key=chapter.key).update(is_reference=True)
