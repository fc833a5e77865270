"""Table TASK_PMU_INFO of a profiler database: what counters of the cores told of each task."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from itertools import chain

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.readers.kernel_details import PMU_TITLES
from analysis.readers.sqlite_file import ROWS, columns
from analysis.readers.text import counter

FLATTENED = 1000
"""Rows whose numbers are put in one line at a time: so many stay in the processor's cache."""
MAX_COUNTERS = 200

PMU = {"aic_total_time": ("aicore_time(us)", 1000.0)} | {
    title: (title, 1.0) for title in PMU_TITLES if title not in ("aicore_time(us)", "cube_utilization(%)")
}
"""Counter in table TASK_PMU_INFO -> the column it has in kernel_details.csv, and by what it is divided for it."""


def read_counters(connection: sqlite3.Connection, strings: pl.DataFrame) -> pl.DataFrame:
    """Of each task the counters that something reads, under the names kernel_details.csv gives them."""
    names = {number: text for number, text in strings.iter_rows() if text in PMU}
    empty = pl.DataFrame(schema={"globalTaskId": pl.Int64})
    if not names or not columns(connection, "TASK_PMU_INFO"):
        return empty
    if (side_by_side := _in_blocks(connection, names)) is not None:
        return side_by_side
    listed = ", ".join(str(number) for number in names)
    chosen = 'cast("globalTaskId" as integer), cast(name as integer), cast(value as real)'
    cursor = connection.execute(f"select {chosen} from TASK_PMU_INFO where name in ({listed})")
    schema = {"globalTaskId": pl.Int64(), "name": pl.Int64(), "value": pl.Float64()}
    parts = [pl.DataFrame(chunk, schema=schema, orient="row") for chunk in iter(lambda: cursor.fetchmany(ROWS), [])]
    if not parts:
        return empty
    told = pl.concat(parts).filter(pl.col("value").is_finite())
    here = told["name"].unique().to_list()
    found = ((pl.col("value").filter(pl.col("name") == number).first(), *PMU[names[number]]) for number in here)
    columns_of = (counter(value / divisor).alias(title) for value, title, divisor in found)
    return told.group_by("globalTaskId").agg(columns_of)


def _in_blocks(connection: sqlite3.Connection, names: Mapping[int, str]) -> pl.DataFrame | None:
    """The same of a table as profilers write it: for each counter a block of rows, all of the same tasks in the same
    order. Then one row is fetched for each task instead of one for each counter. None where the table is not so."""
    size, starts = _blocks(connection, names)
    if not starts:
        return None
    (first, start), *others = starts.items()
    joins = " ".join(f"join TASK_PMU_INFO b{n} on b{n}.rowid = a.rowid + {at - start}" for n, at in others)
    alike = " and ".join(
        [f"a.name = {first}", *(f"b{n}.name = {n} and b{n}.globalTaskId = a.globalTaskId" for n, _ in others)]
    )
    values = ", ".join(f"ifnull(cast({table}.value as real), 9e999)" for table in ("a", *(f"b{n}" for n, _ in others)))
    task = "ifnull(cast(a.globalTaskId as integer), -1)"
    query = f"select {task}, ifnull({alike}, 0), {values} from TASK_PMU_INFO a {joins}"
    cursor = connection.execute(f"{query} where a.rowid between {start} and {start + size - 1}")
    tasks, same, *told = _numbers(cursor, len(starts) + 2)
    if len(tasks) != size or not same.all() or len(np.unique(tasks)) != size:
        return None
    known = [PMU[names[number]] for number in starts]
    columns_of = {title: value / divisor for (title, divisor), value in zip(known, told, strict=True)}
    frame = pl.DataFrame({"globalTaskId": tasks, **columns_of}).with_columns(pl.col("globalTaskId").cast(pl.Int64))
    return frame.with_columns(counter(pl.col(title)) for title in columns_of)


def _blocks(connection: sqlite3.Connection, names: Mapping[int, str]) -> tuple[int, dict[int, int]]:
    """(rows of a block, the first row of each counter's, of those in `names`); none where rows do not come in blocks of
    one size."""
    try:
        last = connection.execute("select max(rowid) from TASK_PMU_INFO").fetchone()[0]
        size = _block_size(connection)
    except sqlite3.OperationalError:  # a table without row numbers
        return 0, {}
    if not isinstance(last, int) or not size or last % size or last // size > MAX_COUNTERS:
        return 0, {}
    heads = ", ".join(str(row) for row in range(1, last + 1, size))
    found = connection.execute(f"select name, rowid from TASK_PMU_INFO where rowid in ({heads})").fetchall()
    starts = {name: row for name, row in found if type(name) is int and name in names}
    once = len({name for name, _ in found}) == len(found)  # several devices have blocks of their own
    return size, starts if once else {}


def _block_size(connection: sqlite3.Connection) -> int:
    """Rows before the first one of another counter."""
    query = "select rowid from TASK_PMU_INFO where name <> (select name from TASK_PMU_INFO where rowid = 1) limit 1"
    found = connection.execute(query).fetchone()
    return found[0] - 1 if found else 0


def _numbers(cursor: sqlite3.Cursor, width: int) -> npt.NDArray[np.float64]:
    """Columns of a query that gives nothing but numbers. Task numbers stay exact below 2^53."""
    parts = iter(lambda: cursor.fetchmany(FLATTENED), [])
    flat = [np.fromiter(chain.from_iterable(part), np.float64, len(part) * width) for part in parts]
    return np.concatenate([*flat, np.empty(0)]).reshape(-1, width).T.copy()
