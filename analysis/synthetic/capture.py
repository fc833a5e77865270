"""A rank's dump, or those of a whole job with ranks that wait for each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.synthetic import meta, text, timing
from analysis.synthetic.communication import communicator, write_communication, write_matrix
from analysis.synthetic.cpu import write_cpu
from analysis.synthetic.db import write_databases
from analysis.synthetic.forms import Form, form_for
from analysis.synthetic.legacy import write_legacy
from analysis.synthetic.model import Slot, step_slots
from analysis.synthetic.msprof import write_msprof
from analysis.synthetic.names import slot_names
from analysis.synthetic.ops import nominal_ns
from analysis.synthetic.overlap import step_truth
from analysis.synthetic.spec import GptSpec, Group
from analysis.synthetic.text import Rows
from analysis.synthetic.trace import find_gaps, write_trace
from analysis.synthetic.truth import CommTruth, KernelTruth, Truth

GROUPS: tuple[Group, ...] = ("world", "dp", "tp", "pp", "ep", "cp")
START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Options:
    """How a capture is written. Unset header and column counts follow the framework's newest form."""

    steps: int = 2
    first_step: int = 10
    header: str | None = None
    step_trace_columns: int | None = None
    level: int = 1
    at: datetime = START
    versions: Mapping[str, str] | None = None
    run: Mapping[str, Any] | None = None
    """Further keys of stepscope_run.json; None writes neither it nor the completion marker."""
    devices_per_host: int = 8
    memory: bool = True
    communication: bool = True
    slow_link: tuple[int, int, float] | None = None
    export: tuple[str, ...] = ("text",)
    """Which to write: "text", "db", "msprof" (PROF_*/mindstudio_profiler_output), "legacy" (MindSpore 1.x profiler/),
    "trace" (trace_view.json), "cpu" (MindSpore on CPU: FRAMEWORK/cpu_*)."""


def write_rank(
    folder: Path,
    spec: GptSpec,
    rank: int = 0,
    steps: int = 2,
    framework: Literal["torch_npu", "mindspore"] | None = None,
    **options: Any,
) -> Truth:
    """Write one rank's dump into `folder` and tell what is in it. `options` are the fields of Options."""
    spec, chosen = _for_framework(spec, framework), Options(steps=steps, **options)
    ((simulated, index),) = _simulate(spec, [rank], chosen, {}).values()
    return _write(folder, spec, rank, simulated, index, chosen)


def write_capture(folder: Path, spec: GptSpec, ranks: Sequence[int] | None = None, **options: Any) -> list[Truth]:
    """What `each_rank` does, with all truths at once: for captures of some ranks, not of a thousand."""
    return list(each_rank(folder, spec, ranks, **options))


def each_rank(
    folder: Path,
    spec: GptSpec,
    ranks: Sequence[int] | None = None,
    steps: int = 2,
    framework: Literal["torch_npu", "mindspore"] | None = None,
    slow: Mapping[int, float] | None = None,
    **options: Any,
) -> Iterator[Truth]:
    """Write a dump folder for each rank under `folder`; collectives begin at each rank's own time and end together.

    `slow` multiplies the compute time of a rank.
    """
    spec = _for_framework(spec, framework)
    chosen = Options(steps=steps, **options)
    for rank, (simulated, index) in _simulate(spec, ranks or range(spec.world_size), chosen, slow or {}).items():
        yield _write(folder / folder_name(spec, rank, chosen), spec, rank, simulated, index, chosen)


def folder_name(spec: GptSpec, rank: int, options: Options) -> str:
    """host01_4242_20260101120000123_ascend_ms: host, process, UTC time and framework."""
    stamp = options.at.strftime("%Y%m%d%H%M%S") + f"{options.at.microsecond // 1000:03d}"
    host = f"host{rank // options.devices_per_host + 1:02d}"
    return f"{host}_{4242 + rank}_{stamp}_ascend_{'pt' if spec.mode == 'torch' else 'ms'}"


@dataclass(frozen=True)
class _Simulated:
    slots: list[list[Slot]]
    """By rank; the same list for all of them unless their experts have different loads."""
    names: list[str]
    steps: list[timing.Timeline]


def _for_framework(spec: GptSpec, framework: str | None) -> GptSpec:
    if framework == "torch_npu" and spec.mode != "torch":
        return replace(spec, mode="torch")
    if framework == "mindspore" and spec.mode == "torch":
        return replace(spec, mode="graph")
    return spec


def _simulate(
    spec: GptSpec, ranks: Sequence[int], options: Options, slow: Mapping[int, float]
) -> dict[int, tuple[_Simulated, int]]:
    """For each rank what its stage does, and the rank's place in it. Peers in other stages, which it waits for, run
    along."""
    if unknown := set(ranks) - set(range(spec.world_size)):
        raise ValueError(f"the job has no ranks {sorted(unknown)}")
    along = {peer for rank in ranks for peer in spec.group("pp", rank)}
    members = [sorted(rank for rank in along if spec.stage(rank) == stage) for stage in range(spec.pp)]
    slots = [_slots(spec, stage, of) for stage, of in enumerate(members)]

    def stages(stretch: float) -> list[timing.Stage]:
        return [
            timing.Stage(
                own[0],
                of,
                timing.nominal(spec, own[0], stretch),
                _slowness(spec, own, of, slow),
                np.random.default_rng([spec.seed, of[0]]),
            )
            for own, of in zip(slots, members, strict=True)
        ]

    chosen = stages(timing.stretch_of_pipeline(spec, stages))
    begin = [np.full(len(of), int(options.at.timestamp()) * 1_000_000_000, np.int64) for of in members]
    steps: list[list[timing.Timeline]] = []
    for _ in range(options.steps):
        steps.append(timing.lay_out(spec, chosen, begin))
        begin = [timeline.end for timeline in steps[-1]]
    found: dict[int, tuple[_Simulated, int]] = {}
    for stage, (own, of) in enumerate(zip(slots, members, strict=True)):
        repeated = own * (len(of) // len(own))
        simulated = _Simulated(repeated, slot_names(spec, own[0]), [step[stage] for step in steps])
        found |= {rank: (simulated, index) for index, rank in enumerate(of) if rank in ranks}
    return found


def _slots(spec: GptSpec, stage: int, ranks: Sequence[int]) -> list[list[Slot]]:
    """Kernels of a step by rank, once for all of them unless their experts have different loads."""
    return [step_slots(spec, stage, rank) for rank in (ranks if spec.moe and spec.moe.uneven else ranks[:1])]


def _slowness(
    spec: GptSpec, own: Sequence[Sequence[Slot]], ranks: Sequence[int], slow: Mapping[int, float]
) -> timing.Floats:
    """How much longer compute takes on each rank than the kernels of the first one say."""
    factors = np.array([slow.get(rank, 1.0) for rank in ranks])[:, None]
    if len(own) == 1:
        return factors
    nominal = np.array([[nominal_ns(slot.op, spec) for slot in row] for row in own])
    return np.asarray(factors * nominal / nominal[0], np.float64)


def _write(folder: Path, spec: GptSpec, rank: int, simulated: _Simulated, index: int, options: Options) -> Truth:
    form = form_for(options.header, "torch_npu" if spec.mode == "torch" else "mindspore", options.level)
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    has_steps = form.names[0] in {"Step Id", "Step ID"}
    ids: list[str | None] = [str(options.first_step + i) if has_steps else None for i in range(options.steps)]
    rows = [_rows(step, timeline, index) for step, timeline in zip(ids, simulated.steps, strict=True)]
    truth = _truth(folder, spec, rank, simulated, index, ids, rows)
    device, slots = rank % options.devices_per_host, simulated.slots[index]
    groups: dict[str, Sequence[int]] = {
        kind: spec.group(kind, rank) for kind in GROUPS if len(spec.group(kind, rank)) > 1
    }
    communicators = {kind: communicator(kind, members) for kind, members in groups.items()}
    if "text" in options.export:
        text.write_kernel_details(output / "kernel_details.csv", spec, form, device, slots, simulated.names, rows)
        _write_tables(output, spec, form, device, truth, options)
        if options.communication and truth.communication:
            write_communication(output / "communication.json", truth.communication, communicators)
            matrix = output / "communication_matrix.json"
            write_matrix(matrix, rank, truth.communication, communicators, groups, options.slow_link)
    if "db" in options.export:
        write_databases(output, spec, form, device, slots, truth, communicators)
    if "trace" in options.export:
        truth = replace(truth, gaps=find_gaps(spec, truth))
        write_trace(output / "trace_view.json", spec, truth, truth.gaps)
    if "msprof" in options.export:
        write_msprof(folder, spec, device, slots, simulated.names, rows, truth)
    if "legacy" in options.export:
        write_legacy(folder / "profiler", device, slots, truth)
    if "cpu" in options.export:
        write_cpu(folder / "FRAMEWORK", rank, truth)
    if not {"text", "db", "trace"} & set(options.export):
        output.rmdir()
        return truth
    _write_meta(folder, spec, rank, device, groups, truth, options)
    return truth


def _write_tables(output: Path, spec: GptSpec, form: Form, device: int, truth: Truth, options: Options) -> None:
    """The CSV files beside kernel_details.csv."""
    columns = options.step_trace_columns or (11 if spec.mode == "torch" and "Device_id" in form.names else 10)
    newline = "\r\n" if spec.mode != "torch" else form.newline
    text.write_step_trace(output / "step_trace_time.csv", columns, newline, device, truth.steps)
    text.write_op_statistic(output / "op_statistic.csv", device if columns > 9 else None, truth.kernels)
    text.write_api_statistic(output / "api_statistic.csv", columns > 9, spec, len(truth.kernels))
    if options.memory:
        memory_columns = 6 if spec.mode != "torch" else 7 if columns > 9 else 5
        text.write_memory_record(output / "memory_record.csv", memory_columns, newline, spec, truth)


def _write_meta(
    folder: Path,
    spec: GptSpec,
    rank: int,
    device: int,
    groups: Mapping[str, Sequence[int]],
    truth: Truth,
    options: Options,
) -> None:
    versions = options.versions or {}
    end = truth.steps[-1].start_ns + truth.steps[-1].step_ns
    if spec.mode == "torch":
        info = meta.torch_info(rank, options.level, options.steps, truth.steps[0].start_ns, end, versions)
    else:
        info = meta.mindspore_info(spec, rank, device, options.level, options.steps, versions)
    meta.write_json(folder / f"profiler_info_{rank}.json", info)
    (folder / "profiler_metadata.json").write_text(json.dumps(meta.metadata(spec, rank, groups)), encoding="utf-8")
    if options.run is None:
        return
    window = (options.first_step, options.first_step + options.steps - 1)
    run = meta.run_metadata(spec, rank, device, window, versions, options.run)
    meta.write_json(folder / "stepscope_run.json", run)
    marker = {"schema": 1, "state": "complete", "first_step": window[0], "last_step": window[1], "rank": rank}
    marker |= {"world_size": spec.world_size, "written_at": options.at.strftime("%Y-%m-%dT%H:%M:%SZ"), "reason": None}
    meta.write_json(folder / ".complete.json", marker)


def _rows(step: str | None, timeline: timing.Timeline, index: int) -> Rows:
    start, duration = timeline.start[index], timeline.duration[index]
    previous = np.concatenate([timeline.begin[index : index + 1], (start + duration)[:-1]])
    wait = np.maximum(start - previous, 0)
    wait[0] = 0
    return Rows(step, start.tolist(), duration.tolist(), wait.tolist())


def _truth(
    folder: Path,
    spec: GptSpec,
    rank: int,
    simulated: _Simulated,
    index: int,
    ids: Sequence[str | None],
    rows: Sequence[Rows],
) -> Truth:
    slots = simulated.slots[index]
    kernels = [
        KernelTruth(
            step.step, name, slot.op.type, slot.op.core, start, duration, slot.part, slot.layer, slot.op.block,
            slot.pass_, slot.micro_batch, slot.op.flops,
        )
        for step in rows
        for slot, name, start, duration in zip(slots, simulated.names, step.start, step.duration, strict=True)
    ]  # fmt: skip
    torch = spec.mode == "torch"
    steps = [
        step_truth(step, slots, timeline, index, torch=torch)
        for step, timeline in zip(ids, simulated.steps, strict=True)
    ]
    communication = [
        op
        for step, timeline in zip(rows, simulated.steps, strict=True)
        for op in _communication(step, simulated, timeline, index)
    ]
    allocated = _memory_bytes(spec)
    stage = spec.stage(rank)
    return Truth(
        folder,
        rank,
        stage,
        tuple(spec.local_layers(stage)),
        kernels,
        steps,
        communication,
        allocated,
        allocated * 9 // 8,
    )


def _communication(rows: Rows, simulated: _Simulated, timeline: timing.Timeline, index: int) -> list[CommTruth]:
    ops = []
    for i, slot in enumerate(simulated.slots[index]):
        comm = slot.op.comm
        if comm is None:
            continue
        elapse, transit = rows.duration[i], int(timeline.transit[index, i])
        name = simulated.names[i].rsplit("/", 1)[-1]
        size = comm.size_bytes
        ops.append(
            CommTruth(
                rows.step, name, comm.op, comm.group, comm.p2p, rows.start[i], elapse, transit, elapse - transit, size
            )
        )
    return ops


def _memory_bytes(spec: GptSpec) -> int:
    """Weights, gradients, optimiser share and what forward keeps for backward, rounded to what the report must find."""
    ffn = spec.moe.experts // spec.ep * spec.moe.ffn if spec.moe else spec.ffn
    per_layer = 4 * spec.hidden**2 + 3 * spec.hidden * ffn
    parameters = (per_layer * spec.layers + 2 * spec.vocab * spec.hidden) // (spec.tp * spec.pp)
    share = spec.dp if spec.optimizer_shard else 1
    kept = spec.tokens * spec.hidden * (2 if spec.recompute else 34) * spec.stage_layers // spec.tp
    if not spec.fused_attention:
        kept += spec.micro_batch * spec.heads * spec.seq**2 * 2 * spec.stage_layers // spec.tp // 8
    return (parameters * 4 + parameters * 12 // share + kept) // 2**20 * 2**20
