"""One rank's dump to its entry of the report, its tables and its view of where it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis import breakdown, communication, memory, ops, soundness
from analysis.dump import RankDump
from analysis.missing import missing
from analysis.pipeline import Bubbles, bubbles
from analysis.schedule import schedule
from analysis.tables import Tables, pipeline_of, read_tables, window_of, world_size_of
from analysis.words import as_categories, as_text, combined

if TYPE_CHECKING:
    from analysis.free_time import FreeTime
    from analysis.layers.chunks import Pipeline

MAX_WARNINGS = 100
SHAPE_COLUMNS = ["type", "input_shapes", "output_shapes", "input_formats", "output_formats"]
"""What tells the work of a kernel."""


@dataclass(frozen=True)
class RankResult:
    """What one rank's dump gives. `entry` and `source` are plain JSON; `frames` are what Parquet keeps."""

    entry: dict[str, Any]
    source: dict[str, Any]
    frames: dict[str, pl.DataFrame]
    series: list[dict[str, Any]] = field(default_factory=list)
    other_devices: tuple[int, ...] = ()
    """Devices of the same files that this result leaves out."""
    device_ranks: Mapping[int, int] = field(default_factory=dict)
    """Device -> rank of those devices, where it is known."""


def read_ranks(dump: RankDump) -> list[RankResult]:
    """Every device of the dump as a rank of its own, the busiest first. Raises BadDump where nothing can be read."""
    first = read_rank(dump)
    others = [read_rank(replace(dump, device=device)) for device in first.other_devices]
    return [first, *others]


def read_rank(dump: RankDump, tell: Callable[[str], None] = lambda stage: None) -> RankResult:
    """Read and analyse one rank: of several devices in the same files the one the dump names, else the one its rank
    has, else the busiest. Raises BadDump where nothing in the dump can be read. `tell` is called with what the work
    is at: "reading", "layers", "sums"."""
    tell("reading")
    warnings = list(dump.warnings)
    tables = read_tables(dump, warnings)
    if tables.kernels is not None:
        tables.kernels = as_categories(tables.kernels)
    steps, source = _steps(tables)
    sums = breakdown.kernel_sums(tables.kernels) if tables.kernels is not None else {}
    rows = (
        breakdown.step_rows(steps, source, sums, _lengths(dump, tables, steps), _bubbles(tables))
        if steps is not None
        else []
    )
    soundness.without_communication(
        rows,
        seen=_communicates(tables),
        world_size=world_size_of(dump),
        rank=_rank(dump, tables),
        warnings=warnings,
    )
    breakdown.mark_warmup(rows, _first_of_run(dump))
    warnings.extend(breakdown.disagreements(rows, sums, source) if steps is tables.steps else [])
    tell("layers")
    covered = covered_steps(_judged(tables.kernels, rows), rows, tables.kernels_file)
    kernels, layers = _enriched(tables.kernels, dump, rows, warnings, tables.events, covered)
    tell("sums")
    idle = _free_time(tables.kernels, tables.events, rows)
    judged = _judged(kernels, rows)
    entry: dict[str, Any] = {
        "rank": _rank(dump, tables),
        "device_id": _device(dump, tables),
        "host": dump.host or tables.extra.get("host"),
        "label": _label(dump, tables),
        "steps": rows,
        "kernels": ops.totals(judged) if judged is not None else None,
        "op_types": ops.op_types(judged) if judged is not None else _statistic_types(tables),
        "layers": layers,
        "schedule": schedule(kernels, tables.communication, _judged_labels(rows), layers.get("chunks")),
        "flops": _flops(judged, covered, tables.told_flops),
        "communication": communication.by_operation(tables.communication) if tables.communication is not None else [],
        "collectives": communication.collectives(tables.communication) if tables.communication is not None else [],
        "arrivals": _arrivals(tables, rows),
        "links": tables.links,
        "memory": {**memory.peaks(tables.memory), "modules": memory.modules(tables.modules)},
        "data_pipeline": _data_pipeline(tables),
        "free_time": idle.report if idle else None,
        "bottleneck": _bottleneck(rows, tables.queue_empty_ratio),
    }
    entry["facts"] = _facts(judged, entry, dump, covered)
    entry["facts"] |= _idle_facts(idle, covered, tables.queue_empty_ratio)
    data = entry["data_pipeline"] or {}
    entry["facts"] |= {key: data[key] for key in ("slow_operation", "get_next_us") if data.get(key)}
    if data.get("stages"):
        entry["facts"]["slow_stage"] = data["stages"][0]
    frames = {"kernels": kernels, "steps": steps, "communication": tables.communication, "memory": tables.memory}
    frames["gaps"] = idle.gaps if idle else None
    known = {name: frame for name, frame in frames.items() if frame is not None}
    others = tuple(tables.other_devices)
    ranks = {device: rank for device, rank in tables.ranks.items() if device in others}
    return RankResult(entry, _source(dump, tables, warnings), known, tables.series, others, ranks)


def _rank(dump: RankDump, tables: Tables) -> int | None:
    """Of several devices in the same files each has the rank that a file gives this very device, and no other."""
    if not tables.other_devices:
        return dump.rank if dump.rank is not None else tables.extra.get("rank")
    if tables.device_id is not None and (tables.ranks or tables.device_id != dump.device_id):
        return tables.ranks.get(tables.device_id)
    return dump.rank


def _label(dump: RankDump, tables: Tables) -> str:
    return f"{dump.label} (device {tables.device_id})" if tables.other_devices else dump.label


def _steps(tables: Tables) -> tuple[pl.DataFrame | None, str]:
    if tables.steps is not None:
        return tables.steps, (tables.steps_file or "").rsplit("/", 1)[-1]
    if tables.kernels is not None and tables.kernels.height:
        return breakdown.steps_from_kernels(tables.kernels), "kernel intervals"
    if tables.step_lengths:
        return breakdown.steps_without_parts(tables.step_lengths), ""
    return None, ""


def _communicates(tables: Tables) -> bool:
    kernels, operations = tables.kernels, tables.communication
    ran = kernels is not None and bool((kernels["kind"] == "communication").any())
    return ran or (operations is not None and bool(operations.height))


def _bubbles(tables: Tables) -> Bubbles:
    file = (tables.communication_file or "").rsplit("/", 1)[-1]
    return bubbles(tables.communication, tables.kernels, file)


def _lengths(dump: RankDump, tables: Tables, steps: pl.DataFrame) -> dict[str, tuple[float, str]]:
    """Step -> (length in us, where from): what the callback measured, before the profiler's own step ranges."""
    file = (tables.lengths_file or "").rsplit("/", 1)[-1]
    profiled = {step: (length, file) for step, length in tables.step_lengths.items()}
    return {**profiled, **_callback_times(dump, tables, steps)}


def _callback_times(dump: RankDump, tables: Tables, steps: pl.DataFrame) -> dict[str, tuple[float, str]]:
    """The profiler counts its own steps: where its labels are not the run's step numbers, the window's steps are
    taken in order."""
    known = {str(row["step"]): row["step_time_ms"] * 1000 for row in tables.series if row["step_time_ms"]}
    labels = [str(label) for label in steps["step"]]
    window = window_of(dump)
    if not known or window is None or window[1] - window[0] + 1 != len(labels):
        return {}
    numbers = [str(number) for number in range(window[0], window[1] + 1)]
    pairs = zip(labels, numbers, strict=True)
    return {label: (known[number], "stepscope_steps.jsonl") for label, number in pairs if number in known}


def _first_of_run(dump: RankDump) -> bool:
    window = window_of(dump)
    return window is not None and window[0] <= 1


def _enriched(
    kernels: pl.DataFrame | None,
    dump: RankDump,
    rows: list[dict[str, Any]],
    warnings: list[str],
    events: pl.DataFrame | None,
    covered: int,
) -> tuple[pl.DataFrame | None, dict[str, Any]]:
    """Kernels with class, FLOPs and place in the model; the report's `layers`, of the `covered` steps like all sums."""
    if kernels is None:
        unknown = dict.fromkeys(("method", "layer_count", "micro_batches", "chunks", "doubt", "attributed_ratio"))
        return None, {**unknown, "parts": []}
    from analysis.layers import attribute
    from analysis.optypes import with_class

    kernels = with_class(kernels)
    kernels = kernels.with_columns(_flops_column(kernels))
    judged = {row["step"] for row in rows if not row["warmup"]} if any(row["warmup"] for row in rows) else None
    known = _scope_map(dump, warnings), judged, _trace_layers(events), _pipeline(dump)
    placed, layers = attribute(kernels, *known, unnamed_steps=covered)
    if layers["doubt"]:
        warnings.append(f"layers: {layers['doubt']}")
    return placed, layers


def _pipeline(dump: RankDump) -> Pipeline:
    """The rank's stage as its metadata tells; stages are the outermost split of the ranks."""
    from analysis.layers.chunks import Pipeline

    stages, world, rank = _parallel(dump)["pp"], world_size_of(dump), dump.rank
    chunks = _distributed(dump).get("virtual_pipeline_model_parallel_size")
    known = stages and world and rank is not None and world % stages == 0 and rank < world
    stage = rank // (world // stages) if known and world and stages and rank is not None else None
    return Pipeline(stages, stage, chunks if isinstance(chunks, int) and chunks > 0 else None)


def _trace_layers(events: pl.DataFrame | None) -> pl.DataFrame | None:
    from analysis.layers.trace import trace_layers

    return trace_layers(events) if events is not None else None


def _free_time(
    kernels: pl.DataFrame | None, events: pl.DataFrame | None, rows: list[dict[str, Any]]
) -> FreeTime | None:
    """Gaps with their causes; the steps' `data_wait_us` is set."""
    from analysis.free_time import free_time

    if kernels is None or events is None:
        return None
    idle = free_time(kernels, events, {row["step"] for row in rows if not row["warmup"]})
    waits = idle.us("data_wait") if idle else {}
    for row in rows:
        if row["step"] in waits:
            row["data_wait_us"] = round(waits[row["step"]], 3)
    return idle


def _idle_facts(idle: FreeTime | None, steps: int, queue_empty_ratio: float | None) -> dict[str, Any]:
    """Sums over as many steps as the other facts cover."""
    found: dict[str, Any] = {}
    if idle is not None:
        found["free_causes"] = {row["cause"]: round(row["us"] * steps, 3) for row in idle.report["by_cause"]}
    if queue_empty_ratio is not None:
        found["queue_empty_ratio"] = queue_empty_ratio
    return found


def _flops_column(kernels: pl.DataFrame) -> pl.Series:
    """FLOPs of each kernel, worked out once per kind of kernel."""
    from analysis.shapes import with_flops

    codes, rows = combined([kernels[column] for column in SHAPE_COLUMNS])
    kinds = with_flops(as_text(kernels.select(SHAPE_COLUMNS)[rows]))
    return kinds["flops"].gather(codes)


def _scope_map(dump: RankDump, warnings: list[str]) -> dict[str, Any] | list[Any] | None:
    from analysis.errors import BadDump
    from analysis.readers.text import read_json

    label = dump.first(r"(ir_)?scope_map\.json")
    if label is None:
        return None
    try:
        value = read_json(dump.files[label], label)
    except BadDump as error:
        warnings.append(str(error))
        return None
    return value if isinstance(value, (dict, list)) else None


def _judged(kernels: pl.DataFrame | None, rows: list[dict[str, Any]]) -> pl.DataFrame | None:
    """Kernels without those of warm-up steps."""
    warm = [row["step"] for row in rows if row["warmup"]]
    if kernels is None or not warm:
        return kernels
    return kernels.filter(~pl.col("step").is_in(warm) | pl.col("step").is_null())


def covered_steps(judged: pl.DataFrame | None, rows: list[dict[str, Any]], kernels_file: str | None) -> int:
    """Number of steps that the sums over judged kernels cover, at least 1.

    Kernels that name no step cover all steps, warm-up included; mean times per operator are one step's worth.
    """
    if judged is None or (kernels_file or "").rsplit("/", 1)[-1].startswith(("aicore_intermediate", "ascend_marey")):
        return 1
    named = judged["step"].drop_nulls().n_unique()
    if named:
        return named
    if (kernels_file or "").rsplit("/", 1)[-1].startswith("output_timeline_data"):
        return int(judged.group_by("name").len().select(pl.col("len").median()).item() or 1)
    return max(1, len(rows))


def _data_pipeline(tables: Tables) -> dict[str, Any] | None:
    from analysis.readers.data_queue import slow_operation

    told = (tables.queue_empty_ratio, *tables.data_times.values())
    if not tables.pipeline and not tables.data_stages and all(value is None for value in told):
        return None
    return {
        "queue_empty_ratio": tables.queue_empty_ratio,
        **tables.data_times,
        "operations": tables.pipeline,
        "slow_operation": slow_operation(tables.pipeline),
        "stages": tables.data_stages,
    }


def _flops(judged: pl.DataFrame | None, steps: int, told: int | None) -> dict[str, Any]:
    """The measured side of FLOPs, per judged step: of shapes, else what the profiler's counters `told`. The model side
    needs a configuration and comes with the report."""
    measured = told
    if judged is not None and "flops" in judged.columns and judged["flops"].null_count() < judged.height:
        measured = int(judged["flops"].sum()) // steps
    names = (
        "model_flops_per_step",
        "formula",
        "peak_tflops",
        "peak_dtype",
        "peak_source",
        "mfu",
        "hfu",
        "tflops_per_device",
    )
    return {"measured_flops": measured, **dict.fromkeys(names)}


def _statistic_types(tables: Tables) -> list[dict[str, Any]]:
    """Operator types of op_statistic.csv where there are no kernels to sum."""
    rows = sorted(tables.op_statistic or [], key=lambda row: -row["total_ns"])
    talk = {"HCCL", "COMMUNICATION"}
    total = sum(row["total_ns"] for row in rows if row["core"] not in talk)
    return [
        {
            "type": row["type"],
            "core": row["core"],
            "count": row["count"],
            "total_us": row["total_ns"] / 1000,
            "share": None if row["core"] in talk else breakdown.ratio(row["total_ns"], total),
        }
        for row in rows[: ops.MAX_TYPES]
    ]


def _device(dump: RankDump, tables: Tables) -> int | None:
    if tables.other_devices:
        return tables.device_id
    if dump.device_id is not None or tables.device_id is not None:
        return dump.device_id if dump.device_id is not None else tables.device_id
    kernels = tables.kernels
    seen = kernels["device_id"].drop_nulls().unique().to_list() if kernels is not None else []
    return seen[0] if len(seen) == 1 else None


def _arrivals(tables: Tables, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if tables.communication is None:
        return []
    return communication.arrivals(tables.communication, tables.kernels, _judged_labels(rows))


def _judged_labels(rows: list[dict[str, Any]]) -> set[str | None]:
    return {row["step"] for row in rows if not row["warmup"]}


def _bottleneck(rows: list[dict[str, Any]], queue_empty_ratio: float | None) -> dict[str, Any]:
    from analysis.verdict import bottleneck

    return bottleneck(rows, queue_empty_ratio=queue_empty_ratio)


def _facts(judged: pl.DataFrame | None, entry: dict[str, Any], dump: RankDump, steps: int) -> dict[str, Any]:
    own = {"steps": steps}
    from analysis.facts import rank_facts

    return {**own, **rank_facts(judged, entry, dump)}


def _source(dump: RankDump, tables: Tables, warnings: list[str]) -> dict[str, Any]:
    """This rank's view of where the numbers come from."""
    meta, info = dump.run_meta, dump.info
    world_size = world_size_of(dump)
    version = meta.get("framework_version") or info.get("torch_npu_version") or info.get("ms_version")
    warnings = list(dict.fromkeys(warnings))  # tables of one database each say that it cannot be read
    more = len(warnings) - MAX_WARNINGS
    shown = warnings[:MAX_WARNINGS] + ([f"{more} more warnings"] if more > 0 else [])
    return {
        "framework": dump.framework,
        "framework_version": _text(version or tables.extra.get("framework_version")),
        "cann_version": _text(meta.get("cann_version") or info.get("cann_version") or tables.extra.get("cann_version")),
        "format": dump.format,
        "soc": _text(meta.get("soc") or tables.extra.get("soc")),
        "world_size": world_size,
        "parallel": _parallel(dump),
        "mode": _text(meta.get("mode") or info.get("context_mode")),
        "jit_level": _text(meta.get("jit_level") or info.get("jit_level")),
        "sink": meta.get("sink") if isinstance(meta.get("sink"), bool) else None,
        "environment": _environment(dump),
        "groups": communication.groups(dump.metadata),
        "device_info": tables.extra.get("device_info"),
        "missing": missing(dump, tables, world_size),
        "warnings": shown,
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value and value != "not known" else None


def _distributed(dump: RankDump) -> Mapping[str, Any]:
    told = dump.metadata.get("distributed_args")
    return told if isinstance(told, dict) else {}


def _parallel(dump: RankDump) -> dict[str, int | None]:
    """Parallel sizes by short name; null where nothing tells."""
    told = dump.run_meta.get("parallel")
    own = told if isinstance(told, dict) else {}
    args = _distributed(dump)
    long = {"dp": "data_parallel_size", "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size"}
    long |= {"cp": "context_parallel_size", "ep": "expert_model_parallel_size"}
    sizes = {short: own.get(short, args.get(name)) for short, name in long.items()}
    if sizes["pp"] is None and (pipeline := pipeline_of(dump)):
        sizes["pp"] = pipeline[0]
    return {
        short: size if isinstance(size, int) and not isinstance(size, bool) else None for short, size in sizes.items()
    }


def _environment(dump: RankDump) -> dict[str, str]:
    """Environment variables that were recorded and are set."""
    told = dump.run_meta.get("environment") or dump.metadata.get("ENV_VARIABLES")
    pairs = told.items() if isinstance(told, dict) else ()
    return {str(name): str(value) for name, value in pairs if value not in (None, "")}
