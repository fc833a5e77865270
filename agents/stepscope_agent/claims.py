"""Which agent has a dump in hand, told by a file in it: several agents may watch one shared folder.

Ages are taken from the file system's own clock, so hosts whose clocks differ agree.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from stepscope_agent.discover import CLAIM, read_json
from stepscope_agent.manifest import write_json

STALE_S = 900.0
"""A claim that nobody has refreshed for so long is of an agent that died."""

OWNER = "%s:%d:%s" % (socket.gethostname(), os.getpid(), os.urandom(4).hex())


def claim(root: str, server: str, project: str, owner: str = OWNER) -> bool:
    """Whether the dump is ours to send now. Where nothing can be written nobody can claim, and everybody may send."""
    path = os.path.join(root, CLAIM)
    if _create(path, owner):
        return True
    held = read_json(path)
    if held.get("owner") == owner and held.get("state") == "claimed":
        refresh(root)
        return True
    if sent_to(root, server, project):
        return False
    if held.get("state") != "sent" and not _abandoned(path, str(held.get("owner") or "")):
        return False
    aside = path + "-" + os.urandom(16).hex()
    try:
        os.rename(path, aside)  # of several agents that find it free, one succeeds
        os.unlink(aside)
    except OSError:
        return False
    return _create(path, owner)


def _abandoned(path: str, owner: str) -> bool:
    host, _, rest = owner.partition(":")
    pid = rest.partition(":")[0]
    if host == socket.gethostname() and pid.isdigit() and not _alive(int(pid)):
        return True
    return _age(path) >= STALE_S


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def refresh(root: str) -> None:
    try:
        os.utime(os.path.join(root, CLAIM))
    except OSError:
        pass


def release(root: str) -> None:
    try:
        os.unlink(os.path.join(root, CLAIM))
    except OSError:
        pass


def mark_sent(root: str, server: str, project: str, run: str, capture: str) -> None:
    """Leaves word for agents on other hosts that this dump has arrived, and under which key."""
    if not os.path.isdir(root):
        return  # renamed or removed meanwhile, and not to be made anew
    try:
        row = {"owner": OWNER, "state": "sent", "server": server, "project": project, "run": run, "capture": capture}
        write_json(os.path.join(root, CLAIM), row)
    except OSError:
        pass


def sent_to(root: str, server: str, project: str) -> bool:
    held = read_json(os.path.join(root, CLAIM))
    return (held.get("state"), held.get("server"), held.get("project")) == ("sent", server, project)


def capture_of(root: str) -> str | None:
    """The capture key under which it was sent; None where an older agent did not say."""
    told = read_json(os.path.join(root, CLAIM)).get("capture")
    return told if isinstance(told, str) else None


def _create(path: str, owner: str) -> bool:
    row: dict[str, Any] = {"owner": owner, "state": "claimed"}
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    except OSError:
        return True  # a read-only folder
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(row, stream)
    except OSError:  # a full disk: an empty claim would only keep others away
        release(os.path.dirname(path))
    return True


def _age(path: str) -> float:
    """Seconds since the claim was refreshed, both ends by the file system's clock."""
    try:
        probe = path + "-" + os.urandom(16).hex()
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        now = os.stat(probe).st_mtime
        os.unlink(probe)
        return now - os.stat(path).st_mtime
    except OSError:
        return 0.0
