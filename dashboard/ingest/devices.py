"""A dump whose files hold rows of several devices: each other device becomes a rank of the capture, from files that are
here already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from dashboard.ingest import queue, storage
from dashboard.runs.models import Capture, CaptureState, Dump, DumpState


def announce(dump: Dump, others: Sequence[dict[str, Any]]) -> None:
    """Have the other devices found in a dump digested as ranks of their own; for the transaction that stores the dump.

    A rank that was sent itself counts more than one found in another's files. Doing it again changes nothing.
    """
    if dump.origin_id is not None:
        return  # the dump that was sent speaks for all
    remove(dump, keep={row["rank"] for row in others})
    made = [_found(dump, row["rank"], row["device"]) for row in others]
    if any(made) and not Dump.objects.filter(capture=dump.capture_id, state=DumpState.RECEIVING).exists():
        Capture.objects.filter(pk=dump.capture_id).update(state=CaptureState.DIGESTING)


def _found(origin: Dump, rank: int, device: int) -> bool:
    """Whether there was no dump of that rank yet."""
    copied = {
        name: getattr(origin, name) for name in ("files", "files_sha256", "size_bytes", "folder", "framework", "host")
    }
    new = {"origin": origin, "device_id": device, "state": DumpState.UPLOADED, "uploaded_at": timezone.now(), **copied}
    dump, made = Dump.objects.get_or_create(capture=origin.capture, rank=rank, defaults=new)
    if made:
        queue.send("dashboard.ingest.tasks.digest_dump", dump.pk)
    return made


def remove(origin: Dump, keep: set[int] | None = None) -> None:
    """Remove the ranks found in files that are no longer that dump's; within a transaction."""
    for other in Dump.objects.filter(origin=origin).exclude(rank__in=keep or ()).only("pk", "frames", "capture_id"):
        frames = other.frames
        other.delete()
        transaction.on_commit(lambda name=frames: storage.remove_frames(name))  # type: ignore[misc]
