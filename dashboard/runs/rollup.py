"""Rank entries to the numbers of a capture, and the newest capture's numbers to its run.

A roll-up reads only JSON that digests stored, may be repeated at any time, and two of one capture never run at once:
the row of the capture is locked, whoever finds it locked leaves it to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, F, Max, Min, Q
from django.db.models.functions import Greatest
from django.utils import timezone

from dashboard.runs import rank_evidence
from dashboard.runs.models import (
    METRIC_FIELDS,
    Capture,
    CaptureState,
    ChecklistResult,
    DumpState,
    RankStep,
    Run,
    StepRecord,
)
from dashboard.runs.rank_evidence import Rank, read_ranks, to_ns

if TYPE_CHECKING:
    from analysis.config import ModelConfig
    from analysis.peaks import Peak

Json = dict[str, Any]
SPARK_POINTS = 60
SPARK_STEPS = 6_000
SERIES_STEPS = 20_000
"""Newest step records that a roll-up reads; precision is judged over the steps two runs share."""
QUIET = timedelta(hours=1)
"""A dump that is still announced but got no byte for this long no longer keeps its capture open."""
PARTIAL_EVERY = timedelta(minutes=1)
"""How often a capture of many ranks is summed up while more ranks are being digested."""
PAUSE_A_RANK = timedelta(seconds=0.05)
"""Between two roll-ups of a capture whose next rank is not here yet: ten times what a roll-up takes."""
SPLITS = ("dp", "tp", "pp", "cp", "ep")


@dataclass(frozen=True)
class RolledUp:
    capture_id: int
    state: str


def due_captures(limit: int = 200) -> list[int]:
    """Captures whose roll-up is asked for and worth doing now."""
    due = Capture.objects.filter(rollup_due=True).order_by("rolled_up", "id")
    return [capture.pk for capture in due.defer("report")[:limit] if is_worth_it(capture)]


def is_worth_it(capture: Capture) -> bool:
    """Whether to sum up a capture now, of which more ranks may come. A roll-up takes time in proportion to its ranks:
    one after each of a thousand would take hours, and hold up the digests it is partial for."""
    if capture.rolled_up is None:
        return True
    if capture.dumps.filter(state__in=(DumpState.UPLOADED, DumpState.DIGESTING)).exists():
        pause = PARTIAL_EVERY * max(1, capture.rank_count / 64)
    elif is_complete(capture):
        return True
    else:
        pause = PAUSE_A_RANK * capture.rank_count
    return timezone.now() - capture.rolled_up >= pause


def is_complete(capture: Capture) -> bool:
    """Whether every rank of the job is here and analysed, or failed. Never where the size of the job is not known."""
    if capture.world_size is None:
        return False
    return capture.dumps.filter(state__in=(DumpState.DIGESTED, DumpState.FAILED)).count() >= capture.world_size


def rollup(capture_id: int) -> RolledUp | None:
    """Sum up a capture that is due. None when it is not, or another worker is at it."""
    with transaction.atomic():
        locked = Capture.objects.select_for_update(skip_locked=True, no_key=True)
        capture = locked.filter(pk=capture_id, rollup_due=True).first()
        if capture is None:
            return None
        run = Run.objects.select_related("project").get(pk=capture.run_id)
        ranks = read_ranks(capture)
        all_told = True
        if ranks:
            report = _report(run, capture, ranks)
            all_told = rank_evidence.store(ranks, report)
            _store_report(capture, run, report)
            _store_checklist(capture, report["checklist"])
        capture.state = capture_state(capture)
        capture.rank_count = len(ranks)
        capture.error = failures(capture) if capture.state == CaptureState.FAILED else ""
        capture.judge_due = judge_moment(capture)
        capture.rollup_due = not all_told
        capture.rolled_up = timezone.now()
        capture.save()
        update_run(run.pk)
    return RolledUp(capture_id, capture.state)


def capture_state(capture: Capture) -> str:
    """Receiving while a rank is still coming in, then digesting, then ready when at least one rank could be read."""
    counts = dict(capture.dumps.order_by().values_list("state").annotate(Count("id")))
    coming = capture.dumps.filter(state=DumpState.RECEIVING).filter(_has_signs_since(timezone.now() - QUIET)).exists()
    if counts.get(DumpState.UPLOADED) or counts.get(DumpState.DIGESTING):
        return CaptureState.RECEIVING if coming else CaptureState.DIGESTING
    if coming or not counts:
        return CaptureState.RECEIVING
    if counts.get(DumpState.DIGESTED):
        return CaptureState.READY
    return CaptureState.FAILED if counts.get(DumpState.FAILED) else CaptureState.RECEIVING


def failures(capture: Capture) -> str:
    """How many ranks could not be analysed and the commonest reason, as one rank was told it."""
    failed = capture.dumps.filter(state=DumpState.FAILED)
    reasons = failed.order_by().values("error").annotate(count=Count("id"), first=Min("rank"))
    ordered = list(reasons.order_by("-count", "first"))
    if not ordered:
        return ""
    worst, total = ordered[0], sum(reason["count"] for reason in ordered)
    if total == 1:
        return f"rank {worst['first']}: {worst['error']}"
    share = "all" if worst["count"] == total else str(worst["count"])
    return f"{total} ranks failed, {share} of them like rank {worst['first']}: {worst['error']}"


def judge_moment(capture: Capture) -> datetime | None:
    """When the alert rules may look at a capture: at once when every rank of the job is here, else when no rank came
    for a while, since other hosts may still be sending. None while it is not ready."""
    if capture.state != CaptureState.READY:
        return None
    if is_complete(capture):
        return timezone.now()
    last: datetime = capture.dumps.aggregate(last=Max(Greatest("created", "uploaded_at")))["last"]
    return max(timezone.now(), last + timedelta(seconds=settings.JUDGE_AFTER_SECONDS))


def to_judge(limit: int = 200) -> list[int]:
    """Captures that the alert rules may look at now."""
    due = Capture.objects.filter(state=CaptureState.READY, judge_due__lte=timezone.now()).order_by("judge_due")
    return list(due.values_list("pk", flat=True)[:limit])


def _has_signs_since(moment: datetime) -> Q:
    return Q(created__gt=moment) | Q(heartbeat__gt=moment) | Q(uploads__touched__gt=moment)


def whole_report(capture: Capture) -> Json:
    """The report as the command line prints it: what the capture keeps, with its ranks and step series."""
    entries = [
        dump.entry for dump in capture.dumps.filter(state=DumpState.DIGESTED).only("entry", "rank").order_by("rank")
    ]
    return {**capture.report, "ranks": entries, "series": {"steps": step_series(capture.run_id)}}


def _report(run: Run, capture: Capture, ranks: Sequence[Rank]) -> Json:
    from analysis.report import capture_report

    return capture_report(
        [(rank.entry, rank.source) for rank in ranks],
        config=model_config(run),
        run=run_facts(run, capture, ranks),
        series=step_series(run.pk),
        reference=_reference(run),
        peak=_peak(run),
    )


def model_config(run: Run) -> ModelConfig | None:
    if not run.config_text:
        return None
    from analysis.config import read_config

    return read_config(run.config_text, run.config_name)


def run_facts(run: Run, capture: Capture, ranks: Sequence[Rank]) -> Json:
    """What the run was registered with, in the keys of a run's metadata."""
    facts: Json = {**run.meta}
    facts["world_size"] = run.meta.get("world_size") or capture.world_size or _told(ranks, "world_size")
    if capture.first_step is not None and capture.last_step is not None:
        facts["window"] = {"first_step": capture.first_step, "last_step": capture.last_step}
    return facts


def _told(ranks: Iterable[Rank], key: str) -> Any:
    return next((rank.source[key] for rank in ranks if rank.source.get(key) is not None), None)


def _peak(run: Run) -> Peak | None:
    if run.project.peak_tflops is None:
        return None
    from analysis.peaks import Peak

    return Peak(run.project.peak_tflops, "", "project setting")


def _reference(run: Run) -> list[Json] | None:
    reference = Run.objects.filter(project=run.project_id, is_reference=True).exclude(pk=run.pk).first()
    return step_series(reference.pk) if reference else None


def step_series(run_id: int) -> list[Json]:
    """The newest step records of a run in order, in the form of the report's series."""
    records = StepRecord.objects.filter(run=run_id).order_by("-step")[:SERIES_STEPS]
    return [
        {
            "step": record.step,
            "loss": record.loss,
            "lr": record.lr,
            "global_norm": record.global_norm,
            "step_time_ms": None if record.step_time_ns is None else record.step_time_ns / 1e6,
            "tflops_per_device": record.tflops_per_device,
            "loss_scale": record.loss_scale,
            "overflow": record.overflow,
        }
        for record in reversed(records)
    ]


def _store_report(capture: Capture, run: Run, report: Json) -> None:
    source = report["source"]
    capture.report = {key: value for key, value in report.items() if key not in ("ranks", "series")}
    capture.world_size = capture.world_size or source.get("world_size")
    capture.cann_version = (run.cann_version or source.get("cann_version") or "")[:60]
    capture.framework_version = (run.framework_version or source.get("framework_version") or "")[:60]
    capture.config_fingerprint = run.config_fingerprint
    for name, value in metrics(report).items():
        setattr(capture, name, value)


def metrics(report: Json) -> Json:
    """The columns of `Metrics` from a report: time of the slowest rank, shares over all ranks, largest memory.

    HFU is the ranks' mean: those of a pipeline's stages do not work alike."""
    from analysis.entries import device_ratio, exposed_us, mean, number, slowest, step_time_us

    ranks = report["ranks"]
    slow = slowest(ranks) or {}
    checklist, flops = report["checklist"], slow.get("flops") or {}
    return {
        "step_time_ns": to_ns(step_time_us(slow)),
        "step_time_source": _step_source(slow)[:60],
        **{name: number(slow, "flops", name) for name in ("mfu", "tflops_per_device", "peak_tflops")},
        "hfu": mean(number(entry, "flops", "hfu") for entry in ranks),
        "peak_dtype": str(flops.get("peak_dtype") or "")[:20],
        "peak_source": str(flops.get("peak_source") or "")[:100],
        "flops_formula": str(flops.get("formula") or "")[:60],
        "device_ratio": device_ratio(ranks),
        "compute_ratio": share_of_steps(ranks, lambda step: number(step, "computing_us")),
        "exposed_communication_ratio": share_of_steps(ranks, exposed_us),
        "cast_ratio": share_of_compute(ranks, "cast_us"),
        "movement_ratio": share_of_compute(ranks, "movement_us"),
        "peak_memory_bytes": _largest(number(entry, "memory", "peak_reserved_bytes") for entry in ranks),
        "verdict": str((report.get("bottleneck") or {}).get("verdict") or "")[:30],
        "checklist_passed": checklist["passed"],
        "checklist_failed": checklist["failed"],
        "checklist_unknown": checklist["unknown"],
        "recoverable_ns": to_ns(recoverable_us(report)),
    }


def _step_source(entry: Json) -> str:
    from analysis.entries import judged_steps

    return next((str(step.get("source") or "") for step in judged_steps(entry)), "")


def share_of_steps(ranks: Sequence[Json], part: Callable[[Json], float | None]) -> float | None:
    """Time of `part` / step time, over the judged steps of all ranks that know it."""
    from analysis.entries import judged_steps, number, ratio_of_sums

    steps = [step for entry in ranks for step in judged_steps(entry)]
    return ratio_of_sums((part(step), number(step, "step_time_us")) for step in steps)


def share_of_compute(ranks: Sequence[Json], part: str) -> float | None:
    """Time of `part` / time of all compute kernels, over the ranks whose operator types are known."""
    from analysis.entries import number, ratio_of_sums

    known = [entry for entry in ranks if number(entry, "kernels", part) is not None]
    return ratio_of_sums((number(entry, "kernels", part), number(entry, "kernels", "compute_us")) for entry in known)


def _largest(values: Iterable[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(max(known)) if known else None


def recoverable_us(report: Json) -> float | None:
    """What fixing everything would win per step.

    Findings share kernels and must not be added up: without the report's own union the largest one stands as a floor.
    """
    if isinstance(report.get("recoverable_us"), int | float):
        return float(report["recoverable_us"])
    rows = [*report["checklist"]["items"], *report.get("findings", [])]
    known = [row["recoverable_us"] for row in rows if isinstance(row.get("recoverable_us"), int | float)]
    return float(max(known)) if known else None


def _store_checklist(capture: Capture, checklist: Json) -> None:
    rows = [
        ChecklistResult(
            capture=capture,
            run_id=capture.run_id,
            item=item["id"],
            status=item["status"],
            value=item.get("value"),
            threshold=item.get("threshold"),
            summary=item.get("summary") or "",
            summary_zh=item.get("summary_zh") or "",
            recoverable_ns=to_ns(item.get("recoverable_us")),
        )
        for item in checklist["items"]
    ]
    ChecklistResult.objects.filter(capture=capture).exclude(item__in=[row.item for row in rows]).delete()
    ChecklistResult.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["capture", "item"],
        update_fields=["status", "value", "threshold", "summary", "summary_zh", "recoverable_ns"],
    )


def update_run(run_id: int) -> None:
    """Copy the newest ready capture's numbers to the run, mark its checklist as the open one, draw the sparkline."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run_id)
        captures = Capture.objects.filter(run=run)
        newest = captures.filter(state=CaptureState.READY).order_by("-captured_at", "-id").first()
        totals = captures.aggregate(count=Count("id"), last=Max("captured_at"))
        run.capture_count, run.last_capture_at = totals["count"], totals["last"]
        for name in METRIC_FIELDS:
            setattr(run, name, getattr(newest or Capture(), name))
        if newest is not None:
            _fill_identity(run, newest)
        run.sparkline, run.spark_metric = sparkline(run)
        run.steps_run = steps_run(newest) if newest is not None else None
        run.save()
        results = ChecklistResult.objects.filter(run=run)
        results.filter(latest=True).exclude(capture=newest).update(latest=False, lost_ns=None)
        if newest is not None:
            many = float((run.world_size or 1) * (run.steps_run or 0))
            results.filter(capture=newest).update(latest=True, lost_ns=F("recoverable_ns") * many)


def steps_run(capture: Capture) -> int:
    """How many steps a run is known to have made: those its step records span; without records, those up to the end
    of its newest capture; without step numbers, those that were profiled."""
    span = StepRecord.objects.filter(run=capture.run_id).aggregate(first=Min("step"), last=Max("step"))
    if span["last"] is not None:
        return int(span["last"] - span["first"] + 1)
    if capture.last_step is not None:
        return max(1, capture.last_step)
    last = RankStep.objects.filter(dump__capture=capture).aggregate(last=Max("position"))["last"]
    return 1 if last is None else int(last) + 1


def _fill_identity(run: Run, capture: Capture) -> None:
    """What nobody registered, as the newest capture's dumps tell it."""
    source = capture.report.get("source") or {}
    lengths = {"framework": 20, "framework_version": 60, "cann_version": 60, "soc": 40, "mode": 10, "jit_level": 10}
    for name, length in lengths.items():
        if not run.meta.get(name) and source.get(name):
            setattr(run, name, str(source[name])[:length])
    for name in ("sink", "world_size"):
        if run.meta.get(name) is None and source.get(name) is not None:
            setattr(run, name, source[name])
    for name in SPLITS:
        told = (source.get("parallel") or {}).get(name)
        if getattr(run, name) is None and told is not None:
            setattr(run, name, told)


# Leading steps over 1.5 x the median compile or warm up; one of them would flatten the whole line.
SPARKLINE = """
    WITH newest AS (
        SELECT step, step_time_ns FROM runs_steprecord
        WHERE run_id = %(run)s AND step_time_ns IS NOT NULL ORDER BY step DESC LIMIT %(steps)s
    ), usual AS (
        SELECT 1.5 * percentile_cont(0.5) WITHIN GROUP (ORDER BY step_time_ns) AS most FROM newest
    )
    SELECT avg(step_time_ns) / 1e6 FROM (
        SELECT step_time_ns, ntile(%(points)s) OVER (ORDER BY step) AS part FROM newest
        WHERE step >= (SELECT min(step) FROM newest, usual WHERE step_time_ns <= most)
    ) parts GROUP BY part ORDER BY part
"""


def sparkline(run: Run) -> tuple[list[float | None], str]:
    """Step time in ms: of the newest step records in at most 60 parts, else of the captures; and what it shows."""
    with connection.cursor() as cursor:
        cursor.execute(SPARKLINE, {"points": SPARK_POINTS, "run": run.pk, "steps": SPARK_STEPS})
        logged: list[float | None] = [float(row[0]) for row in cursor.fetchall()]
    if len(logged) > 1:
        return logged, "step_time"
    times = Capture.objects.filter(run=run, state=CaptureState.READY).order_by("-captured_at", "-id")
    newest = list(times.values_list(F("step_time_ns"), flat=True)[:SPARK_POINTS])
    return [None if time is None else time / 1e6 for time in reversed(newest)], "capture_step_time" if newest else ""
