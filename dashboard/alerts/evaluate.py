"""Judges a ready capture against the one before it and writes down what got worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from django.db import transaction

from dashboard.alerts import rules
from dashboard.alerts.causes import Side, cause
from dashboard.alerts.models import Alert, AlertState, Channel, Delivery
from dashboard.runs.models import Capture, CaptureQuerySet, CaptureState, ItemStatus

ENOUGH_RECOVERED = 2
MAX_RANKS = 64


@dataclass(frozen=True)
class Regression:
    metric: str
    old: float | None
    new: float | None
    change: float | None


def evaluate(capture: Capture, notify: Callable[[int], object]) -> list[Alert]:
    """The alerts that `capture` raises; `notify` is called with each new delivery's id once all is committed."""
    previous = previous_comparable(capture)
    if capture.state != CaptureState.READY or previous is None:
        return []
    found = [one for one in regressions(previous, capture) if not is_known(capture, one)]
    with transaction.atomic():
        drop_outdated(capture, {one.metric for one in found})
        return [record(capture, previous, one, notify) for one in found]


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


def previous_comparable(capture: Capture) -> Capture | None:
    return before(comparable(capture), capture).select_related("run").first()


def regressions(previous: Capture, capture: Capture) -> list[Regression]:
    """What got worse, each thing once."""
    found = {}
    for rule in rules.RULES:
        old, new = getattr(previous, rule.metric), getattr(capture, rule.metric)
        if _one_definition(rule.metric, previous, capture) and rules.regressed(rule, old, new):
            found[rule.metric] = Regression(rule.metric, old, new, rules.change(rule, old, new))
    for item in rules.failed_items(_items(previous), _items(capture)):
        metric = rules.ITEM_PREFIX + item
        old, new = previous.checklist.get(item=item).value, capture.checklist.get(item=item).value
        found[metric] = Regression(metric, old, new, None)
    return [found[metric] for metric in rules.told_once(list(found))]


def _one_definition(metric: str, previous: Capture, capture: Capture) -> bool:
    # MFU by another formula, or a step time from another source, is another number.
    name = {"mfu": "flops_formula", "step_time_ns": "step_time_source"}.get(metric)
    return name is None or getattr(previous, name) == getattr(capture, name)


def _items(capture: Capture) -> dict[str, str]:
    return dict(capture.checklist.exclude(status=ItemStatus.UNKNOWN).values_list("item", "status"))


def is_known(capture: Capture, regression: Regression) -> bool:
    """Whether an earlier alert told of this level already and it has not been better for long enough since."""
    series = comparable(capture)
    alert = (
        Alert.objects.filter(capture__in=before(series, capture), metric=regression.metric)
        .exclude(state=AlertState.FALSE_ALARM)
        .select_related("capture")
        .order_by("-capture__captured_at", "-capture_id")
        .first()
    )
    if alert is None:
        return False
    rule = rules.BY_METRIC.get(regression.metric)
    if rule is not None and rules.worse_by_effect(rule, alert.new_value, regression.new):
        return False
    since = before(series, capture).filter(captured_at__gte=alert.capture.captured_at).exclude(pk=alert.capture_id)
    return sum(_recovered(one, regression, rule) for one in since[:50]) < ENOUGH_RECOVERED


def _recovered(capture: Capture, regression: Regression, rule: rules.Rule | None) -> bool:
    if rule is None:
        item = regression.metric.removeprefix(rules.ITEM_PREFIX)
        return capture.checklist.filter(item=item, status=ItemStatus.PASS).exists()
    return rules.regressed(rule, getattr(capture, rule.metric), regression.new)


def record(capture: Capture, previous: Capture, one: Regression, notify: Callable[[int], object]) -> Alert:
    """Write the alert, or bring one of an earlier look at this capture up to date; only a new one is sent."""
    english, chinese = cause(one.metric, _side(previous), _side(capture))
    values = {
        "previous": previous,
        "old_value": one.old,
        "new_value": one.new,
        "change": one.change,
        "cause": english,
        "cause_zh": chinese,
    }
    alert, new = Alert.objects.update_or_create(
        capture=capture,
        metric=one.metric,
        defaults=values,
        create_defaults={**values, "project": capture.run.project},
    )
    if new:
        for channel in Channel.objects.filter(project=capture.run.project_id, active=True):
            delivery = Delivery.objects.create(alert=alert, channel=channel)
            transaction.on_commit(partial(notify, delivery.pk), robust=True)  # else the clock sends it
    return alert


def drop_outdated(capture: Capture, metrics: set[str]) -> None:
    """Forget alerts of an earlier look at this capture that do not hold any more and that nobody was told of."""
    stale = capture.alerts.filter(state=AlertState.OPEN).exclude(metric__in=metrics)
    stale.exclude(deliveries__sent__isnull=False).delete()


def _side(capture: Capture) -> Side:
    entries = list(capture.dumps.exclude(entry={}).order_by("rank").values_list("entry", flat=True)[:MAX_RANKS])
    run = capture.run
    versions = {
        "CANN": capture.cann_version or run.cann_version,
        run.framework or "framework": capture.framework_version or run.framework_version,
        "mode": run.mode,
        "jit_level": run.jit_level,
        "sink": "" if run.sink is None else str(run.sink).lower(),
    }
    return Side(entries, versions)
