"""One dump whose files hold rows of several devices: each device is a rank of its own."""

from __future__ import annotations

from collections.abc import Mapping
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


def own(frame: pl.DataFrame, device: int | None, *, keep: bool = False) -> pl.DataFrame:
    """Rows of the device and rows of no device; without the column unless `keep`."""
    if COLUMN not in frame.columns:
        return frame
    chosen = frame if device is None else frame.filter(pl.col(COLUMN).is_null() | (pl.col(COLUMN) == device))
    return chosen if keep else chosen.drop(COLUMN)


def from_type(column: str) -> pl.Expr:
    """3 of `NPU:3`, as memory records name a device."""
    return pl.col(column).str.extract(r"(?i)^\s*npu:(\d{1,9})\s*$").cast(pl.Int64, strict=False).alias(COLUMN)


def split(dump: RankDump) -> list[RankDump]:
    """The dump once per device whose rows it holds, with that device's rank where a file tells it; itself for one.

    Looks into small files and databases only: for those who have to say whose a dump is before it is read.
    """
    held, ranks = _told(dump)
    if len(held) < 2:
        return [dump]
    own = {dump.device_id: dump.rank} if not ranks else {}
    told = {each: ranks.get(each, own.get(each)) for each in sorted(held)}
    return [replace(dump, device=each, device_id=each, rank=rank) for each, rank in told.items()]


def _told(dump: RankDump) -> tuple[list[int], dict[int, int]]:
    from analysis.errors import BadDump
    from analysis.names import KERNEL_DATABASE
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
    return [], {}
