"""communication.json and communication_matrix.json."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from analysis.synthetic.truth import CommTruth

TRANSPORTS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
MAX_LINKS = 15
"""Links a rank is shown with; in a larger group, and between stages, it talks to its neighbours only."""
LINK_GBPS = 18.0
"""Large packets over one HCCS link."""


def communicator(group: str, ranks: Sequence[int]) -> str:
    """The name after the @ of an operation: digits that are the same on all ranks of the group."""
    seed = sum((rank + 1) * 1_000_003 ** (i % 3 + 1) for i, rank in enumerate(ranks))
    digits = {"tp": "128", "dp": "097", "pp": "346", "ep": "512", "cp": "271", "world": "612"}[group]
    return str(5_862_276_000_000_000_000 + seed * 1000 % 10**15)[:-3] + digits


def write_communication(path: Path, ops: Sequence[CommTruth], communicators: dict[str, str]) -> None:
    steps: dict[str, dict[str, dict[str, Any]]] = {}
    for step, kind, name, op in _placed(ops, communicators):
        steps.setdefault(step, {"p2p": {}, "collective": {}})[kind][name] = _entry(op)
    for kinds in steps.values():
        for entries in kinds.values():
            if entries:
                entries["Total Op Info"] = _total(list(entries.values()))
    path.write_text(json.dumps(steps), encoding="utf-8")


def _placed(ops: Iterable[CommTruth], communicators: dict[str, str]) -> Iterable[tuple[str, str, str, CommTruth]]:
    for op in ops:
        name = f"{op.name}@{communicators[op.group]}"
        yield f"step{op.step or 0}", "p2p" if op.p2p else "collective", name, op


def _entry(op: CommTruth) -> dict[str, Any]:
    wait, elapse = op.wait_ns / 1e6, op.elapse_ns / 1e6
    ratio = op.wait_ns / op.elapse_ns if op.elapse_ns else 0
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": op.start_ns / 1000,
            "Elapse Time(ms)": elapse,
            "Transit Time(ms)": op.transit_ns / 1e6,
            "Wait Time(ms)": wait,
            "Synchronization Time(ms)": wait,
            "Idle Time(ms)": 0.0,
            "Wait Time Ratio": ratio,
            "Synchronization Time Ratio": ratio,
        },
        "Communication Bandwidth Info": {kind: _bandwidth(op, kind in {"HCCS", "SDMA"}) for kind in TRANSPORTS},
    }


def _bandwidth(op: CommTruth, used: bool) -> dict[str, Any]:
    if not used or not op.size_bytes:
        return {
            "Transit Size(MB)": 0,
            "Transit Time(ms)": 0,
            "Bandwidth(GB/s)": 0,
            "Large Packet Ratio": 0,
            "Size Distribution": {},
        }
    size, time = op.size_bytes / 1e6, op.transit_ns / 1e6
    return {
        "Transit Size(MB)": size,
        "Transit Time(ms)": time,
        "Bandwidth(GB/s)": round(size / time, 4),
        "Large Packet Ratio": 1.0 if size > 16 else 0.0,
        "Size Distribution": {str(size): [1, time]},
    }


def _total(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    times = [entry["Communication Time Info"] for entry in entries]
    keys = ("Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)", "Synchronization Time(ms)", "Idle Time(ms)")
    info = {key: sum(time[key] for time in times) for key in keys}
    busy = info["Transit Time(ms)"] + info["Wait Time(ms)"]
    ratio = info["Wait Time(ms)"] / busy if busy else 0
    bandwidth = {}
    for kind in TRANSPORTS:
        parts = [entry["Communication Bandwidth Info"][kind] for entry in entries]
        total = {key: sum(part[key] for part in parts) for key in ("Transit Time(ms)", "Transit Size(MB)")}
        bandwidth[kind] = {**total, "Size Distribution": {}}
    ratios = {"Wait Time Ratio": ratio, "Synchronization Time Ratio": ratio}
    return {"Communication Time Info": {**info, **ratios}, "Communication Bandwidth Info": bandwidth}


def write_matrix(
    path: Path,
    rank: int,
    ops: Sequence[CommTruth],
    communicators: dict[str, str],
    groups: dict[str, Sequence[int]],
    slow_link: tuple[int, int, float] | None = None,
) -> None:
    """Bytes and speed between `rank` and the others of each group; `slow_link` is (source, target, GB/s)."""
    steps: dict[str, dict[str, dict[str, Any]]] = {}
    collected: dict[tuple[str, str, str, str], list[CommTruth]] = defaultdict(list)
    for step, kind, _, op in _placed(ops, communicators):
        collected[step, kind, _short(op.op), op.group].append(op)
    for (step, kind, short, group), members in collected.items():
        target = steps.setdefault(step, {"p2p": {}, "collective": {}})[kind]
        ordered = sorted(members, key=lambda op: op.transit_ns)
        picks = {"top1": ordered[0], "middle": ordered[len(ordered) // 2], "bottom1": ordered[-1]}
        for label, op in picks.items():
            target[f"{short}-{label}@{communicators[group]}"] = _links(rank, [op], groups[group], slow_link, op.name)
        target[f"{short}-total@{communicators[group]}"] = _links(rank, members, groups[group], slow_link, None)
    path.write_text(json.dumps(steps), encoding="utf-8")


def _short(op: str) -> str:
    name = op.removeprefix("hcom_").rstrip("_").lower()
    return {"reducescatter": "reduce"}.get(name, name)


def _links(
    rank: int,
    ops: Sequence[CommTruth],
    ranks: Sequence[int],
    slow_link: tuple[int, int, float] | None,
    name: str | None,
) -> dict[str, dict[str, Any]]:
    size = sum(op.size_bytes for op in ops) / 1e6
    links: dict[str, dict[str, Any]] = {f"{rank}-{rank}": _link("LOCAL", size, 330.0, name)}
    own = list(ranks).index(rank)
    others = [*ranks[own + 1 :], *ranks[:own]][:MAX_LINKS]
    if ops[0].p2p:
        others = [*ranks[own + 1 : own + 2], *ranks[max(0, own - 1) : own]]
    for other in others:
        slow = slow_link is not None and (rank, other) == slow_link[:2]
        speed = slow_link[2] if slow_link is not None and slow else LINK_GBPS
        links[f"{rank}-{other}"] = _link("HCCS", size / len(others), speed, name)
    return links


def _link(transport: str, size_mb: float, gbps: float, name: str | None) -> dict[str, Any]:
    link = {
        "Transport Type": transport,
        "Transit Size(MB)": size_mb,
        "Transit Time(ms)": size_mb / gbps,
        "Bandwidth(GB/s)": round(gbps, 4),
    }
    return link if name is None else {**link, "Op Name": name}
