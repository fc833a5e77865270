"""Operators of one rank by type, shape or name: from its report entry, or from its Parquet file where that is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dashboard.runs.frames import frames_path
from dashboard.runs.models import Dump

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import polars as pl

Json = Mapping[str, Any]
GROUPINGS = {"type": ("type",), "shape": ("type", "input_shapes"), "name": ("name", "type")}
SHOWN = 60


@dataclass(frozen=True)
class OperatorSearch:
    """How the address groups operators, and a text that type, shape or name must hold."""

    by: str = "type"
    text: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> OperatorSearch:
        by = params.get("by", "")
        return cls(by=by if by in GROUPINGS else "type", text=params.get("q", "").strip()[:100])


def types_of(entry: Json, limit: int = 40) -> list[dict[str, Any]]:
    """Operators by type as the report entry has them, longest first, with how they use the device."""
    use = {row.get("type"): row for row in (entry.get("facts") or {}).get("utilisation") or []}
    rows = sorted(entry.get("op_types") or [], key=lambda row: -(row.get("total_us") or 0))[:limit]
    return finished([{**use.get(row.get("type"), {}), **row} for row in rows], entry)


def operators(dump: Dump, search: OperatorSearch) -> dict[str, Any] | None:
    """{"rows", "total"}: groups of the judged steps' kernels, longest first, at most `SHOWN`, and how many there are.

    None where no kernels are kept.
    """
    if not dump.frames:
        return None
    from analysis.store import scan

    try:
        rows, total = _grouped(judged(scan(frames_path(dump.frames), "kernels"), dump.entry), search)
    except FileNotFoundError:
        return None
    return {"rows": finished(rows, dump.entry), "total": total}


def judged(frame: pl.LazyFrame, entry: Json) -> pl.LazyFrame:
    """Without the steps that the report leaves out as warm-up, unless all are."""
    import polars as pl

    steps = entry.get("steps") or []
    warm = [str(step.get("step")) for step in steps if step.get("warmup")]
    return frame if len(warm) == len(steps) else frame.filter(~pl.col("step").is_in(warm).fill_null(False))


def _grouped(frame: pl.LazyFrame, search: OperatorSearch) -> tuple[list[dict[str, Any]], int]:
    import polars as pl

    from analysis.facts.cores import told_use, use_of

    columns = frame.collect_schema().names()
    keys = [key for key in GROUPINGS[search.by] if key in columns]
    time, computes = pl.col("duration_ns"), pl.col("kind") == "compute"
    compute_ns = frame.select(time.filter(computes).sum()).collect().item()
    found = frame.filter(_holds(search.text, keys)) if search.text else frame
    counts = [
        pl.len().alias("count"),
        time.sum().alias("total_ns"),
        pl.col("core").first(),
        computes.any().alias("computes"),
    ]
    groups = found.group_by(keys).agg(*counts, *use_of(columns)).sort("total_ns", descending=True).collect()
    rows = []
    for row in groups.head(SHOWN).iter_rows(named=True):
        share = row["total_ns"] / compute_ns if row["computes"] and compute_ns else None
        about = {key: row[key] for key in (*keys, "core", "count")}
        rows.append({**about, "total_us": row["total_ns"] / 1000, "share": share, **told_use(row)})
    return rows, groups.height


def _holds(text: str, keys: list[str]) -> pl.Expr:
    import polars as pl

    # Pages write shapes with ×, files with commas.
    words = text.lower().replace("×", ",")
    return pl.any_horizontal(pl.col(key).str.to_lowercase().str.contains(words, literal=True) for key in keys)


def finished(rows: list[dict[str, Any]], entry: Json) -> list[dict[str, Any]]:
    """Rows with what a table shows beside them: mean, bar, share of the peak, the unit that each is bound by."""
    peak = (entry.get("flops") or {}).get("peak_tflops")
    top = max((row.get("share") or 0 for row in rows), default=0) or 1
    return [
        {
            **row,
            "mean_us": row["total_us"] / row["count"] if row.get("count") and row.get("total_us") is not None else None,
            "relative": row["share"] / top if row.get("share") is not None else None,
            "is_cast": str(row.get("type", "")).startswith("Cast"),
            "of_peak": row["tflops"] / peak if row.get("tflops") is not None and peak else None,
            "memory": most(row.get("mte2_cube"), row.get("mte2_vector"), row.get("mte3")),
        }
        for row in rows
    ]


def most(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def told(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Which of the optional columns any row has a value of."""
    return {
        "flops": any(row.get("tflops") is not None for row in rows),
        "peak": any(row.get("of_peak") is not None for row in rows),
        "units": any(row.get(unit) is not None for row in rows for unit in ("mac", "vec", "memory")),
    }
