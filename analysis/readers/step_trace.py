"""step_trace_time.csv: the profiler's own breakdown of each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from analysis.errors import BadDump
from analysis.readers.text import integer, nanoseconds, plain, read_columns, read_header, scan_text, text
from analysis.schema import STEP_COLUMNS

TITLES: dict[str, tuple[str, ...]] = {
    "step": ("step",),
    "computing_ns": ("computing",),
    "overlapped_ns": ("overlapped",),
    "communication_ns": ("communication",),
    "free_ns": ("free",),
    "stage_ns": ("stage",),
    "bubble_ns": ("bubble",),
    "preparing_ns": ("preparing",),
    "device_id": ("deviceid",),
}
EXPOSED = "Communication(Not Overlapped)"


def read_steps(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """Rows with the columns of `STEP_COLUMNS`, then `device_id` (null where no column tells). Times in the file are us.

    Raises BadDump for a file without rows or without the columns that make a breakdown.
    """
    with plain(path, name) as file:
        titles = read_header(file, name)
        # `Communication(Not Overlapped)` and `Communication` have one normal name: tell them apart by the words in
        # brackets
        exposed = next(
            (index for index, title in enumerate(titles) if title.replace(" ", "").lower() == _bare(EXPOSED)), None
        )
        if exposed is None or "computing_ns" not in _places(titles, 0):
            raise BadDump(name, "is not a step trace: no column Computing or Communication(Not Overlapped)")
        rows = read_columns(file, name, {**TITLES, "exposed": ("__exposed",)}, warnings, _places(titles, exposed))
    header = text("exposed").is_not_null() & (
        pl.col("exposed").str.replace_all(" ", "").str.to_lowercase() == _bare(EXPOSED)
    )
    again = rows.select(header.arg_true()).to_series()
    if len(again):
        warnings.append(f"{name}: line {again[0] + 2}: the header again; {len(again)} such rows are left out")
    warnings.extend(_unread(rows, name, header))
    frame = _without_negative(_typed(rows.filter(~header.fill_null(False))), name, warnings)
    if frame.is_empty():
        raise BadDump(name, "has a header and no rows")
    names = frame.filter(pl.col("step").is_not_null()).select("step", "device_id")
    if names.n_unique() < names.height:
        warnings.append(f"{name}: {names.height - names.n_unique()} steps stand in it more than once")
    return frame


PARTS = {"computing_ns": "Computing", "exposed": EXPOSED, "free_ns": "Free"}
"""Columns without which the rest of a step's breakdown says little."""


def _unread(rows: pl.DataFrame, name: str, header: pl.Expr) -> list[str]:
    """One line for each part that is no number in some step, with the first line where."""
    empty = pl.all_horizontal(text(column).is_null() for column in rows.columns if column != "device_id")
    filled = rows.with_row_index("__line", offset=2).filter(~empty & ~header.fill_null(False))
    found = []
    for column, title in PARTS.items():
        bad = filled.filter(nanoseconds(column).is_null())["__line"]
        if len(bad):
            told = f"in {len(bad)} of {filled.height} steps it is left unknown"
            found.append(f"{name}: line {bad[0]}: {title} is no number; {told}")
    return found


def _without_negative(frame: pl.DataFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """Times below zero are unknown. Stage is left: MindSpore takes the bubble off it."""
    times = [column for column in STEP_COLUMNS if column not in ("step", "stage_ns")]
    bad = frame.select(pl.any_horizontal(pl.col(times) < 0).sum()).item()
    if not bad:
        return frame
    warnings.append(f"{name}: {bad} steps have a time below zero, taken as unknown")
    return frame.with_columns(pl.when(pl.col(times) >= 0).then(pl.col(times)).name.keep())


def read_cluster_steps(rank: int | None) -> Callable[[Path, str, list[str]], pl.DataFrame]:
    """A reader of one rank's rows of cluster_step_trace_time.csv, in which msprof-analyze lists ranks and stages."""

    def read(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
        rows = _cluster_rows(path, name, warnings).filter(pl.col("index") == str(rank))
        if rows.is_empty():
            raise BadDump(name, f"has no rows of rank {rank}")
        return _without_negative(_typed(rows), name, warnings)

    return read


def cluster_ranks(path: Path, name: str) -> list[int]:
    """Ranks that a cluster_step_trace_time.csv holds, in order."""
    found = _cluster_rows(path, name, [])["index"].unique().to_list()
    return sorted(int(index) for index in found if index.isdigit() and len(index) < 8)


def _cluster_rows(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    with plain(path, name) as file:
        scan_text(file, name)
        titles = read_header(file, name)
        exposed = next((index for index, title in enumerate(titles) if _bare(title) == _bare(EXPOSED)), None)
        if exposed is None or not {"Type", "Index"} <= set(titles):
            raise BadDump(name, "is not a step trace of a cluster")
        places = {**_places(titles, exposed), "type": titles.index("Type"), "index": titles.index("Index")}
        wanted = {**TITLES, "exposed": (), "type": (), "index": ()}
        rows = read_columns(file, name, wanted, warnings, places)
    return rows.with_columns(index=text("index")).filter((text("type") == "rank") & pl.col("index").is_not_null())


def _bare(title: str) -> str:
    return title.replace(" ", "").lower()


def _places(titles: list[str], exposed: int) -> dict[str, int]:
    places = {}
    for index, title in enumerate(titles):
        for column, names in TITLES.items():
            if _bare(title).replace("_", "") in names and column not in places:
                places[column] = index
    return {**places, "exposed": exposed}


def _typed(rows: pl.DataFrame) -> pl.DataFrame:
    times = {column: nanoseconds(column) for column in STEP_COLUMNS if column in TITLES and column != "step"}
    times["communication_not_overlapped_ns"] = nanoseconds("exposed")
    frame = rows.select(
        text("step").alias("step"),
        *(times[column].alias(column) for column in STEP_COLUMNS if column != "step"),
        integer("device_id").alias("device_id"),
    )
    return frame.filter(~pl.all_horizontal(pl.exclude("device_id").is_null()))
