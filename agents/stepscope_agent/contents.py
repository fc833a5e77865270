"""Small files of a dump, many in one request: by themselves they cost more in calls than in bytes."""

from __future__ import annotations

import hashlib
import zlib
from typing import Sequence

from stepscope_agent.chunks import WORTH_PACKING, whole_file
from stepscope_agent.errors import FileChanged
from stepscope_agent.link import Offer
from stepscope_agent.manifest import FileEntry
from stepscope_agent.transport import Answer, Fault, Transport, accepted

LARGEST_GROUP = 4 * 1024 * 1024
"""Plain bytes of a request, of which two copies are in memory. A larger file goes by tus, and can be gone on with."""
CHECKSUM, ENCODING, UNKNOWN = 460, 415, (404, 405)


def groups(entries: Sequence[FileEntry], offer: Offer | None) -> tuple[list[list[FileEntry]], list[FileEntry]]:
    """(groups that fit into a request each, files that go by tus). All go by tus where the server offers nothing."""
    if offer is None:
        return [], list(entries)
    found: list[list[FileEntry]] = []
    large, room, most = [], 0, min(offer.most_bytes, LARGEST_GROUP)
    for entry in entries:
        if entry.size > most:
            large.append(entry)
            continue
        if not found or entry.size > room or len(found[-1]) >= offer.most_files:
            found.append([])
            room = most
        found[-1].append(entry)
        room -= entry.size
    return found, large


def send_group(http: Transport, dump_id: int, group: Sequence[FileEntry]) -> bool:
    """All of them in one request. False when the server knows no such call. Raises FileChanged, Refused."""
    parts = [whole_file(entry) for entry in group]
    plain = b"".join(parts)
    headers = {
        "Content-Type": "application/octet-stream",
        "Stepscope-Contents": ",".join(entry.sha256 for entry in group),
    }
    state = {"packed": http.link.pays(group[0].name if len(group) == 1 else "", len(plain), bool(http.bytes_per_s))}

    def attempt() -> Answer:
        body = _packed(plain) if state["packed"] else plain
        encoding = {"Content-Encoding": "gzip"} if len(body) < len(plain) else {}
        began = http.clock()
        path = "%s/api/v1/dumps/%d/contents" % (http.prefix, dump_id)
        answer = http.once("POST", path, {**headers, **encoding}, body)
        http.pace(len(body), began)
        if not encoding:
            http.link.note(len(body), http.sending_s)
        elif answer.status in (CHECKSUM, ENCODING):
            state["packed"] = False
            raise Fault("packed bytes were not understood", retry_after=0.0)
        if answer.status == CHECKSUM:
            _check_unchanged(group, parts)
            raise Fault("bytes were damaged on the way")
        return answer

    answer = http.patiently(attempt)
    if answer.status in UNKNOWN:
        return False
    accepted(answer)
    return True


def _packed(plain: bytes) -> bytes:
    """gzip of it where that is worth it."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    body = packer.compress(plain) + packer.flush()
    return body if len(body) < WORTH_PACKING * len(plain) else plain


def _check_unchanged(group: Sequence[FileEntry], parts: Sequence[bytes]) -> None:
    for entry, part in zip(group, parts):
        if hashlib.sha256(part).hexdigest() != entry.sha256:
            raise FileChanged("%s changed while it was being sent; is the job still writing it?" % entry.path)
