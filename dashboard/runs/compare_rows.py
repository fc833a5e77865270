"""Captures beside each other: what differs, and what made the difference. Others are held against the first one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.runs.metrics import BLOCKS, METRICS, Text
from dashboard.runs.models import Capture, Dump, Run
from dashboard.runs.queries import CHECK_ORDER
from dashboard.runs.report_rows import check_items, slowest_rank, step_parts
from dashboard.runs.templatetags.units import metric_text, percent_text, points_text

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
            _cell(value, values[0], about.kind, about.better, held and index > 0) for index, value in enumerate(values)
        ]
        rows.append({"key": key, "kind": about.kind, "cells": cells, "incomparable": not held})
    return rows


def _cell(value: float | None, base: float | None, kind: str, better: str, held: bool) -> dict[str, Any]:
    cell: dict[str, Any] = {"value": value, "change": None, "good": None}
    if not held or value is None or base is None:
        return cell
    change = value - base if kind == "percent" else (value / base - 1 if base else None)
    if change is None:
        return cell
    relative = f"{change * 100:+.1f}\u202f%".replace("-", "−")
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


def step_changes(compared: Entries) -> list[dict[str, Any]]:
    """What the first step's parts became in the last, largest change first, with its share of the whole change."""
    first, last = ({part["css"]: part for part in step_parts(entry)} for entry in (compared[0], compared[-1]))
    if not first or not last:
        return []
    names = {**{css: part["name"] for css, part in first.items()}, **{css: part["name"] for css, part in last.items()}}
    rows = []
    for css, name in names.items():
        before, after = (parts[css]["us"] if css in parts else 0.0 for parts in (first, last))
        rows.append({"css": css, "name": name, "before": before, "after": after, "change_ns": (after - before) * 1000})
    return _with_share(rows)


def _with_share(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    moved = sum(abs(row["change_ns"]) for row in rows)
    for row in rows:
        row["share"] = abs(row["change_ns"]) / moved if moved else 0.0
    return sorted(rows, key=lambda row: -abs(row["change_ns"]))


def op_rows(compared: Entries, limit: int = 25) -> list[dict[str, Any]]:
    """Operators by type over all captures, ordered by how much they changed from first to last."""
    totals = [{row["type"]: row for row in entry.get("op_types") or [] if row.get("type")} for entry in compared]
    per_step = [max(1, len(entry.get("steps") or [])) for entry in compared]
    rows = []
    for name in {name for table in totals for name in table}:
        cells = [
            {"us": table[name]["total_us"] / steps, "count": table[name]["count"]}
            if name in table
            else {"us": 0.0, "count": 0}
            for table, steps in zip(totals, per_step, strict=True)
        ]
        if totals[0] and totals[-1]:
            rows.append({"type": name, "cells": cells, "change_ns": (cells[-1]["us"] - cells[0]["us"]) * 1000})
    return _with_share(rows)[:limit]


def block_rows(compared: Entries) -> list[dict[str, Any]]:
    """Mean time of each block of a layer, over all layers and passes; [] unless first and last tell layers apart."""
    tables = [_block_means(entry) for entry in compared]
    if not tables[0] or not tables[-1]:
        return []
    rows = []
    for block in sorted(
        {block for table in tables for block in table},
        key=lambda name: list(BLOCKS).index(name) if name in BLOCKS else 99,
    ):
        cells = [{"us": table.get(block, 0.0)} for table in tables]
        rows.append({"block": block, "cells": cells, "change_ns": (cells[-1]["us"] - cells[0]["us"]) * 1000})
    return _with_share(rows)


def _block_means(entry: Mapping[str, Any]) -> dict[str, float]:
    """Mean time of a layer's blocks; the report's layer times are of the mean step."""
    layers = set()
    sums: dict[str, float] = {}
    for part in (entry.get("layers") or {}).get("parts") or []:
        if part.get("part") != "layer":
            continue
        layers.add(part.get("layer"))
        for block in part.get("blocks") or []:
            sums[block["block"]] = sums.get(block["block"], 0.0) + (block.get("total_us") or 0.0)
    return {block: value / len(layers) for block, value in sums.items()}


def check_rows(captures: Sequence[Capture]) -> list[dict[str, Any]]:
    """A row per checklist item: its status in each capture, and whether it changed."""
    tables = [{item.get("id"): item for item in check_items(capture.report or {})} for capture in captures]
    rows = []
    for key in CHECK_ORDER:
        cells = [table.get(key, {"status": "unknown"}) for table in tables]
        rows.append({"id": key, "cells": cells, "changed": len({cell.get("status") for cell in cells}) > 1})
    return rows


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
    ("config_fingerprint", gettext_lazy("Config fingerprint")),
)


def setting_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Identity, versions and environment of each run; what differs comes first."""
    named: list[tuple[Text, list[Any]]] = [(label, [getattr(run, field) for run in runs]) for field, label in SETTINGS]
    environments = [dict((run.meta or {}).get("environment") or {}) for run in runs]
    for name in sorted({name for environment in environments for name in environment}):
        named.append((name, [environment.get(name) for environment in environments]))
    rows = [
        {"name": name, "values": values, "differs": len({str(value) for value in values}) > 1}
        for name, values in named
        if any(value not in (None, "") for value in values)
    ]
    return sorted(rows, key=lambda row: not row["differs"])


def config_diff(first: Run, last: Run) -> list[tuple[str, str]]:
    """The lines in which two configs differ: ("add" | "del" | "same" | "head", text)."""
    if first.pk == last.pk or not first.config_text or not last.config_text:
        return []
    lines = difflib.unified_diff(first.config_text.splitlines(), last.config_text.splitlines(), lineterm="", n=2)
    kinds = {"+": "add", "-": "del", "@": "head"}
    return [(kinds.get(line[:1], "same"), line) for line in list(lines)[2:CONFIG_LINES]]
