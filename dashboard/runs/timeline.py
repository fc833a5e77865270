"""What the step page's timeline asks for: boxes of a window, sums of a range, matches of a search, one kernel.

Times are ns since the first kernel's start. Boxes narrower than a bucket are merged, so that a window answers with at
most 2 x its buckets a lane, however many kernels there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from dashboard.runs.frames import frames_path
from dashboard.runs.timeline_index import KERNEL_LANES, Index, Lane

if TYPE_CHECKING:  # Polars must not be at work when a process forks
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

BUCKETS = 1024
MOST_WIDE = 2 * BUCKETS
MOST_MATCHES = 20_000
TOP = 12


def boxes(index: Index, begin: int, end: int, buckets: int) -> dict[str, dict[str, list[int]]]:
    """Lane number -> columns of its boxes in [begin, end), cut into `buckets` equal parts for merging.

    s: starts, each as the distance from the one before (the first from `begin`); d: lengths; n: kernels in the box;
    u: their time together; c: code of the class that most of the time goes to; r, b, p, y: row of the longest kernel
    and codes of its block, place and type. n and u are left out where nothing is merged, any other column where all
    is 0. What begins before `begin` comes only if it spans a bucket: narrower ones belong to the window before.
    """
    bucket = max(1, -(-(end - begin) // max(1, buckets)))
    found = ((lane, lane_boxes(lane, begin, end, bucket)) for lane in index.lanes if lane.kind != "computing")
    return {str(lane.number): columns for lane, columns in found if columns["s"]}


def lane_boxes(lane: Lane, begin: int, end: int, bucket: int) -> dict[str, list[int]]:
    """One lane of `boxes`."""
    import numpy as np

    part = lane.within(begin, end)
    start, duration = lane.start[part], lane.duration[part]
    wide = np.flatnonzero(duration >= bucket)
    if len(wide) > MOST_WIDE:  # so many at once in one lane lie on each other anyway
        wide = wide[:0]
    narrow = _rest(len(start), wide, int(start.searchsorted(begin, "left")))
    wide = wide[start[wide] + duration[wide] > begin]
    codes = {"c": lane.class_[part], "b": lane.block[part], "p": lane.place[part], "y": lane.type[part],
             "r": lane.row[part]}  # fmt: skip
    merged, longest = _merged(start[narrow], duration[narrow], codes["c"][narrow], begin, bucket)
    alone = {"s": start[wide], "d": duration[wide], "n": np.ones_like(wide), "u": duration[wide]}
    chosen = np.concatenate([wide, np.arange(len(start))[narrow][longest]])
    columns = {name: np.concatenate([alone[name], merged[name]]) for name in alone}
    columns |= {name: values[chosen].astype(np.int64) for name, values in codes.items()}
    columns["c"][len(wide) :] = merged["c"]
    order = np.argsort(columns["s"], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    columns["s"] = np.diff(columns["s"], prepend=begin)
    if (columns["n"] == 1).all():
        del columns["n"], columns["u"]
    return {name: column.tolist() for name, column in columns.items() if name == "s" or column.any()}


def _rest(count: int, wide: Numbers, first: int) -> slice | NDArray[np.bool_]:
    """What is left from `first` on without `wide`; a slice where it can be, which copies nothing."""
    import numpy as np

    if not len(wide):
        return slice(first, count)
    rest = np.ones(count, bool)
    rest[:first] = False
    rest[wide] = False
    return rest


def _merged(
    start: Numbers, duration: Numbers, classes: Numbers, begin: int, bucket: int
) -> tuple[dict[str, Numbers], Numbers]:
    """One box for each bucket, from the first start to the last end of what starts in it, and where its longest is."""
    import numpy as np

    if not len(start):
        return dict.fromkeys("sdnuc", np.empty(0, np.int64)), np.empty(0, np.int64)
    borders = np.arange(begin, int(start[-1]) + bucket, bucket)
    edges = np.unique(start.searchsorted(borders, "left"))
    edges = edges[edges < len(start)]
    count = np.diff(edges, append=len(start))
    end = np.maximum.reduceat(start + duration, edges)
    of_box = np.repeat(np.arange(len(edges)), count)
    at_most = np.flatnonzero(duration == np.maximum.reduceat(duration, edges)[of_box])
    longest = at_most[np.unique(of_box[at_most], return_index=True)[1]]
    boxes = {"s": start[edges], "d": end - start[edges], "n": count, "u": np.add.reduceat(duration, edges)}
    return boxes | {"c": _dominant(classes, of_box, duration)}, longest


def _dominant(codes: Numbers, of_box: Numbers, duration: Numbers) -> Numbers:
    """The code that most of each box's time goes to."""
    import numpy as np

    boxes, width = int(of_box[-1]) + 1, int(codes.max()) + 1
    if width == 1:
        return np.zeros(boxes, np.int64)
    table = np.bincount(of_box * width + codes, weights=duration, minlength=boxes * width)
    codes_of_most: Numbers = table.reshape(boxes, width).argmax(axis=1)
    return codes_of_most


def sums(index: Index, begin: int, end: int) -> dict[str, Any]:
    """What runs in [begin, end): kernels cut at its edges, time by class, layer, block and type; and how the time is
    split: computing, exposed communication, free by cause. Lists hold [code or name, ns, kernels], largest first."""
    import numpy as np

    totals = {name: np.zeros((size, 2), np.int64) for name, size in _sizes(index).items()}
    kernels = 0
    for lane in index.of_kind(*KERNEL_LANES):
        part, cut = _cut(lane, begin, end)
        kernels += int(np.count_nonzero(cut))
        for name, codes in (("class", lane.class_), ("block", lane.block), ("place", lane.place), ("type", lane.type)):
            _add(totals[name], codes[part], cut)
    begin, end = max(begin, 0), min(end, index.end)
    causes = np.zeros((len(index.causes), 2), np.int64)
    for lane in index.of_kind("free"):
        part, cut = _cut(lane, begin, end)
        _add(causes, lane.class_[part], cut)
    free = int(causes[:, 0].sum())
    computing = sum(int(_cut(lane, begin, end)[1].sum()) for lane in index.of_kind("computing"))
    length = max(0, end - begin)
    return {
        "kernels": kernels,
        "length": length,
        "computing": computing,
        "exposed": length - computing - free,
        "free": free,
        "classes": _largest(totals["class"]),
        "blocks": _largest(totals["block"]),
        "layers": _by_layer(index, totals["place"]),
        "causes": _largest(causes) if len(causes) > 1 else [],
        "types": [[index.types[code], *rest] for code, *rest in _largest(totals["type"])],
    }


def _sizes(index: Index) -> dict[str, int]:
    return {"class": len(index.classes), "block": len(index.blocks), "place": len(index.places),
            "type": len(index.types)}  # fmt: skip


def _cut(lane: Lane, begin: int, end: int) -> tuple[slice, Numbers]:
    """Boxes that can touch the range, and how much of each is inside; 0 for those that are not."""
    import numpy as np

    part = lane.within(begin, end)
    start = lane.start[part]
    inside = np.minimum(start + lane.duration[part], end) - np.maximum(start, begin)
    return part, np.maximum(inside, 0)


def _add(table: Numbers, codes: Numbers, cut: Numbers) -> None:
    import numpy as np

    found = np.bincount(codes, weights=cut, minlength=len(table))
    table[:, 0] += found[: len(table)].astype(np.int64)
    table[:, 1] += np.bincount(codes, weights=cut > 0, minlength=len(table))[: len(table)].astype(np.int64)


def _largest(table: Numbers) -> list[list[int]]:
    rows = [[code, int(ns), int(count)] for code, (ns, count) in enumerate(table) if count]
    return sorted(rows, key=lambda row: -row[1])[:TOP]


def _by_layer(index: Index, table: Numbers) -> list[list[Any]]:
    """[part, layer, ns, kernels] summed over passes and micro-batches."""
    found: dict[tuple[Any, Any], list[int]] = {}
    for (part, layer, *_rest), (ns, count) in zip(index.places, table, strict=True):
        if count:
            total = found.setdefault((part, layer), [0, 0])
            total[0] += int(ns)
            total[1] += int(count)
    rows: list[list[Any]] = [[*key, *total] for key, total in found.items()]
    return sorted(rows, key=lambda row: -row[2])[:TOP]


def gaps(index: Index, begin: int, end: int, most: int = TOP) -> list[list[Any]]:
    """The longest times in which nothing runs: [start, length, type of the kernel that ends it, code of its cause],
    the longest first."""
    rows: list[list[Any]] = []
    for lane in index.of_kind("free"):
        part, cut = _cut(lane, begin, end)
        chosen = cut.argsort(kind="stable")[::-1][:most]
        columns = (lane.start[part], lane.duration[part], lane.type[part], lane.class_[part])
        found = ([int(column[at]) for column in columns] for at in chosen if cut[at])
        rows += [[start, length, index.types[code], cause] for start, length, code, cause in found]
    return rows


def find(index: Index, frames: str, text: str, begin: int, end: int) -> dict[str, Any]:
    """Kernels of [begin, end) with `text` in name or type, in order of time: their rows, starts and lengths."""
    import polars as pl

    from analysis.kernel_names import rows_with
    from analysis.store import scan

    start = pl.col("start_ns") - index.origin_ns
    rows = scan(frames_path(frames), "kernels").with_row_index("row").with_columns(start=start)
    rows = rows.filter(pl.col("start").is_between(begin, end, closed="left"))
    near = rows.select("row", "start", "duration_ns").drop_nulls().collect()
    found = near.filter(rows_with(frames_path(frames), text)[near["row"].to_numpy()]).sort("start")
    shown = found.head(MOST_MATCHES)
    return {"total": found.height, "rows": shown["row"].to_list(), "starts": shown["start"].to_list(),
            "lengths": shown["duration_ns"].to_list()}  # fmt: skip


def kernel(index: Index, frames: str, row: int) -> dict[str, Any] | None:
    """All columns of one kernel, the lane it is in, and the rows before and after it there."""
    import polars as pl
    import polars.selectors as cs

    from analysis.store import scan

    single = cs.float() - cs.by_dtype(pl.Float64)  # as Python floats they would show digits that nobody wrote
    frame = scan(frames_path(frames), "kernels").slice(row, 1).with_columns(single.cast(pl.Float64).round_sig_figs(7))
    found = frame.collect().to_dicts()
    if not found:
        return None
    lane, at = _place_of(index, row)
    around: dict[str, Any] = {"lane": None, "before": None, "after": None, "start": None}
    if lane is not None:
        around = {
            "lane": lane.number,
            "before": int(lane.row[at - 1]) if at else None,
            "after": int(lane.row[at + 1]) if at + 1 < len(lane.row) else None,
            "start": int(lane.start[at]),
        }
    return {**around, "columns": {name: _plain(value) for name, value in found[0].items()}}


def _plain(value: Any) -> Any:
    """A value as a browser can read it: no NaN, and whole numbers beyond 2**53 as text."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    return str(value) if isinstance(value, int) and abs(value) > 1 << 53 else value


def _place_of(index: Index, row: int) -> tuple[Lane | None, int]:
    for lane in index.of_kind(*KERNEL_LANES):
        found = (lane.row == row).nonzero()[0]
        if len(found):
            return lane, int(found[0])
    return None, 0


def nearest(index: Index, lane: int, at: int) -> int | None:
    """The row of the kernel that runs at a time in a lane, else of the next, else of the last."""
    lanes = [found for found in index.of_kind(*KERNEL_LANES) if found.number == lane]
    if not lanes or not len(lanes[0].row):
        return None
    position = int(lanes[0].start.searchsorted(at, "right")) - 1
    if position < 0 or int(lanes[0].start[position] + lanes[0].duration[position]) <= at:
        position = min(position + 1, len(lanes[0].row) - 1)
    return int(lanes[0].row[position])


def range_of_layer(index: Index, layer: int, begin: int, end: int, block: str = "") -> tuple[int, int] | None:
    """Where a layer, or one of its blocks, is first at work in [begin, end)."""
    import numpy as np

    wanted = [code for code, place in enumerate(index.places) if place[0] == "layer" and place[1] == layer]
    blocks = [code for code, name in enumerate(index.blocks) if name == block]
    for lane in index.of_kind("blocks" if blocks else "layers"):
        part = lane.within(begin, end)
        hit = np.isin(lane.place[part], wanted) & (lane.start[part] >= begin)
        found = (hit & np.isin(lane.block[part], blocks) if blocks else hit).nonzero()[0]
        if len(found):
            first, length = int(lane.start[part][found[0]]), int(lane.duration[part][found[0]])
            return first, first + length
    return None


def chosen_step(index: Index, asked: str, warmups: Sequence[str] = ()) -> list[Any]:
    """[label, begin, end] of the step asked for, else of the first that is judged, else of all there is."""
    by_label = {str(step[0]): step for step in index.steps}
    if asked in by_label:
        return by_label[asked]
    judged = [step for step in index.steps if str(step[0]) not in warmups] or index.steps
    return judged[0] if judged else [None, 0, index.end]
