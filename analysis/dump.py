"""One rank's profiler output: which files there are, whose they are. Nothing but this and `names` knows folders and
file names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis import names
from analysis.errors import BadDump
from analysis.folders import entries, files_under, what

MAX_ENTRIES = 200_000
"""Directory entries looked at under one path; more is not a folder of dumps but a mistake."""
MAX_DEPTH = 12
MAX_SIDE_BYTES = 16 << 20
"""Of a file that says whose a dump is: read before limits of memory hold, and JSON unfolds to 30 times its size."""
DUMP_FOLDER = re.compile(r"^(?P<host>.+?)_\d+_\d{14,17}_ascend_(?P<kind>pt|ms)$")
RAW_HELP = (
    "raw profiler data, not parsed yet; run `msprof --export=on` or mindspore.profiler.profiler.analyse "
    "on the training host"
)


@dataclass(frozen=True)
class RankDump:
    """One rank's files of one window. `files` maps a label (a path inside the dump) to where its bytes are."""

    label: str
    framework: str | None
    format: str
    rank: int | None
    device_id: int | None
    host: str | None
    files: Mapping[str, Path]
    info: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    run_meta: dict[str, Any] = field(default_factory=dict)
    marker: dict[str, Any] = field(default_factory=dict)
    """The agent's own `.complete.json`."""
    device: int | None = None
    """The device to report where the files hold rows of several; null takes the rank's own, else the busiest."""
    sent_rank: int | None = None
    """The rank an upload was sent as."""
    raw: bool = False
    """Raw device data lies here that only the training host can analyse."""
    warnings: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    """Lines on what has a dump file's name and is no file; also among the warnings."""

    def find(self, pattern: str) -> list[str]:
        """Labels whose own name (without `.gz`) matches the whole pattern; deliverables first, raw exports after
        them."""
        wanted = re.compile(pattern)
        found = [label for label in self.files if wanted.fullmatch(names.base_name(label))]
        return sorted(found, key=lambda label: (_place(label), label))

    def first(self, pattern: str) -> str | None:
        """The first label `find` gives, if any."""
        return next(iter(self.find(pattern)), None)

    def name(self, label: str) -> str:
        """The file as a person knows it."""
        return f"{self.label}/{label}" if self.label else label

    def size(self, label: str) -> int:
        """Bytes of the file as it lies there."""
        return self.files[label].stat().st_size

    def sent_as(self, rank: int | None, device: int | None, *, exact: bool = False) -> RankDump:
        """The same files, with the rank and device they were sent as: which of several devices in them is meant.
        `exact`: this very device, whatever the files say."""
        if exact:
            return replace(self, sent_rank=rank, device=device)
        return replace(self, sent_rank=rank, device_id=self.device_id if self.device_id is not None else device)


def _place(label: str) -> int:
    folder = label.rpartition("/")[0].split("/")[-1]
    order = ("ASCEND_PROFILER_OUTPUT", "", "mindstudio_profiler_output", "FRAMEWORK", "profiler")
    return order.index(folder) if folder in order else len(order)


def dump_from_files(files: Mapping[str, Path], folder: str = "") -> RankDump:
    """A dump from labels and the places of their bytes. Unreadable side files become warnings."""
    wanted = {label: path for label, path in files.items() if names.is_dump_file(label)}
    raw = any(names.RAW.fullmatch(names.base_name(label)) for label in files)
    warnings: list[str] = []
    info = _side_file(wanted, r"profiler_info(_\d+)?\.json", warnings)
    metadata = _metadata(wanted, warnings)
    run_meta = _side_file(wanted, r"stepscope_run\.json", warnings)
    marker = _side_file(wanted, r"\.complete\.json", warnings)
    match = DUMP_FOLDER.match(folder.rsplit("/", 1)[-1])
    return RankDump(
        label=folder,
        framework=_framework(wanted, folder, info, run_meta),
        format=_format(wanted),
        rank=_rank(wanted, folder, info, metadata, run_meta, warnings),
        device_id=_first_int(run_meta.get("device_id"), _dict(info.get("ms_profiler_info")).get("device_id")),
        host=_text(run_meta.get("host")) or (match.group("host") if match else None),
        files=wanted,
        info=info,
        metadata=metadata,
        run_meta=run_meta,
        marker=marker,
        raw=raw,
        warnings=tuple(warnings),
    )


def _side_file(files: Mapping[str, Path], pattern: str, warnings: list[str]) -> dict[str, Any]:
    from analysis.readers.text import read_json, storable

    label = next((label for label in sorted(files) if re.fullmatch(pattern, names.base_name(label))), None)
    if label is None:
        return {}
    try:
        value = storable(read_json(files[label], label, most=MAX_SIDE_BYTES))
    except BadDump as error:
        warnings.append(str(error))
        return {}
    except RecursionError:
        warnings.append(f"{label}: is nested too deep for a profiler's file")
        return {}
    if not isinstance(value, dict):
        warnings.append(f"{label}: is not a JSON object")
        return {}
    return value


def _metadata(files: Mapping[str, Path], warnings: list[str]) -> dict[str, Any]:
    """What the profiler tells of the job, and what msprof-analyze found out about its groups."""
    from analysis.readers.cluster import database_metadata

    told = _side_file(files, r"communication_group\.json", warnings)
    for label in sorted(files):
        if names.base_name(label) == "cluster_analysis.db":
            try:
                told = {**told, **database_metadata(files[label], label)}
            except BadDump as error:
                warnings.append(str(error))
    return {**told, **_side_file(files, r"profiler_metadata\.json", warnings)}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _first_int(*values: object) -> int | None:
    """The first value that is a whole number, also when written as text."""
    for value in values:
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and 0 <= value < 10**9:
            return value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
    return None


def _framework(
    files: Mapping[str, Path], folder: str, info: Mapping[str, Any], run_meta: Mapping[str, Any]
) -> str | None:
    told = run_meta.get("framework")
    if told in ("mindspore", "torch_npu", "msprof"):
        return str(told)
    if (
        "torch_npu_version" in info
        or folder.rstrip("/").endswith("_ascend_pt")
        or _any(files, r"ascend_pytorch_profiler.*\.db")
    ):
        return "torch_npu"
    if (
        "ms_version" in info
        or folder.rstrip("/").endswith("_ascend_ms")
        or _any(files, r"ascend_mindspore_profiler.*\.db")
    ):
        return "mindspore"
    kinds = {names.kind_of(names.base_name(label)) for label in files}
    if kinds & {"mindspore_cpu", "mindspore_legacy"} or "context_mode" in info:
        return "mindspore"
    if _any(files, r"kernel_details\.csv"):
        return "torch_npu" if "ms_profiler_info" not in info else "mindspore"
    return "msprof" if kinds & {"msprof", "db"} else None


def _any(files: Mapping[str, Path], pattern: str) -> bool:
    return any(re.fullmatch(pattern, names.base_name(label)) for label in files)


def _format(files: Mapping[str, Path]) -> str:
    """The richest form that is there and not empty."""
    kinds: dict[str, bool] = {}
    for label, path in files.items():
        base = names.base_name(label)
        kind = names.kind_of(base)
        if kind == "text" and "mindstudio_profiler_output" in label:
            kind = "msprof"
        if kind and path.stat().st_size:
            kinds[kind] = True
    if _any(files, r"kernel_details\.csv") and "text" in kinds:
        return "text"
    if any(names.KERNEL_DATABASE.fullmatch(names.base_name(label)) for label in files):
        return "db"
    order = ("text", "mindspore_cpu", "mindspore_legacy", "msprof", "db")
    return next((kind for kind in order if kinds.get(kind)), "text")


def _rank(
    files: Mapping[str, Path],
    folder: str,
    info: Mapping[str, Any],
    metadata: Mapping[str, Any],
    run_meta: Mapping[str, Any],
    warnings: list[str],
) -> int | None:
    """Rank by the best source; sources that disagree are warned of. A device number is never taken for a rank."""
    told = {
        "stepscope_run.json": _first_int(run_meta.get("rank")),
        "profiler_info": _first_int(info.get("rank_id"), _dict(info.get("ms_profiler_info")).get("rank_id")),
        "profiler_metadata.json": _first_int(_dict(metadata.get("distributed_args")).get("rank")),
        "file names": _rank_in_names(files),
        "the folder's name": _rank_in_folder(folder),
    }
    known = {source: rank for source, rank in told.items() if rank is not None}
    if len({rank for source, rank in known.items() if source != "the folder's name"}) > 1:
        warnings.append(
            "rank is told differently: " + ", ".join(f"{source} says {rank}" for source, rank in known.items())
        )
    return next(iter(known.values()), None)


def _rank_in_names(files: Mapping[str, Path]) -> int | None:
    patterns = (
        r"profiler_info_(\d+)\.json",
        r"ascend_(?:pytorch|mindspore)_profiler_(\d+)\.db",
        r"cpu_op_(?:execute_timestamp|detail_info|type_info)_(\d+)\.\w+",
    )
    for pattern in patterns:
        for label in sorted(files):
            if match := re.fullmatch(pattern, names.base_name(label)):
                return _first_int(match.group(1))
    return next(
        (rank for label in sorted(files) if (rank := names.legacy_rank(names.base_name(label))) is not None), None
    )


def _rank_in_folder(folder: str) -> int | None:
    for part in reversed(folder.split("/")):
        if match := names.RANK_FOLDER.search(part):
            return _first_int(match.group(1))
    return None


def find_dumps(path: Path) -> list[RankDump]:
    """Every rank's dump at or under `path` (a dump, a folder of dumps, or one file), ordered by rank. Archives: use
    `opened`.

    Raises BadDump naming what lies there instead when nothing can be read.
    """
    if not path.exists():
        raise BadDump(str(path), what(path) if path.is_symlink() else "does not exist")
    if path.is_file():
        return [_bare_file(path)]
    if not path.is_dir():
        raise BadDump(str(path), what(path))
    top = path.parent if path.name in names.KNOWN_FOLDERS and path.name != "cluster_analysis_output" else path
    only = path.name if top != path else None
    roots = _roots(top, only)
    dumps = [dump for root in roots for dump in _dumps_of(root, top, only)]
    usable = [dump for dump in dumps if any(names.kind_of(names.base_name(label)) for label in dump.files)]
    if all(_sums_up(dump) for dump in usable):
        usable = [rank for dump in usable for rank in _cluster_dumps(dump)]
    else:  # the ranks' own dumps are here: what was summed up from them adds only who is in which group
        members = [row for dump in usable if _sums_up(dump) for row in _listed_groups(dump)]
        usable = [_knowing(dump, members) for dump in usable if not _sums_up(dump)]
    if usable:
        usable[0] = replace(usable[0], warnings=(*usable[0].warnings, *(_linked(top) if only is None else ())))
        return sorted(usable, key=lambda dump: (dump.rank is None, dump.rank or 0, dump.label))
    if any(dump.raw for dump in dumps) or _holds_raw(path):
        raise BadDump(str(path), RAW_HELP)
    if odd := next((line for dump in dumps for line in dump.odd), None):
        raise BadDump(str(path), f"holds no profiler files that can be read: {odd}")
    if link := next((entry.name for entry in sorted(path.iterdir()) if entry.is_symlink() and entry.is_dir()), None):
        raise BadDump(
            str(path), f"holds no profiler files that are known; {link} is a link, and links are not followed"
        )
    nothing = "holds no profiler files that are known"
    if inner := _inner_archive(path):
        raise BadDump(str(path), f"{nothing}; {inner} is an archive itself: unpack it first")
    raise BadDump(str(path), nothing)


def _inner_archive(path: Path) -> str | None:
    """The first archive under a folder, by its name."""
    from analysis.archives import TAR_ENDINGS

    held = (f"{folder}/{name}" for folder, _, files in os.walk(path) for name in sorted(files))
    found = next((name for name in held if name.lower().endswith((".zip", *TAR_ENDINGS))), None)
    return found and Path(found).relative_to(path).as_posix()


def _linked(top: Path) -> list[str]:
    """A line for each folder beside the dumps that is only a link out of here: its rank is missing."""
    links = (top / name for name in entries(top)[1] if (top / name).is_symlink() and (top / name).is_dir())
    return [
        f"{link.name} is a link to a folder, and links are not followed: what it holds is left out"
        for link in links
        if not link.resolve().is_relative_to(top.resolve())
    ]


def _sums_up(dump: RankDump) -> bool:
    """Whether this is only what msprof-analyze wrote about other dumps."""
    own = r"(kernel_details|step_trace_time)\.csv"
    return (
        bool(dump.first(names.CLUSTER.pattern)) and not dump.find(own) and not dump.find(names.KERNEL_DATABASE.pattern)
    )


def _listed_groups(dump: RankDump) -> list[Any]:
    listed = dump.metadata.get("comm_group_parallel_info")
    return listed if isinstance(listed, list) else []


def _knowing(dump: RankDump, members: list[Any]) -> RankDump:
    """The dump with the groups that another file of the capture lists."""
    if not members:
        return dump
    return replace(dump, metadata={**dump.metadata, "comm_group_parallel_info": [*members, *_listed_groups(dump)]})


def _cluster_dumps(dump: RankDump) -> list[RankDump]:
    """One dump per rank of what msprof-analyze wrote about a whole job."""
    from analysis.readers import cluster, step_trace

    readers = (
        (r"cluster_step_trace_time\.csv", step_trace.cluster_ranks),
        (r"cluster_analysis\.db", cluster.ranks_of_database),
        (r"cluster_communication\.json", cluster.ranks_of_communication),
    )
    found, errors = set(), []
    for pattern, reader in readers:
        for label in dump.find(pattern):
            try:
                found |= set(reader(dump.files[label], label))
            except BadDump as error:
                errors.append(error)
    if not found and errors:
        raise errors[0]
    told = (*dump.warnings, *(str(error) for error in errors))
    return [replace(dump, rank=rank, warnings=told) for rank in sorted(found)]


def _bare_file(path: Path) -> RankDump:
    if names.RAW.fullmatch(path.name):
        raise BadDump(str(path), RAW_HELP)
    if names.kind_of(names.base_name(path.name)) is None:
        if path.suffix == ".csv":
            return dump_from_files({"kernel_details.csv": path}, path.name)
        raise BadDump(str(path), "is not a profiler file or archive that is known")
    return dump_from_files({path.name: path}, path.parent.name)


def _roots(top: Path, only: str | None) -> list[Path]:
    if only is not None:
        return [top]
    found: list[Path] = []
    seen = 0
    queue = [(top, 0)]
    while queue:
        folder, depth = queue.pop(0)
        folders, files = entries(folder)
        seen += len(folders) + len(files)
        if seen > MAX_ENTRIES:
            raise BadDump(str(top), f"holds more than {MAX_ENTRIES} files; name the folder of a run")
        if _is_root(folder, folders, files):
            found.append(folder)
        elif depth < MAX_DEPTH:
            queue.extend((folder / name, depth + 1) for name in folders)
    return found


def _is_root(folder: Path, folders: list[str], files: list[str]) -> bool:
    if re.search(r"_ascend_(pt|ms)$", folder.name):
        return True
    if {"ASCEND_PROFILER_OUTPUT", "FRAMEWORK", "mindstudio_profiler_output"} & set(folders):
        return True
    if folder.name.startswith("PROF_") and any(re.fullmatch(r"device_\d+|host", name) for name in folders):
        return True
    if "profiler" in folders and any(names.kind_of(names.base_name(name)) for name in entries(folder / "profiler")[1]):
        return True
    return any(names.kind_of(names.base_name(name)) for name in files)


def _dumps_of(root: Path, top: Path, only: str | None) -> Iterator[RankDump]:
    """The dump in this folder, or one per rank where file names number several."""
    files, odd = files_under(root, lambda label: only is None or "/" not in label or label.startswith(f"{only}/"))
    folder = _folder_label(root, top)
    ranks = {rank for label in files if (rank := names.own_rank(names.base_name(label))) is not None}
    if len(ranks) < 2 or _any(files, r"kernel_details\.csv"):
        yield _warned(dump_from_files(files, folder), odd)
        return
    for rank in sorted(ranks):
        own = {label: path for label, path in files.items() if names.own_rank(names.base_name(label)) in (None, rank)}
        yield _warned(dump_from_files(own, folder), odd)


def _warned(dump: RankDump, odd: list[str]) -> RankDump:
    return replace(dump, warnings=(*dump.warnings, *odd), odd=tuple(odd))


def _folder_label(root: Path, top: Path) -> str:
    """The folder's path from the one asked for, which is the name people know it by."""
    return root.resolve().name if root == top else str(root.relative_to(top))


def _holds_raw(path: Path) -> bool:
    names_seen = (name for _, folders, files in os.walk(path) for name in (*files, *folders))
    return any(names.RAW.fullmatch(name) or re.fullmatch(r"PROF_\w+|JOB\w+", name) for name in names_seen)


@contextmanager
def opened(path: Path) -> Iterator[list[RankDump]]:
    """The dumps at `path`; a `.zip` or tar archive is unpacked into a temporary folder for the time of the block."""
    from analysis.archives import is_archive, unpacked

    if not path.is_file() or not is_archive(path):
        yield find_dumps(path)
        return
    with unpacked(path) as folder:
        try:
            yield find_dumps(folder)
        except BadDump as error:
            if error.path == str(folder):
                raise BadDump(str(path), error.reason) from error
            raise
