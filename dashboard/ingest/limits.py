"""How much may be sent, and how often. Each refusal names its number."""

from __future__ import annotations

import logging
import time

from django.conf import settings
from django.core.cache import cache
from django.db import connection
from django.db.models import Sum

from dashboard.accounts.models import Project
from dashboard.ingest.errors import ApiError, byte_text
from dashboard.ingest.models import Blob, IncomingArchive

logger = logging.getLogger(__name__)

COUNTED_SECONDS = 600
"""How long a count of a project's bytes serves, with what was promised since added to it."""
RESERVED = """
    SELECT coalesce(sum(size), 0) FROM (
        SELECT DISTINCT file->>'sha256' AS sha256, (file->>'size')::bigint AS size
        FROM runs_dump d JOIN runs_capture c ON c.id = d.capture_id JOIN runs_run r ON r.id = c.run_id,
             jsonb_array_elements(d.files) file
        WHERE r.project_id = %(project)s AND d.state = 'receiving'
    ) announced
    WHERE NOT EXISTS (SELECT 1 FROM ingest_blob b WHERE b.project_id = %(project)s AND b.sha256 = announced.sha256)
"""


def count_call(who: str) -> None:
    """Refuse a caller that makes more than CALLS_PER_MINUTE. Counting needs Valkey; without it nobody is refused."""
    now = int(time.time())
    key = f"calls:{who}:{now // 60}"
    try:
        cache.add(key, 0, 120)
        made = cache.incr(key)
    except Exception:  # whatever the cache's client raises when its server is gone or lost the key
        logger.warning("calls are not counted: the cache does not answer")
        return
    if made > settings.CALLS_PER_MINUTE:
        message = f"more than {settings.CALLS_PER_MINUTE} calls in a minute"
        raise ApiError(429, "slow_down", message, limit=settings.CALLS_PER_MINUTE, retry_after=60 - now % 60)


def check_file(name: str, size: int) -> None:
    limit = settings.MAX_FILE_BYTES
    if size > limit:
        message = f"{name} is {byte_text(size)}; a file may be {byte_text(limit)} at most"
        raise ApiError(413, "file_too_large", message, file=name, limit=limit)


def check_dump(sizes: list[int]) -> None:
    limit = settings.MAX_DUMP_BYTES
    if sum(sizes) > limit:
        message = f"the dump is {byte_text(sum(sizes))}; a dump may be {byte_text(limit)} at most"
        raise ApiError(413, "dump_too_large", message, limit=limit)


def check_file_count(count: int) -> None:
    limit = settings.MAX_DUMP_FILES
    if count > limit:
        raise ApiError(413, "too_many_files", f"{count} files; a dump may have {limit} at most", limit=limit)


def check_project(project: Project, more: int) -> None:
    """Refuse when what is stored and what is promised, the newest promise of `more` bytes included, pass the project's
    limit.

    Call it inside the transaction that made the promise, under the project's row lock. Counted are all contents of the
    project, which may be a million; in between it is enough to know what they are at most.
    """
    limit = project.byte_limit
    if _is_surely_within(project, more, limit):
        return
    used = stored_bytes(project) + reserved_bytes(project)
    if used > limit:
        message = f"with this the project would hold or await {byte_text(used)}; its limit is {byte_text(limit)}"
        raise ApiError(413, "project_full", message, limit=limit, used=used)
    _remember(project, used)


def _is_surely_within(project: Project, more: int, limit: int) -> bool:
    """By what was counted lately and all that was promised since. Never without Valkey, which keeps it."""
    try:
        known = cache.get(_room_key(project))
    except Exception:  # whatever the cache's client raises when its server is gone
        return False
    if known is None or known + more > limit:
        return False
    _remember(project, known + more)  # nobody else does: we hold the project's lock
    return True


def _remember(project: Project, most: int) -> None:
    try:
        cache.set(_room_key(project), most, COUNTED_SECONDS)
    except Exception:
        logger.warning("what a project holds is not remembered: the cache does not answer")


def _room_key(project: Project) -> str:
    return f"room:{project.pk}"


def stored_bytes(project: Project) -> int:
    return Blob.objects.filter(project=project).aggregate(total=Sum("size"))["total"] or 0


def reserved_bytes(project: Project) -> int:
    """Bytes of announced files that have not arrived, each content once, and of archives not yet unpacked."""
    with connection.cursor() as cursor:
        cursor.execute(RESERVED, {"project": project.pk})
        announced = int(cursor.fetchone()[0])
    archives = IncomingArchive.objects.filter(project=project, state__in=IncomingArchive.PENDING)
    return announced + (archives.aggregate(total=Sum("size_bytes"))["total"] or 0)
