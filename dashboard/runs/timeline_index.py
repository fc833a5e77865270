"""An index of one dump's kernels by lane and time, made from its Parquet files at the first view and kept beside them.

Parquet answers "which kernels" well and "which of a million are in this window" slowly: text columns have to be read.
The index holds whole numbers alone, sorted by lane and start, and is mapped into memory.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboard.runs.frames import frames_path

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

VERSION = 1
KERNEL_LANES = ("compute", "communication")
PLACE = ["part", "layer", "pass", "micro_batch"]
NEEDED = ["step", "name", "type", "kind", "start_ns", "duration_ns", "stream_id", "class", "block", "within", *PLACE]
COLUMNS = {
    "start": "<i8",
    "duration": "<i8",
    "row": "<u4",
    "place": "<u2",
    "type": "<u2",
    "class_": "u1",
    "block": "u1",
}
"""Columns of the index's file, one after the other; the widest come first, so that each is aligned."""
SOURCES = {"block": "block_code", "type": "type_"}
WHOLE = {"stream_id", "layer", "micro_batch", "start_ns", "duration_ns"}


@dataclass(frozen=True)
class Lane:
    """One row of boxes, sorted by start. `kind`: steps, layers, blocks, compute, communication, free or computing.

    Times are ns since the first kernel's start. `row` is a kernel's row in the Parquet file; for a band the first
    kernel's, for free time the kernel's that ends it. Codes point into the index's tables, 0 is unknown; the class of
    free time is its cause.
    """

    number: int
    kind: str
    key: str
    start: Numbers
    duration: Numbers
    row: Numbers
    class_: Numbers
    block: Numbers
    place: Numbers
    type: Numbers
    longest: int

    def within(self, begin: int, end: int) -> slice:
        """Where boxes that touch [begin, end) can be."""
        first = int(self.start.searchsorted(begin - self.longest, "left"))
        return slice(first, int(self.start.searchsorted(end, "left")))


@dataclass(frozen=True)
class Index:
    """Lanes and what their codes mean; `steps` are [label, begin, end] in order of time."""

    origin_ns: int
    end: int
    kernels: int
    lanes: tuple[Lane, ...]
    classes: list[str | None]
    blocks: list[str | None]
    places: list[list[Any]]
    types: list[str | None]
    causes: list[str | None]
    steps: list[list[Any]]

    def of_kind(self, *kinds: str) -> Iterator[Lane]:
        return (lane for lane in self.lanes if lane.kind in kinds)


def open_index(frames: str) -> Index | None:
    """The index of a dump's kernels by `Dump.frames`; made when it is not there. None where no kernels are kept."""
    folder = frames_path(frames) if frames else None
    if folder is None or not (folder / "kernels.parquet").exists():
        return None
    if not (folder / f"timeline{VERSION}.json").exists():
        build(folder)
    return _opened(folder)


@lru_cache(maxsize=8)
def _opened(folder: Path) -> Index:
    """Maps the file; its pages stay the system's to drop."""
    about = json.loads((folder / f"timeline{VERSION}.json").read_bytes())
    columns = dict(_mapped(folder / f"timeline{VERSION}.bin", about.pop("rows")))
    lanes = []
    for number, lane in enumerate(about.pop("lanes")):
        part = slice(lane["first"], lane["first"] + lane["count"])
        values = {name: column[part] for name, column in columns.items()}
        lanes.append(Lane(number, lane["kind"], lane["key"], longest=lane["longest"], **values))
    return Index(lanes=tuple(lanes), **about)


def _mapped(path: Path, rows: int) -> Iterator[tuple[str, Numbers]]:
    import numpy as np

    offset = 0
    for name, kind in COLUMNS.items():
        # A file of no bytes cannot be mapped.
        yield name, np.memmap(path, kind, "r", offset, (rows,)).view(np.ndarray) if rows else np.empty(0, kind)
        offset += rows * np.dtype(kind).itemsize


def build(folder: Path) -> None:
    """Write the index beside the Parquet files; the JSON comes last and says that the rest is whole."""
    kernels = _kernels(folder)
    origin = _least(kernels["start_ns"]) or 0
    kernels = kernels.with_columns(start=kernels["start_ns"] - origin, duration=kernels["duration_ns"])
    tables: dict[str, list[Any]] = {}
    for code, columns in (("class_", ["class"]), ("block_", ["block"]), ("within_", ["within"]), ("place", PLACE),
                          ("type_", ["type"])):  # fmt: skip
        kernels, tables[code] = _coded(kernels, columns, code)
    blocks = sorted({name for code in ("block_", "within_") for (name,) in tables[code] if name is not None})
    kernels = _same_codes(kernels, tables, blocks)
    steps = _steps(kernels)
    gaps, causes = _with_causes(folder, _gaps(kernels), origin)
    lanes = [*_bands(kernels, steps), *_kernel_lanes(kernels), ("free", "", gaps)]
    lanes.append(("computing", "", _union(kernels.filter(kernels["kind"] == "compute"))))
    about = {
        "origin_ns": origin,
        "end": _largest(kernels["start"] + kernels["duration"]) or 0,
        "kernels": kernels.height,
        "classes": [name for (name,) in tables["class_"]],
        "blocks": [None, *blocks],
        "places": tables["place"],
        "types": [name for (name,) in tables["type_"]],
        "causes": causes,
        "steps": [[row["step"], row["start"], row["start"] + row["duration"]] for row in steps.to_dicts()],
    }
    _write(folder, lanes, about)


def _kernels(folder: Path) -> pl.DataFrame:
    """What lanes are made of, in order of time, with the group of a collective."""
    import polars as pl

    from analysis.store import scan

    frame = scan(folder, "kernels").with_row_index("row")
    known = frame.collect_schema()
    absent = [
        pl.lit(None, pl.Int64 if name in WHOLE else pl.String).alias(name) for name in NEEDED if name not in known
    ]
    frame = frame.with_columns(absent).select("row", *NEEDED)
    kernels = frame.drop_nulls(["start_ns", "duration_ns"]).sort("start_ns", maintain_order=True).collect()
    is_communication = pl.col("kind") == "communication"
    names = kernels.lazy().filter(is_communication).select("row", _last_name().alias("op")).join(
        _groups(folder), on="op", how="left"
    )  # fmt: skip
    groups = names.select("row", group=pl.coalesce("group", pl.col("op").str.extract(r"__(\d{3})_\d+"))).collect()
    return kernels.join(groups, on="row", how="left", maintain_order="left").drop("name")


def _last_name() -> pl.Expr:
    """The collective's own name: the last part of a name with scope."""
    import polars as pl

    return pl.col("name").str.split("/").list.last()


def _groups(folder: Path) -> pl.LazyFrame:
    """The group of each collective by its name, as the communication table tells."""
    import polars as pl

    from analysis.store import scan

    try:
        rows = scan(folder, "communication")
    except FileNotFoundError:
        return pl.LazyFrame(schema={"op": pl.String, "group": pl.String})
    named = rows.select(op=_last_name(), group=pl.col("group")).drop_nulls()
    return named.unique("op", keep="first", maintain_order=True)


def _coded(kernels: pl.DataFrame, columns: list[str], code: str) -> tuple[pl.DataFrame, list[list[Any]]]:
    """`kernels` with a number for each combination of `columns`, and the table of them; 0 is nothing known."""
    import polars as pl

    kinds = kernels.lazy().select(columns).unique().filter(~pl.all_horizontal(pl.col(columns).is_null()))
    table = kinds.sort(columns, nulls_last=True).collect().with_row_index(code, offset=1)
    if columns == PLACE and table.height > 60_000:
        return _coded(kernels.with_columns(micro_batch=pl.lit(None, pl.Int64)), columns, code)
    coded = kernels.join(table, on=columns, how="left", nulls_equal=True, maintain_order="left")
    coded = coded.with_columns(pl.col(code).fill_null(0))
    return coded, [[None] * len(columns), *map(list, table.select(columns).rows())]


def _same_codes(kernels: pl.DataFrame, tables: dict[str, list[Any]], blocks: list[str]) -> pl.DataFrame:
    """`block` as a code of the common table of blocks, and `around`: the block a Cast or a collective serves."""
    import numpy as np

    code_of = {name: code for code, name in enumerate(blocks, start=1)}
    found = {
        name: np.array([code_of.get(block, 0) for (block,) in tables[name]])[kernels[name].to_numpy()]
        for name in ("block_", "within_")
    }
    around = np.where(found["within_"] > 0, found["within_"], found["block_"])
    import polars as pl

    return kernels.with_columns(pl.Series("block_code", found["block_"]), pl.Series("around", around))


def _steps(kernels: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    end = (pl.col("start") + pl.col("duration")).max()
    grouped = kernels.lazy().drop_nulls("step").group_by("step", maintain_order=True)
    rows = grouped.agg(pl.col("row").first(), start=pl.col("start").min(), end=end)
    return rows.with_columns(duration=pl.col("end") - pl.col("start")).sort("start").collect()


def _bands(kernels: pl.DataFrame, steps: pl.DataFrame) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """Steps, layers and blocks as bands over the kernels that belong to them."""
    if steps.height:
        yield "steps", "", steps
    for kind, columns in (("layers", ["place"]), ("blocks", ["place", "around"])):
        bands = _runs(kernels, columns)
        if bands.height:
            yield kind, "", bands


def _runs(kernels: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Neighbouring compute kernels of the same place as one band; a kernel of unknown place interrupts none."""
    import polars as pl

    placed = kernels.lazy().filter((pl.col("kind") == "compute") & (pl.col(columns[-1]) > 0))
    run = pl.struct("step", *columns).rle_id()
    end = (pl.col("start") + pl.col("duration")).max()
    bands = placed.with_columns(run=run).group_by("run", maintain_order=True).agg(
        pl.col("start", "row", "place", "around").first(), end=end
    )  # fmt: skip
    cut = pl.min_horizontal(pl.col("end"), pl.col("start").shift(-1).fill_null(pl.col("end")))
    bands = bands.with_columns(duration=cut - pl.col("start"))
    return bands.with_columns(block_code=pl.col("around") if columns[-1] == "around" else 0).collect()


def _kernel_lanes(kernels: pl.DataFrame) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """A lane for each compute stream and each communication group, the busiest first."""
    import polars as pl

    for kind in KERNEL_LANES:
        key = pl.col("stream_id").cast(pl.String)
        key = pl.coalesce("group", key) if kind == "communication" else key
        ours = kernels.filter(pl.col("kind") == kind).with_columns(key=key)
        parts = ours.partition_by("key", maintain_order=True)
        for part in sorted(parts, key=lambda part: -int(part["duration"].sum())):
            yield kind, part["key"][0] or "", part


def _gaps(kernels: pl.DataFrame) -> pl.DataFrame:
    """Free time, in which nothing runs, with the kernel that ends it."""
    import polars as pl

    begin = (pl.col("start") + pl.col("duration")).shift(1)
    gaps = _union(kernels).with_columns(start=begin, duration=pl.col("start") - begin)
    return gaps.drop_nulls("start")


def _with_causes(folder: Path, gaps: pl.DataFrame, origin: int) -> tuple[pl.DataFrame, list[str | None]]:
    """`gaps` with the cause that the dump's trace gives each, as a code, and the causes; all 0 without a trace."""
    import polars as pl

    from analysis.store import scan

    try:
        told = scan(folder, "gaps").select("start_ns", "duration_ns", "cause").drop_nulls().collect()
    except FileNotFoundError:
        return gaps, [None]
    names = sorted(told["cause"].unique().to_list())
    codes = pl.DataFrame({"cause": names, "class_": range(1, len(names) + 1)})
    told = told.with_columns(told_start=pl.col("start_ns") - origin).join(codes, on="cause").sort("told_start")
    told = told.with_columns(told_end=pl.col("told_start") + pl.col("duration_ns"))
    # The trace's gaps are cut at the edges of steps: the nearest is the same one where the two meet.
    found = gaps.sort("start").join_asof(
        told.select("told_start", "told_end", "class_"), left_on="start", right_on="told_start", strategy="nearest"
    )
    meets = (pl.col("told_start") < pl.col("start") + pl.col("duration")) & (pl.col("told_end") > pl.col("start"))
    return found.with_columns(class_=pl.when(meets).then("class_").otherwise(0).fill_null(0)), [None, *names]


def _union(kernels: pl.DataFrame) -> pl.DataFrame:
    """Intervals in which at least one kernel runs, with the first kernel of each."""
    import polars as pl

    reach = (pl.col("start") + pl.col("duration")).cum_max()
    frame = kernels.lazy().select("start", "row", "type_", "place", reach=reach)
    new = (pl.col("start") > pl.col("reach").shift(1)).fill_null(True).cum_sum()
    runs = frame.with_columns(run=new).group_by("run", maintain_order=True)
    rows = runs.agg(pl.col("start", "row", "type_", "place").first(), end=pl.col("reach").last())
    return rows.with_columns(duration=pl.col("end") - pl.col("start")).collect()


def _write(folder: Path, lanes: list[tuple[str, str, pl.DataFrame]], about: dict[str, Any]) -> None:
    heads, first = [], 0
    for kind, key, rows in lanes:
        longest = _largest(rows["duration"]) or 0
        heads.append({"kind": kind, "key": key, "first": first, "count": rows.height, "longest": longest})
        first += rows.height
    # Two views may build at once: each writes its own files, the later name wins, and both hold the same.
    spare = folder / f"timeline-{uuid.uuid4().hex[:12]}.part"
    with spare.open("wb") as file:
        for name, kind in COLUMNS.items():
            for _kind, _key, rows in lanes:
                file.write(_column(rows, name, kind).tobytes())
    os.replace(spare, folder / f"timeline{VERSION}.bin")
    spare.write_text(json.dumps({**about, "lanes": heads, "rows": first}), encoding="utf-8")
    os.replace(spare, folder / f"timeline{VERSION}.json")


def _column(rows: pl.DataFrame, name: str, kind: str) -> NDArray[Any]:
    """A column of the file; codes beyond what it holds, and codes a lane has none of, are 0."""
    import numpy as np

    source = SOURCES.get(name, name)
    if source not in rows.columns:
        return np.zeros(rows.height, kind)
    values = rows[source].to_numpy()
    return np.where(values <= np.iinfo(kind).max, values, 0).astype(kind)


def _least(values: pl.Series) -> int | None:
    least = values.min()
    return int(least) if isinstance(least, int) else None


def _largest(values: pl.Series) -> int | None:
    largest = values.max()
    return int(largest) if isinstance(largest, int) else None
