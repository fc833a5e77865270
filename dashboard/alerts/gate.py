"""Whether a build may pass: one capture held against a baseline by the project's alert rules. Nothing is written down.

An alert waits until a second capture confirms it. A build has one: what is worse, but no further from the baseline than
it may lie by chance, is `unsure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from dashboard.alerts import rules
from dashboard.alerts.causes import Cause, cause
from dashboard.alerts.evaluate import before, comparable, failed, is_point, side_of, since_expected, watched
from dashboard.alerts.judge import LOOKED_BACK, SPREAD, level_of, one_worse
from dashboard.alerts.models import rules_of
from dashboard.alerts.noise import Noise, noise_of
from dashboard.alerts.wording import change_of, name, value_text
from dashboard.ingest.errors import NotFound
from dashboard.runs.models import Capture, Run

PASS, FAIL, UNSURE, UNKNOWN = "pass", "fail", "unsure", "unknown"
LONG = ("report", "run__meta", "run__config_text")


@dataclass(frozen=True)
class Verdict:
    """One rule's word on a capture; values in the metric's own unit, None where they are not known."""

    metric: str
    status: str
    old: float | None = None
    new: float | None = None
    why: Cause = Cause()
    noise: Noise | None = None

    def as_json(self) -> dict[str, Any]:
        """For the API: numbers and the same in words."""
        rule = rules.default_of(self.metric)
        moved = None if rule is None or self.status == UNKNOWN else rules.change(rule, self.old, self.new)
        texts = [value_text(self.metric, value) for value in (self.old, self.new)]
        return {
            "metric": self.metric,
            "name": name(self.metric),
            "status": self.status,
            "old": self.old,
            "new": self.new,
            "change": moved,
            "text": f"{texts[0]} → {texts[1]} {change_of(self.metric, moved)}".rstrip(),
            "cause": self.why.english,
            "noise": None if self.noise is None else asdict(self.noise),
        }


def baseline_of(capture: Capture, against: str = "") -> list[Capture]:
    """The captures that `capture` is held against, the oldest first: of the run whose key is `against`, else those
    before it in its series. Only comparable ones: same project, model, world size and denominator of MFU. Raises
    NotFound where the project has no run of that key."""
    others = comparable(capture)
    if against:
        if not Run.objects.filter(project=capture.run.project_id, key=against).exists():
            raise NotFound(f"run as {against[:100]!r}")
        chosen = others.filter(run__key=against).exclude(pk=capture.pk).order_by("-captured_at", "-pk")
    else:
        chosen = before(others, capture)
    return [*reversed(chosen.select_related("run").defer(*LONG)[:LOOKED_BACK])]


def judge_build(capture: Capture, baseline: Sequence[Capture]) -> list[Verdict]:
    """Each enabled rule's verdict, then one for each checklist item that failed. Empty without a baseline."""
    if not baseline:
        return []
    own = rules_of(capture.run.project_id)
    enabled = [own[default.metric] for default in rules.RULES if watched(own[default.metric], capture)]
    why = _Causes(capture)
    found = {rule.metric: _judged(rule, [*baseline, capture], why) for rule in enabled}
    if watched(own[rules.CHECKLIST], capture):
        turned = failed(own[rules.CHECKLIST], baseline[-1], capture)
        found |= {m: Verdict(m, FAIL, one.old, one.new, why.of(m, one.previous)) for m, one in turned.items()}
    bad = [metric for metric, verdict in found.items() if verdict.status in (FAIL, UNSURE)]
    told = rules.told_once(bad)
    return [verdict for metric, verdict in found.items() if metric in told or metric not in bad]


def overall(verdicts: Sequence[Verdict]) -> str:
    """`fail` where one fails, then `unsure`; `pass` needs one that passes; `unknown` where nothing could be judged."""
    statuses = {verdict.status for verdict in verdicts}
    return next((status for status in (FAIL, UNSURE, PASS) if status in statuses), UNKNOWN)


class _Causes:
    """Why a capture is worse than others; each of them is read once, however many rules ask."""

    def __init__(self, capture: Capture) -> None:
        self._side = cache(side_of)
        self._capture = capture

    def of(self, metric: str, previous: Capture) -> Cause:
        return cause(metric, self._side(previous), self._side(self._capture))


def _judged(rule: rules.Rule, series: Sequence[Capture], causes: _Causes) -> Verdict:
    newest = series[-1]
    new = getattr(newest, rule.metric)
    points = [one for one in since_expected(series, rule.metric) if is_point(one, rule, newest)]
    if new is None or len(points) < 2:
        return Verdict(rule.metric, UNKNOWN, None, new)
    values = [float(getattr(one, rule.metric)) for one in points]
    noise = cache(lambda: noise_of(newest, rule.metric, points[:-1]))
    found = one_worse(values, rule, lambda: noise().deviation)
    if found is None:
        return Verdict(rule.metric, PASS, level_of(values[:-1]), new)
    status = FAIL if found.confirmed_by == SPREAD else UNSURE
    return Verdict(rule.metric, status, found.old, found.new, causes.of(rule.metric, points[-2]), noise())
