"""The calls of docs/upload-protocol.md, and one file over tus with resume."""

from __future__ import annotations

import base64
import urllib.parse
from typing import Any, Callable, Iterable, Sequence

from stepscope_agent.captures import shown
from stepscope_agent.chunks import LARGEST_CHUNK, SMALLEST_CHUNK, Chunks
from stepscope_agent.contents import groups, send_group
from stepscope_agent.errors import FileChanged, Refused
from stepscope_agent.manifest import FileEntry, sha256_of
from stepscope_agent.transport import Answer, Fault, Transport, accepted

STEPS_PER_CALL = 5000
LONGEST_RUN_NAME = 200
STEP_KEYS = ("step", "loss", "lr", "global_norm", "step_time_ms", "tflops_per_device", "loss_scale", "overflow")
RESTARTS = 3
STUCK_TRIES = 5
CHECKSUM, ENCODING = 460, 415
MINE_REFUSED = (401, 403, 404, 426)
"""It is the agent whom these answers refuse (its token, its project), not what it sent."""


def _nothing(count: int) -> None:
    return None


def open_run(
    http: Transport, project: str, key: str, name: str, meta: dict[str, Any], config: dict[str, str] | None
) -> dict[str, Any]:
    """The run of `key`, made when it is new."""
    payload: dict[str, Any] = {"key": key, "name": shown(name)[:LONGEST_RUN_NAME], "meta": meta}
    if config:
        payload["config"] = config
    answer = http.call("POST", "/projects/%s/runs" % urllib.parse.quote(project, safe=""), payload)
    return _part(answer, "run")


def announce(http: Transport, run_id: int, payload: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(DUMP, files the server still needs)."""
    answer = http.call("POST", "/runs/%d/dumps" % run_id, payload)
    http.link.hear(answer.headers)
    missing = answer.json().get("missing")
    return _part(answer, "dump"), missing if isinstance(missing, list) else []


def complete(http: Transport, dump_id: int) -> dict[str, Any]:
    return _part(http.call("POST", "/dumps/%d/complete" % dump_id), "dump")


def get_dump(http: Transport, dump_id: int) -> dict[str, Any]:
    return _part(http.call("GET", "/dumps/%d" % dump_id), "dump")


def get_capture(http: Transport, capture_id: int) -> dict[str, Any]:
    return _part(http.call("GET", "/captures/%d" % capture_id), "capture")


def get_report(http: Transport, capture_id: int) -> dict[str, Any]:
    return http.call("GET", "/captures/%d/report" % capture_id).json()


def heartbeat(http: Transport, project: str, word: dict[str, Any]) -> dict[str, Any] | None:
    """The server's answer; None when it has no time for us.

    Raises Unreachable, and Refused where it is the agent who is refused.
    """
    answer = http.ask_once("POST", "/projects/%s/agents" % project, word)
    if answer.status in MINE_REFUSED:
        accepted(answer)
    return answer.json() if answer.status == 200 else None


def report_request(http: Transport, request_id: int, payload: dict[str, Any]) -> dict[str, Any] | None:
    """The request as the server sees it now: without a state when it is gone; None when it could not be reached."""
    answer = http.try_once("POST", "/capture-requests/%d" % request_id, payload)
    if answer is None or answer.status not in (200, 404):
        return None
    request = answer.json().get("request")
    return request if isinstance(request, dict) else {}


def name_reference(http: Transport, run_id: int, replace: bool) -> bool:
    """The project's other runs are compared with this one. False when another run is that already and stays it."""
    try:
        http.call("POST", "/runs/%d/reference" % run_id, {"replace": replace})
    except Refused as exc:
        if exc.status != 409:
            raise
        return False
    return True


def send_steps(http: Transport, run_id: int, source: str, records: Sequence[dict[str, Any]]) -> int:
    """Step records in calls the server takes; how many it stored."""
    stored = 0
    for begin in range(0, len(records), STEPS_PER_CALL):
        batch = [_known(record) for record in records[begin : begin + STEPS_PER_CALL]]
        answer = http.call("POST", "/runs/%d/steps" % run_id, {"source": source, "steps": batch}).json()
        stored += int(answer.get("stored") or 0)
    return stored


def send_dump(
    http: Transport,
    run_id: int,
    payload: dict[str, Any],
    files: Iterable[FileEntry],
    sent: Callable[[int], None] = _nothing,
) -> dict[str, Any]:
    """Announce, send what is missing, complete. Repeats until the server has all; the DUMP it ends with.

    `sent` hears of each stretch of bytes that no longer has to travel.
    """
    by_hash = {entry.sha256: entry for entry in files}
    dump: dict[str, Any] = {}
    for _ in range(RESTARTS):
        dump, missing = announce(http, run_id, payload)
        wanted = [by_hash[str(item["sha256"])] for item in missing if str(item.get("sha256")) in by_hash]
        sent(sum(entry.size for entry in by_hash.values()) - sum(entry.size for entry in wanted))
        _send_files(http, int(dump["id"]), wanted, sent)
        try:
            return complete(http, int(dump["id"]))
        except Refused as exc:
            if exc.code != "incomplete":
                raise
    raise Refused(409, "incomplete", "the server keeps asking for files of dump %s that were sent" % dump.get("id"))


def _send_files(http: Transport, dump_id: int, wanted: Sequence[FileEntry], sent: Callable[[int], None]) -> None:
    """Small ones many at a time where the server takes that, the others one by one."""
    small, large = groups(wanted, http.link.offer)
    for group in small:
        if send_group(http, dump_id, group):
            sent(sum(entry.size for entry in group))
        else:
            large = [*group, *large]
    for entry in large:
        send_file(http, dump_id, entry, sent)


def send_file(http: Transport, dump_id: int, entry: FileEntry, sent: Callable[[int], None] = _nothing) -> None:
    """One file over tus, from where the server's copy ends. Raises FileChanged when it is not what was announced."""
    for _ in range(RESTARTS):
        place, offset = _create(http, dump_id, entry)
        if place is None or _send_bytes(http, place, offset, entry, sent):
            return
        if _hash_now(entry) != entry.sha256:
            raise FileChanged("%s changed while it was being sent; is the job still writing it?" % entry.path)
    raise Refused(CHECKSUM, "checksum", "%s arrives damaged time after time" % entry.name)


def _create(http: Transport, dump_id: int, entry: FileEntry) -> tuple[str | None, int | None]:
    """Where to send the bytes, and from which on; no place when the server has them after all."""
    tags = (("dump", str(dump_id)), ("name", entry.name), ("sha256", entry.sha256))
    headers = {
        "Tus-Resumable": "1.0.0",
        "Upload-Length": str(entry.size),
        "Upload-Metadata": ",".join("%s %s" % (key, _b64(value.encode("utf-8"))) for key, value in tags),
    }
    answer = http.patiently(lambda: http.once("POST", http.prefix + "/api/v1/files", headers))
    if answer.status == 409:
        return None, None  # complete() tells whether the file is there
    location = urllib.parse.urlsplit(accepted(answer).headers.get("location", ""))
    if not location.path:
        raise Refused(answer.status, "bad_answer", "the server gave no address for %s" % entry.name)
    http.link.hear_encodings(answer.headers)
    place = location.path + ("?" + location.query if location.query else "")
    known = answer.headers.get("upload-offset", "")
    return place, int(known) if known.isdigit() else None


def _send_bytes(http: Transport, place: str, begin: int | None, entry: FileEntry, sent: Callable[[int], None]) -> bool:
    """True when the server holds the whole file, False when it dropped the upload."""
    with Chunks(entry) as chunks:
        offset, told, size, stuck = begin, 0, SMALLEST_CHUNK, 0
        if offset is None:
            offset = _offset(http, place)
        while offset is not None:
            if offset > told:
                sent(offset - told)
                told = offset
            if offset >= entry.size and (entry.size or told):
                return True
            before = offset
            answer = _send_chunk(http, place, chunks, offset, size)
            if answer.status == 204:
                offset = int(answer.headers.get("upload-offset", before))
                if entry.size == 0:
                    return True
            else:
                offset = _offset(http, place)
            if offset is not None and offset > before:
                size, stuck = min(LARGEST_CHUNK, size * 2), 0
            else:
                size, stuck = SMALLEST_CHUNK, stuck + 1
            if stuck > STUCK_TRIES:
                raise Refused(answer.status, "stuck", "the server does not take byte %d of %s" % (before, entry.name))
        sent(-told)
        return False


def _send_chunk(http: Transport, place: str, chunks: Chunks, offset: int, size: int) -> Answer:
    """One PATCH. Whatever the trouble, the server's own offset says where to go on: a resend never guesses."""
    entry = chunks.entry
    packed = http.link.pays(entry.name, min(size, entry.size - offset), bool(http.bytes_per_s))
    state = {"tries": 0, "packed": packed}

    def attempt() -> Answer:
        if state["tries"]:
            known = _offset(http, place)
            if known is None or known != offset:
                return Answer(409, {}, b"")
        state["tries"] += 1
        chunk = chunks.take(offset, size, bool(state["packed"]))
        chunks.prepare(offset + chunk.size, min(LARGEST_CHUNK, size * 2), packed)
        headers = {
            "Tus-Resumable": "1.0.0",
            "Content-Type": "application/offset+octet-stream",
            "Upload-Offset": str(offset),
            "Upload-Checksum": chunk.checksum,
        }
        if chunk.packed:
            headers["Content-Encoding"] = "gzip"
        began = http.clock()
        answer = http.once("PATCH", place, headers, chunk.body)
        http.pace(len(chunk.body), began)
        if not chunk.packed:
            http.link.note(chunk.size, http.sending_s)
        elif answer.status in (CHECKSUM, ENCODING):  # an older server behind the same address takes plain bytes
            state["packed"] = False
            raise Fault("packed bytes were not understood", retry_after=0.0)
        if answer.status == CHECKSUM and offset + chunk.size < entry.size:
            raise Fault("bytes were damaged on the way")
        return answer

    answer = http.patiently(attempt)
    return answer if answer.status in (204, 404, 409, 410, CHECKSUM) else accepted(answer)


def _offset(http: Transport, place: str) -> int | None:
    """How much the server holds; None when it does not know the upload (any more)."""
    answer = http.patiently(lambda: http.once("HEAD", place, {"Tus-Resumable": "1.0.0"}))
    if answer.status in (404, 410):
        return None
    return int(accepted(answer).headers.get("upload-offset", "0"))


def _hash_now(entry: FileEntry) -> str:
    try:
        return sha256_of(entry.path)
    except OSError:
        return ""


def _known(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in STEP_KEYS if record.get(key) is not None}


def _part(answer: Answer, name: str) -> dict[str, Any]:
    part = answer.json().get(name)
    if not isinstance(part, dict):
        raise Refused(answer.status, "bad_answer", "this is not a Stepscope server: its answer has no %r" % name)
    return part


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
