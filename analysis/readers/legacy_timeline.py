"""Timelines that MindSpore up to 2.4 drew for MindInsight: operators with their times, scopes and operands."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from analysis.errors import BadDump
from analysis.readers.communication import scaled
from analysis.readers.json_stream import entries
from analysis.readers.kernel_details import columns_only, kernels_of
from analysis.readers.legacy import kind_of_operator, operands
from analysis.readers.text import first_line, plain
from analysis.readers.trace_events import MAX_TRACE_BYTES, SETTINGS

_EVENTS = "{ph: 'VARCHAR', name: 'VARCHAR', tid: 'VARCHAR', ts: 'VARCHAR', dur: 'VARCHAR', args: 'JSON'}"
_QUERY = """
    copy (
        select name, tid, args->>'fullname' as fullname, args->>'type' as type,
               try_cast(round(try_cast(ts as double) * 1000) as bigint) as start_ns,
               try_cast(round(try_cast(dur as double) * 1000) as bigint) as duration_ns,
               cast(args as varchar) as operands
        from read_json(?, format = 'array', columns = {columns})
        where ph = 'X' and (args->>'fullname') is not null
    ) to '{target}' (format parquet)
"""


def read_display(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """(ascend_)timeline_display_N.json: operators with `KERNEL_COLUMNS`, shapes included. Times are us from the first
    operator, told as binary fractions; the host's own events (GetNext, InitData) are left out."""
    import duckdb

    with plain(path, name) as file, tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        size = file.stat().st_size
        if not 0 < size <= MAX_TRACE_BYTES:
            raise BadDump(name, "is empty (zero bytes)" if not size else f"is {size >> 30} GiB: not read")
        target = Path(folder) / "operators.parquet"
        try:
            with duckdb.connect(config=SETTINGS) as base:
                base.execute(_QUERY.format(columns=_EVENTS, target=target), [str(file)])
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise BadDump(name, f"is not a trace that can be read, or was cut ({first_line(error, file)})") from error
        told = pl.read_parquet(target)
    if told.is_empty():
        raise BadDump(name, "holds no device task")
    return _kernels(told)


def _kernels(told: pl.DataFrame) -> pl.DataFrame:
    """Operands are unfolded once per operator: every step repeats them."""
    once = told.unique("fullname", keep="first", maintain_order=True)
    titles = [f"{side}_{what}" for side in ("input", "output") for what in ("shapes", "dtypes", "formats")]
    rows = [[full, *operands(text)] for full, text in once.select("fullname", "operands").iter_rows()]
    found = pl.DataFrame(rows, schema=dict.fromkeys(["fullname", *titles], pl.String), orient="row")
    kinds = [kind_of_operator(full, "") for full in once["fullname"]]
    found = found.with_columns(
        kind=pl.Series([kind["kind"] for kind in kinds]), own=pl.Series([kind["type"] for kind in kinds])
    )
    joined = told.join(found, on="fullname", how="left", maintain_order="left")
    stream = pl.col("tid").str.extract(r"(\d+)").cast(pl.Int64, strict=False)
    kernels = joined.with_columns(pl.coalesce("type", "own").alias("type"), name="fullname", stream_id=stream)
    return columns_only(kernels.sort("start_ns"))


def read_marey(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """ascend_marey_timeline_N.json: each operator with the duration of one run in us, with `KERNEL_COLUMNS`.

    The operators of all devices in it in the order they ran, each with its device; names come without scope. Runs of
    other micro-batches and steps are not told, so starts are left unknown: gaps between them would mean nothing.
    """
    rows: list[dict[str, Any]] = []
    bad = 0
    for keys, value in entries(path, name, 3):
        if len(keys) != 3 or keys[0] != "maps" or not isinstance(value, dict):
            bad += len(keys) == 3 and keys[0] == "maps"
            continue
        start, length = scaled(value.get("st"), 1_000), scaled(value.get("dur"), 1_000)
        device = scaled(keys[1].removeprefix("device"), 1)
        rows.append({"name": keys[2], "start_ns": start, "duration_ns": length, "device_id": device}
                    | kind_of_operator(keys[2], ""))  # fmt: skip
    if not rows:
        raise BadDump(name, "holds no operator with start and duration")
    if bad:
        warnings.append(f"{name}: {bad} rows cannot be read")
    warnings.append(f"{name}: one run per operator; steps and gaps are unknown")
    return kernels_of(rows).sort("start_ns").with_columns(start_ns=pl.lit(None, pl.Int64))


def with_scopes(kernels: pl.DataFrame, path: Path, name: str) -> pl.DataFrame:
    """Full names, by scope_map_N.json, in place of bare ones such as `Cast-op6`."""
    told = (
        (keys[1], str(value)) for keys, value in entries(path, name, 2) if len(keys) == 2 and keys[0] == "scope_map"
    )
    full = {bare: _full_name(scope, bare) for bare, scope in told if scope}
    if not full:
        raise BadDump(name, "holds no scopes")
    table = pl.DataFrame(
        {"name": list(full), "full": list(full.values())}, schema=dict.fromkeys(["name", "full"], pl.String)
    )
    joined = kernels.join(table, on="name", how="left", maintain_order="left")
    return columns_only(joined.with_columns(name=pl.coalesce("full", "name")))


def _full_name(scope: str, bare: str) -> str:
    """`/network-Net/conv1-Conv2d` of forward, `/Default/network-Net/Gradients/gradReLU` of backward, in the words of
    other files."""
    path = scope.strip("/").removeprefix("Default/")
    inner = path.replace("Gradients/", "", 1)
    root = "Default" if inner == path else "Gradients/Default"
    return f"{root}/{inner}/{bare}"


def read_flops_summary(path: Path, name: str, warnings: list[str]) -> int:
    """flops_summary_N.json: operations of one step as the device's counters told MindSpore, in the file in millions."""
    with plain(path, name) as file:
        text = file.read_bytes()[: 1 << 20]
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDump(name, f"is not usable JSON ({first_line(error)})") from error
    flops = scaled(told.get("FLOPs"), 1_000_000) if isinstance(told, dict) else None
    if not flops:
        raise BadDump(name, "tells no FLOPs")
    return flops
