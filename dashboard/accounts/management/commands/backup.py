"""Writes the database and the files it names to an empty folder; the product may go on meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.backup import back_up
from dashboard.supervisor import Refused


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path)

    def handle(self, *args: Any, folder: Path, **options: Any) -> None:
        try:
            back_up(settings.DATA_ROOT, folder)
        except (Refused, RuntimeError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Everything is in {folder}.")
