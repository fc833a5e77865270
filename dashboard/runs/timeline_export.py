"""Kernels of a dump as a Chrome trace (JSON), written piece by piece from Parquet: a million never are in memory."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dashboard.runs.frames import frames_path
from dashboard.runs.timeline_index import KERNEL_LANES, Index

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import polars as pl

    from dashboard.runs.timeline_index import Numbers

ROWS = 1 << 16
BANDS = ("steps", "layers", "blocks")
ARGUMENTS = (
    *("step", "core", "stream_id", "task_id", "wait_ns", "block_num", "input_shapes", "input_dtypes", "input_formats"),
    *("output_shapes", "output_dtypes", "output_formats", "class", "part", "layer", "block", "pass", "micro_batch"),
    *("flops", "attribution"),
)


def trace(index: Index, frames: str, lanes: Sequence[dict[str, Any]], rank: int, step: str | None) -> Iterator[bytes]:
    """A JSON object with traceEvents: bands and kernels as complete events, one thread a lane; times in us.

    `otherData.origin_ns` is the time of 0. Only the kernels of `step` where it is given.
    """
    begin, end = next(((row[1], row[2]) for row in index.steps if str(row[0]) == step), (0, index.end + 1))
    other = {"origin_ns": str(index.origin_ns), "rank": rank, "step": step}
    yield b'{"displayTimeUnit":"ns","otherData":' + json.dumps(other).encode() + b',"traceEvents":[\n'
    yield b",\n".join(_heads(index, lanes, rank))
    for lane in index.of_kind(*BANDS):
        yield from _bands(index, lane.number, rank, begin, end)
    yield from _kernel_events(index, frames, rank, step)
    yield b"\n]}\n"


def gzipped(parts: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(level=4, wbits=31)
    for part in parts:
        if packed := packer.compress(part):
            yield packed
    yield packer.flush()


def _heads(index: Index, lanes: Sequence[dict[str, Any]], rank: int) -> Iterator[bytes]:
    yield _event(ph="M", pid=rank, name="process_name", args={"name": f"rank {rank}"})
    for lane, about in zip(index.lanes, lanes, strict=True):
        if lane.kind in (*KERNEL_LANES, *BANDS):
            name = f"{about['name']} {about['key']}" if lane.kind == "communication" else str(about["name"])
            yield _event(ph="M", pid=rank, tid=lane.number, name="thread_name", args={"name": name.strip()})
            yield _event(ph="M", pid=rank, tid=lane.number, name="thread_sort_index", args={"sort_index": lane.number})


def _event(**fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _bands(index: Index, number: int, rank: int, begin: int, end: int) -> Iterator[bytes]:
    lane = index.lanes[number]
    part = lane.within(begin, end)
    columns = (lane.start[part].tolist(), lane.duration[part].tolist(), lane.place[part].tolist(),
               lane.block[part].tolist())  # fmt: skip
    names = {start: str(label) for label, start, _end in index.steps} if lane.kind == "steps" else {}
    events = []
    for start, duration, place, block in zip(*columns, strict=True):
        if start < begin:
            continue
        name = names.get(start) or index.blocks[block] or " ".join(
            str(value) for value in index.places[place] if value is not None
        )  # fmt: skip
        events.append(_event(ph="X", pid=rank, tid=number, name=name, cat=lane.kind, ts=start / 1000,
                             dur=duration / 1000))  # fmt: skip
    if events:
        yield b",\n" + b",\n".join(events)


def _kernel_events(index: Index, frames: str, rank: int, step: str | None) -> Iterator[bytes]:
    """Events of all kernels, a piece of the file at a time: Polars writes the JSON of a piece at once."""
    import polars as pl

    from analysis.store import scan

    kernels = scan(frames_path(frames), "kernels")
    known = set(kernels.collect_schema())
    lanes = _lane_of_row(index)
    wanted = (
        kernels.select("step").with_row_index("row").filter(pl.lit(True) if step is None else pl.col("step") == step)
    )
    first, last = wanted.select(pl.col("row").min(), last=pl.col("row").max()).collect().row(0)
    for begin in range(first, last + 1, ROWS) if first is not None else ():
        piece = kernels.slice(begin, min(ROWS, last + 1 - begin)).collect()
        here = lanes[begin : begin + piece.height]
        piece = piece.head(len(here)).with_columns(tid=pl.Series(here)).filter(pl.col("tid") >= 0)
        if step is not None:
            piece = piece.filter(pl.col("step") == step)
        texts = piece.select(_as_event(index.origin_ns, rank, known)).to_series()
        if len(texts):
            yield (",\n" + ",\n".join(texts)).encode()


def _lane_of_row(index: Index) -> Numbers:
    """The lane of each row of the Parquet file; -1 where a kernel has no time."""
    import numpy as np

    lanes = list(index.of_kind(*KERNEL_LANES))
    rows = 1 + max((int(lane.row.max()) for lane in lanes if len(lane.row)), default=-1)
    found = np.full(rows, -1, np.int64)
    for lane in lanes:
        found[lane.row] = lane.number
    return found


def _as_event(origin_ns: int, rank: int, known: set[str]) -> pl.Expr:
    import polars as pl

    return pl.struct(
        ph=pl.lit("X"),
        pid=pl.lit(rank),
        tid="tid",
        name=pl.coalesce("name", "type", pl.lit("?")),
        cat=pl.coalesce("type", "kind", pl.lit("?")),
        ts=(pl.col("start_ns") - origin_ns) / 1000,
        dur=pl.col("duration_ns") / 1000,
        args=pl.struct([name for name in ARGUMENTS if name in known]),
    ).struct.json_encode()
