"""One upload from start to end: dumps found, run made, bytes sent, analysis awaited. Prints nothing."""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from stepscope_agent import client, logs, npus
from stepscope_agent.align import EVIDENCE, read_evidence
from stepscope_agent.captures import Windows, capture_keys, key_of, shown
from stepscope_agent.control import RUN_FILE
from stepscope_agent.discover import WHOLE, FoundDump, find_dumps, read_json
from stepscope_agent.errors import AgentError, FileChanged, NothingToUpload, Refused, TimedOut
from stepscope_agent.manifest import FileEntry, HashCache, entries_of
from stepscope_agent.run_config import config_left_in, read_config
from stepscope_agent.transport import Transport

POLL_FIRST, POLL_LONGEST = 1.0, 5.0


class Job(NamedTuple):
    """What a person asked for."""

    path: str
    project: str
    run: str | None
    run_key: str | None = None
    capture: str | None = None
    config: str | None = None
    log: str | None = None
    with_trace: bool = False
    replace: bool = False
    alignment: str | None = None
    reference: bool = False
    soc: str | None = None


class Planned(NamedTuple):
    dump: FoundDump
    capture: str
    rank: int
    files: list[FileEntry]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)

    def payload(self, replace: bool) -> dict[str, Any]:
        dump = self.dump
        optional = {
            "world_size": dump.world_size,
            "device_id": dump.device_id,
            "host": dump.host,
            "framework": dump.framework,
            "folder": shown(dump.folder),
            "captured_at": dump.captured_at,
        }
        payload: dict[str, Any] = {"capture": self.capture, "rank": self.rank, "replace": replace}
        payload.update({name: value for name, value in optional.items() if value is not None})
        if dump.first_step is not None:
            payload["window"] = {"first_step": dump.first_step, "last_step": dump.last_step or dump.first_step}
        payload["files"] = [entry.row() for entry in self.files]
        return payload


class Outcome:
    def __init__(self) -> None:
        self.run: dict[str, Any] = {}
        self.dumps: list[dict[str, Any]] = []
        self.captures: list[dict[str, Any]] = []
        self.steps = 0
        self.failures: list[str] = []
        self.last_error: AgentError | None = None


def plan(
    job: Job, warn: Callable[[str], None], cache: HashCache | None = None, windows: Windows | None = None
) -> list[Planned]:
    """What goes up, with hashes. Says by name what does not and why."""
    if not os.path.exists(job.path):
        raise AgentError("%s does not exist" % job.path)
    if job.path.endswith((".zip", ".tar.gz", ".tgz")):
        raise AgentError("%s is an archive: unpack it first, or upload it in the browser" % job.path)
    dumps = []
    for dump in find_dumps(job.path):
        if dump.reason:
            warn("%s: %s" % (dump.root, dump.reason))
        if dump.state == WHOLE:
            dumps.append(dump)
    counts = windows.counts(dumps, lambda dump: job.run_key or job.run or "") if windows else None
    keys = capture_keys(dumps, job.capture, counts)
    chosen = _newest(_with_ranks(dumps, keys, warn), keys, warn)
    planned = []
    for dump, rank in chosen:
        files, troubles = entries_of(dump, job.with_trace, cache.sha256 if cache else None)
        for trouble in troubles:
            warn("cannot read %s" % trouble)
        if files:
            planned.append(Planned(dump, keys[dump], rank, files))
    return planned


def _with_ranks(
    dumps: Sequence[FoundDump], keys: dict[FoundDump, str], warn: Callable[[str], None]
) -> list[tuple[FoundDump, int]]:
    ranked = []
    for dump in dumps:
        alone = sum(keys[other] == keys[dump] for other in dumps) == 1
        if dump.rank is not None:
            ranked.append((dump, dump.rank))
        elif alone:
            warn("%s: nothing tells its rank; taken as rank 0" % dump.root)
            ranked.append((dump, 0))
        else:
            warn("%s: nothing tells its rank; name its folder rank_N" % dump.root)
    return ranked


def _newest(
    ranked: Sequence[tuple[FoundDump, int]], keys: dict[FoundDump, str], warn: Callable[[str], None]
) -> list[tuple[FoundDump, int]]:
    """One dump for each capture and rank."""
    best: dict[tuple[str, int], FoundDump] = {}
    for dump, rank in sorted(ranked, key=lambda row: (row[0].stamp or "", row[0].root)):
        older = best.get((keys[dump], rank))
        if older is not None:
            warn("%s: rank %d of capture %s is also in %s, newer" % (older.root, rank, keys[dump], dump.root))
        best[keys[dump], rank] = dump
    return [(dump, rank) for (_, rank), dump in best.items()]


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def run_name(job: Job, planned: Sequence[Planned]) -> str:
    """The name given, else the one the callback was told."""
    told = {str(item.dump.run_meta["run"]) for item in planned if item.dump.run_meta.get("run")}
    if job.run:
        return job.run
    if not planned:
        told = {str(name) for name in [read_json(os.path.join(job.path, RUN_FILE)).get("run")] if name}
    if len(told) == 1:
        return told.pop()
    raise AgentError("give --run NAME" + (": these dumps are of %s" % ", ".join(sorted(told)) if told else ""))


def run_meta(planned: Sequence[Planned]) -> dict[str, Any]:
    """What the dumps tell about their run. Only what is known."""
    meta: dict[str, Any] = {}
    for item in planned:
        dump = item.dump
        told = of_the_run(dump.run_meta)
        told.setdefault("framework", dump.framework)
        told.setdefault("framework_version", dump.info.get("ms_version") or dump.info.get("torch_npu_version"))
        told.setdefault("cann_version", dump.info.get("cann_version"))
        told.setdefault("jit_level", dump.info.get("jit_level"))
        told.setdefault("world_size", dump.world_size)
        told.setdefault("parallel", _parallel(dump.metadata.get("distributed_args")))
        told.setdefault("environment", dump.metadata.get("ENV_VARIABLES"))
        for key, value in told.items():
            if value not in (None, "", {}, "not known") and key not in meta:
                meta[key] = value
    return meta


def of_the_run(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of what our callback left: what holds for all ranks."""
    return {key: value for key, value in row.items() if key not in _OF_ONE_RANK}


def alignment_meta(job: Job, planned: Sequence[Planned]) -> dict[str, Any]:
    """The comparison of layer outputs given, or left in the folder of the upload or of one of its dumps."""
    if job.alignment:
        found = read_evidence(job.alignment)
        if found is None:
            raise AgentError("%s is not what `stepscope-agent align` writes" % job.alignment)
        return {"alignment": found}
    for folder in _homes(job, planned):
        found = read_evidence(os.path.join(folder, EVIDENCE))
        if found is not None:
            return {"alignment": found}
    return {}


def _homes(job: Job, planned: Sequence[Planned]) -> list[str]:
    """Where what concerns the whole run may lie: the folder of the upload, its dumps, and the folders around them."""
    roots = [item.dump.root for item in planned]
    return [job.path] + roots + [os.path.dirname(root) for root in roots]


def hardware(planned: Sequence[Planned]) -> dict[str, Any]:
    """NPUs and driver below these dumps, when they were recorded on this host."""
    here = socket.gethostname()
    return npus.run_facts() if any(item.dump.host == here for item in planned) else {}


_OF_ONE_RANK = frozenset(("schema", "run", "rank", "device_id", "host", "window", "request", "reference"))
_MEGATRON_SIZES = (
    ("tensor_model_parallel_size", "tp"),
    ("pipeline_model_parallel_size", "pp"),
    ("data_parallel_size", "dp"),
    ("context_parallel_size", "cp"),
    ("expert_model_parallel_size", "ep"),
)


def _parallel(arguments: Any) -> dict[str, int] | None:
    if not isinstance(arguments, dict):
        return None
    return {short: arguments[name] for name, short in _MEGATRON_SIZES if _count(arguments.get(name))}


def step_records(job: Job, planned: Sequence[Planned]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(source, records) from the log given and from our callback's files under the path."""
    found = []
    callback = [logs.read_records_file(path) for path in _record_files(job.path, planned)]
    if callback:  # one rank's: the one that knows most losses (with pipeline stages only the last has any)
        found.append(("callback", max(callback, key=lambda rows: (sum("loss" in row for row in rows), len(rows)))))
    if job.log:
        try:
            records = logs.read_log_file(job.log)
        except OSError as exc:
            raise AgentError("cannot read %s: %s" % (job.log, exc.strerror)) from exc
        found.append(("log", records))
    return [(source, records) for source, records in found if records]


def _record_files(path: str, planned: Sequence[Planned]) -> list[str]:
    own = [entry.path for item in planned for entry in item.files if entry.name == "stepscope_steps.jsonl"]
    beside = []
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        beside = [os.path.join(path, n) for n in names if n.startswith("stepscope_steps") and n.endswith(".jsonl")]
    return beside or own


def upload(
    http: Transport,
    job: Job,
    planned: Sequence[Planned],
    sent: Callable[[int], None] = lambda count: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Sends everything planned. One dump's trouble does not keep the others from arriving."""
    records = step_records(job, planned)
    if not planned and not records:
        raise NothingToUpload("nothing to upload under %s" % job.path)
    outcome = Outcome()
    name = run_name(job, planned)
    path = job.config or config_left_in(_homes(job, planned))
    config = read_config(path) if path else None
    meta = {**hardware(planned), **run_meta(planned), **alignment_meta(job, planned)}
    if job.soc:
        meta["soc"] = job.soc
    outcome.run = client.open_run(http, job.project, job.run_key or key_of(name), name, meta, config)
    for source, rows in records:
        outcome.steps += client.send_steps(http, outcome.run["id"], source, rows)
    if job.reference:
        client.name_reference(http, outcome.run["id"], replace=True)
    for item in planned:
        try:
            outcome.dumps.append(_send(http, outcome.run["id"], item, job, sent))
        except (FileChanged, Refused) as exc:
            if isinstance(exc, Refused) and exc.status in (401, 403, 426):
                raise
            outcome.failures.append("rank %d of %s: %s" % (item.rank, item.capture, trouble_with(item.dump, exc)))
            outcome.last_error = exc
            warn(outcome.failures[-1])
    captures = {dump["capture"]["id"]: dump["capture"] for dump in outcome.dumps if dump.get("capture")}
    outcome.captures = list(captures.values())
    return outcome


def trouble_with(dump: FoundDump, exc: Exception) -> str:
    """What went wrong with a dump; with the cure where it took the rank of another host's."""
    if dump.rank_assumed and isinstance(exc, Refused) and exc.code == "conflict":
        cure = "nothing in %s tells its rank: are there several hosts, name the folder on each after its first rank"
        return "%s; %s, such as rank_0 and rank_8" % (exc, cure % dump.folder)
    return str(exc)


def _send(http: Transport, run_id: int, item: Planned, job: Job, sent: Callable[[int], None]) -> dict[str, Any]:
    return client.send_dump(http, run_id, item.payload(job.replace), item.files, sent)


def wait(http: Transport, captures: Sequence[dict[str, Any]], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Each capture as the API shows it once its analysis has ended, well or badly."""
    done = []
    for capture in captures:
        pause = POLL_FIRST
        while True:
            known = _capture(http, capture)
            if known.get("state") in ("ready", "failed"):
                done.append(known)
                break
            tell("%s: %s" % (known.get("key"), _progress(known)))
            left = http.remaining()
            if left is not None and left < pause:
                raise TimedOut(
                    "the analysis of %s has not ended in time; see %s" % (known.get("key"), known.get("url"))
                )
            http.sleep(pause)
            pause = min(POLL_LONGEST, pause * 1.5)
    return done


def _capture(http: Transport, capture: dict[str, Any]) -> dict[str, Any]:
    try:
        return client.get_capture(http, int(capture["id"]))
    except TimedOut as exc:
        text = "the analysis of %s has not ended in time; see %s"
        raise TimedOut(text % (capture.get("key"), capture.get("url"))) from exc


def _progress(capture: dict[str, Any]) -> str:
    counts = capture.get("dumps") or {}
    told = ["%d %s" % (counts[state], state) for state in ("uploaded", "digesting", "digested") if counts.get(state)]
    return ", ".join(told) or str(capture.get("state"))
