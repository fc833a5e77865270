"""The report as tables for a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from analysis.entries import bubble_us, exposed_us
from analysis.units import file_names
from analysis.wording import Say

MAX_STEPS = 12
MAX_TYPES = 15
MAX_ROWS = 20
COLOURS = {"pass": "green", "fail": "red", "unknown": "yellow"}


def print_report(report: Mapping[str, Any], console: Console | None = None, lang: str = "en") -> None:
    """Print every part of the report that says something, in English ("en") or Simplified Chinese ("zh")."""
    console, say = console or Console(highlight=False), Say(lang)
    console.print(_title(report, say), markup=False)
    for part in PARTS:
        table = part(report, say)
        if table is not None and table.row_count:
            console.print()
            console.print(table)
    source = report["source"]
    for warning in (source.get("warnings_zh") if lang == "zh" else None) or source["warnings"]:
        console.print(say("warning: {text}", text=warning), markup=False)


def _title(report: Mapping[str, Any], say: Say) -> str:
    source, verdict = report["source"], report.get("bottleneck") or {}
    parts = [source.get("framework"), source.get("framework_version"), say("{form} dump", form=source.get("format"))]
    parts += [f"CANN {source['cann_version']}"] if source.get("cann_version") else []
    parts += [source["soc"]] if source.get("soc") else []
    parts.append(say("{seen} of {all} ranks", seen=len(report["ranks"]), all=source.get("world_size") or "?"))
    known = verdict.get("verdict")
    bound = say("; bound by {verdict}", verdict=say.name(known)) if known else ""
    return " · ".join(str(part) for part in parts if part) + bound


def _table(say: Say, title: str, *columns: str, text: Sequence[int] = (0,)) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        said = say(column) if column else ""
        table.add_column(said, justify="left" if index in text else "right", overflow="fold")
    return table


def _steps(report: Mapping[str, Any], say: Say) -> Table:
    rows = [(entry, step) for entry in report["ranks"] for step in entry["steps"]]
    bubble = any(bubble_us(step) for _, step in rows)
    columns = ("Rank", "Step", "Time", "Compute", "Exposed comm.", *(["Bubble"] if bubble else []), "Free", "Device")
    table = _table(say, say("Steps (ms)"), *columns, text=())
    for entry, step in rows[:MAX_STEPS]:
        mark = say(" (warm-up)") if step["warmup"] else ""
        times = [step["step_time_us"], step["computing_us"], exposed_us(step), step["free_us"]]
        times[3:3] = [step.get("bubble_us")] if bubble else []
        named = _known(entry["rank"]), f"{_known(step['step'])}{mark}"
        table.add_row(*named, *map(_ms, times), _percent(step["device_ratio"]))
    notes = [say("From {source}.", source=files)] if (files := _files(rows, "source")) else []
    if bubble and (files := _files(rows, "bubble_source")):
        notes.append(say("Bubble from {source}.", source=files))
    notes += [say("{count} more in --json", count=len(rows) - MAX_STEPS)] if len(rows) > MAX_STEPS else []
    table.caption = " ".join(notes) or None
    return table


def _files(rows: Sequence[tuple[Any, Mapping[str, Any]]], key: str) -> str:
    return _plain(file_names(step.get(key) for _, step in rows))


def _shares(report: Mapping[str, Any], say: Say) -> Table:
    columns = ("Rank", "Kernels", "Compute ms", "Cast", "Movement", "MFU", "HFU", "TFLOPS", "Peak memory")
    table = _table(say, say("Ranks"), *columns, text=())
    for entry in report["ranks"][:MAX_ROWS]:
        kernels, flops = entry["kernels"] or {}, entry["flops"]
        shares = [_percent(kernels.get("cast_ratio")), _percent(kernels.get("movement_ratio"))]
        rates = [_percent(flops["mfu"]), _percent(flops["hfu"]), _one(flops["tflops_per_device"])]
        peak = _gib(entry["memory"]["peak_reserved_bytes"])
        table.add_row(
            _known(entry["rank"]), _known(kernels.get("count")), _ms(kernels.get("compute_us")), *shares, *rates, peak
        )
    return table


def _op_types(report: Mapping[str, Any], say: Say) -> Table:
    entry = _first_with(report, lambda each: bool(each["op_types"]))
    title = say("Operator types of rank {rank}", rank=_known(entry.get("rank")))
    table = _table(say, title, "Type", "Core", "Count", "Time", "Share", text=(0, 1))
    for row in (entry.get("op_types") or [])[:MAX_TYPES]:
        core, count = _plain(_known(row["core"])), _known(row["count"])
        table.add_row(_plain(row["type"]), core, count, _ms(row["total_us"]), _percent(row["share"]))
    return table


def _layers(report: Mapping[str, Any], say: Say) -> Table | None:
    entry = _first_with(report, lambda each: bool((each.get("layers") or {}).get("method")))
    layers = entry.get("layers")
    if not layers or not layers.get("method"):
        return None
    told = {"rank": _known(entry["rank"]), "count": layers["layer_count"], "method": say.name(layers["method"])}
    table = _table(
        say, say("Layers of rank {rank}: {count} by {method}", **told), "Part", "Pass", "Layers", "Time", text=(0, 1)
    )
    for (part, phase), rows in _grouped(layers["parts"]).items():
        count = len({row["layer"] for row in rows if row.get("layer") is not None})
        total = _ms(sum(row["total_us"] for row in rows))
        table.add_row(say.name(part), "-" if phase == "none" else say.name(phase), str(count or ""), total)
    table.caption = say.of(layers, "doubt") or None
    return table


def _grouped(parts: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str | None], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
    for part in parts:
        groups.setdefault((str(part.get("part")), part.get("pass")), []).append(part)
    return groups


def _communication(report: Mapping[str, Any], say: Say) -> Table:
    entry = _first_with(report, lambda each: bool(each["communication"]))
    title = say("Communication of rank {rank}", rank=_known(entry.get("rank")))
    table = _table(say, title, "Operation", "Kind", "Link", "Count", "Time", "Wait", "GB/s", text=(0, 1, 2))
    for row in (entry.get("communication") or [])[:MAX_ROWS]:
        numbers = [_known(row["count"]), _ms(row["elapse_us"]), _ms(row["wait_us"]), _one(row["bandwidth_gbps"])]
        table.add_row(_plain(row["op"]), say.name(row["type"]), _plain(_known(row["link"])), *numbers)
    return table


def _checklist(report: Mapping[str, Any], say: Say) -> Table:
    found = report["checklist"]
    counts = {"passed": found["passed"], "judged": found["passed"] + found["failed"], "unknown": found["unknown"]}
    title = say("Checklist: {passed} of {judged} pass, {unknown} unknown", **counts)
    table = _table(say, title, "Item", "Status", "Finding", text=(0, 1, 2))
    for item in found["items"]:
        summary = say.of(item, "summary")
        text = summary if item["status"] == "pass" else f"{summary} {say.of(item, 'advice')}"
        status = say.name(item["status"])
        table.add_row(item["id"], f"[{COLOURS[item['status']]}]{status}[/]", _plain(text))
    return table


def _findings(report: Mapping[str, Any], say: Say) -> Table:
    table = _table(say, say("Findings"), "Severity", "Finding", "Advice", "Wins ms", text=(0, 1, 2))
    for row in report["findings"][:MAX_ROWS]:
        texts = _plain(say.of(row, "summary")), _plain(say.of(row, "advice"))
        table.add_row(say.name(row["severity"]), *texts, _ms(row.get("recoverable_us")))
    return table


def _missing(report: Mapping[str, Any], say: Say) -> Table:
    table = _table(say, say("Not known, and how to get it"), "Missing", "Hides", "How to get it", text=(0, 1, 2))
    for row in report["source"]["missing"]:
        table.add_row(_plain(say.of(row, "file")), ", ".join(map(say.name, row["hides"])), _plain(say.of(row, "how")))
    return table


def _fix_first(report: Mapping[str, Any], say: Say) -> Table:
    found = report.get("fix_first") or {}
    rated = found.get("mfu") is not None
    titles = ("MFU then", "MFU with all above") if rated else ()
    table = _table(
        say, say("Fix first"), "", "What", "Wins ms", *titles[:1], "Step with all above", *titles[1:], text=(1,)
    )
    for place, item in enumerate(found.get("items") or [], 1):
        mfu = [_percent(item.get("mfu_after")), _percent(item.get("combined_mfu_after"))] if rated else []
        won = _ms(item["recoverable_us"]), *mfu[:1], _ms(item.get("combined_step_time_us")), *mfu[1:]
        table.add_row(str(place), _plain(say.of(item, "summary")), *won)
    return table


def _free_time(report: Mapping[str, Any], say: Say) -> Table:
    entry = _first_with(report, lambda each: bool(each.get("free_time")))
    title = say("Free time of rank {rank} (per step)", rank=_known(entry.get("rank")))
    table = _table(say, title, "Cause", "Time", "Share")
    for row in (entry.get("free_time") or {}).get("by_cause") or []:
        table.add_row(say.name(row["cause"]), _ms(row["us"]), _percent(row["share"]))
    return table


def _slow_ranks(report: Mapping[str, Any], say: Say) -> Table:
    table = _table(say, say("Slow ranks"), "Rank", "Because of", "Others wait ms", "Last in", text=(1,))
    for row in (report.get("cluster") or {}).get("slow_ranks") or []:
        votes = say("{votes} of {of}", votes=row["votes"], of=row["of"])
        table.add_row(str(row["rank"]), say.name(row["kind"]), _ms(row["excess_us"]), votes)
    return table


PARTS: tuple[Callable[[Mapping[str, Any], Say], Table | None], ...] = (
    *(_fix_first, _steps, _shares, _op_types, _layers, _free_time, _communication, _slow_ranks),
    *(_checklist, _findings, _missing),
)


def _first_with(report: Mapping[str, Any], wanted: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    found: Iterator[Mapping[str, Any]] = (entry for entry in report["ranks"] if wanted(entry))
    return next(found, {})


def _plain(text: object) -> str:
    return str(text).replace("[", "\\[")


def _known(value: object) -> str:
    return "-" if value is None else str(value)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value / 1000:,.2f}"


def _one(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _gib(value: int | None) -> str:
    return "-" if value is None else f"{value / (1 << 30):.2f} GiB"
