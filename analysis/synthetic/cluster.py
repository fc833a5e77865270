"""What msprof-analyze writes about a whole job: cluster_analysis_output as CSV and JSON, or as one database."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from analysis.synthetic.truth import CommTruth, StepTruth, Truth

LINK_GBPS = 18.0
_STEPS = (
    "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing"
)
_TABLES = {
    "CommunicationGroupMapping": "type, rank_set, group_name, group_id, pg_name",
    "ClusterCommunicationTime": "step, rank_id, hccl_op_name, group_name, start_timestamp, elapsed_time, transit_time, "
    "wait_time, synchronization_time, idle_time, synchronization_time_ratio, wait_time_ratio",
    "ClusterCommunicationBandwidth": "step, rank_id, hccl_op_name, group_name, band_type, transit_size, transit_time, "
    "bandwidth, large_packet_ratio, package_size, count, total_duration",
    "ClusterCommunicationMatrix": "step, hccl_op_name, group_name, src_rank, dst_rank, transport_type, op_name, "
    "transit_size, transit_time, bandwidth",
    "ClusterBaseInfo": "key, value",
    "ClusterStepTraceTime": 'step, type, "index", computing, communication_not_overlapped, overlapped, communication, '
    "free, stage, bubble, communication_not_overlapped_and_exclude_receive, preparing, dp_index, pp_index, tp_index",
}


def write_cluster(folder: Path, truths: Sequence[Truth], groups: Mapping[str, Sequence[Sequence[int]]]) -> Path:
    """cluster_analysis_output in text form. `groups` is group kind -> the member lists of all such groups."""
    output = folder / "cluster_analysis_output"
    output.mkdir(parents=True, exist_ok=True)
    rows = [[step.step, "rank", truth.rank, *_parts(step)] for truth in truths for step in truth.steps]
    with (output / "cluster_step_trace_time.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([_STEPS.split(","), *rows])
    times: dict[str, Any] = {}
    links: dict[str, Any] = {}
    for truth, op, members in _operations(truths, groups):
        place = "p2p" if op.p2p else str(tuple(members))
        step, name = f"step{op.step or 0}", f"{op.name}@{group_name(op.group, members)}"
        times.setdefault(place, {}).setdefault(step, {}).setdefault(name, {})[str(truth.rank)] = _entry(op)
        matrix = links.setdefault(place, {}).setdefault(step, {})
        total = matrix.setdefault(
            f"{op.op.removeprefix('hcom_').strip('_').lower()}-total@{name.partition('@')[2]}", {}
        )
        for other in members:
            if other != truth.rank:
                _add(total.setdefault(f"{truth.rank}-{other}", {}), op.size_bytes / 1e6)
    (output / "cluster_communication.json").write_text(json.dumps(times), encoding="utf-8")
    (output / "cluster_communication_matrix.json").write_text(json.dumps(links), encoding="utf-8")
    listed = [{"type": "collective", "rank_set": [*members], "group_name": group_name(kind, members), "pg_name": kind}
              for kind, all_members in groups.items() for members in all_members]  # fmt: skip
    (output / "communication_group.json").write_text(json.dumps({"comm_group_parallel_info": listed}), encoding="utf-8")
    return output


def write_cluster_database(
    folder: Path, truths: Sequence[Truth], groups: Mapping[str, Sequence[Sequence[int]]]
) -> Path:
    """cluster_analysis_output as msprof-analyze writes it for databases."""
    output = folder / "cluster_analysis_output"
    output.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(output / "cluster_analysis.db")) as base:
        for table, titles in _TABLES.items():
            base.execute(f"create table {table} ({titles})")
        _insert(base, "CommunicationGroupMapping", [
            ("collective", f"({','.join(map(str, members))})", group_name(kind, members), "", kind)
            for kind, all_members in groups.items() for members in all_members
        ])  # fmt: skip
        steps = [
            (step.step, "rank", str(truth.rank), *_parts(step), 0, 0, 0) for truth in truths for step in truth.steps
        ]
        _insert(base, "ClusterStepTraceTime", steps)
        for truth, op, members in _operations(truths, groups):
            _insert_operation(base, truth.rank, op, members)
        base.commit()
    return output


def _insert_operation(base: sqlite3.Connection, rank: int, op: CommTruth, members: Sequence[int]) -> None:
    step, group = f"step{op.step or 0}", group_name(op.group, members)
    wait, size = op.wait_ns / 1e6, op.size_bytes / 1e6
    times = (op.start_ns / 1000, op.elapse_ns / 1e6, op.transit_ns / 1e6, wait, wait, 0.0, 0.0, 0.0)
    _insert(base, "ClusterCommunicationTime", [(step, rank, op.name, group, *times)])
    for kind in ("HCCS", "SDMA") if size else ():
        numbers = (size, op.transit_ns / 1e6, 0.0, 0.0, size, 1, op.transit_ns / 1e6)
        _insert(base, "ClusterCommunicationBandwidth", [(step, rank, op.name, group, kind, *numbers)])
    label = f"{op.op.removeprefix('hcom_').strip('_').lower()}-total"
    told = [(step, label, group, float(rank), float(other), "HCCS", "", size, size / LINK_GBPS, LINK_GBPS)
            for other in members if other != rank]  # fmt: skip
    _insert(base, "ClusterCommunicationMatrix", told)


def _insert(base: sqlite3.Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        base.executemany(f"insert into {table} values ({','.join('?' * len(rows[0]))})", rows)


def _operations(
    truths: Sequence[Truth], groups: Mapping[str, Sequence[Sequence[int]]]
) -> Iterator[tuple[Truth, CommTruth, Sequence[int]]]:
    for truth in truths:
        for op in truth.communication:
            yield truth, op, next(members for members in groups[op.group] if truth.rank in members)


def group_name(kind: str, members: Sequence[int]) -> str:
    """The digits behind the @ of an operation of that group."""
    return str(10**18 + sum((rank + 1) * 7919**place for place, rank in enumerate(members)) % 10**12) + kind


def _parts(step: StepTruth) -> list[float]:
    exposed = step.communication_not_overlapped_ns
    values = [step.computing_ns, exposed, step.overlapped_ns, step.communication_ns, step.free_ns, step.step_ns]
    return [ns / 1000 for ns in (*values, step.bubble_ns, exposed - step.bubble_ns, step.preparing_ns)]


def _entry(op: CommTruth) -> dict[str, Any]:
    size = op.size_bytes / 1e6
    carried = {"Transit Size(MB)": size, "Transit Time(ms)": op.transit_ns / 1e6}
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": op.start_ns / 1000,
            "Elapse Time(ms)": op.elapse_ns / 1e6,
            "Transit Time(ms)": op.transit_ns / 1e6,
            "Wait Time(ms)": op.wait_ns / 1e6,
        },
        "Communication Bandwidth Info": {"HCCS": carried, "SDMA": carried, "RDMA": {"Transit Size(MB)": 0}},
    }


def _add(link: dict[str, Any], size: float) -> None:
    total = link.get("Transit Size(MB)", 0.0) + size
    link.update({"Transport Type": "HCCS", "Transit Size(MB)": total, "Transit Time(ms)": total / LINK_GBPS})
