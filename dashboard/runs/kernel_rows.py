"""Kernels of one rank, a page at a time, from its Parquet file. Polars works only when such a page is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dashboard.runs.frames import frames_path
from dashboard.runs.models import Dump

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import polars as pl

PAGE_SIZE = 100
ORDERS = {"start": ("start_ns", False), "longest": ("duration_ns", True), "wait": ("wait_ns", True)}
COLUMNS = ("name", "type", "core", "kind", "step", "stream_id", "start_ns", "duration_ns", "wait_ns", "input_shapes",
           "input_dtypes", "part", "layer", "block", "pass", "row")  # fmt: skip


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
    from analysis.store import scan

    try:
        frame = scan(frames_path(dump.frames), "kernels").with_row_index("row")
    except FileNotFoundError:
        return None
    found = _matching(frame, search)
    column, descending = ORDERS[search.order]
    sums = _sums(found)
    pages = max(1, -(-sums["total"] // PAGE_SIZE))
    page = min(search.page, pages)
    known = [name for name in COLUMNS if name in frame.collect_schema()]
    ordered = found.select(known).sort(column, descending=descending, nulls_last=True)
    rows = ordered.slice((page - 1) * PAGE_SIZE, PAGE_SIZE).collect().to_dicts()
    origin = sums["origin_ns"] or 0
    for row in rows:
        row["offset_ns"] = row["start_ns"] - origin if row["start_ns"] is not None else None
        row["pass_"] = row.get("pass")
    return {**sums, "rows": rows, "page": page, "pages": pages}


def _matching(frame: pl.LazyFrame, search: KernelSearch) -> pl.LazyFrame:
    import polars as pl

    columns = frame.collect_schema()
    if search.text:
        frame = frame.filter(
            pl.any_horizontal(
                pl.col(name).str.to_lowercase().str.contains(search.text.lower(), literal=True)
                for name in ("name", "type")
            )
        )
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


def _sums(frame: pl.LazyFrame) -> dict[str, Any]:
    import polars as pl

    duration = pl.col("duration_ns")
    sums = frame.select(
        total=pl.len(), sum_ns=duration.sum(), longest_ns=duration.max(), origin_ns=pl.col("start_ns").min()
    )
    return sums.collect().row(0, named=True)
