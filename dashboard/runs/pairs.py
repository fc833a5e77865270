"""Comparisons worth making, found without asking: the other mode, before and after an upgrade, another split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
Rule = Callable[[Row, Row], bool]


def pairs_of(run: Run) -> list[dict[str, Any]]:
    """Pairs of this run with another one of its project and model: at most one of each kind, the nearest in time."""
    if run.last_capture_at is None:
        return []
    mine = {name: getattr(run, name) for name in FIELDS}
    others = [row for row in _rows(run.project_id, run.model_name) if row["id"] != run.pk]
    others.sort(key=lambda row: abs(row["last_capture_at"] - mine["last_capture_at"]))
    nearest = ((kind, next((row for row in others if rule(mine, row)), None)) for kind, rule in RULES.items())
    return _distinct(_pair(mine, row, kind) for kind, row in nearest)


def project_pairs(project_id: int) -> list[dict[str, Any]]:
    """The newest pair of each kind in a project: runs next to each other in time."""
    rows = _rows(project_id)
    return _distinct(_newest(rows, kind, rule) for kind, rule in RULES.items())


def _newest(rows: Sequence[Row], kind: str, rule: Rule) -> dict[str, Any] | None:
    # No two rows make a pair where all have the same of what sets the kind's pairs apart.
    if len({tuple(row[name] for name in VARIES[kind]) for row in rows}) < 2:
        return None
    pairs = (_pair(row, _next(rows[index + 1 :], row, rule), kind) for index, row in enumerate(rows))
    return next(filter(None, pairs), None)


def _rows(project_id: int, model: str | None = None) -> list[Row]:
    runs = Run.objects.filter(project=project_id, archived=False, last_capture_at__isnull=False)
    if model is not None:
        runs = runs.filter(model_name=model)
    return list(runs.order_by("-last_capture_at", "-id").values(*FIELDS, "model_name")[:LOOKED_AT])


def _next(rows: Sequence[Row], row: Row, rule: Rule) -> Row | None:
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
    return bool(same and known and any(name != "dp" for name in _differing(one, other)))


def _differing(one: Row, other: Row) -> list[str]:
    """Sizes of the split that are known of both and not the same."""
    return [name for name in SPLITS if None not in (one[name], other[name]) and one[name] != other[name]]


def added(split: str) -> Rule:
    """One of them splits the model in a way the other does not; beside it only the data parallel size differs."""
    others = [name for name in SPLITS if name not in (split, "dp")]

    def rule(one: Row, other: Row) -> bool:
        same = all(one[name] == other[name] for name in ("mode", "soc", "cann_version", *others))
        sizes = sorted((one[split] or 0, other[split] or 0))
        return same and sizes[0] == 1 < sizes[1]

    return rule


RULES: dict[str, Rule] = {
    "other_mode": other_mode,
    "upgrade": upgrade,
    **{f"added_{split}": added(split) for split in ("tp", "pp", "cp", "ep")},
    "other_split": other_split,
}

VARIES = {
    "other_mode": ("mode",),
    "upgrade": ("cann_version", "framework_version"),
    **{f"added_{split}": (split,) for split in ("tp", "pp", "cp", "ep")},
    "other_split": ("tp", "pp", "cp", "ep"),
}


def _pair(one: Row, other: Row | None, kind: str) -> dict[str, Any] | None:
    """The two in order of time, with what tells them apart in words."""
    if other is None:
        return None
    first, last = sorted((one, other), key=lambda row: (row["last_capture_at"], row["id"]))
    if kind.startswith("added_"):
        # What was added comes last, whichever ran first.
        first, last = sorted((one, other), key=lambda row: row[kind.removeprefix("added_")])
    return {"kind": kind, "title": _titles(first, last, kind), "first": first, "last": last}


def _distinct(found: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Without pairs of the same two runs, the first kind of them staying."""
    kept: dict[frozenset[int], dict[str, Any]] = {}
    for pair in filter(None, found):
        kept.setdefault(frozenset((pair["first"]["id"], pair["last"]["id"])), pair)
    return list(kept.values())


def _titles(first: Row, last: Row, kind: str) -> str:
    if kind == "other_mode":
        return f"{str(first['mode']).upper()} → {str(last['mode']).upper()}"
    if kind == "upgrade":
        versions = [
            f"{name} {first[key]} → {last[key]}".strip()
            for key, name in (("cann_version", "CANN"), ("framework_version", ""))
            if first[key] != last[key]
        ]
        return _("Upgrade: %(what)s") % {"what": ", ".join(versions)}
    split = ", ".join(f"{name.upper()} {first[name]} → {last[name]}" for name in _differing(first, last))
    return _("Parallel split: %(what)s") % {"what": split}
