"""One dump whose files hold rows of several devices: each device is a rank of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from analysis.dump import RankDump

COLUMN = "device_id"


def seen(frame: pl.DataFrame | None) -> list[int]:
    """Devices that have rows in the table, busiest first; empty where no column tells."""
    if frame is None or COLUMN not in frame.columns:
        return []
    counts = frame.lazy().filter(pl.col(COLUMN).is_not_null()).group_by(COLUMN).len().collect()
    return counts.sort(["len", COLUMN], descending=[True, False])[COLUMN].to_list()


def choose(held: list[int], dump: RankDump, ranks: Mapping[int, int]) -> int | None:
    """The device to report of these (busiest first): the one asked for, the one that has the rank, the one the dump
    names, else the busiest. None where all rows are of one. `ranks` is device -> rank."""
    if dump.device is not None:
        return dump.device
    if len(held) < 2:
        return None
    by_rank = {rank: device for device, rank in ranks.items()}
    told = [by_rank.get(rank) for rank in (dump.sent_rank, dump.rank) if rank is not None]
    return next((device for device in (*told, dump.device_id) if device in held), held[0])


def ranks_of(
    held: Sequence[int], dump: RankDump, told: Mapping[int, int], world_size: int | None = None
) -> dict[int, int]:
    """Device -> rank: as `told` by a file, else by the order of the devices, which is how a launcher numbers its
    processes, as long as the one rank that is known fits into that. Empty where nothing tells."""
    if told or len(held) < 2:
        return {device: told[device] for device in held if device in told}
    order = sorted(held)
    rank, device = _known(dump)
    if rank is None or (device is not None and device not in order):
        return {}
    first = rank - (order.index(device) if device is not None else rank % len(order))
    if first < 0 or first % len(order) or (world_size is not None and first + len(order) > world_size):
        return {}
    return {each: first + place for place, each in enumerate(order)}


def _known(dump: RankDump) -> tuple[int | None, int | None]:
    """A rank and the device that it has, each where it is told."""
    if dump.sent_rank is not None:
        return dump.sent_rank, dump.device if dump.device is not None else dump.device_id
    return dump.rank, dump.device_id


def own(frame: pl.DataFrame, device: int | None, *, keep: bool = False) -> pl.DataFrame:
    """Rows of the device and rows of no device; without the column unless `keep`."""
    if COLUMN not in frame.columns:
        return frame
    chosen = frame if device is None else frame.filter(pl.col(COLUMN).is_null() | (pl.col(COLUMN) == device))
    return chosen if keep else chosen.drop(COLUMN)


def from_type(column: str) -> pl.Expr:
    """3 of `NPU:3`, as memory records name a device."""
    return pl.col(column).str.extract(r"(?i)^\s*npu:(\d{1,9})\s*$").cast(pl.Int64, strict=False).alias(COLUMN)


def split(dump: RankDump, *, alone: bool = False) -> list[RankDump]:
    """The dump once per device whose rows it holds, with that device's rank as `ranks_of` tells; itself for one.

    Looks into small files and databases only: for those who have to say whose a dump is before it is read. One that is
    `alone` and does not tell its rank begins with rank 0.
    """
    held, told = _told(dump)
    if len(held) < 2:
        return [dump]
    numbered = replace(dump, rank=0, device_id=None) if alone and dump.rank is None else dump
    ranks = ranks_of(held, numbered, told)
    own = {dump.device_id: dump.rank} if not told and not ranks else {}
    return [replace(dump, device=each, device_id=each, rank=ranks.get(each, own.get(each))) for each in sorted(held)]


TIMELINE = re.compile(r"task_time_(\d{1,9})_\d+_\d+\.json")
"""MindSpore 2.1-2.2's files of one device each."""


def _told(dump: RankDump) -> tuple[list[int], dict[int, int]]:
    from analysis.errors import BadDump
    from analysis.names import KERNEL_DATABASE, base_name
    from analysis.readers import op_statistic, profiler_db, step_trace

    small = ((r"step_trace_time\.csv", step_trace.read_steps), (r"op_statistic.*\.csv", op_statistic.read_op_statistic))
    for pattern, reader in small:
        for label in dump.find(pattern):
            with suppress(BadDump):
                if held := seen(reader(dump.files[label], label, [])):
                    return held, {}
    for label in dump.find(KERNEL_DATABASE.pattern):
        with suppress(BadDump):
            return profiler_db.read_devices(dump.files[label], label)
    found = (TIMELINE.fullmatch(base_name(label)) for label in dump.files)
    return sorted({int(match.group(1)) for match in found if match}), {}
