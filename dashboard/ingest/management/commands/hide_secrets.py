"""Hides secrets again, by the rules of this version, in configurations, metadata and environments stored earlier.

May be stopped and started again, and run while the product goes on. Changes nothing that is masked already.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from dashboard.ingest.remask import hide_again


class Command(BaseCommand):
    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        for name, read, changed, done in hide_again():
            if done or options["verbosity"] > 1:
                self.stdout.write(f"{name}: {read} read, {changed} changed{'' if done else ' so far'}")
