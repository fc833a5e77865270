"""When a capture is worse than its baseline, in numbers. No queries here.

Values are ratios of 0 to 1, nanoseconds or bytes; null means unknown and never raises an alert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

ROUNDING = 1e-9
CHECKLIST = "checklist"
ITEM_PREFIX = "item:"


@dataclass(frozen=True)
class Rule:
    """Least change for the worse that counts: `absolute` in the metric's own unit or `relative` to the old value.

    `limit` counts by itself: passing it raises the alert, however small the change. The rest says which captures are
    watched: those of runs with this tag, of this model, of at least so many devices; `items` are checklist items.
    """

    metric: str
    better: str
    absolute: float | None = None
    relative: float | None = None
    limit: float | None = None
    enabled: bool = True
    tag: str = ""
    model_name: str = ""
    least_devices: int | None = None
    items: tuple[str, ...] = ()
    """Empty: all."""

    def watches(self, tags: list[str], model_name: str, devices: int | None) -> bool:
        """Whether captures of such a run are this rule's business. Unknown devices count as too few."""
        return (
            self.enabled
            and (not self.tag or self.tag in tags)
            and (not self.model_name or self.model_name.lower() == model_name.lower())
            and (self.least_devices is None or (devices or 0) >= self.least_devices)
        )


RULES = (
    Rule("cast_ratio", "low", absolute=0.01, limit=0.05),
    Rule("mfu", "high", relative=0.03),
    Rule("device_ratio", "high", absolute=0.03),
    Rule("step_time_ns", "low", relative=0.03),
    Rule("peak_memory_bytes", "low", relative=0.05),
)
CHECKLIST_RULE = Rule(CHECKLIST, "")
BY_METRIC = {rule.metric: rule for rule in (*RULES, CHECKLIST_RULE)}

# What another alert of the same capture says already: one thing, told once.
SAID_BY = {
    "step_time_ns": ("mfu",),
    "item:dtype_cast": ("cast_ratio",),
    "item:graph_sink": ("device_ratio",),
}


def default_of(metric: str) -> Rule | None:
    """The rule a metric or checklist item ("item:...") falls under."""
    return BY_METRIC.get(CHECKLIST if metric.startswith(ITEM_PREFIX) else metric)


def settings_of(rule: Rule) -> dict[str, Any]:
    """What a project may set of a rule, as JSON; the fields of `models.ProjectRule`."""
    return {
        "enabled": rule.enabled,
        "effect": rule.absolute if rule.absolute is not None else rule.relative,
        "limit": rule.limit,
        "tag": rule.tag,
        "model_name": rule.model_name,
        "least_devices": rule.least_devices,
        "items": list(rule.items),
    }


def change(rule: Rule, old: float | None, new: float | None) -> float | None:
    """How far `new` is from `old`: absolute or relative as the rule counts; None where that has no meaning."""
    if old is None or new is None:
        return None
    if rule.absolute is not None:
        return new - old
    return (new - old) / old if old else None


def worse_by_effect(rule: Rule, old: float | None, new: float | None) -> bool:
    """Whether `new` is worse than `old` by the rule's least change or more."""
    moved = change(rule, old, new)
    least = rule.absolute if rule.absolute is not None else rule.relative
    if moved is None or least is None:
        return False
    return (moved if rule.better == "low" else -moved) >= least - ROUNDING


def better_by_effect(rule: Rule, old: float | None, new: float | None) -> bool:
    """Whether `new` is better than `old` by the rule's least change or more."""
    opposite = replace(rule, better="high" if rule.better == "low" else "low")
    return worse_by_effect(opposite, old, new)


def regressed(rule: Rule, old: float | None, new: float | None) -> bool:
    """Whether going from `old` to `new` deserves an alert."""
    if old is None or new is None:
        return False
    passed_limit = rule.limit is not None and old <= rule.limit < new
    return passed_limit or worse_by_effect(rule, old, new)


def failed_items(old: dict[str, str], new: dict[str, str], watched: tuple[str, ...] = ()) -> list[str]:
    """Checklist items that passed before and fail now; of `watched` alone where that names any."""
    failed = [item for item, status in new.items() if status == "fail" and old.get(item) == "pass"]
    return [item for item in failed if not watched or item in watched]


def told_once(metrics: list[str]) -> list[str]:
    """`metrics` without those that another of them says already."""
    return [metric for metric in metrics if not any(other in metrics for other in SAID_BY.get(metric, ()))]
