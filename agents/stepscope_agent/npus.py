"""What a host tells of its NPUs and their driver: `npu-smi`, and the driver's version file."""

from __future__ import annotations

import functools
import os
import re
from typing import Any, Mapping, Sequence

DRIVER_FILES = ("/usr/local/Ascend/driver/version.info", "/usr/local/Ascend/version.info")
LONGEST_S = 10.0
MOST = 64
_CHIP = re.compile(r"^\|\s*(\d+)\s+(\S.*?)\s*\|\s*([A-Za-z]+)\s*\|")
_BUS = re.compile(r"^\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|NA)\s*\|")
_EXACT_CHIP = re.compile(r"^(?:Ascend)?(\d{3}[A-Z]\d\w*(?:-\d+)?)$")
_SERIAL = re.compile(r"^\s*(?:NPU )?Serial Number\s*:\s*(\S+)", re.MULTILINE)
_VERSION = re.compile(r"^\s*Version\s*=\s*([\w.\-]+)", re.MULTILINE | re.IGNORECASE)


def npus() -> list[dict[str, Any]]:
    """[{id, chip, serial, health}] of this host; empty where there is no npu-smi. `id` counts as device ids do."""
    found, cards = parsed(_npu_smi("info"))
    serials: dict[int, str | None] = {}
    for npu, card in zip(found, cards):
        if card not in serials:
            match = _SERIAL.search(_npu_smi("info", "-t", "board", "-i", str(card)))
            serials[card] = match.group(1) if match else None
        if serials[card] and serials[card] not in ("NA", "N/A"):
            npu["serial"] = serials[card]
    return found


def parsed(text: str) -> tuple[list[dict[str, Any]], list[int]]:
    """The chips of `npu-smi info` with running ids, and the card that each is on.

    A chip takes two lines: card, name and health, then chip and bus.
    """
    found: list[dict[str, Any]] = []
    cards: list[int] = []
    head: tuple[int, str, str] | None = None
    for line in text.splitlines():
        chip = _CHIP.match(line)
        if head is not None and _BUS.match(line):
            found.append({"id": len(found), "chip": head[1][:40], "health": head[2][:20]})
            cards.append(head[0])
            head = None
        elif chip and not chip.group(2).isdigit():
            head = int(chip.group(1)), chip.group(2), chip.group(3)
        if line.startswith("|") and "Process id" in line:
            break
    return found[:MOST], cards[:MOST]


def driver_version() -> str | None:
    for path in DRIVER_FILES:
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                match = _VERSION.search(stream.read(4096))
        except OSError:
            continue
        if match:
            return match.group(1)[:60]
    return None


@functools.lru_cache(maxsize=1)
def run_facts() -> dict[str, Any]:
    """What a run's metadata should tell of the hardware below it. Only what is known."""
    found = npus()
    facts: dict[str, Any] = {
        "driver_version": driver_version(),
        "npus": [_shown(npu) for npu in found] or None,
        "soc": soc_of(found),
    }
    return {name: value for name, value in facts.items() if value is not None}


def soc_of(found: Sequence[Mapping[str, Any]]) -> str | None:
    """The chip name, such as Ascend910B3, where all are of one kind; `Ascend910` alone is several kinds."""
    names = {str(npu["chip"]) for npu in found}
    match = _EXACT_CHIP.match(names.pop()) if len(names) == 1 else None
    return "Ascend" + match.group(1) if match else None


def _shown(npu: Mapping[str, Any]) -> str:
    return "%d %s" % (npu["id"], npu["chip"])


def _npu_smi(*arguments: str) -> str:
    places = [os.path.join(folder, "npu-smi") for folder in os.get_exec_path() + ["/usr/local/sbin"]]
    program = next((path for path in places if os.access(path, os.X_OK)), None)
    if program is None:
        return ""
    import subprocess  # where there is no NPU its memory is not needed

    try:
        done = subprocess.run(
            [program] + list(arguments), stdin=subprocess.DEVNULL, capture_output=True, timeout=LONGEST_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else ""
