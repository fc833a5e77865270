"""Judges a ready capture against the series it continues and writes down what got worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from django.db import transaction
from django.db.models import Count

from dashboard.accounts.models import Project
from dashboard.alerts import rules, spread
from dashboard.alerts.causes import Side, cause
from dashboard.alerts.judge import WAITING, judge
from dashboard.alerts.models import Alert, AlertState, Channel, Confirmation, Delivery, rules_of
from dashboard.runs.models import Capture, CaptureQuerySet, CaptureState, ItemStatus

ENOUGH_RECOVERED = 2
MAX_RANKS = 64
LONGEST_SERIES = 200
LONG = ("report", "run__meta", "run__config_text")


@dataclass(frozen=True)
class Regression:
    """What got worse between two neighbours of a series; `first` is the first capture at the new level."""

    metric: str
    old: float | None
    new: float | None
    change: float | None
    previous: Capture
    first: Capture
    confirmation: str


def evaluate(capture: Capture, notify: Callable[[int], object]) -> list[Alert]:
    """The alerts that `capture` raises; `notify` is called with each new delivery's id once all is committed."""
    if capture.state != CaptureState.READY:
        return []
    own = rules_of(capture.run.project_id)
    found = regressions(capture, own)
    with transaction.atomic():
        Project.objects.select_for_update().get(pk=capture.run.project_id)  # two captures, one level: told once
        drop_outdated(capture, {one.metric for one in found}, own)
        told = [(one, told_before(capture, one, own.get(one.metric))) for one in found]
        raised = [record(one, earlier) for one, earlier in told if is_news(earlier, one, own.get(one.metric))]
        send_digest(capture.run.project, [alert for alert, new in raised if new], notify)
    return [alert for alert, _ in raised]


def comparable(capture: Capture) -> CaptureQuerySet:
    """Ready captures that `capture`'s numbers may be held against: same project, model, world size and denominator.

    Where the model is unknown only the same run is comparable.
    """
    same = Capture.objects.filter(
        state=CaptureState.READY,
        run__project=capture.run.project_id,
        world_size=capture.world_size,
        config_fingerprint=capture.config_fingerprint,
        peak_tflops=capture.peak_tflops,
        peak_dtype=capture.peak_dtype,
    )
    return same if capture.config_fingerprint else same.filter(run=capture.run_id)


def before(captures: CaptureQuerySet, capture: Capture) -> CaptureQuerySet:
    """Those of `captures` taken before `capture`, the newest first."""
    return (
        captures.filter(captured_at__lte=capture.captured_at)
        .exclude(pk=capture.pk)
        .exclude(captured_at=capture.captured_at, pk__gt=capture.pk)
        .order_by("-captured_at", "-pk")
    )


def series_of(capture: Capture) -> list[Capture]:
    """The captures that `capture` continues, the oldest first, itself the last."""
    earlier = before(comparable(capture), capture).select_related("run").defer(*LONG)[:LONGEST_SERIES]
    return [*reversed(earlier), capture]


def regressions(capture: Capture, own: Mapping[str, rules.Rule]) -> list[Regression]:
    """What got worse and is confirmed, each thing once."""
    series, found = series_of(capture), {}
    for default in rules.RULES:
        rule = own[default.metric]
        if watched(rule, capture) and (one := _judged(rule, series)) is not None:
            found[rule.metric] = one
    if watched(own[rules.CHECKLIST], capture) and len(series) > 1:
        found |= failed(own[rules.CHECKLIST], series[-2], capture)
    # What waits to be confirmed silences what it would say as well: then both are told, or neither.
    return [found[metric] for metric in rules.told_once(list(found)) if found[metric].confirmation != WAITING]


def watched(rule: rules.Rule, capture: Capture) -> bool:
    """Whether the rule is on and meant for captures of this run."""
    run = capture.run
    return rule.watches(run.tags, run.model_name, capture.world_size)


def _judged(rule: rules.Rule, series: Sequence[Capture]) -> Regression | None:
    newest = series[-1]
    if getattr(newest, rule.metric) is None:
        return None
    points = [one for one in since_expected(series, rule.metric) if is_point(one, rule, newest)]
    values = [float(getattr(one, rule.metric)) for one in points]
    found = judge(values, rule, partial(spread.spread_of, newest, rule.metric))
    if found is None:
        return None
    moved = rules.change(rule, found.old, found.new)
    neighbours = points[found.start - 1], points[found.start]
    return Regression(rule.metric, found.old, found.new, moved, *neighbours, found.confirmed_by)


def is_point(capture: Capture, rule: rules.Rule, newest: Capture) -> bool:
    """Whether `capture` has the rule's metric, counted as in `newest`."""
    # MFU by another formula, or a step time from another source, is another number.
    name = {"mfu": "flops_formula", "step_time_ns": "step_time_source"}.get(rule.metric)
    same = name is None or getattr(capture, name) == getattr(newest, name)
    return same and getattr(capture, rule.metric) is not None and watched(rule, capture)


def since_expected(series: Sequence[Capture], metric: str) -> Sequence[Capture]:
    """The part of the series from the last change on that people called expected: their new baseline."""
    places = {one.pk: place for place, one in enumerate(series)}
    expected = Alert.objects.filter(capture__in=places, metric=metric, state=AlertState.EXPECTED)
    return series[max((places[pk] for pk in expected.values_list("capture", flat=True)), default=0) :]


def failed(rule: rules.Rule, previous: Capture, capture: Capture) -> dict[str, Regression]:
    """Checklist items that failed. Each carries its own evidence, so that one capture is enough."""
    old, new = _items(previous), _items(capture)
    was, now = ({item: row[0] for item, row in side.items()} for side in (old, new))
    return {
        rules.ITEM_PREFIX + item: Regression(
            rules.ITEM_PREFIX + item, old[item][1], new[item][1], None, previous, capture, Confirmation.VERDICT
        )
        for item in rules.failed_items(was, now, rule.items)
    }


def _items(capture: Capture) -> dict[str, tuple[str, float | None]]:
    known = capture.checklist.exclude(status=ItemStatus.UNKNOWN)
    return {item: (status, value) for item, status, value in known.values_list("item", "status", "value")}


def told_before(capture: Capture, one: Regression, rule: rules.Rule | None) -> Alert | None:
    """The alert that told of this level already, unless it has been better for long enough since."""
    series = comparable(capture)
    alert = (
        Alert.objects.filter(capture__in=series, metric=one.metric, capture__captured_at__lte=capture.captured_at)
        .select_related("capture")
        .order_by("-capture__captured_at", "-capture_id")
        .first()
    )
    if alert is None or is_same(alert, one):
        return alert
    since = before(series, capture).filter(captured_at__gte=alert.capture.captured_at).exclude(pk=alert.capture_id)
    recovered = sum(_recovered(other, alert, rule) for other in since.defer("report")[:50])
    enough = 1 if alert.state == AlertState.FALSE_ALARM else ENOUGH_RECOVERED
    return None if recovered >= enough else alert


def is_same(told: Alert, one: Regression) -> bool:
    """Whether this is another look at the very capture that raised it."""
    return told.capture_id == one.first.pk


def is_news(told: Alert | None, one: Regression, rule: rules.Rule | None) -> bool:
    """Whether there is something to write down: nobody was told, or of something less bad."""
    if told is None or is_same(told, one):
        return True
    return rule is not None and rules.worse_by_effect(rule, told.new_value, one.new)


def _recovered(capture: Capture, told: Alert, rule: rules.Rule | None) -> bool:
    if rule is None:
        item = told.metric.removeprefix(rules.ITEM_PREFIX)
        return capture.checklist.filter(item=item, status=ItemStatus.PASS).exists()
    return rules.regressed(rule, getattr(capture, rule.metric), told.new_value)


def record(one: Regression, told: Alert | None) -> tuple[Alert, bool]:
    """Write the alert, or bring one of an earlier look up to date; whether it is new."""
    why = cause(one.metric, side_of(one.previous), side_of(one.first))
    values = {
        "previous": one.previous,
        "old_value": one.old,
        "new_value": one.new,
        "change": one.change,
        "confirmation": one.confirmation,
        "cause": why.english,
        "cause_zh": why.chinese,
        "evidence": why.evidence,
    }
    earlier = told if told is not None and not is_same(told, one) else None
    return Alert.objects.update_or_create(
        capture=one.first,
        metric=one.metric,
        defaults=values,
        create_defaults={**values, "project": one.first.run.project, "escalates": earlier},
    )


def send_digest(project: Project, alerts: Sequence[Alert], notify: Callable[[int], object]) -> None:
    """One notice of all these alerts to each channel."""
    if not alerts:
        return
    for channel in Channel.objects.filter(project=project, active=True):
        delivery = Delivery.objects.create(channel=channel)
        delivery.alerts.set(alerts)
        transaction.on_commit(partial(notify, delivery.pk), robust=True)  # else the clock sends it


def drop_outdated(capture: Capture, metrics: set[str], own: Mapping[str, rules.Rule]) -> None:
    """Forget alerts of an earlier look at this capture that do not hold any more and that nobody was told of."""
    unsent = capture.alerts.filter(state=AlertState.OPEN).exclude(deliveries__sent__isnull=False)
    for alert in unsent.exclude(metric__in=metrics):
        if not _confirmed_later(alert, capture, own.get(alert.metric)):
            alert.deliveries.annotate(others=Count("alerts")).filter(others=1).delete()
            alert.delete()


def _confirmed_later(alert: Alert, capture: Capture, rule: rules.Rule | None) -> bool:
    # A later capture confirmed it; a look at this one alone cannot know, only that its own value is still worse.
    if rule is None or alert.confirmation != Confirmation.POINTS:
        return False
    return rules.regressed(rule, alert.old_value, getattr(capture, alert.metric))


def side_of(capture: Capture) -> Side:
    """What a cause is sought in: rank entries and versions of a capture."""
    entries = list(capture.dumps.exclude(entry={}).order_by("rank").values_list("entry", flat=True)[:MAX_RANKS])
    run = capture.run
    versions = {
        "CANN": capture.cann_version or run.cann_version,
        run.framework or "framework": capture.framework_version or run.framework_version,
        "mode": run.mode,
        "jit_level": run.jit_level,
        "sink": "" if run.sink is None else str(run.sink).lower(),
        "commit": str(run.meta.get("git_commit") or "")[:12],
    }
    return Side(entries, versions)
