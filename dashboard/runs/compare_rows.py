"""Captures beside each other: what differs, and what made the difference. Others are held against the first one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from analysis.config_keys import changed_keys, config_keys
from dashboard.runs.config_words import ConfigKeys, value_text
from dashboard.runs.metrics import FRAMEWORKS, METRICS, MODES, Text
from dashboard.runs.models import Capture, Dump, Run
from dashboard.runs.queries import CHECK_ORDER
from dashboard.runs.report_rows import check_items, layer_rows, slowest_rank, step_parts
from dashboard.runs.templatetags.units import metric_text, number_text, percent_text, points_text, signed

Entries = Sequence[Mapping[str, Any]]
COMPARED = (
    "step_time_ns", "mfu", "hfu", "tflops_per_device", "device_ratio", "compute_ratio", "exposed_communication_ratio",
    "cast_ratio", "movement_ratio", "peak_memory_bytes",
)  # fmt: skip
CONFIG_LINES = 400


def entries(captures: Sequence[Capture]) -> list[Mapping[str, Any]]:
    """The entry of each capture's slowest rank; two queries for all of them."""
    rows: dict[int, list[Dump]] = {}
    columns = ("id", "capture_id", "rank", "step_time_ns", "computing_ns")
    for dump in Dump.objects.filter(capture__in=captures).only(*columns):
        rows.setdefault(dump.capture_id, []).append(dump)
    chosen = {}
    for capture_id, dumps in rows.items():
        rank = slowest_rank(dumps)
        chosen.update({dump.pk: capture_id for dump in dumps if dump.rank == rank})
    found = Dump.objects.filter(pk__in=chosen).values_list("pk", "entry")
    by_capture = {chosen[pk]: entry for pk, entry in found}
    return [by_capture.get(capture.pk) or {} for capture in captures]


def same_denominator(captures: Sequence[Capture]) -> bool:
    return len({(capture.peak_tflops, capture.peak_dtype, capture.flops_formula) for capture in captures}) == 1


def metric_rows(captures: Sequence[Capture]) -> list[dict[str, Any]]:
    """A row per metric that any capture has: value, difference to the first and whether that is good."""
    rows = []
    comparable = same_denominator(captures)
    for key in COMPARED:
        about = METRICS[key]
        values = [getattr(capture, key) for capture in captures]
        if all(value is None for value in values):
            continue
        held = comparable or key not in ("mfu", "hfu")
        cells = [
            held_against(value, values[0] if held and index else None, about.kind, about.better)
            for index, value in enumerate(values)
        ]
        rows.append({"key": key, "kind": about.kind, "cells": cells, "incomparable": not held})
    return rows


def held_against(value: float | None, base: float | None, kind: str, better: str) -> dict[str, Any]:
    """A value with its change from `base` as text, and whether that is good; None for a change too small to judge."""
    cell: dict[str, Any] = {"value": value, "change": None, "good": None}
    if value is None or base is None:
        return cell
    change = value - base if kind == "percent" else (value / base - 1 if base else None)
    if change is None:
        return cell
    relative = signed(change, "relative")
    cell["change"] = points_text(change) if kind == "percent" else relative
    if abs(change) >= 0.005:
        cell["good"] = (change < 0) == (better == "low")
    return cell


def sentence(captures: Sequence[Capture]) -> str:
    """The difference between the first and the last capture in one sentence."""
    first, last = captures[0], captures[-1]
    if not first.step_time_ns or not last.step_time_ns:
        return _("The step time of one of them is unknown.")
    change = last.step_time_ns / first.step_time_ns - 1
    values = {
        "first": metric_text(first.step_time_ns, "duration"),
        "last": metric_text(last.step_time_ns, "duration"),
        "percent": percent_text(abs(change)),
    }
    if abs(change) < 0.005:
        return _("Step time is the same: %(first)s against %(last)s.") % values
    if change < 0:
        return _("Step time fell by %(percent)s, from %(first)s to %(last)s.") % values
    return _("Step time rose by %(percent)s, from %(first)s to %(last)s.") % values


def parts_of(compared: Entries) -> list[list[dict[str, Any]]]:
    return [step_parts(entry) for entry in compared]


def differences(captures: Sequence[Capture], compared: Entries) -> dict[str, Any]:
    """What analysis.compare says of the captures, each seen from its slowest rank."""
    from analysis.compare import compare

    return compare(
        [
            {**(capture.report or {}), "ranks": [dict(entry)] if entry else []}
            for capture, entry in zip(captures, compared, strict=True)
        ]
    )


KIND_CSS = {"computing": "compute", "communication": "comm", "bubble": "bubble", "free": "free"}


def contributions(found: Mapping[str, Any], focus: int) -> dict[str, Any]:
    """What made capture `focus` another step than the first: parts that add up to `change_us`, largest first.

    Computing is cut further, in `places` (class and the block it serves) and in `layers`.
    """
    change = found["step_time"][focus - 1]
    parts = sorted(change["contributions"], key=lambda row: -abs(row["us"]))
    by: Mapping[str, Any] = next((row["by"] for row in parts if row["kind"] == "computing"), {})
    rows = [{**row, "css": KIND_CSS.get(row["kind"], "ink-2")} for row in parts if abs(row["us"]) >= TRIFLE_US]
    return {
        "change_us": change["change_us"],
        "rows": with_share(rows, "us"),
        "places": _pieces(by.get("place") or [], ("class", "part", "block")),
        "layers": _pieces(by.get("layer") or [], ("part", "layer")),
    }


def _pieces(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], limit: int = 8) -> list[dict[str, Any]]:
    """The largest pieces of a split by `keys`; what is left and what closes the sum are one last row, `rest`."""
    sums: dict[tuple[Any, ...], float] = {}
    rest = 0.0
    for row in rows:
        if all(row.get(key) is None for key in keys):
            rest += row["us"]
        else:
            key = tuple(row.get(name) for name in keys)
            sums[key] = sums.get(key, 0.0) + row["us"]
    ordered = sorted(sums.items(), key=lambda item: -abs(item[1]))
    pieces: list[dict[str, Any]] = [{**dict(zip(keys, key, strict=True)), "us": us} for key, us in ordered[:limit]]
    rest += sum(us for _key, us in ordered[limit:])
    return with_share(pieces, "us") + ([{"rest": True, "us": rest}] if pieces and abs(rest) >= TRIFLE_US else [])


TRIFLE_US = 0.5


def with_share(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """`relative`: how large a row's change is beside the largest one, 0 to 1."""
    largest = max((abs(row[key]) for row in rows if row[key] is not None), default=0.0)
    for row in rows:
        row["relative"] = abs(row[key]) / largest if largest and row[key] is not None else 0.0
    return rows


def table_rows(
    found: Sequence[Mapping[str, Any]], keys: Sequence[str], focus: int, limit: int = 20
) -> list[dict[str, Any]]:
    """Rows of one of compare's tables summed by `keys`: time in each capture and the change of `focus` against the
    first, largest change first. None where a capture does not know; what did not change is left out."""
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        key = tuple(row.get(name) for name in keys)
        known = sums.setdefault(key, {**dict(zip(keys, key, strict=True)), "us": [None] * len(row["us"]), "counts": []})
        known["us"] = [_plus(a, b) for a, b in zip(known["us"], row["us"], strict=True)]
        known["counts"] = [
            _plus(a, b) for a, b in zip(known["counts"] or [None] * len(row["us"]), row["counts"], strict=True)
        ]
    rows = []
    for row in sums.values():
        base, value = row["us"][0], row["us"][focus]
        row["change_us"] = None if base is None or value is None else value - base
        row["cells"] = [{"us": us, "count": count} for us, count in zip(row["us"], row["counts"], strict=True)]
        rows.append(row)
    moved = [row for row in rows if row["change_us"] is None or abs(row["change_us"]) >= TRIFLE_US]
    moved.sort(key=lambda row: -abs(row["change_us"] or 0.0))
    return with_share(moved[:limit], "change_us")


def _plus(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else a + b


def layers_of(compared: Entries) -> list[dict[int, float]]:
    """Time of each layer in each entry, over passes and micro-batches, in us."""
    return [{row["layer"]: row["total_us"] for row in layer_rows(entry)} for entry in compared]


def denominators(captures: Sequence[Capture]) -> list[str]:
    """What the utilisation of each capture is a share of, in words; "" where that is not known."""
    return [
        f"{number_text(capture.peak_tflops)} TFLOPS {capture.peak_dtype} {capture.flops_formula}".strip()
        if capture.peak_tflops
        else ""
        for capture in captures
    ]


def check_rows(captures: Sequence[Capture], found: Mapping[str, Any], focus: int) -> list[dict[str, Any]]:
    """A row per checklist item: its status in each capture, and whether `focus` "fixed" or "broken" it; those first."""
    tables = [{item.get("id"): item for item in check_items(capture.report or {})} for capture in captures]
    turned = {row["id"]: row["turned"][focus - 1] for row in found["checklist"]}
    rows = []
    for key in CHECK_ORDER:
        cells = [table.get(key, {"status": "unknown"}) for table in tables]
        changed = cells[0].get("status") != cells[focus].get("status")
        rows.append({"id": key, "cells": cells, "turned": turned.get(key), "changed": changed})
    return sorted(rows, key=lambda row: (row["turned"] is None, not row["changed"]))


SETTINGS: tuple[tuple[str, Text], ...] = (
    ("model_name", gettext_lazy("Model")),
    ("soc", gettext_lazy("Chip")),
    ("world_size", gettext_lazy("Cards")),
    ("mode", gettext_lazy("Mode")),
    ("jit_level", gettext_lazy("JIT level")),
    ("sink", gettext_lazy("Sink")),
    ("framework", gettext_lazy("Framework")),
    ("framework_version", gettext_lazy("Framework version")),
    ("cann_version", gettext_lazy("CANN")),
    *((name, name.upper()) for name in ("dp", "tp", "pp", "cp", "ep")),
)
META: tuple[tuple[str, Text], ...] = (("git_commit", gettext_lazy("Commit")), ("command", gettext_lazy("Command")))
"""What else of a run's metadata is held beside each other."""


def setting_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Identity, versions and environment of each run; what differs comes first."""
    named: list[tuple[Text, list[Any]]] = [(label, [_told(run, field) for run in runs]) for field, label in SETTINGS]
    named += [(label, [(run.meta or {}).get(key) for run in runs]) for key, label in META]
    environments = [dict((run.meta or {}).get("environment") or {}) for run in runs]
    for name in sorted({name for environment in environments for name in environment}):
        named.append((name, [environment.get(name) for environment in environments]))
    rows = [
        {"name": name, "values": values, "differs": _differ(values)}
        for name, values in named
        if any(value not in (None, "") for value in values)
    ]
    return sorted(rows, key=lambda row: not row["differs"])


def _differ(values: Sequence[Any]) -> bool:
    """Whether two of the known values differ; what is unknown may well be the same."""
    return len({str(value) for value in values if value not in (None, "")}) > 1


def _told(run: Run, field: str) -> Any:
    """A setting in the words of the pages."""
    value = getattr(run, field)
    if field == "sink":
        return None if value is None else _("on") if value else _("off")
    names = {"mode": MODES, "framework": FRAMEWORKS}.get(field, {})
    return names.get(value, value)


def keys_of(runs: Iterable[Run]) -> dict[int, dict[str, str]]:
    """The keys of each run's configuration; none where it was not sent or is too long to be told so."""
    return {run.pk: config_keys(run.config_text) for run in {run.pk: run for run in runs}.values()}


def config_key_rows(runs: Sequence[Run], keys: ConfigKeys) -> list[dict[str, Any]]:
    """Keys whose values are not the same in all the configurations that were sent: key and a value for each run, None
    where its configuration was not sent. In the order of the first one."""
    known = [keys[run.pk] for run in runs]
    told = [found for found in known if found]
    names = dict.fromkeys(name for found in told for name in found)
    differing = [name for name in names if len({found.get(name) for found in told}) > 1]
    return [
        {"key": name, "values": [value_text(found.get(name)) if found else None for found in known]}
        for name in differing
    ]


def setup_changes(before: Run, run: Run, keys: ConfigKeys) -> list[dict[str, Any]]:
    """What is not the same in setup, environment and configuration of two runs: name, `old` and `new`. What one of them
    does not tell is no change."""
    rows = [row for row in setting_rows([before, run]) if row["differs"]]
    changes = [{"name": row["name"], "old": row["values"][0], "new": row["values"][1]} for row in rows]
    return changes + _config_changes(before, run, keys)


def _config_changes(before: Run, run: Run, keys: ConfigKeys) -> list[dict[str, Any]]:
    """The keys that changed; where no keys are known of one of them, that the configurations differ."""
    old, new = keys[before.pk], keys[run.pk]
    if old and new:
        return [
            {"name": change.key, "old": value_text(change.old), "new": value_text(change.new), "key": True}
            for change in changed_keys(old, new)
        ]
    digits = before.config_fingerprint, run.config_fingerprint
    return [{"name": _("Config"), "old": digits[0], "new": digits[1]}] if all(digits) and len(set(digits)) > 1 else []


def config_diff(first: Run, last: Run) -> list[tuple[str, str]]:
    """The lines in which two configs differ: ("add" | "del" | "same" | "head", text)."""
    if first.pk == last.pk or not first.config_text or not last.config_text:
        return []
    lines = difflib.unified_diff(first.config_text.splitlines(), last.config_text.splitlines(), lineterm="", n=2)
    kinds = {"+": "add", "-": "del", "@": "head"}
    return [(kinds.get(line[:1], "same"), line) for line in list(lines)[2:CONFIG_LINES]]
