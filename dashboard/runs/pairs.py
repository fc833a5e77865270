"""Comparisons worth making, found without asking: the other mode, before and after an upgrade, another split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from dashboard.runs.models import Run

LOOKED_AT = 200
FIELDS = (
    "id",
    "name",
    "mode",
    "cann_version",
    "framework_version",
    "soc",
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "last_capture_at",
)
SPLITS = ("tp", "pp", "cp", "ep", "dp")
Row = Mapping[str, Any]


def pairs_of(run: Run) -> list[dict[str, Any]]:
    """Pairs of this run with another one of its project and model: at most one of each kind, the nearest in time."""
    if run.last_capture_at is None:
        return []
    mine = {name: getattr(run, name) for name in FIELDS}
    others = [row for row in _rows(run.project_id, run.model_name) if row["id"] != run.pk]
    others.sort(key=lambda row: abs(row["last_capture_at"] - mine["last_capture_at"]))
    found = [_pair(mine, next((row for row in others if rule(mine, row)), None), rule) for rule in RULES]
    return [pair for pair in found if pair is not None]


def project_pairs(project_id: int) -> list[dict[str, Any]]:
    """The newest pair of each kind in a project: runs next to each other in time."""
    rows = _rows(project_id)
    found = []
    for rule in RULES:
        pair = next(
            (pair for index, row in enumerate(rows) if (pair := _pair(row, _next(rows[index + 1 :], row, rule), rule))),
            None,
        )
        found += [pair] if pair else []
    return found


def _rows(project_id: int, model: str | None = None) -> list[Row]:
    runs = Run.objects.filter(project=project_id, archived=False, last_capture_at__isnull=False)
    if model is not None:
        runs = runs.filter(model_name=model)
    return list(runs.order_by("-last_capture_at", "-id").values(*FIELDS, "model_name")[:LOOKED_AT])


def _next(rows: Sequence[Row], row: Row, rule: Callable[[Row, Row], bool]) -> Row | None:
    return next((other for other in rows if other["model_name"] == row["model_name"] and rule(row, other)), None)


def other_mode(one: Row, other: Row) -> bool:
    """GRAPH against PYNATIVE on the same chip."""
    return bool({one["mode"], other["mode"]} == {"graph", "pynative"} and one["soc"] == other["soc"])


def upgrade(one: Row, other: Row) -> bool:
    """Another CANN or framework, everything else the same."""
    same = all(one[name] == other[name] for name in ("mode", "soc", *SPLITS))
    versions = ("cann_version", "framework_version")
    known = all(one[name] and other[name] for name in versions)
    return bool(same and known and any(one[name] != other[name] for name in versions))


def other_split(one: Row, other: Row) -> bool:
    """Another parallel split with the same versions and mode."""
    same = all(one[name] == other[name] for name in ("mode", "soc", "cann_version"))
    known = all(one[name] is not None and other[name] is not None for name in ("tp", "pp", "dp"))
    return bool(same and known and any(one[name] != other[name] for name in SPLITS if name != "dp"))


RULES = (other_mode, upgrade, other_split)


def _pair(one: Row, other: Row | None, rule: Callable[[Row, Row], bool]) -> dict[str, Any] | None:
    """The two in order of time, with what tells them apart in words."""
    if other is None:
        return None
    first, last = sorted((one, other), key=lambda row: (row["last_capture_at"], row["id"]))
    return {"kind": rule.__name__, "title": _titles(first, last)[rule.__name__], "first": first, "last": last}


def _titles(first: Row, last: Row) -> dict[str, str]:
    versions = [
        f"{name} {first[key]} → {last[key]}".strip()
        for key, name in (("cann_version", "CANN"), ("framework_version", ""))
        if first[key] != last[key]
    ]
    split = [f"{name.upper()} {first[name]} → {last[name]}" for name in SPLITS if first[name] != last[name]]
    return {
        "other_mode": f"{str(first['mode']).upper()} → {str(last['mode']).upper()}",
        "upgrade": _("Upgrade: %(what)s") % {"what": ", ".join(versions)},
        "other_split": ", ".join(split),
    }
