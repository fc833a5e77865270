"""Django's own, one at a time: where two pods or hosts start at once, the second waits and finds nothing left to do."""

from __future__ import annotations

from typing import Any

from django.core.management.commands.migrate import Command as Migrate
from django.db import connections

LOCK = 0x57_45_50_53  # any number that nothing else in this database takes


class Command(Migrate):
    def handle(self, *args: Any, **options: Any) -> None:
        # A connection of its own: the server lets go of the lock when it ends, however it ends.
        holder = connections[options["database"]].copy()
        try:
            with holder.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
            super().handle(*args, **options)
        finally:
            holder.close()
