"""How kernels use the cores: AI CPU, block numbers, dynamic shapes, clock; and the longest kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from analysis.facts.prepared import Kernels, total_ns, totals, us
from analysis.facts.recovery import Marks
from analysis.thresholds import limit
from analysis.words import as_text

_CUBE = ("AI_CORE", "MIX_AIC")
_VECTOR = ("AI_VECTOR_CORE", "MIX_AIV")
_MIN_CLOCKED = 20
_HALF = 0.5


def facts(compute: Kernels, marks: Marks) -> dict[str, Any]:
    """`ai_cpu`, `dynamic_ratio`, `block_num`; each only where the dump can tell."""
    found: dict[str, Any] = {}
    kinds = compute.kinds
    if kinds["core"].null_count() < kinds.height:
        slow = compute.where(pl.col("core") == "AI_CPU")
        found["ai_cpu"] = totals(slow, ["type", "input_dtypes"], 20)
        if slow.height:
            marks.add("ai_cpu", slow["row"])
            found["ai_cpu_exposed_us"] = marks.exposed_us(slow["row"])
        found["block_num"] = block_num(compute)
    if kinds["op_state"].null_count() < kinds.height:
        dynamic = total_ns(kinds.filter(pl.col("op_state") == "dynamic"))
        found["dynamic_ratio"] = round(dynamic / max(1, total_ns(kinds)), 4)
    return found


def top_kernels(kernels: pl.DataFrame) -> list[dict[str, Any]]:
    """The twenty longest single launches, by name, type and shape."""
    compute = kernels.select("kind", "duration_ns").with_row_index("place").filter(pl.col("kind") == "compute")
    compute = compute.drop_nulls("duration_ns")
    total = max(1, total_ns(compute))
    longest = compute.top_k(20, by="duration_ns").sort("duration_ns", "place", descending=[True, False])
    rows = as_text(kernels.select("name", "type", "input_shapes", "duration_ns")[longest["place"].to_list()])
    return [
        {
            "name": row["name"][:200] if row["name"] else None,
            "type": row["type"],
            "input_shapes": (row["input_shapes"] or "")[:200] or None,
            "duration_us": us(row["duration_ns"]),
            "share": round(row["duration_ns"] / total, 6),
        }
        for row in rows.iter_rows(named=True)
    ]


def block_num(compute: Kernels) -> dict[str, Any] | None:
    """Kernels over 20 us with fewer blocks than there are cores. Cores: the block number most time is spent with."""
    rows: list[dict[str, Any]] = []
    long = pl.col("duration_ns") > limit("block_dim_us") * 1000
    cores: dict[str, int] = {}
    for kind, names in (("cube", _CUBE), ("vector", _VECTOR)):
        here = compute.kinds.filter(pl.col("core").is_in(names) & (pl.col("block_num") > 0))
        usual = here.group_by("block_num").agg(pl.col("duration_ns").sum()).sort("duration_ns", "block_num")
        if usual.is_empty():
            continue
        cores[kind] = usual["block_num"][-1]
        idle = compute.of(here.filter(pl.col("block_num") < cores[kind])).filter(long)
        rows += [{"kind": kind, **row} for row in totals(idle, ["type", "block_num"], 20)]
    return {"cores": cores, "underfilled": rows} if cores else None


def clock(kernels: pl.DataFrame) -> dict[str, Any] | None:
    """AI Core clock in MHz from cycles and time of cube kernels: median, and the mean of the slowest tenth."""
    if not {"aicore_time(us)", "aic_total_cycles"} <= set(kernels.columns):
        return None
    time = pl.col("aicore_time(us)") * pl.col("block_num")
    clocked = kernels.lazy().filter(
        pl.col("core").is_in(_CUBE) & (pl.col("aicore_time(us)") > 10) & (pl.col("block_num") > 0)
    )
    mhz = clocked.select((pl.col("aic_total_cycles") / time).alias("mhz")).collect()["mhz"].drop_nulls().drop_nans()
    if mhz.len() < _MIN_CLOCKED:
        return None
    slow = mhz.sort().head(max(1, mhz.len() // 10)).mean()
    return {"median_mhz": _mhz(mhz.median()), "slow_mhz": _mhz(slow), "count": mhz.len()}


UNITS = {
    "mac": "aic_mac_ratio",
    "mte2_cube": "aic_mte2_ratio",
    "vec": "aiv_vec_ratio",
    "mte2_vector": "aiv_mte2_ratio",
}
"""Units of the cores and the columns of kernel_details.csv (PipeUtilization) that say how busy they are, 0 to 1."""


def utilisation(kernels: pl.DataFrame) -> list[dict[str, Any]]:
    """How busy the units of the cores are by operator type, weighted by duration, and the `tflops` that its kernels of
    known FLOPs reach; the thirty longest types that tell either.

    `bound`: the busiest unit where it is at least half busy: "mac", "vec", or "memory" for the copies in (mte2).
    """
    measures = use_of(kernels.columns)
    if not measures:
        return []
    wanted = [name for name in ("kind", "type", "duration_ns", "flops", *UNITS.values()) if name in kernels.columns]
    compute = kernels.lazy().select(wanted).filter((pl.col("kind") == "compute") & pl.col("type").is_not_null())
    total = pl.col("duration_ns").sum().alias("total")
    rows = compute.group_by("type").agg(*measures, total).sort("total", descending=True).head(30).collect()
    found = []
    for row in rows.iter_rows(named=True):
        use = told_use(row)
        if any(value is not None for value in use.values()):
            found.append({"type": row["type"], "total_us": us(row["total"]), **use})
    return found


def use_of(columns: Sequence[str]) -> list[pl.Expr]:
    """What to aggregate over a group of kernels to learn its use of the device; what no column tells is left out."""
    time = pl.col("duration_ns")
    found = [_weighted(title, time).alias(unit) for unit, title in UNITS.items() if title in columns]
    if "flops" in columns:
        flops = pl.col("flops")
        spent = pl.when(flops.is_not_null()).then(time).sum()
        found.append(pl.when(spent > 0).then(flops.sum() / spent / 1000).alias("tflops"))
    return found


def told_use(row: Mapping[str, Any]) -> dict[str, Any]:
    """Units, `tflops` and `bound` of a row that `use_of` made, rounded; None for what it does not know."""
    ratios = {unit: round(row[unit], 4) if row.get(unit) is not None else None for unit in UNITS}
    tflops = row.get("tflops")
    return {**ratios, "tflops": None if tflops is None else round(tflops, 2), "bound": _bound(ratios)}


def _weighted(title: str, time: pl.Expr) -> pl.Expr:
    value = pl.col(title)
    weight = pl.when(value.is_not_null()).then(time)
    return pl.when(weight.sum() > 0).then((value * weight).sum() / weight.sum())


def _bound(ratios: dict[str, float | None]) -> str | None:
    ordered = sorted(((ratio, unit) for unit, ratio in ratios.items() if ratio is not None), reverse=True)
    if not ordered or ordered[0][0] < _HALF:
        return None
    return "memory" if ordered[0][1].startswith("mte2") else ordered[0][1]


def _mhz(value: object) -> float | None:
    return round(float(value), 1) if isinstance(value, (int, float)) else None
