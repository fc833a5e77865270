"""Kernels of one rank, a page at a time, from its Parquet file. Polars works only when such a page is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboard.runs.frames import frames_path
from dashboard.runs.models import Dump

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import polars as pl

PAGE_SIZE = 100
ORDERS = {"start": ("start_ns", False), "longest": ("duration_ns", True), "wait": ("wait_ns", True)}
COLUMNS = ("name", "type", "core", "kind", "step", "stream_id", "start_ns", "duration_ns", "wait_ns", "input_shapes",
           "input_dtypes", "part", "layer", "block", "within", "pass", "row")  # fmt: skip


@dataclass(frozen=True)
class KernelSearch:
    """What the address asks for: text in name or type, one step, type, layer, block, order, page."""

    text: str = ""
    type: str = ""
    layer: int | None = None
    block: str = ""
    step: str = ""
    order: str = "start"
    page: int = 1

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> KernelSearch:
        layer, page = params.get("layer", ""), params.get("page", "")
        order = params.get("order", "")
        return cls(
            text=params.get("q", "").strip()[:300],
            type=params.get("type", "")[:100],
            layer=int(layer) if layer.isdecimal() and len(layer) < 6 else None,
            block=params.get("block", "")[:40],
            step=params.get("step", "")[:40],
            order=order if order in ORDERS else "longest",
            page=max(1, int(page)) if page.isdecimal() and len(page) < 9 else 1,
        )


def kernels(dump: Dump, search: KernelSearch) -> dict[str, Any] | None:
    """{"rows", "total", "sum_ns", "page", "pages"} of the kernels that match; None where no kernels are kept."""
    if not dump.frames:
        return None
    try:
        return _kernels(frames_path(dump.frames), search)
    except FileNotFoundError:  # at any moment the sweep may take them away
        return None


def _kernels(folder: Path, search: KernelSearch) -> dict[str, Any]:
    from analysis.kernel_names import rows_with
    from analysis.store import scan

    frame = scan(folder, "kernels").with_row_index("row")
    # First the few numbers that tell order and sums, of all that match; then the columns shown, of one page alone.
    column, descending = ORDERS[search.order]
    found = _matching(frame, search).select("row", *{column, "start_ns", "duration_ns"}).collect()
    if search.text:
        found = found.filter(rows_with(folder, search.text)[found["row"].to_numpy()])
    sums = _sums(found)
    pages = max(1, -(-sums["total"] // PAGE_SIZE))
    page = min(search.page, pages)
    rows = _read(frame, _page(found, column, descending, (page - 1) * PAGE_SIZE), column)
    origin = sums["origin_ns"] or 0
    for row in rows:
        row["offset_ns"] = row["start_ns"] - origin if row["start_ns"] is not None else None
        row["pass_"] = row.get("pass")
    return {**sums, "rows": rows, "page": page, "pages": pages}


def _page(found: pl.DataFrame, column: str, descending: bool, first: int) -> pl.DataFrame:
    """The rows of the page that begins at `first` in order of a column: unknown last, equal ones as they stand.

    Only what shares the page's values is sorted: a rank may have a million kernels.
    """
    import numpy as np

    last = min(first + PAGE_SIZE, found.height) - 1
    if last < first:
        return found.clear()
    values = found[column] * (-1 if descending else 1)
    keys = values.fill_null(np.iinfo(np.int64).max).to_numpy()
    lowest, highest = np.partition(keys, [first, last])[[first, last]]
    near = np.flatnonzero((keys >= lowest) & (keys <= highest))
    begin = first - int((keys < lowest).sum())
    return found[near[np.argsort(keys[near], kind="stable")][begin : begin + last - first + 1]]


def _read(frame: pl.LazyFrame, page: pl.DataFrame, column: str) -> list[dict[str, Any]]:
    """The columns shown of these rows, in this order."""
    import polars as pl

    known = [name for name in COLUMNS if name in frame.collect_schema()]
    values = page[column]
    if not values.null_count():
        # The reader unpacks the other columns for what is left of this one alone; of row numbers it knows nothing.
        frame = frame.filter(pl.col(column).is_between(values.min(), values.max()))
    rows = frame.filter(pl.col("row").is_in(page["row"].implode())).select(known).collect()
    return page.select("row").join(rows, on="row", maintain_order="left").to_dicts()


def _matching(frame: pl.LazyFrame, search: KernelSearch) -> pl.LazyFrame:
    """What matches the search but for its text."""
    import polars as pl

    columns = frame.collect_schema()
    if search.step:
        frame = frame.filter(pl.col("step") == search.step)
    if search.type:
        frame = frame.filter(pl.col("type") == search.type)
    if search.layer is not None and "layer" in columns:
        frame = frame.filter(pl.col("layer") == search.layer)
    if search.block and "block" in columns:
        # A Cast or Transpose is of the block `movement` and stands within the one it serves: both names find it.
        names = [name for name in ("block", "within") if name in columns]
        frame = frame.filter(pl.any_horizontal(pl.col(name) == search.block for name in names))
    return frame


def _sums(found: pl.DataFrame) -> dict[str, Any]:
    duration = found["duration_ns"]
    return {
        "total": found.height,
        "sum_ns": duration.sum(),
        "longest_ns": duration.max(),
        "origin_ns": found["start_ns"].min(),
    }
