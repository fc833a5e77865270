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
    "scalar_cube": "aic_scalar_ratio",
    "mte1": "aic_mte1_ratio",
    "mte2_cube": "aic_mte2_ratio",
    "fixpipe": "aic_fixpipe_ratio",
    "vec": "aiv_vec_ratio",
    "scalar_vector": "aiv_scalar_ratio",
    "mte2_vector": "aiv_mte2_ratio",
    "mte3": "aiv_mte3_ratio",
}
"""Units of the cores and the columns of kernel_details.csv (PipeUtilization) that say how busy they are, 0 to 1."""
CACHES = {"icache_cube": "aic_icache_miss_rate", "icache_vector": "aiv_icache_miss_rate"}
"""How often a core did not find its next instructions, 0 to 1."""
BOUNDS = {
    "mac": ("mac", "bound_pipe"),
    "scalar_cube": ("scalar", "bound_pipe"),
    "mte1": ("mte1", "bound_pipe"),
    "mte2_cube": ("memory", "bound_pipe"),
    "fixpipe": ("fixpipe", "bound_fixpipe"),
    "vec": ("vec", "bound_vector"),
    "scalar_vector": ("scalar", "bound_pipe"),
    "mte2_vector": ("memory", "bound_vector"),
    "mte3": ("memory", "bound_vector"),
}
"""Unit -> what a kernel is bound by whose busiest unit it is, and the threshold from which on it is."""
SCALAR, SCALAR_BOUND = ("scalar_cube", "scalar_vector"), "scalar"
UNBOUND = "none"
"""Bound of kernels that keep no unit busy."""


def utilisation(kernels: pl.DataFrame) -> list[dict[str, Any]]:
    """How busy the units of the cores are by operator type, weighted by duration, and the `tflops` that its kernels of
    known FLOPs reach; the thirty longest types that tell either.

    `bound`: what the busiest unit does where it is busy enough (`BOUNDS`), "none" where no unit is.
    """
    measures = use_of(kernels.columns)
    if not measures:
        return []
    used = ("kind", "type", "duration_ns", "flops", *UNITS.values(), *CACHES.values())
    wanted = [name for name in used if name in kernels.columns]
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
    titles = UNITS | CACHES
    found = [_weighted(title, time).alias(unit) for unit, title in titles.items() if title in columns]
    if "flops" in columns:
        flops = pl.col("flops")
        spent = pl.when(flops.is_not_null()).then(time).sum()
        found.append(pl.when(spent > 0).then(flops.sum() / spent / 1000).alias("tflops"))
    return found


def told_use(row: Mapping[str, Any]) -> dict[str, Any]:
    """Units, caches, `tflops` and `bound` of a row that `use_of` made, rounded; None for what it does not know."""
    names = (*UNITS, *CACHES)
    ratios = {name: round(row[name], 4) if row.get(name) is not None else None for name in names}
    tflops = row.get("tflops")
    return {**ratios, "tflops": None if tflops is None else round(tflops, 2), "bound": _bound(ratios)}


def _weighted(title: str, time: pl.Expr) -> pl.Expr:
    value = pl.col(title)
    weight = pl.when(value.is_not_null()).then(time)
    return pl.when(weight.sum() > 0).then((value * weight).sum() / weight.sum())


def _bound(ratios: Mapping[str, float | None]) -> str | None:
    """By the unit that is busiest in proportion to its threshold; the scalar one, which also issues what the others do
    and waits for it, only where they have little to do."""
    known = [(ratio / limit(BOUNDS[unit][1]), unit) for unit in UNITS if (ratio := ratios[unit]) is not None]
    scalar = max(((share, unit) for share, unit in known if unit in SCALAR), default=(0.0, ""))
    best = max(((share, unit) for share, unit in known if unit not in SCALAR), default=(0.0, ""))
    if not best[0] and not scalar[0]:
        return None
    if best[0] >= 1:
        return BOUNDS[best[1]][0]
    return SCALAR_BOUND if scalar[0] >= 1 and best[0] < limit("scalar_others") else UNBOUND


def bounds(kernels: pl.DataFrame) -> dict[str, Any] | None:
    """What binds the longer kernels of the AI cores, each by its own units as `_bound` does: `by_bound`, and the types
    that keep no unit busy (`unbound`) or are held up by their scalar unit (`scalar`). None where no counters tell.

    A kernel whose counters are all 0 has none: the profiler had no room for it.
    """
    units = {unit: title for unit, title in UNITS.items() if title in kernels.columns}
    if not units:
        return None
    wanted = ["type", "duration_ns", "block_num", *units.values()]
    judged = pl.col("core").is_in(_CUBE + _VECTOR) & (pl.col("duration_ns") > limit("bound_us") * 1000)
    rows = kernels.lazy().filter((pl.col("kind") == "compute") & judged).select(wanted)
    # Each unit's share of its threshold, and the place of the largest: numbers, since there may be a million rows.
    shares = {unit: pl.col(title) / limit(BOUNDS[unit][1]) for unit, title in units.items()}
    others = [share for unit, share in shares.items() if unit not in SCALAR]
    scalar = [share for unit, share in shares.items() if unit in SCALAR]
    zero = pl.lit(0.0)
    rows = rows.with_columns(best=pl.max_horizontal(*others, zero), scalar=pl.max_horizontal(*scalar, zero))
    rows = rows.filter(pl.max_horizontal("best", "scalar") > 0)
    place = (
        pl.coalesce(
            pl.when(share >= pl.col("best")).then(pl.lit(place, pl.UInt8)) for place, share in enumerate(others)
        )
        if others
        else pl.lit(None, pl.UInt8)
    )
    held_up = (pl.col("scalar") >= 1) & (pl.col("best") < limit("scalar_others"))
    told = pl.when(pl.col("best") >= 1).then(place).when(held_up).then(pl.lit(len(others), pl.UInt8))
    found = rows.with_columns(place=told).drop("best", "scalar").collect()
    if found.is_empty():
        return None
    names = dict(enumerate([*(BOUNDS[unit][0] for unit in units if unit not in SCALAR), SCALAR_BOUND]))
    bound = pl.col("place").replace_strict(
        names, default=UNBOUND, return_dtype=pl.Enum([*dict.fromkeys(names.values()), UNBOUND])
    )
    found = found.with_columns(bound=bound)
    return {
        "judged_us": us(total_ns(found)),
        "by_bound": totals(found, ["bound"], len(BOUNDS)),
        "unbound": _held_up(found.filter(pl.col("bound") == UNBOUND), [unit for unit in units if unit not in SCALAR]),
        "scalar": _held_up(found.filter(pl.col("bound") == SCALAR_BOUND), [unit for unit in units if unit in SCALAR]),
    }


def _held_up(rows: pl.DataFrame, units: Sequence[str]) -> list[dict[str, Any]]:
    """By type: count, time, blocks of most kernels, and the busiest of `units` with its mean ratio weighted by time;
    None where no counter tells of one."""
    time = pl.col("duration_ns")
    means = [_weighted(UNITS[unit], time).alias(unit) for unit in units]
    grouped = rows.group_by("type").agg(pl.len().alias("count"), time.sum(), pl.col("block_num").mode().min(), *means)
    found = []
    for row in grouped.sort("duration_ns", "type", descending=[True, False]).head(20).iter_rows(named=True):
        unit = max((name for name in units if row[name] is not None), key=lambda name: row[name], default=None)
        ratio = None if unit is None else round(row[unit], 4)
        known = {"type": row["type"], "count": row["count"], "total_us": us(row["duration_ns"])}
        found.append({**known, "block_num": row["block_num"], "unit": unit, "ratio": ratio})
    return found


def _mhz(value: object) -> float | None:
    return round(float(value), 1) if isinstance(value, (int, float)) else None
