"""An index of one dump's kernels by lane and time, for a timeline that pans over a million of them.

Parquet answers "which kernels" well and "which of a million are in this window" slowly: text columns have to be read.
The index holds whole numbers alone, sorted by lane and start, to be mapped into memory. Two files beside the Parquet
files: `.bin`, one column after the other, and `.json`, written last, which says what they mean.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.schema import KERNEL_KINDS, LANE_COLUMNS, LANES_FILE
from analysis.store import scan
from analysis.words import as_categories, combined, distinct, mapped, recode

PLACE = ["part", "layer", "pass", "micro_batch"]
NEEDED = ["step", "name", "type", "kind", "start_ns", "duration_ns", "stream_id", "class", "block", "within", *PLACE]
WHOLE = {"stream_id", "layer", "micro_batch", "start_ns", "duration_ns"}
MOST_PLACES = 60_000
WORTH_KEEPING = 100_000
"""Kernels from which on a digest makes the index. It is eight times as large as the Parquet file, and of fewer kernels
it is made in a moment when somebody looks."""

Array = npt.NDArray[Any]
Columns = dict[str, Array]


@dataclass(frozen=True)
class _Kernels:
    """Columns of the kernels with a time, in order of time. Codes point into the index's tables, 0 is unknown."""

    start: Array
    end: Array
    row: Array
    step: Array
    is_compute: Array
    class_: Array
    block: Array
    around: Array
    place: Array
    type: Array

    def at(self, chosen: Array) -> Columns:
        """What a lane of kernels holds of them."""
        columns = {name: getattr(self, name)[chosen] for name in ("start", "row", "class_", "block", "place", "type")}
        return {**columns, "duration": self.end[chosen] - columns["start"]}


def build(folder: Path) -> None:
    """Make the index of the Parquet files in `folder`, beside them. FileNotFoundError where no kernels are kept."""
    frame = scan(folder, "kernels")
    known = frame.collect_schema().names()
    kernels = as_categories(frame.select(name for name in NEEDED if name in known).collect())
    others = {}
    for table in ("communication", "gaps"):
        if (folder / f"{table}.parquet").exists():
            others[table] = scan(folder, table).collect()
    write_index(folder, {"kernels": kernels, **others})


def write_index(folder: Path, frames: Mapping[str, pl.DataFrame]) -> None:
    """Make the index of a dump's tables in `folder`; `communication` and `gaps` may be missing."""
    kernels = frames["kernels"]
    absent = [pl.lit(None, pl.Int64 if name in WHOLE else pl.String).alias(name) for name in NEEDED]
    frame = kernels.with_columns(column for column in absent if column.meta.output_name() not in kernels.columns)
    frame = frame.select(NEEDED).with_row_index("row").drop_nulls(["start_ns", "duration_ns"])
    origin = -int(_most(-frame["start_ns"].to_numpy(), 0))
    order = np.argsort(frame["start_ns"].to_numpy(), kind="stable")
    tables: dict[str, list[Any]] = {}
    found = _sorted(frame, order, origin, tables)
    steps, labels = _steps(frame["step"], found, order)
    gaps, causes = _with_causes(frames.get("gaps"), _gaps(found), origin)
    lanes = [*_bands(found, steps), *_kernel_lanes(frame, order, found, frames.get("communication"))]
    lanes += [("free", "", gaps), ("computing", "", _union(found, np.flatnonzero(found.is_compute)))]
    ends = (steps["start"] + steps["duration"]).tolist()
    about = {
        "origin_ns": origin,
        "end": int(_most(found.end, 0)),
        "kernels": frame.height,
        **tables,
        "causes": causes,
        "steps": [list(step) for step in zip(labels, steps["start"].tolist(), ends, strict=True)],
    }
    _write(folder, lanes, about)


def _sorted(frame: pl.DataFrame, order: Array, origin: int, tables: dict[str, list[Any]]) -> _Kernels:
    start = frame["start_ns"].to_numpy()[order] - origin
    blocks = sorted(
        {name for column in ("block", "within") for name in frame[column].unique().cast(pl.String)} - {None}
    )
    block, within = (_codes(frame[name], blocks)[order] for name in ("block", "within"))
    classes, types = (sorted(frame[name].unique().drop_nulls().cast(pl.String)) for name in ("class", "type"))
    places, table = _places(frame)
    tables |= {"classes": [None, *classes], "blocks": [None, *blocks], "places": table, "types": [None, *types]}
    return _Kernels(
        start=start,
        end=start + frame["duration_ns"].to_numpy()[order],
        row=frame["row"].to_numpy()[order],
        step=distinct(frame["step"])[0][order],
        is_compute=_codes(frame["kind"], ["compute"])[order] == 1,
        class_=_codes(frame["class"], classes)[order],
        block=block,
        around=np.where(within > 0, within, block),
        place=places[order],
        type=_codes(frame["type"], types)[order],
    )


def _words(column: pl.Series) -> list[str]:
    return sorted(column.unique().drop_nulls().cast(pl.String))


def _codes(column: pl.Series, words: Sequence[str]) -> Array:
    """The place of each row's word in `words`, counted from 1; 0 for null and for others."""
    numbers, values = distinct(column)
    code_of = {word: code for code, word in enumerate(words, start=1)}
    return np.array([code_of.get(word, 0) for word in values], np.uint32)[numbers]


def _places(frame: pl.DataFrame) -> tuple[Array, list[list[Any]]]:
    """A code for each row's combination of part, layer, pass and micro-batch, and the table of them."""
    columns = [frame[name] for name in PLACE]
    numbers, rows = combined(columns)
    if len(rows) > MOST_PLACES:
        return _places(frame.with_columns(micro_batch=pl.lit(None, pl.Int64)))
    kinds = frame.select(PLACE)[rows].cast({"part": pl.String, "pass": pl.String}).with_row_index("number")
    kinds = kinds.filter(~pl.all_horizontal(pl.col(PLACE).is_null())).sort(PLACE, nulls_last=True)
    code_of = np.zeros(len(rows), np.uint16)
    code_of[kinds["number"].to_numpy()] = np.arange(1, kinds.height + 1)
    return code_of[numbers], [[None] * len(PLACE), *map(list, kinds.select(PLACE).rows())]


def _steps(column: pl.Series, kernels: _Kernels, order: Array) -> tuple[Columns, list[str]]:
    """The steps in order of their first kernel, and their labels."""
    codes, first = recode(kernels.step)
    labels = column.gather(order[first]).cast(pl.String)
    end = np.zeros(len(first), np.int64)
    np.maximum.at(end, codes, kernels.end)
    known = labels.is_not_null().to_numpy()
    start, first = kernels.start[first][known], first[known]
    steps = {"start": start, "duration": end[known] - start, "row": kernels.row[first]}
    return steps, labels.drop_nulls().to_list()


def _bands(kernels: _Kernels, steps: Columns) -> Iterator[tuple[str, str, Columns]]:
    """Steps, layers and blocks as bands over the kernels that belong to them."""
    if len(steps["start"]):
        yield "steps", "", steps
    layers = _runs(kernels, kernels.place, kernels.place)
    if len(layers["start"]):
        yield "layers", "", layers
    blocks = _runs(kernels, kernels.around, kernels.place, kernels.around)
    if len(blocks["start"]):
        yield "blocks", "", {**blocks, "block": kernels.around[blocks.pop("at")]}


def _runs(kernels: _Kernels, told: Array, *columns: Array) -> Columns:
    """Neighbouring compute kernels of the same place as one band; a kernel of unknown place interrupts none."""
    chosen = np.flatnonzero(kernels.is_compute & (told > 0))
    new = np.ones(len(chosen), bool)
    new[1:] = False
    for column in (kernels.step, *columns):
        values = column[chosen]
        new[1:] |= values[1:] != values[:-1]
    edges = np.flatnonzero(new)
    at = chosen[edges]
    end = np.maximum.reduceat(kernels.end[chosen], edges) if len(edges) else edges
    start = kernels.start[at]
    end[:-1] = np.minimum(end[:-1], start[1:])
    return {"start": start, "duration": end - start, "row": kernels.row[at], "place": kernels.place[at], "at": at}


def _kernel_lanes(
    frame: pl.DataFrame, order: Array, kernels: _Kernels, communication: pl.DataFrame | None
) -> Iterator[tuple[str, str, Columns]]:
    """A lane for each compute stream and each communication group, the busiest first."""
    for kind in KERNEL_KINDS:
        is_kind = kernels.is_compute if kind == "compute" else _codes(frame["kind"], [kind])[order] == 1
        chosen = np.flatnonzero(is_kind)
        rows = frame.select("name", "stream_id")[order[chosen]]
        keys = rows["stream_id"].cast(pl.String).alias("key")
        if kind == "communication":
            groups = mapped(rows["name"], lambda names: _group(names, communication)).cast(pl.String)
            keys = pl.select(pl.coalesce(groups, keys)).to_series()
        codes, first = recode(distinct(keys)[0])
        busy = np.bincount(codes, weights=kernels.end[chosen] - kernels.start[chosen], minlength=len(first))
        for code in np.argsort(-busy, kind="stable"):
            yield kind, keys[int(first[code])] or "", kernels.at(chosen[codes == code])


def _group(names: pl.Series, communication: pl.DataFrame | None) -> pl.Series:
    """The group of collectives of these names: as the communication table tells, else from the name."""
    last = pl.col("name").cast(pl.String).str.split("/").list.last()
    ops = names.alias("name").to_frame().select(op=last)
    if communication is None:
        return ops.select(pl.col("op").str.extract(r"__(\d{3})_\d+")).to_series()
    told = communication.select(op=last, group=pl.col("group").cast(pl.String)).drop_nulls()
    told = told.unique("op", keep="first", maintain_order=True)
    found = ops.join(told, on="op", how="left", maintain_order="left")
    return found.select(pl.coalesce("group", pl.col("op").str.extract(r"__(\d{3})_\d+"))).to_series()


def _gaps(kernels: _Kernels) -> Columns:
    """Free time, in which nothing runs, with the kernel that ends it."""
    busy = _union(kernels, np.arange(len(kernels.start)))
    begin = (busy["start"] + busy["duration"])[:-1]
    gaps = {name: column[1:] for name, column in busy.items()}
    return {**gaps, "start": begin, "duration": gaps["start"] - begin}


def _union(kernels: _Kernels, chosen: Array) -> Columns:
    """Intervals in which at least one of the kernels runs, with the first kernel of each."""
    start, reach = kernels.start[chosen], np.maximum.accumulate(kernels.end[chosen])
    new = np.ones(len(chosen), bool)
    new[1:] = start[1:] > reach[:-1]
    first = np.flatnonzero(new)
    end = reach[np.append(first[1:], len(chosen)) - 1] if len(first) else first
    at = chosen[first]
    columns = {"row": kernels.row[at], "type": kernels.type[at], "place": kernels.place[at]}
    return {"start": start[first], "duration": end - start[first], **columns}


def _with_causes(told: pl.DataFrame | None, gaps: Columns, origin: int) -> tuple[Columns, list[str | None]]:
    """`gaps` with the cause that the dump's trace gives each, as a code, and the causes; all 0 without a trace."""
    if told is None:
        return gaps, [None]
    told = told.select("start_ns", "duration_ns", pl.col("cause").cast(pl.String)).drop_nulls().sort("start_ns")
    names = sorted(told["cause"].unique().to_list())
    if not names or not len(gaps["start"]):
        return gaps, [None, *names]
    begin = told["start_ns"].to_numpy() - origin
    end = begin + told["duration_ns"].to_numpy()
    # The trace's gaps are cut at the edges of steps: the nearest is the same one where the two meet.
    after = np.minimum(begin.searchsorted(gaps["start"]), len(begin) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(begin[after] - gaps["start"]) <= np.abs(gaps["start"] - begin[before]), after, before)
    meets = (begin[nearest] < gaps["start"] + gaps["duration"]) & (end[nearest] > gaps["start"])
    codes = _codes(told["cause"], names)[nearest]
    return {**gaps, "class_": np.where(meets, codes, 0)}, [None, *names]


def _write(folder: Path, lanes: list[tuple[str, str, Columns]], about: dict[str, Any]) -> None:
    heads, first = [], 0
    for kind, key, rows in lanes:
        count = len(rows["start"])
        longest = int(_most(rows["duration"], 0))
        heads.append({"kind": kind, "key": key, "first": first, "count": count, "longest": longest})
        first += count
    # Two views may build at once: each writes its own files, the later name wins, and both hold the same.
    spare = folder / f"timeline-{uuid.uuid4().hex[:12]}.part"
    with spare.open("wb") as file:
        for name, kind in LANE_COLUMNS.items():
            for _kind, _key, rows in lanes:
                file.write(_column(rows, name, kind).data)
    os.replace(spare, folder / f"{LANES_FILE}.bin")
    spare.write_text(json.dumps({**about, "lanes": heads, "rows": first}), encoding="utf-8")
    os.replace(spare, folder / f"{LANES_FILE}.json")


def _column(rows: Columns, name: str, kind: str) -> Array:
    """A column of the file; codes beyond what it holds, and codes a lane has none of, are 0."""
    if name not in rows:
        return np.zeros(len(rows["start"]), kind)
    values = rows[name]
    return np.ascontiguousarray(np.where(values <= np.iinfo(kind).max, values, 0).astype(kind))


def _most(values: Array, otherwise: int) -> Any:
    return values.max() if len(values) else otherwise
