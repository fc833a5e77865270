"""Two or more reports side by side: what differs, and what each difference contributes to the change in step time.

The first report is the base. Step times are those of each capture's slowest rank, in its median step, so that
computing, communication, bubble and free time of that very step add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.entries import (
    Json,
    bubble_us,
    exposed_us,
    judged_steps,
    mean,
    number,
    ratio_of_sums,
    rows,
    slowest,
    step_count,
    step_time_us,
)
from analysis.entries import device_ratio as device_ratio_of

MAX_ROWS = 200
_PARTS = ("computing", "communication", "bubble", "free")


class _Metric(NamedTuple):
    name: str
    unit: str
    better: int  # 1: higher, -1: lower, 0: neither
    of: Callable[[Json], float | None]


def compare(reports: Sequence[Json]) -> Json:
    """Differences of the reports against the first one. ValueError with fewer than two."""
    if len(reports) < 2:
        raise ValueError("two reports are needed to compare")
    base, others = reports[0], reports[1:]
    return {
        "reports": [_identity(report) for report in reports],
        "metrics": [_metric_row(metric, reports) for metric in METRICS],
        "step_time": [{"index": index, **step_time_change(base, other)} for index, other in enumerate(others, 1)],
        "layers": _table(reports, _layer_totals, ("part", "layer", "pass")),
        "blocks": _table(reports, _block_totals, ("part", "block", "pass")),
        "places": _table(reports, _place_totals, ("class", "part", "block")),
        "op_types": _table(reports, _op_totals, ("type", "core")),
        "op_shapes": _table(reports, _shape_totals, ("type", "input_shapes")),
        "communication": _table(reports, _communication_totals, ("type", "op", "link")),
        "checklist": _checklist(reports),
        "findings": _findings(reports),
        "config": _keys([_flat(report.get("config") or {}) for report in reports]),
        "environment": _keys([_environment(report) for report in reports]),
    }


def _ranks(report: Json) -> list[Json]:
    return rows(report, "ranks")


def _identity(report: Json) -> Json:
    source = report.get("source") or {}
    kept = ("framework", "framework_version", "cann_version", "soc", "world_size", "parallel", "mode")
    return {"label": report.get("label"), **{key: source.get(key) for key in kept}, "step_time_us": _step_time(report)}


def _step_time(report: Json) -> float | None:
    entry = slowest(_ranks(report))
    return step_time_us(entry) if entry else None


def _sum_ratio(part: str, whole: str) -> Callable[[Json], float | None]:
    def of(report: Json) -> float | None:
        return ratio_of_sums((number(e, "kernels", part), number(e, "kernels", whole)) for e in _ranks(report))

    return of


def _step_ratio(part: Callable[[Json], float | None]) -> Callable[[Json], float | None]:
    def of(report: Json) -> float | None:
        steps = [step for entry in _ranks(report) for step in judged_steps(entry)]
        return ratio_of_sums((part(step), number(step, "step_time_us")) for step in steps)

    return of


def _mean_of(*path: str) -> Callable[[Json], float | None]:
    return lambda report: mean(number(entry, *path) for entry in _ranks(report))


def _most_of(*path: str) -> Callable[[Json], float | None]:
    def of(report: Json) -> float | None:
        return max((value for e in _ranks(report) if (value := number(e, *path)) is not None), default=None)

    return of


METRICS: tuple[_Metric, ...] = (
    _Metric("step_time_us", "us", -1, _step_time),
    _Metric("mfu", "ratio", 1, _mean_of("flops", "mfu")),
    _Metric("hfu", "ratio", 1, _mean_of("flops", "hfu")),
    _Metric("tflops_per_device", "TFLOPS", 1, _mean_of("flops", "tflops_per_device")),
    _Metric("device_ratio", "ratio", 1, lambda report: device_ratio_of(_ranks(report))),
    _Metric("compute_ratio", "ratio", 1, _step_ratio(lambda step: number(step, "computing_us"))),
    _Metric("exposed_communication_ratio", "ratio", -1, _step_ratio(exposed_us)),
    _Metric("cast_ratio", "ratio", -1, _sum_ratio("cast_us", "compute_us")),
    _Metric("movement_ratio", "ratio", -1, _sum_ratio("movement_us", "compute_us")),
    _Metric("peak_allocated_bytes", "bytes", -1, _most_of("memory", "peak_allocated_bytes")),
    _Metric("peak_reserved_bytes", "bytes", -1, _most_of("memory", "peak_reserved_bytes")),
    _Metric("bubble_ratio", "ratio", -1, lambda report: number(report, "cluster", "bubble", "measured")),
    _Metric("compute_spread_ratio", "ratio", -1, lambda report: number(report, "cluster", "compute_spread_ratio")),
    _Metric("checklist_score", "ratio", 1, lambda report: number(report, "checklist", "score")),
)


def _metric_row(metric: _Metric, reports: Sequence[Json]) -> Json:
    values = [metric.of(report) for report in reports]
    refused = [_refusal(metric.name, reports[0], report) for report in reports[1:]]
    changes = [
        {"absolute": None, "relative": None, "better": None, "refused": why}
        if why
        else _change(values[0], value, metric)
        for value, why in zip(values[1:], refused, strict=True)
    ]
    return {"name": metric.name, "unit": metric.unit, "values": values, "changes": changes}


def _change(base: float | None, value: float | None, metric: _Metric) -> Json:
    if base is None or value is None:
        return {"absolute": None, "relative": None, "better": None, "refused": None}
    difference = value - base
    better = None if not difference or not metric.better else (difference > 0) == (metric.better > 0)
    relative = difference / abs(base) if base else None
    return {"absolute": difference, "relative": relative, "better": better, "refused": None}


def _refusal(name: str, base: Json, other: Json) -> str | None:
    """Why a utilisation may not be compared: another formula, peak or dtype below the line."""
    if name not in ("mfu", "hfu"):
        return None
    for key in ("formula", "peak_tflops", "peak_dtype"):
        mine, theirs = _flops_key(base, key), _flops_key(other, key)
        if mine is not None and theirs is not None and mine != theirs and not (name == "hfu" and key == "formula"):
            return f"{key} differs: {mine} and {theirs}"
    return None


def _flops_key(report: Json, key: str) -> Any:
    known = (entry["flops"].get(key) for entry in _ranks(report) if isinstance(entry.get("flops"), dict))
    return next((value for value in known if value is not None), None)


def step_time_change(base: Json, other: Json) -> Json:
    """Change of the step time and its contributions, which add up to it exactly.

    Contributions: computing, communication (not hidden, without bubble), bubble, free, and "unaccounted" where a
    breakdown is missing or does not fill its step. Computing is split further in four ways: by operator type, by block,
    by layer and by place (class and the block it serves); communication by what it is for and its operation; free time
    by cause. Each way ends in a row of None that closes the sum: what ran beside each other, lies in other steps than
    the median one, or was not told. A way is empty where one side knows nothing of it.
    """
    before, after = slowest(_ranks(base)), slowest(_ranks(other))
    first, second = _median_step(before), _median_step(after)
    if before is None or after is None or first is None or second is None:
        return {"change_us": None, "base_rank": None, "rank": None, "contributions": []}
    change = second["step_time"] - first["step_time"]
    found: list[Json] = [
        {"kind": kind, "us": second[kind] - first[kind]} for kind in _PARTS if _both(kind, first, second)
    ]
    rest = change - sum(row["us"] for row in found)
    if abs(rest) > 1e-6 or not found:
        found.append({"kind": "unaccounted", "us": rest})
    for row in found:
        row["share"] = row["us"] / change if change else None
        if row["kind"] in _SPLITS:
            row["by"] = _SPLITS[row["kind"]](before, after, row["us"])
    return {"change_us": change, "base_rank": before.get("rank"), "rank": after.get("rank"), "contributions": found}


def _both(kind: str, first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    return kind in first and kind in second


def _median_step(entry: Json | None) -> dict[str, float] | None:
    """Parts of the median step in us: of the one in the middle, or of the mean of the two in the middle."""
    steps = sorted(judged_steps(entry or {}), key=lambda step: float(step["step_time_us"]))
    if not steps:
        return None
    middle = steps[(len(steps) - 1) // 2 : len(steps) // 2 + 1]
    split = [_parts(step) for step in middle]
    kept = [key for key in split[0] if all(key in other for other in split)]
    return {key: sum(parts[key] for parts in split) / len(split) for key in kept}


def _parts(step: Json) -> dict[str, float]:
    parts = {
        "step_time": number(step, "step_time_us"),
        "computing": number(step, "computing_us"),
        "communication": exposed_us(step),
        "bubble": None if exposed_us(step) is None else bubble_us(step),
        "free": number(step, "free_us"),
    }
    return {key: value for key, value in parts.items() if value is not None}


def _computing_by(before: Json, after: Json, change: float) -> Json:
    return {
        "op_type": _split(_op_totals(before), _op_totals(after), ("type", "core"), change),
        "block": _split(_block_totals(before), _block_totals(after), ("part", "block", "pass"), change),
        "layer": _split(_layer_compute(before), _layer_compute(after), ("part", "layer", "pass"), change),
        "place": _split(_place_totals(before), _place_totals(after), ("class", "part", "block"), change),
    }


def _communication_by(before: Json, after: Json, change: float) -> Json:
    return {"purpose": _split(_exposed_totals(before), _exposed_totals(after), ("part", "op"), change)}


def _free_by(before: Json, after: Json, change: float) -> Json:
    return {"cause": _split(_cause_totals(before), _cause_totals(after), ("cause",), change)}


_SPLITS: dict[str, Callable[[Json, Json, float], Json]] = {
    "computing": _computing_by,
    "communication": _communication_by,
    "free": _free_by,
}
Totals = dict[tuple[Any, ...], tuple[float, float]]


def _exposed_totals(entry: Json) -> Totals:
    """Communication that no compute hides; of transfers between stages what is not bubble."""
    steps = step_count(entry)
    bubble = mean(map(bubble_us, judged_steps(entry))) or 0.0
    keyed = [((r.get("part"), r.get("op")), number(r, "exposed_us"), None) for r in rows(entry, "facts", "exposed")]
    totals = _collect(steps, keyed)
    for key in totals:
        if key[1] == "sendRecv" and key[0] != "layer":
            us, count = totals[key]
            totals[key] = max(0.0, us - bubble), count
    return totals


def _cause_totals(entry: Json) -> Totals:
    found = rows(entry, "free_time", "by_cause")
    return _collect(1, (((r.get("cause"),), number(r, "us"), number(r, "count")) for r in found))  # given per step


def _split(before: Totals, after: Totals, keys: Sequence[str], change: float) -> list[Json]:
    """Per key the change of its time per step, largest first, and the closing row; empty where a side is unknown."""
    if not before or not after:
        return []
    nothing = (0.0, 0.0)
    found = [
        {**dict(zip(keys, key, strict=True)), "us": after.get(key, nothing)[0] - before.get(key, nothing)[0]}
        for key in {**before, **after}
        if not _is_talk(keys, key)
    ]
    found = sorted((row for row in found if row["us"]), key=lambda row: -abs(row["us"]))
    shown = found[: MAX_ROWS - 1]
    return [*shown, {**dict.fromkeys(keys), "us": change - sum(row["us"] for row in shown)}]


def _is_talk(keys: Sequence[str], key: tuple[Any, ...]) -> bool:
    named = dict(zip(keys, key, strict=True))
    return named.get("core") in ("HCCL", "COMMUNICATION") or named.get("block") == "communication"


def _collect(steps: int, found: Iterable[tuple[tuple[Any, ...], float | None, float | None]]) -> Totals:
    """(us, count) per key, divided by the number of steps that they cover."""
    totals: Totals = {}
    for key, us, count in found:
        old = totals.get(key, (0.0, 0.0))
        totals[key] = (old[0] + (us or 0.0) / steps, old[1] + (count or 0.0) / steps)
    return totals


def _op_totals(entry: Json) -> Totals:
    found = rows(entry, "op_types")
    return _collect(
        step_count(entry), (((r["type"], r.get("core")), number(r, "total_us"), number(r, "count")) for r in found)
    )


def _shape_totals(entry: Json) -> Totals:
    found = rows(entry, "facts", "op_shapes")
    pairs = (((r["type"], r.get("input_shapes")), number(r, "total_us"), number(r, "count")) for r in found)
    return _collect(step_count(entry), pairs)


def _layer_totals(entry: Json) -> Totals:
    found = rows(entry, "layers", "parts")
    keyed = ((r.get("part"), r.get("layer"), r.get("pass")) for r in found)
    return _collect(1, zip(keyed, *_sums(found), strict=True))  # parts are given per step


def _layer_compute(entry: Json) -> Totals:
    """Layers without communication, which is no part of computing."""
    found = []
    for row in rows(entry, "layers", "parts"):
        talk = sum(number(b, "total_us") or 0.0 for b in rows(row, "blocks") if b.get("block") == "communication")
        rest = (number(row, "total_us") or 0.0) - talk
        if row.get("part") != "gradient_sync":
            found.append(((row.get("part"), row.get("layer"), row.get("pass")), rest, number(row, "kernel_count")))
    return _collect(1, found)


def _sums(found: Sequence[Json], count: str = "kernel_count") -> tuple[list[float | None], list[float | None]]:
    return [number(row, "total_us") for row in found], [number(row, count) for row in found]


def _block_totals(entry: Json) -> Totals:
    found = [(part, block) for part in rows(entry, "layers", "parts") for block in rows(part, "blocks")]
    keyed = ((part.get("part"), block.get("block"), part.get("pass")) for part, block in found)
    return _collect(1, zip(keyed, *_sums([block for _, block in found]), strict=True))


def _place_totals(entry: Json) -> Totals:
    """By class and the block it serves: what an operator costs where."""
    found = rows(entry, "facts", "places")
    keyed = ((r.get("class"), r.get("part"), r.get("block")) for r in found)
    return _collect(step_count(entry), zip(keyed, *_sums(found, "count"), strict=True))


def _communication_totals(entry: Json) -> Totals:
    found = rows(entry, "communication")
    keyed = (((r.get("type"), r.get("op"), r.get("link")), number(r, "elapse_us"), number(r, "count")) for r in found)
    return _collect(step_count(entry), keyed)


def _table(reports: Sequence[Json], totals: Callable[[Json], Totals], keys: Sequence[str]) -> list[Json]:
    """Per key the mean over ranks of time and count per step in each report, and the changes; largest change first.

    A key that a known report does not have took no time there: 0. Where a report knows nothing of the kind: null.
    """
    columns = [_mean_totals([totals(entry) for entry in _ranks(report)]) for report in reports]
    names = {key: None for column in columns if column for key in column}
    found = []
    for key in names:
        us = [column.get(key, (0.0, 0.0))[0] if column else None for column in columns]
        counts = [column.get(key, (0.0, 0.0))[1] if column else None for column in columns]
        changes = [None if us[0] is None or value is None else value - us[0] for value in us[1:]]
        found.append({**dict(zip(keys, key, strict=True)), "us": us, "counts": counts, "changes_us": changes})
    found.sort(key=lambda row: -max((abs(change) for change in row["changes_us"] if change is not None), default=0.0))
    return found[:MAX_ROWS]


def _mean_totals(totals: Sequence[Totals]) -> Totals | None:
    known = [total for total in totals if total]
    if not known:
        return None
    merged: Totals = {}
    for total in known:
        for key, (us, count) in total.items():
            old = merged.get(key, (0.0, 0.0))
            merged[key] = (old[0] + us / len(known), old[1] + count / len(known))
    return merged


def _checklist(reports: Sequence[Json]) -> list[Json]:
    """Items of all reports; `turned` says "fixed" or "broken" against the base."""
    columns = [{item["id"]: item for item in rows(report, "checklist", "items")} for report in reports]
    found = []
    for name in {name: None for column in columns for name in column}:
        items = [column.get(name, {}) for column in columns]
        statuses = [item.get("status") for item in items]
        turned = [_turned(statuses[0], status) for status in statuses[1:]]
        found.append({"id": name, "statuses": statuses, "values": [i.get("value") for i in items], "turned": turned})
    return found


def _turned(before: str | None, after: str | None) -> str | None:
    return {("fail", "pass"): "fixed", ("pass", "fail"): "broken"}.get((str(before), str(after)))


def _findings(reports: Sequence[Json]) -> list[Json]:
    columns = [{str(row["id"]): row for row in rows(report, "findings")} for report in reports]
    return [
        {
            "id": name,
            "severities": [column.get(name, {}).get("severity") for column in columns],
            "recoverable_us": [column.get(name, {}).get("recoverable_us") for column in columns],
        }
        for name in {name: None for column in columns for name in column}
    ]


def _environment(report: Json) -> dict[str, Any]:
    """Environment variables and versions."""
    source = report.get("source") or {}
    versions = ("framework", "framework_version", "cann_version", "soc", "world_size", "mode", "jit_level", "sink")
    parallel = _flat({"parallel": source.get("parallel")})
    return {**{key: source.get(key) for key in versions}, **parallel, **_flat(source.get("environment") or {})}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def _keys(columns: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Keys whose values are not the same everywhere."""
    names = sorted({name for column in columns for name in column})
    found = [{"key": name, "values": [column.get(name) for column in columns]} for name in names]
    return [row for row in found if any(value != row["values"][0] for value in row["values"])]
