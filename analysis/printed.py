"""The report as tables for a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

MAX_STEPS = 12
MAX_TYPES = 15
MAX_ROWS = 20
STATUS = {"pass": "[green]pass[/]", "fail": "[red]FAIL[/]", "unknown": "[yellow]unknown[/]"}


def print_report(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print every part of the report that says something."""
    console = console or Console(highlight=False)
    console.print(_title(report), markup=False)
    for part in PARTS:
        table = part(report)
        if table is not None and table.row_count:
            console.print()
            console.print(table)
    for warning in report["source"]["warnings"]:
        console.print(f"warning: {warning}", markup=False)


def _title(report: Mapping[str, Any]) -> str:
    source, verdict = report["source"], report.get("bottleneck") or {}
    parts = [source.get("framework"), source.get("framework_version"), f"{source.get('format')} dump"]
    parts += [f"CANN {source['cann_version']}"] if source.get("cann_version") else []
    parts += [source["soc"]] if source.get("soc") else []
    parts.append(f"{len(report['ranks'])} of {source.get('world_size') or '?'} ranks")
    bound = f"; bound by {verdict['verdict']}" if verdict.get("verdict") else ""
    return " · ".join(str(part) for part in parts if part) + bound


def _table(title: str, *columns: str, text: Sequence[int] = (0,)) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in text else "right", overflow="fold")
    return table


def _steps(report: Mapping[str, Any]) -> Table:
    table = _table(
        "Steps (ms)", "rank", "step", "time", "compute", "exposed comm.", "free", "device", "from", text=(7,)
    )
    rows = [(entry, step) for entry in report["ranks"] for step in entry["steps"]]
    for entry, step in rows[:MAX_STEPS]:
        names = ("step_time_us", "computing_us", "communication_not_overlapped_us", "free_us")
        mark = f"{step['source']}{', warm-up' if step['warmup'] else ''}"
        table.add_row(
            _known(entry["rank"]),
            _known(step["step"]),
            *(_ms(step[name]) for name in names),
            _percent(step["device_ratio"]),
            mark,
        )
    if len(rows) > MAX_STEPS:
        table.caption = f"{len(rows) - MAX_STEPS} more in --json"
    return table


def _shares(report: Mapping[str, Any]) -> Table:
    table = _table(
        "Ranks", "rank", "kernels", "compute ms", "Cast", "movement", "MFU", "HFU", "TFLOPS", "peak memory", text=()
    )
    for entry in report["ranks"][:MAX_ROWS]:
        kernels, flops = entry["kernels"] or {}, entry["flops"]
        shares = [_percent(kernels.get("cast_ratio")), _percent(kernels.get("movement_ratio"))]
        rates = [_percent(flops["mfu"]), _percent(flops["hfu"]), _one(flops["tflops_per_device"])]
        peak = _gib(entry["memory"]["peak_reserved_bytes"])
        table.add_row(
            _known(entry["rank"]), _known(kernels.get("count")), _ms(kernels.get("compute_us")), *shares, *rates, peak
        )
    return table


def _op_types(report: Mapping[str, Any]) -> Table:
    entry = _first_with(report, lambda each: bool(each["op_types"]))
    table = _table(
        f"Operator types of rank {_known(entry.get('rank'))}", "type", "core", "count", "ms", "share", text=(0, 1)
    )
    for row in (entry.get("op_types") or [])[:MAX_TYPES]:
        table.add_row(
            row["type"], _known(row["core"]), _known(row["count"]), _ms(row["total_us"]), _percent(row["share"])
        )
    return table


def _layers(report: Mapping[str, Any]) -> Table | None:
    entry = _first_with(report, lambda each: bool((each.get("layers") or {}).get("method")))
    layers = entry.get("layers")
    if not layers or not layers.get("method"):
        return None
    title = f"Layers of rank {_known(entry['rank'])}: {layers['layer_count']} by {layers['method']}"
    table = _table(title, "part", "pass", "layers", "ms", text=(0, 1))
    for (part, phase), rows in _grouped(layers["parts"]).items():
        count = len({row["layer"] for row in rows if row.get("layer") is not None})
        table.add_row(part, phase, str(count or ""), _ms(sum(row["total_us"] for row in rows)))
    return table


def _grouped(parts: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for part in parts:
        groups.setdefault((str(part.get("part")), _known(part.get("pass"))), []).append(part)
    return groups


def _communication(report: Mapping[str, Any]) -> Table:
    entry = _first_with(report, lambda each: bool(each["communication"]))
    title = f"Communication of rank {_known(entry.get('rank'))}"
    table = _table(title, "operation", "kind", "link", "count", "ms", "wait ms", "GB/s", text=(0, 1, 2))
    for row in (entry.get("communication") or [])[:MAX_ROWS]:
        numbers = [_known(row["count"]), _ms(row["elapse_us"]), _ms(row["wait_us"]), _one(row["bandwidth_gbps"])]
        table.add_row(row["op"], row["type"], _known(row["link"]), *numbers)
    return table


def _checklist(report: Mapping[str, Any]) -> Table:
    found = report["checklist"]
    title = f"Checklist: {found['passed']} of {found['passed'] + found['failed']} pass, {found['unknown']} unknown"
    table = _table(title, "item", "status", "finding", text=(0, 1, 2))
    for item in found["items"]:
        text = item["summary"] if item["status"] == "pass" else f"{item['summary']} {item['advice']}"
        table.add_row(item["id"], STATUS[item["status"]], _plain(text))
    return table


def _findings(report: Mapping[str, Any]) -> Table:
    table = _table("Findings", "severity", "finding", "advice", "wins ms", text=(0, 1, 2))
    for row in report["findings"][:MAX_ROWS]:
        table.add_row(
            str(row["severity"]), _plain(row["summary"]), _plain(row["advice"]), _ms(row.get("recoverable_us"))
        )
    return table


def _missing(report: Mapping[str, Any]) -> Table:
    table = _table("Not known, and how to get it", "missing", "hides", "how", text=(0, 1, 2))
    for row in report["source"]["missing"]:
        table.add_row(_plain(row["file"]), ", ".join(row["hides"]), _plain(row["how"]))
    return table


def _fix_first(report: Mapping[str, Any]) -> Table:
    found = report.get("fix_first") or {}
    table = _table("Fix first", "", "what", "wins ms", "MFU then", "with all above", text=(1,))
    for place, item in enumerate(found.get("items") or [], 1):
        mfu = (_percent(item.get("mfu_after")), _percent(item.get("combined_mfu_after")))
        table.add_row(str(place), _plain(item["summary"]), _ms(item["recoverable_us"]), *mfu)
    return table


def _free_time(report: Mapping[str, Any]) -> Table:
    entry = _first_with(report, lambda each: bool(each.get("free_time")))
    table = _table(f"Free time of rank {_known(entry.get('rank'))} (per step)", "cause", "ms", "share")
    for row in (entry.get("free_time") or {}).get("by_cause") or []:
        table.add_row(row["cause"], _ms(row["us"]), _percent(row["share"]))
    return table


def _slow_ranks(report: Mapping[str, Any]) -> Table:
    table = _table("Slow ranks", "rank", "because of", "others wait ms", "last in", text=(1,))
    for row in (report.get("cluster") or {}).get("slow_ranks") or []:
        table.add_row(str(row["rank"]), row["kind"], _ms(row["excess_us"]), f"{row['votes']} of {row['of']}")
    return table


PARTS: tuple[Callable[[Mapping[str, Any]], Table | None], ...] = (
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
