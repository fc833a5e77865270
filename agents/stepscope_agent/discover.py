"""Find profiler dumps under a folder: what they are, whose they are, whether they are whole."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from datetime import datetime, timezone
from typing import Any, Iterator, NamedTuple

from stepscope_agent.folders import listing

OUTPUT = "ASCEND_PROFILER_OUTPUT"
MSPROF_OUTPUT = "mindstudio_profiler_output"
MARKER = ".complete.json"
CLAIM = ".stepscope-claim"
LARGEST_JSON = 16 * 1024 * 1024
LARGEST_TABLE = 1024 * 1024
DEEPEST = 100
QUIET_S = 30.0
"""A dump without a marker whose trace is cut is taken for unfinished while it was written to this recently."""

WHOLE, UNFINISHED, RAW, FAILED, EMPTY = "whole", "unfinished", "raw", "failed", "empty"

_ANALYSE = "import sys; from %s.profiler.profiler import analyse; analyse(sys.argv[1])"
_ASCEND_FOLDER = re.compile(r"^(?P<worker>.+?)_(?P<pid>\d+)_(?P<stamp>\d{17})_ascend_(?P<kind>pt|ms)$")
_STAMP = re.compile(r"(?<!\d)(20\d{15})(?!\d)")
_RANK_FOLDER = re.compile(r"(?:^|_)rank_?(\d+)(?:_|$)")
_DYNAMIC_FOLDER = re.compile(r"^rank(\d+)_start(\d+)_stop(\d+)$")
_LEGACY = re.compile(
    r"^(?:aicore_intermediate|step_trace_raw|ascend_timeline_display|framework_raw|hccl_raw|output_timeline_data)"
    r"_(\d+)(?:_detail_time|_detail|_type)?\.(?:csv|json|txt)$"
)
_LEGACY_RANK = re.compile(
    r"(?:aicore|aicpu|step_trace|timeline|framework|hccl|output|flops|minddata|pipeline|min_cycle|device_queue|dynamic_shape)"
    r".*_(\d+)(?:_detail_time|_detail|_type)?\.(?:csv|json|txt)$"
)
_FLAT = re.compile(
    r"^(?:kernel_details.*\.csv|op_summary.*\.csv|trace_view\.json|step_trace_time\.csv|msprof_\d+\.db"
    r"|ascend_(?:pytorch|mindspore)_profiler(?:_\d+)?\.db)(?:\.gz)?$"
)
_FRAMEWORK_RANK = re.compile(
    r"^(?:cpu_op_execute_timestamp|cpu_op_detail_info|cpu_framework|minddata_pipeline_raw)_(\d+)\."
)
_DB_RANK = re.compile(r"^ascend_(?:pytorch|mindspore)_profiler_(\d+)\.db$")
_REQUEST_FOLDER = re.compile(r"^request_(\d+)$")
_DEVICE_FOLDER = re.compile(r"^device_(\d+)$")
_SLICE = re.compile(r"\.slice_\d+$")
_SKIPPED_FOLDERS = frozenset(("node_modules", "__pycache__", "cluster_analysis_output"))


class FoundDump(NamedTuple):
    """One rank's profiler output of one window. None is unknown. The four mappings at the end are read and never
    written, and do not count when two are compared."""

    root: str
    kind: str  # ascend_pt, ascend_ms, bare, msprof, legacy, flat, slices
    prefix: str = ""  # goes in front of each file's name in the manifest
    only_file: str | None = None
    state: str = WHOLE
    reason: str = ""
    framework: str | None = None
    rank: int | None = None
    rank_assumed: bool = False  # nothing tells it: of several devices the lowest counts
    world_size: int | None = None
    device_id: int | None = None
    host: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    profiler_steps: tuple[int, int] | None = None  # first and last by the profiler's own count
    request: int | None = None  # of the person who asked for it
    stamp: str | None = None  # UTC, YYYYmmddHHMMSS and milliseconds, from the folder's name
    info: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    run_meta: dict[str, Any] = {}
    marker: dict[str, Any] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FoundDump) and self[:-4] == other[:-4]

    def __hash__(self) -> int:
        return hash(self[:-4])

    @property
    def folder(self) -> str:
        return os.path.basename(os.path.abspath(self.root))

    @property
    def captured_at(self) -> str | None:
        """When the window was recorded, ISO 8601 in UTC."""
        end = (self.info.get("end_info") or {}).get("collectionTimeEnd") if isinstance(self.info, dict) else None
        try:
            if end:
                return _iso(datetime.fromtimestamp(int(end) / 1e9, timezone.utc))
            return _iso(datetime.strptime(self.stamp[:14], "%Y%m%d%H%M%S")) if self.stamp else None
        except (ValueError, OverflowError, OSError):
            return None


def find_dumps(path: str, now: float | None = None) -> list[FoundDump]:
    """All dumps at or under `path`, in the order of their folders' names; folders that may not be read are left out."""
    path = os.path.abspath(path)
    now = time.time() if now is None else now
    if os.path.isfile(path):
        return [described(FoundDump(os.path.dirname(path), "flat", only_file=os.path.basename(path)), now)]
    if os.path.basename(path) in (OUTPUT, MSPROF_OUTPUT):
        path = os.path.dirname(path)
    if os.path.basename(os.path.dirname(path)).startswith("PROF_") and os.path.basename(path).startswith("device_"):
        path = os.path.dirname(path)
    return [described(dump, now) for dump in walk(path)]


def walk(top: str) -> Iterator[FoundDump]:
    """Dumps at or under `top`, not yet looked into."""
    names, folders = listing(top)
    found = recognised(top, names)
    yield from found
    if not found and not too_deep(top):
        for name in filter(may_hold_dumps, folders):
            yield from walk(os.path.join(top, name))


def too_deep(folder: str) -> bool:
    """Whether nobody leaves a dump below; a loop that a broken file system shows would have no end."""
    return folder.count(os.sep) > DEEPEST


def may_hold_dumps(name: str) -> bool:
    """Whether a folder of this name is worth a look."""
    return not name.startswith(".") and name not in _SKIPPED_FOLDERS


def recognised(folder: str, names: list[str]) -> list[FoundDump]:
    """The dumps, one of each rank, that a folder with these names in it is; none where it is none."""
    own = os.path.basename(folder)
    if own.endswith("_ascend_pt") or own.endswith("_ascend_ms"):
        return [FoundDump(folder, "ascend_" + own[-2:])]
    info = any(re.match(r"^profiler_info(_\d+)?\.json$", name) for name in names)
    if OUTPUT in names or (info and ("FRAMEWORK" in names or any(name.startswith("PROF_") for name in names))):
        return [FoundDump(folder, "bare")]
    if own.startswith("PROF_") and any(
        name == MSPROF_OUTPUT or re.match(r"^(device_\d+|host)$", name) for name in names
    ):
        return [FoundDump(folder, "msprof", prefix=own + "/")]
    if MSPROF_OUTPUT in names:
        return [FoundDump(folder, "msprof")]
    if any(_SLICE.search(name) for name in names):
        return [FoundDump(folder, "slices")]
    ranks = sorted({int(match.group(1)) for match in map(_LEGACY.match, names) if match})
    if ranks:
        prefix = "profiler/" if own == "profiler" else ""
        return [FoundDump(folder, "legacy", prefix=prefix, rank=rank) for rank in ranks]
    if any(_FLAT.match(name) for name in names):
        return [FoundDump(folder, "flat")]
    return []


def legacy_file_of(name: str, rank: int | None) -> bool:
    """Whether a file of a MindInsight folder is this rank's or everybody's."""
    match = _LEGACY_RANK.search(name)
    return match is None or rank is None or int(match.group(1)) == rank


def described(dump: FoundDump, now: float) -> FoundDump:
    """The dump with all that its files tell."""
    names = _names(dump.root)
    run_meta = read_json(os.path.join(dump.root, "stepscope_run.json"))
    marker = read_json(os.path.join(dump.root, MARKER))
    metadata = read_json(os.path.join(dump.root, "profiler_metadata.json"))
    info_name = next((name for name in names if re.match(r"^profiler_info(_\d+)?\.json$", name)), "")
    info = read_json(os.path.join(dump.root, info_name)) if info_name else {}
    first, last = _window(dump, marker, run_meta)
    state, reason = _state(dump, marker, names, now)
    rank = dump.rank if dump.rank is not None else _rank(dump, run_meta, marker, info_name, info, metadata, names)
    device = _first_int(run_meta.get("device_id"), (info.get("ms_profiler_info") or {}).get("device_id"))
    assumed = rank is None
    if assumed:
        rank = device = _first_of_several_devices(dump.root, names)
    folder = _ASCEND_FOLDER.match(dump.folder)
    stamp = _STAMP.search(dump.folder)
    return FoundDump(
        root=dump.root,
        kind=dump.kind,
        prefix=dump.prefix,
        only_file=dump.only_file,
        state=state,
        reason=reason,
        framework=_framework(dump, run_meta, info),
        rank=rank,
        rank_assumed=assumed,
        world_size=_world_size(run_meta, marker, metadata, info),
        device_id=device,
        host=run_meta.get("host") or (_host(folder.group("worker")) if folder else None),
        first_step=first,
        last_step=last,
        profiler_steps=_profiler_steps(dump.root) if first is None else None,
        request=_request(dump.root, marker, run_meta),
        stamp=stamp.group(1) if stamp else None,
        info=info,
        metadata=metadata,
        run_meta=run_meta,
        marker=marker,
    )


def _framework(dump: FoundDump, run_meta: dict[str, Any], info: dict[str, Any]) -> str | None:
    if run_meta.get("framework"):
        return str(run_meta["framework"])
    if dump.kind in ("ascend_ms", "legacy", "slices") or "ms_version" in info:
        return "mindspore"
    if dump.kind == "ascend_pt" or "torch_npu_version" in info or "config" in info:
        return "torch_npu"
    return "msprof" if dump.kind == "msprof" else None


def _rank(
    dump: FoundDump,
    run_meta: dict[str, Any],
    marker: dict[str, Any],
    info_name: str,
    info: dict[str, Any],
    metadata: dict[str, Any],
    names: list[str],
) -> int | None:
    named = re.search(r"_(\d+)\.json$", info_name)
    return _first_int(
        run_meta.get("rank"),
        marker.get("rank"),
        named.group(1) if named else None,
        info.get("rank_id"),
        (info.get("ms_profiler_info") or {}).get("rank_id"),
        (metadata.get("distributed_args") or {}).get("rank"),
        _numbered(os.path.join(dump.root, "FRAMEWORK"), _FRAMEWORK_RANK),
        _numbered(os.path.join(dump.root, OUTPUT), _DB_RANK),
        _numbered(dump.root, _DB_RANK) if dump.kind == "flat" else None,
        *_folder_ranks(dump.root),
    )


def _first_of_several_devices(root: str, names: list[str]) -> int | None:
    """The lowest device of a whole host that was recorded at once: launchers number its processes in the same order.

    It goes up once, as that rank; the server finds the other devices in it.
    """
    homes = [names] + [_names(os.path.join(root, name)) for name in names if name.startswith("PROF_")]
    devices = {int(match.group(1)) for home in homes for match in map(_DEVICE_FOLDER.match, home) if match}
    return min(devices) if len(devices) > 1 else None


def _folder_ranks(root: str) -> Iterator[str | None]:
    """The rank told by the names of the dump's folder and the one above it."""
    for folder in (os.path.basename(root), os.path.basename(os.path.dirname(root))):
        match = _DYNAMIC_FOLDER.match(folder) or _RANK_FOLDER.search(folder)
        yield match.group(1) if match else None


def _numbered(folder: str, pattern: re.Pattern[str]) -> str | None:
    return next((match.group(1) for match in map(pattern.match, _names(folder)) if match), None)


def _request(root: str, marker: dict[str, Any], run_meta: dict[str, Any]) -> int | None:
    """Which request the dump answers: told by our callback, or by the folder the dynamic profiler was given."""
    above = os.path.dirname(root)
    folders = (os.path.basename(above), os.path.basename(os.path.dirname(above)))
    told = [match.group(1) for match in map(_REQUEST_FOLDER.match, folders) if match]
    return _first_int(marker.get("request"), run_meta.get("request"), *told)


def _world_size(
    run_meta: dict[str, Any], marker: dict[str, Any], metadata: dict[str, Any], info: dict[str, Any]
) -> int | None:
    groups = metadata.get("parallel_group_info")
    ranks = [
        rank
        for group in (groups.values() if isinstance(groups, dict) else [])
        if isinstance(group, dict)
        for rank in group.get("global_ranks") or []
        if isinstance(rank, int)
    ]
    return _first_int(
        run_meta.get("world_size"),
        marker.get("world_size"),
        (metadata.get("distributed_args") or {}).get("world_size"),
        info.get("rank_size"),
        max(ranks) + 1 if ranks else None,
    )


def _window(dump: FoundDump, marker: dict[str, Any], run_meta: dict[str, Any]) -> tuple[int | None, int | None]:
    for source in (marker, run_meta.get("window") or {}):
        first = _first_int(source.get("first_step")) if isinstance(source, dict) else None
        if first is not None:
            return first, _first_int(source.get("last_step"))
    match = _DYNAMIC_FOLDER.match(os.path.basename(os.path.dirname(dump.root)))
    return (int(match.group(2)), int(match.group(3))) if match else (None, None)


def _profiler_steps(root: str) -> tuple[int, int] | None:
    """First and last step of the analysed tables: the same on all ranks of a window, whatever their clocks say."""
    try:
        with open(os.path.join(root, OUTPUT, "step_trace_time.csv"), encoding="utf-8", errors="replace") as stream:
            rows = [line.split(",") for line in stream.read(LARGEST_TABLE).splitlines()]
    except OSError:
        return None
    place = rows[0].index("Step") if rows and "Step" in rows[0] else 0
    steps = [int(row[place]) for row in rows[1:] if len(row) > place and row[place].strip().isdecimal()]
    return (min(steps), max(steps)) if steps else None


def _state(dump: FoundDump, marker: dict[str, Any], names: list[str], now: float) -> tuple[str, str]:
    if dump.kind == "slices":
        return RAW, "raw device slices of MindSpore 1.x, not parsed yet: analyse them with the MindSpore that made them"
    if not os.access(dump.root, os.R_OK | os.X_OK):
        return FAILED, "this user may not read it; the agent has to run as the user of the trainings or in their group"
    analysed = _deliverables(dump)
    written = str(marker.get("state") or "")
    if written == FAILED:
        reason = "the profiler failed: %s" % (marker.get("reason") or "no reason given")
        return (WHOLE if analysed else FAILED), reason
    if not analysed and (written == RAW or _holds_raw(dump, names)):
        by_hand = " ".join(map(shlex.quote, analysis_command(dump, "python")))
        return RAW, "collected but not analysed: `watch --analyse` does it, or by hand on this host: " + by_hand
    if not analysed:
        return EMPTY, "holds no profiler result"
    if not marker and _being_written(dump, analysed, now):
        return UNFINISHED, "trace_view.json has no end yet and was written to just now: the profiler is at work"
    return WHOLE, ""


def analysis_command(dump: FoundDump, python: str) -> list[str]:
    """What turns a raw dump into tables, on the host that made it."""
    if dump.kind == "ascend_ms" or (dump.kind == "bare" and dump.framework == "mindspore"):
        return [python, "-c", _ANALYSE % "mindspore", dump.root]
    if dump.kind == "ascend_pt" or dump.kind == "bare":
        return [python, "-c", _ANALYSE % "torch_npu", dump.root]
    return ["msprof", "--export=on", "--output=" + dump.root]


def _deliverables(dump: FoundDump) -> list[str]:
    """Analysed files, as full paths."""
    folders = [os.path.join(dump.root, OUTPUT), os.path.join(dump.root, MSPROF_OUTPUT)]
    if dump.kind in ("legacy", "flat"):
        folders.append(dump.root)
    if dump.kind == "msprof":
        folders += [os.path.join(dump.root, name, "timeline") for name in _names(dump.root)]
    files = [os.path.join(folder, name) for folder in folders for name in _names(folder)]
    if dump.only_file:
        files = [os.path.join(dump.root, dump.only_file)]
    return [path for path in files if re.search(r"\.(csv|json|db|txt)(\.gz)?$", path) and os.path.isfile(path)]


def _holds_raw(dump: FoundDump, names: list[str]) -> bool:
    inside = dump.kind == "msprof" and any(re.match(r"^(device_\d+|host)$", name) for name in names)
    return inside or any(name.startswith("PROF_") or name == "FRAMEWORK" for name in names)


def signature(dump: FoundDump) -> list[int]:
    """Changes whenever something in the dump was written: number of files, bytes, latest time."""
    count = total = latest = 0
    for folder, _, names in os.walk(dump.root):
        for name in names:
            try:
                stat = os.stat(os.path.join(folder, name), follow_symlinks=False)
            except OSError:
                continue
            if not name.startswith(CLAIM):
                count, total, latest = count + 1, total + stat.st_size, max(latest, stat.st_mtime_ns)
    return [count, total, latest]


def results_sign(root: str) -> list[int]:
    """Changes when the results are made anew, at three stats; claims that come and go in the folder do not count."""
    return [int(_mtime(os.path.join(root, name)) * 1e6) for name in (OUTPUT, MSPROF_OUTPUT, MARKER)]


def analysis_has_ended(dump: FoundDump) -> bool:
    """Whether MindSpore's own log says that its analysis is over: a weak sign, files may still be moved."""
    folder = os.path.join(dump.root, "logs")
    for name in _names(folder):
        try:
            with open(os.path.join(folder, name), "rb") as stream:
                stream.seek(0, os.SEEK_END)
                stream.seek(max(0, stream.tell() - 4096))
                if re.search(rb"total_time_seconds|flow \[c(?:ann|pu)_flow\].*join", stream.read()):
                    return True
        except OSError:
            continue
    return False


def _being_written(dump: FoundDump, files: list[str], now: float) -> bool:
    """A trace without its closing bracket, in a folder that something still writes to."""
    traces = [path for path in files if os.path.basename(path) == "trace_view.json"]
    if not any(not _closed(path) for path in traces):
        return False
    return now - max((_mtime(path) for path in files), default=0.0) < QUIET_S


def _closed(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 64))
            return stream.read().rstrip().endswith((b"]", b"}"))
    except OSError:
        return True


def read_json(path: str) -> dict[str, Any]:
    """A small JSON object; empty when it is absent, unreadable or something else."""
    try:
        if os.path.getsize(path) > LARGEST_JSON:
            return {}
        with open(path, encoding="utf-8", errors="replace") as stream:
            value = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _first_int(*values: Any) -> int | None:
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
    return None


def _host(worker: str) -> str | None:
    return re.sub(r"_rank_?\d+$", "", worker) or None


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
