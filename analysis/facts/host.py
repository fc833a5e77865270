"""What small files of a dump tell: host API statistics, and comparisons of layer outputs."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.checklist.weight_alignment import aligned
from analysis.errors import BadDump
from analysis.names import KERNEL_DATABASE

if TYPE_CHECKING:
    from analysis.dump import RankDump

_MAX_BYTES = 64 * 1024 * 1024
# Calls of the acl level only: the runtime calls below them are inside these.
_APIS = {
    "synchronize": re.compile(r"^aclrtSynchronize(Stream|Device|Event)"),
    "memory": re.compile(r"^aclrt(Malloc|Free)(?!Host)|^acl(Malloc|Free)(Mem|Physical)"),
    "compile": re.compile(r"^aclopCompile"),
}
_COMPARISON = re.compile(r"(.*_)?compare_result.*\.csv|layer_alignment.*\.csv")
_MAX_LAYERS = 50


def facts(dump: RankDump) -> dict[str, Any]:
    """`api`: calls by kind; `alignment`: the comparison of layer outputs beside the dump. Bad files are left out."""
    found: dict[str, Any] = {}
    label = dump.first(r"api_statistic(_\w+)?\.csv")
    if api := _api(_rows(dump.files[label]) if label is not None else _calls(dump)):
        found["api"] = api
    comparison = dump.first(_COMPARISON.pattern)
    if comparison is not None and (result := alignment(_rows(dump.files[comparison]))):
        found["alignment"] = {"tool": "MindStudio Probe", "file": comparison, **result}
    return found


def _calls(dump: RankDump) -> Iterator[dict[str, str]]:
    """The calls that a database lists one by one, summed up as api_statistic.csv has them."""
    from analysis.readers.profiler_db import read_calls

    for label in dump.find(KERNEL_DATABASE.pattern):
        try:
            calls = read_calls(dump.files[label], label)
        except BadDump:  # said where kernels are read from it
            continue
        yield from ({"apiname": name, "timeus": str(ns / 1000), "count": str(count)} for name, count, ns in calls)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a small CSV by normalised header; nothing for a file that is too large or not a CSV."""
    try:
        with path.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        opened = gzip.GzipFile(path) if packed else path.open("rb")
        with opened as stream:
            raw = stream.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            return
        lines = csv.reader(io.StringIO(raw.decode("utf-8-sig", errors="replace"), newline=""))
        header = [_key(name) for name in next(lines, [])]
        for line in lines:
            yield dict(zip(header, line, strict=False))
    except (OSError, EOFError, csv.Error):
        return


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _number(text: str | None) -> float | None:
    value = (text or "").strip()
    percent = value.endswith("%")
    try:
        number = float(value.rstrip("%"))
    except ValueError:
        return None
    if number != number or number in (float("inf"), float("-inf")):
        return None
    return number / 100 if percent else number


def _api(rows: Iterator[dict[str, str]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        name, time, count = row.get("apiname") or "", _number(row.get("timeus")), _number(row.get("count"))
        kind = next((kind for kind, pattern in _APIS.items() if pattern.search(name)), None)
        if kind is None or time is None or count is None:
            continue
        entry = found.setdefault(kind, {"kind": kind, "count": 0, "total_us": 0.0, "names": []})
        entry["count"] += int(count)
        entry["total_us"] = round(entry["total_us"] + time, 3)
        entry["names"] = sorted({*entry["names"], name})[:10]
    launches = sum(entry["count"] for entry in found.values())
    return list(found.values()) if launches else []


def alignment(rows: Iterator[dict[str, str]]) -> dict[str, Any] | None:
    """Outputs compared and differing, with the first differing ones; None when the file compares nothing."""
    layers: list[dict[str, Any]] = []
    compared = differing = 0
    for row in rows:
        layer = _layer(row)
        verdict = aligned(layer)
        if verdict is None or "input" in str(layer["name"]).lower():
            continue
        compared += 1
        differing += not verdict
        if (not verdict or compared <= 3) and len(layers) < _MAX_LAYERS:
            layers.append(layer)
    return {"compared": compared, "differing": differing, "layers": layers} if compared else None


def _layer(row: dict[str, str]) -> dict[str, Any]:
    said = (row.get("accuracyreachedornot") or row.get("result") or "").strip().lower()
    words = {"yes": True, "pass": True, "true": True, "no": False, "error": False, "different": False, "false": False}
    return {
        "name": row.get("npuname") or row.get("npudump") or row.get("layer") or row.get("name"),
        "cosine": _number(row.get("cosine") or row.get("cosinesimilarity")),
        "max_absolute_error": _number(row.get("maxabserr") or row.get("maxabsoluteerror") or row.get("maxdiff")),
        "max_relative_error": _number(row.get("maxrelativeerr") or row.get("maxrelativeerror")),
        "aligned": words.get(said),
    }
