"""From a dump to its tables: for each the best file that is there and can be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from analysis import devices, soundness
from analysis.communication import groups
from analysis.dump import RAW_HELP, RankDump
from analysis.errors import BadDump
from analysis.names import base_name
from analysis.readers import (
    cluster,
    data_queue,
    host_db,
    legacy,
    legacy_timeline,
    mindspore_cpu,
    profiler_db,
    step_trace,
    timeline,
)
from analysis.readers import communication as text_communication
from analysis.readers.kernel_details import read_kernels
from analysis.readers.memory import read_memory, read_modules, read_operator_memory
from analysis.readers.op_statistic import read_op_statistic
from analysis.readers.run_files import read_step_records
from analysis.readers.text import plain, read_header, read_json
from analysis.readers.trace_events import profiler_steps, read_events

Table = TypeVar("Table")
Reader = Callable[[Path, str, list[str]], Table]

STAMP = r"(_(slice_)?\d[\w]*)?"
"""What msprof puts behind a name: slices and a time."""
KERNEL_DB = r"(ascend_(pytorch|mindspore)_profiler(_\d+)?|msprof(_\w+)?)\.db"


@dataclass
class Tables:
    """What could be read. None: no file told it."""

    kernels: pl.DataFrame | None = None
    kernels_file: str | None = None
    steps: pl.DataFrame | None = None
    steps_file: str | None = None
    communication: pl.DataFrame | None = None
    communication_file: str | None = None
    links: list[dict[str, Any]] = field(default_factory=list)
    memory: pl.DataFrame | None = None
    op_statistic: list[dict[str, Any]] | None = None
    events: pl.DataFrame | None = None
    """What trace_view.json tells of the host and of launches."""
    step_lengths: dict[str, float] = field(default_factory=dict)
    """Step -> us by a clock of its own: the profiler's step ranges."""
    lengths_file: str | None = None
    series: list[dict[str, Any]] = field(default_factory=list)
    modules: pl.DataFrame | None = None
    """Memory that modules of the device's software held."""
    told_flops: int | None = None
    """Operations of one step as MindSpore summed up the device's counters."""
    pipeline: list[dict[str, Any]] = field(default_factory=list)
    """Operations of the data pipeline, the one nearest to the device first."""
    data_times: dict[str, float | None] = field(default_factory=dict)
    """Means for one batch: what the host took for it, and how long the device's GetNext took."""
    data_stages: list[dict[str, Any]] = field(default_factory=list)
    """Stages of the dataset's operations, the longest first."""
    queue_empty_ratio: float | None = None
    """How often the queue of data for the device was found empty."""
    device_id: int | None = None
    other_devices: list[int] = field(default_factory=list)
    """Devices whose rows lie in the same files and are left out here."""
    ranks: dict[int, int] = field(default_factory=dict)
    """Device -> rank, where the files hold rows of several devices."""
    extra: dict[str, Any] = field(default_factory=dict)


def read_tables(dump: RankDump, warnings: list[str]) -> Tables:
    """Every table of the dump. A bad file is a warning as long as another tells something; else BadDump."""
    tables = Tables()
    errors: list[BadDump] = []
    _read_all(dump, tables, warnings, errors)
    _make_sound(tables, warnings)
    if not _tells(tables):
        raise _nothing(dump, errors)
    warnings.extend(str(error) for error in errors)
    return tables


def _make_sound(tables: Tables, warnings: list[str]) -> None:
    if tables.steps is not None:
        tables.steps = soundness.rows_from_0(tables.steps, tables.steps_file or "", warnings)
    if tables.kernels is not None:
        name = tables.kernels_file or ""
        single = soundness.once(tables.kernels, name, warnings)
        tables.kernels = soundness.steps_from_0(soundness.ordered(single, name, warnings), name, warnings)
        if tables.op_statistic and not tables.other_devices:
            soundness.whole(tables.kernels, name, tables.op_statistic, "op_statistic.csv", warnings)
    if tables.communication is not None:
        name = tables.communication_file or ""
        once = soundness.once(tables.communication, name, warnings)
        tables.communication = soundness.steps_from_0(once, name, warnings)


def _tells(tables: Tables) -> bool:
    frames = (tables.kernels, tables.steps, tables.communication, tables.memory)
    others = (tables.op_statistic, tables.series, tables.step_lengths)
    return any(frame is not None and frame.height for frame in frames) or any(others)


def _nothing(dump: RankDump, errors: list[BadDump]) -> BadDump:
    if errors:
        more = f" ({len(errors) - 1} more files cannot be read)" if len(errors) > 1 else ""
        return BadDump(dump.name(errors[0].path), errors[0].reason + more)
    if dump.raw:
        return BadDump(dump.label or "dump", RAW_HELP)
    held = ", ".join(sorted(dump.files)[:4]) or "no file that is known"
    return BadDump(dump.label or "dump", f"holds nothing that tells times; it has {held}")


def _read_all(dump: RankDump, tables: Tables, warnings: list[str], errors: list[BadDump]) -> None:
    look = _Look(dump, warnings, errors)
    tables.extra = look.content((KERNEL_DB, profiler_db.read_facts)) or {}
    _read_kernels(look, tables)
    _read_steps(look, tables)
    device = _one_device(dump, tables, warnings)
    _read_iterations(look, tables)
    chip = next((each for each in (device, dump.device_id, tables.device_id) if each is not None), "")
    tables.extra["device_info"] = look.content(
        (rf"info\.json\.{chip}", read_device_info), (r"info\.json(\.\d+)?", read_device_info)
    )
    tables.communication_file, tables.communication = _communication(look, tables) or (None, None)
    tables.links = (
        look.content(
            (r"communication_matrix\.json", _links_reader(dump, text_communication.read_links)),
            (r"(communication_analyzer|analysis)\.db", _links_reader(dump, profiler_db.read_links)),
            (r"cluster_communication_matrix\.json", cluster.read_links(dump.rank)),
            (r"cluster_analysis\.db", cluster.read_database_links(dump.rank)),
        )
        or []
    )
    tables.memory = look.content(
        (rf"memory_record{STAMP}\.csv", read_memory),
        (KERNEL_DB, profiler_db.read_memory),
        (rf"operator_memory{STAMP}\.csv", read_operator_memory),
        (r"cpu_ms_memory_record_\d+\.txt", mindspore_cpu.read_memory),
    )
    tables.memory = None if tables.memory is None else devices.own(tables.memory, device)
    statistic = look.content((rf"op_statistic{STAMP}\.csv", read_op_statistic))
    tables.op_statistic = None if statistic is None else devices.own(statistic, device).to_dicts()
    tables.series = look.content((r"stepscope_steps\.jsonl", read_step_records)) or []
    found = look.content((r"npu_module_mem\.csv", read_modules), (KERNEL_DB, profiler_db.read_modules))
    tables.modules = None if found is None else devices.own(found, device)
    tables.told_flops = look.content((r"flops_summary_\d+\.json", legacy_timeline.read_flops_summary))
    _read_pipeline(look, tables)


def _read_pipeline(look: _Look, tables: Tables) -> None:
    own = rf"_{look.dump.rank}" if look.dump.rank is not None else r"_\d+"
    queues = (r"device_queue_profiling_\d+\.txt", r"dataset_iterator_profiling_\d+\.txt")
    sampled = (
        look.content(
            (r"minddata_pipeline_raw_\d+\.csv", data_queue.read_pipeline),
            (rf"pipeline_profiling{own}\.json", data_queue.read_profile),
        )
        or []
    )
    summary = look.content((r"minddata_pipeline_summary_\d+\.(json|csv)", data_queue.read_summary)) or {}
    tables.pipeline = data_queue.with_cpu(sampled, summary.pop("operations", []))
    batches = look.content(*((pattern, data_queue.read_batch_times) for pattern in queues)) or summary
    waits = look.content((r"minddata_aicpu_\d+\.txt", data_queue.read_get_next)) or {}
    tables.data_times = {key: batches.get(key) for key in data_queue.TIMES} | {"get_next_us": waits.get("get_next_us")}
    tables.data_stages = look.content((r"dataset\.csv", data_queue.read_stages)) or []
    found = waits.get("queue_empty_ratio")
    if found is None:
        found = look.content(*((pattern, data_queue.read_device_queue) for pattern in queues))
    tables.queue_empty_ratio = found if found is not None else data_queue.nearest_empty_ratio(tables.pipeline)


def _one_device(dump: RankDump, tables: Tables, warnings: list[str]) -> int | None:
    """Leave one device in kernels and steps; which, where rows of others may lie in the files as well."""
    held = devices.seen(tables.kernels) or devices.seen(tables.steps)
    mapped = tables.extra.get("ranks") or {}
    tables.ranks = devices.ranks_of(held, dump, mapped, world_size_of(dump))
    device = devices.choose(held, dump, tables.ranks)
    if device in tables.ranks and not mapped:
        order = f"device {device} is rank {tables.ranks[device]}"
        warnings.append(f"no file tells the ranks of devices {sorted(held)}; they are numbered in order: {order}")
    told = devices.seen(tables.steps)
    if len(held) == len(told) == 1 and held != told:
        kernels, steps = f"{tables.kernels_file} of device {held[0]}", f"{tables.steps_file} is of device {told[0]}"
        warnings.append(f"{steps}, {kernels}: one of them is of another rank")
    tables.device_id = told[0] if len(told) == 1 else tables.extra.get("device_id")
    if tables.kernels is not None:
        tables.kernels = devices.own(tables.kernels, device, keep=True)
    if tables.steps is not None:
        own = devices.own(tables.steps, device)
        tables.steps = own if own.height else None
    if device is not None:
        tables.device_id = device
        tables.other_devices = sorted(set(held) - {device})
    return device


def _communication(look: _Look, tables: Tables) -> tuple[str, pl.DataFrame] | None:
    """Of several devices in the same files only operations that tell theirs: analysed ones are the process's."""
    analysed: list[tuple[str, Reader[pl.DataFrame]]] = [
        (r"communication\.json", text_communication.read_communication),
        (r"(communication_analyzer|analysis)\.db", profiler_db.read_communication),
    ]
    bare: list[tuple[str, Reader[pl.DataFrame]]] = [(KERNEL_DB, profiler_db.read_communication)]
    if tables.other_devices:
        found = look.first(*bare)
        return _of_kernels(tables) if found is None else (found[0], devices.own(found[1], tables.device_id))
    others: list[tuple[str, Reader[pl.DataFrame]]] = [
        (r"hccl_raw_\d+\.csv", legacy.read_communication),
        (r"cluster_communication\.json", cluster.read_communication(look.dump.rank)),
        (r"cluster_analysis\.db", cluster.read_database_communication(look.dump.rank)),
    ]
    found = look.first(*analysed, *bare, *others)
    return _of_kernels(tables) if found is None else (found[0], devices.own(found[1], None))


def _of_kernels(tables: Tables) -> tuple[str, pl.DataFrame] | None:
    """Collectives among the kernels, where no file tells more of them."""
    table = None if tables.kernels is None else text_communication.of_kernels(tables.kernels)
    return None if table is None else (tables.kernels_file or "", table)


def _read_kernels(look: _Look, tables: Tables) -> None:
    choices: tuple[tuple[str, Reader[pl.DataFrame]], ...] = (
        (r"kernel_details\.csv", read_kernels),
        (KERNEL_DB, profiler_db.read_kernels),
        (r"cpu_op_execute_timestamp_\d+\.txt", mindspore_cpu.read_kernels),
        (r"output_timeline_data_\d+\.txt", legacy.read_timeline),
        (r"(ascend_)?timeline_display_\d+\.json", legacy_timeline.read_display),
        (r"ascend_marey_timeline_\d+\.json", legacy_timeline.read_marey),
        (r"aicore_intermediate_\d+_detail\.csv", legacy.read_averages),
    )
    found = look.first(*((pattern, _some(reader)) for pattern, reader in choices))
    sliced = (
        None
        if found
        else look.slices((rf"op_summary{STAMP}\.csv", read_kernels), (rf"task_time{STAMP}\.csv", _named_tasks))
    )
    sliced = sliced or (None if found else look.slices((r"task_time_\d+_\d+_\d+\.json", timeline.read_tasks)))
    tables.kernels_file, tables.kernels = found or sliced or (None, None)
    if tables.kernels is None or tables.kernels_file is None:
        return
    name = tables.kernels_file.rsplit("/", 1)[-1]
    if name.startswith("cpu_op_execute_timestamp"):
        tables.kernels = _cpu_details(look, tables.kernels)
    elif name.startswith("ascend_marey"):
        scopes = look.dump.first(r"scope_map_\d+\.json")
        tables.kernels = look.attempt(legacy_timeline.with_scopes, tables.kernels, scopes) if scopes else tables.kernels
    elif name.startswith(("output_timeline_data", "aicore_intermediate")):
        tables.kernels = _legacy_details(look, tables.kernels)
    elif name.startswith("task_time") and name.removesuffix(".gz").endswith(".json"):
        talk = look.slices((r"hccl_\d+_\d+_\d+\.json", timeline.read_talk))
        tables.kernels = pl.concat([tables.kernels, talk[1]]) if talk else tables.kernels


def _some(reader: Reader[pl.DataFrame]) -> Reader[pl.DataFrame]:
    """A table of kernels without rows tells nothing: the next file may, and no kernels are unknown, not 0 us."""

    def read(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
        kernels = reader(path, name, warnings)
        if kernels.is_empty():
            raise BadDump(name, "has no kernels: the table has no rows")
        return kernels

    return read


def _named_tasks(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """task_time.csv also lists the profiler's own switches and events: those have no kernel name."""
    return read_kernels(path, name, warnings).filter(pl.col("name").is_not_null())


def _cpu_details(look: _Look, kernels: pl.DataFrame) -> pl.DataFrame:
    details = look.dump.first(r"cpu_op_detail_info_\d+\.csv")
    shapes = look.dump.first(r"cpu_framework_\d+\.txt")
    if details:
        kernels = look.attempt(mindspore_cpu.with_types, kernels, details)
    if shapes:
        kernels = look.attempt(mindspore_cpu.with_shapes, kernels, shapes)
    return mindspore_cpu.with_steps(kernels, window_of(look.dump))


def _legacy_details(look: _Look, kernels: pl.DataFrame) -> pl.DataFrame:
    """framework_raw, or in loose collections any other CSV that has its columns."""
    raw = look.dump.first(r"framework_raw_\d+\.csv") or next(
        (name for name in look.dump.find(r".*\.csv") if look.is_framework(name)), None
    )
    return look.attempt(legacy.with_operators, kernels, raw) if raw else kernels


def window_of(dump: RankDump) -> tuple[int, int] | None:
    """First and last step of the profiled window as our run metadata or the agent's marker tell."""
    for told in (dump.run_meta.get("window"), dump.marker):
        first, last = (told.get("first_step"), told.get("last_step")) if isinstance(told, dict) else (None, None)
        if isinstance(first, int) and isinstance(last, int) and 0 <= first <= last:
            return first, last
    return None


def world_size_of(dump: RankDump) -> int | None:
    """Ranks of the job as its metadata, or else the members of its groups tell."""
    arguments = dump.metadata.get("distributed_args")
    told = arguments.get("world_size") if isinstance(arguments, dict) else None
    split = pipeline_of(dump)
    for value in (dump.run_meta.get("world_size"), told, dump.info.get("rank_size"), split[1] if split else None):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    members = [rank for group in groups(dump.metadata).values() for rank in group["ranks"]]
    return max(members) + 1 if members else None


def pipeline_of(dump: RankDump) -> tuple[int, int] | None:
    """(stages, ranks) as MindSpore's old summary of a pipeline job carries them in its name."""
    pattern = r"ascend_cluster_analyse_pipeline-parallel_(\d{1,6})_(\d{1,6})_\d+\.csv"
    label = dump.first(pattern)
    found = re.fullmatch(pattern, base_name(label)) if label else None
    return (int(found[1]), int(found[2])) if found and int(found[1]) > 0 else None


def _read_steps(look: _Look, tables: Tables) -> None:
    found = look.first(
        (r"step_trace_time\.csv", step_trace.read_steps),
        (r"analysis\.db", profiler_db.read_steps),
        (r"cluster_step_trace_time\.csv", step_trace.read_cluster_steps(look.dump.rank)),
        (r"cluster_analysis\.db", cluster.read_database_steps(look.dump.rank)),
    )
    if found:
        tables.steps_file, tables.steps = found
    else:
        old = look.first((r"step_trace_raw_\d+_detail_time\.csv", legacy.read_steps))
        if old:
            tables.steps_file, (tables.steps, tables.step_lengths) = old
            tables.lengths_file = tables.steps_file
            _add_breakdown(look, tables.steps, tables)
    trace = _own_trace(look, tables)
    tables.events = trace[1] if trace else look.content((KERNEL_DB, host_db.read_events))
    if tables.lengths_file is None:
        lengths = look.first((KERNEL_DB, profiler_db.read_step_windows)) or _traced(trace)
        tables.lengths_file, tables.step_lengths = lengths or (None, {})


def _own_trace(look: _Look, tables: Tables) -> tuple[str, pl.DataFrame] | None:
    """The trace, unless it is of another rank than the kernels."""
    trace = look.first((r"trace_view\.json", read_events))
    if trace and (launches := soundness.foreign(trace[1], tables.kernels)):
        other = f"none of {launches} launches leads to a kernel of {tables.kernels_file}"
        look.warnings.append(f"{trace[0]}: {other}: it is of another rank or time, and is left out")
        return None
    return trace


def _read_iterations(look: _Look, tables: Tables) -> None:
    """Lengths of steps from the old timelines, each of which is of one device."""
    if tables.lengths_file is None:
        device = tables.device_id if tables.other_devices else r"\d+"
        lengths = look.first((rf"step_trace_{device}_\d+_\d+\.json", timeline.read_iterations))
        tables.lengths_file, tables.step_lengths = lengths or (None, {})


def _add_breakdown(look: _Look, steps: pl.DataFrame, tables: Tables) -> None:
    label = look.dump.first(r"ascend_cluster_analyse_[\w-]+_\d+\.csv")
    if label is None:
        return
    try:
        found, odd = legacy.with_breakdown(steps, tables.step_lengths, look.dump.files[label], label)
    except BadDump as error:
        look.errors.append(error)
        return
    tables.steps, tables.steps_file = found, label
    look.warnings.extend([odd] if odd else [])


def _traced(trace: tuple[str, pl.DataFrame] | None) -> tuple[str, dict[str, float]] | None:
    """The trace's own step ranges, where it has any."""
    steps = profiler_steps(trace[1]) if trace else {}
    return (trace[0], steps) if trace and steps else None


def read_device_info(path: Path, name: str, warnings: list[str]) -> dict[str, Any]:
    """The part of PROF_*/device_N/info.json that tells the chip's cores and clock."""
    data = read_json(path, name)
    devices = data.get("DeviceInfo") if isinstance(data, dict) else None
    if not isinstance(devices, list) or not devices or not isinstance(devices[0], dict):
        raise BadDump(name, "does not tell a device")
    kept = {
        key: value for key, value in devices[0].items() if isinstance(value, (int, float, str)) and len(str(value)) < 64
    }
    return {"DeviceInfo": [kept]}


Links = list[dict[str, Any]]


def _links_reader(dump: RankDump, reader: Callable[[Path, str, dict[str, dict[str, Any]]], Links]) -> Reader[Links]:
    members = groups(dump.metadata)
    return lambda path, name, warnings: reader(path, name, members)


QUIET = re.compile(
    r"has no (samples of|calls of|stages of|operations of|step times|ProfilerStep ranges|communication"
    r"|communication matrix|memory record|kernels|step trace|rows of rank)"
)
"""A file that is sound but does not hold what one reader looked for: nothing to warn of."""


class _Look:
    """Tries readers on a dump's files and remembers what went wrong."""

    def __init__(self, dump: RankDump, warnings: list[str], errors: list[BadDump]) -> None:
        self.dump = dump
        self.warnings = warnings
        self.errors = errors

    def all(self, pattern: str, reader: Reader[Table]) -> Iterator[tuple[str, Table]]:
        """(label, content) of each matching file that can be read."""
        for label in self.dump.find(pattern):
            try:
                yield label, reader(self.dump.files[label], label, self.warnings)
            except BadDump as error:
                if not QUIET.match(error.reason):
                    self.errors.append(error)

    def first(self, *choices: tuple[str, Reader[Table]]) -> tuple[str, Table] | None:
        """The best file: the first of the first choice that can be read."""
        return next((found for pattern, reader in choices for found in self.all(pattern, reader)), None)

    def content(self, *choices: tuple[str, Reader[Table]]) -> Table | None:
        """What `first` read, without its label."""
        found = self.first(*choices)
        return found[1] if found else None

    def slices(self, *choices: tuple[str, Reader[pl.DataFrame]]) -> tuple[str, pl.DataFrame] | None:
        """All files of the first choice that has any, one below the other: large exports come in slices."""
        for pattern, reader in choices:
            parts = list(self.all(pattern, reader))
            if parts:
                return parts[0][0], pl.concat([frame for _, frame in parts], how="diagonal")
        return None

    def attempt(
        self, add: Callable[[pl.DataFrame, Path, str], pl.DataFrame], kernels: pl.DataFrame, label: str
    ) -> pl.DataFrame:
        """`kernels` with what another file adds; as they were where that file is bad."""
        try:
            return add(kernels, self.dump.files[label], label)
        except BadDump as error:
            self.errors.append(error)
            return kernels

    def is_framework(self, label: str) -> bool:
        """Whether a CSV has the columns of framework_raw."""
        try:
            with plain(self.dump.files[label], label) as file:
                return {"subgraph", "op_info"} <= set(read_header(file, label))
        except BadDump:
            return False
