"""One dump: bytes to entry, tables and rows, by a child process that can be killed without harm to anything else."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.ingest import devices, storage
from dashboard.ingest.child import LONGEST_ERROR, Beat, ClaimLost, DigestFailed, run_analysis
from dashboard.ingest.errors import byte_text
from dashboard.ingest.masks import masked_meta
from dashboard.ingest.models import Blob
from dashboard.ingest.steps import store_steps
from dashboard.runs.models import Capture, Dump, DumpState, RankStep
from dashboard.runs.rank_evidence import to_ns
from dashboard.runs.rollup import share_of_compute

logger = logging.getLogger(__name__)

MAX_ENTRY_BYTES = 64 << 20
STAGES = {"reading": 0.05, "layers": 0.4, "sums": 0.65, "writing": 0.85}
"""What the child tells that it is at, and the share of the work that is done then, as measured on a large dump."""
STEP_COLUMNS = (
    *("step_time", "computing", "communication", "communication_not_overlapped"),
    *("overlapped", "free", "bubble", "preparing"),
)


@dataclass(frozen=True)
class Digest:
    entry: dict[str, Any]
    source: dict[str, Any]
    series: list[dict[str, Any]]
    others: list[dict[str, Any]]
    """Further devices whose rows lie in the same files: {device, rank}."""


def digest(dump: Dump) -> None:
    """Digest a claimed dump. Raises DigestFailed for a bad one, ClaimLost when the result is no longer wanted."""
    with storage.work_folder(f"digest-{dump.pk}") as folder:
        out = folder / "out"
        out.mkdir()
        order = folder / "files.json"
        sent = {"folder": dump.folder, "rank": dump.rank, "device": dump.device_id, "exact": dump.origin_id is not None}
        order.write_text(json.dumps({**sent, "world_size": dump.capture.world_size, "files": _places(dump)}))
        run_analysis(["digest", "--files", str(order), "--out", str(out)], folder, dump.size_bytes, _beat(dump))
        result = _read_result(out / "entry.json")
        _check_rank(dump, result)
        (out / "entry.json").unlink()
        _store(dump, result, out)


def _places(dump: Dump) -> dict[str, str]:
    held = set(
        Blob.objects.filter(
            project=dump.capture.run.project_id, sha256__in=[file["sha256"] for file in dump.files]
        ).values_list("sha256", flat=True)
    )
    for file in dump.files:
        if file["sha256"] not in held:
            raise DigestFailed(f"{file['name']}: its bytes are no longer on the server; upload the dump again")
    return {file["name"]: str(storage.blob_path(file["sha256"])) for file in dump.files}


def _beat(dump: Dump) -> Beat:
    """Shows the stage, and proves that the worker lives."""

    def beat(stage: str) -> None:
        mine = Dump.objects.filter(pk=dump.pk, state=DumpState.DIGESTING, claimed_at=dump.claimed_at)
        shown = {"stage": stage, "progress": STAGES[stage]} if stage in STAGES else {}
        if not mine.update(heartbeat=Now(), **shown):
            raise ClaimLost

    return beat


def _read_result(path: Path) -> Digest:
    try:
        if path.stat().st_size > MAX_ENTRY_BYTES:
            raise DigestFailed(f"the summary of this dump is over {byte_text(MAX_ENTRY_BYTES)}")
        result = json.loads(path.read_bytes().replace(b"\\u0000", b"\\ufffd"))
        source = {**result["source"], "environment": masked_meta(result["source"].get("environment"))}
        return Digest(result["entry"], source, result["series"], result["others"])
    except (OSError, ValueError, KeyError) as error:
        logger.exception("the analysis left no readable result")
        raise DigestFailed("the analysis ended without a result") from error


def _check_rank(dump: Dump, result: Digest) -> None:
    told = result.entry.get("rank")
    if told is not None and told != dump.rank:
        raise DigestFailed(f"the files are of rank {told}, but were sent as rank {dump.rank}")
    size = result.source.get("world_size")
    if size is not None and dump.rank >= size:
        raise DigestFailed(f"rank {dump.rank} cannot be: the files are of a job of {size} ranks")


def _store(dump: Dump, result: Digest, out: Path) -> None:
    """Tables in place first, then all rows in one transaction; the tables of an earlier digest go after the commit."""
    name = storage.new_frames_name(dump.pk)
    storage.publish_frames(out, name)
    try:
        with transaction.atomic():
            old = _take_back(dump)
            _write_rows(dump, result, name)
            devices.announce(dump, result.others)
            _mark_due(dump)
    except BaseException:
        storage.remove_frames(name)
        raise
    storage.remove_frames(old)


def _take_back(dump: Dump) -> str:
    """Lock the dump and make sure it is still ours. Gives the tables folder it had."""
    row = Dump.objects.select_for_update().filter(pk=dump.pk).values_list("state", "claimed_at", "frames").first()
    if row is None or row[:2] != (DumpState.DIGESTING, dump.claimed_at):
        raise ClaimLost
    return row[2]


def _write_rows(dump: Dump, result: Digest, frames: str) -> None:
    now = timezone.now()
    entry = {**result.entry, "rank": dump.rank}
    RankStep.objects.filter(dump=dump).delete()
    RankStep.objects.bulk_create(_rank_steps(dump, entry), batch_size=2_000)
    Dump.objects.filter(pk=dump.pk).update(
        state=DumpState.DIGESTED,
        progress=1,
        stage="",
        error="",
        digested_at=now,
        heartbeat=now,
        frames=frames,
        entry=entry,
        source=result.source,
        **_columns(dump, entry, result.source),
    )
    store_steps(dump.capture.run, "callback", result.series, update=False)


def _mark_due(dump: Dump) -> None:
    # Last in the transaction, since it waits while the capture is being rolled up; never skipped, or the roll-up
    # under way would clear the flag of a result it has not seen.
    Capture.objects.filter(pk=dump.capture_id).update(rollup_due=True)


def _rank_steps(dump: Dump, entry: dict[str, Any]) -> list[RankStep]:
    return [
        RankStep(
            dump=dump,
            step=str(step.get("step"))[:40],
            position=position,
            source=str(step.get("source") or "")[:60],
            warmup=bool(step.get("warmup")),
            **{f"{name}_ns": to_ns(step.get(f"{name}_us")) for name in STEP_COLUMNS},
        )
        for position, step in enumerate(entry.get("steps") or [])
    ]


def _columns(dump: Dump, entry: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """What grids and lists sort by: medians over the judged steps, shares over the same steps."""
    from statistics import median

    from analysis.entries import device_ratio, judged_steps, step_time_us

    def middle(key: str) -> int | None:
        values = [step[key] for step in judged_steps(entry) if step.get(key) is not None]
        return to_ns(median(values)) if values else None

    return {
        "step_time_ns": to_ns(step_time_us(entry)),
        "computing_ns": middle("computing_us"),
        "communication_not_overlapped_ns": middle("communication_not_overlapped_us"),
        "free_ns": middle("free_us"),
        "device_ratio": device_ratio([entry]),
        "cast_ratio": share_of_compute([entry], "cast_us"),
        "host": str(dump.host or entry.get("host") or "")[:200],
        "device_id": dump.device_id if dump.device_id is not None else entry.get("device_id"),
        "framework": str(dump.framework or source.get("framework") or "")[:20],
    }


def mark_failed(dump: Dump, reason: str) -> None:
    """Store why, unless the dump was meanwhile replaced or taken by another worker."""
    with transaction.atomic():
        mine = Dump.objects.filter(pk=dump.pk, state=DumpState.DIGESTING, claimed_at=dump.claimed_at)
        text = reason.replace("\0", "").strip()[:LONGEST_ERROR]
        if mine.update(state=DumpState.FAILED, error=text, progress=F("progress"), heartbeat=timezone.now()):
            _mark_due(dump)
