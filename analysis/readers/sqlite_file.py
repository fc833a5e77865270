"""SQLite files as they come: only ever read, whole or refused, columns probed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import polars as pl

from analysis.errors import BadDump
from analysis.readers.text import first_line, plain

ROWS = 100_000
"""Rows fetched at a time: a million tuples of Python numbers would be a gigabyte."""


@contextmanager
def database(path: Path, name: str) -> Iterator[sqlite3.Connection]:
    """A connection that can only read. `immutable` leaves an unfinished journal beside the file alone. Any error is a
    BadDump."""
    with plain(path, name) as file:
        _check_whole(file, name)
        try:
            with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro&immutable=1", uri=True)) as connection:
                connection.execute("pragma trusted_schema=off")
                connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
                yield connection
        except sqlite3.Error as error:
            raise BadDump(name, f"database cannot be read ({first_line(error)})") from error


def _check_whole(file: Path, name: str) -> None:
    """Refuse what is no database, and one that was cut: SQLite takes pages that are missing for empty ones, and tells
    nothing of them."""
    size = file.stat().st_size
    with file.open("rb") as start:
        head = start.read(100)
    if head[:16] != b"SQLite format 3\0":
        raise BadDump(name, "is not an SQLite database" if size else "is empty (zero bytes)")
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    page = 1 << 16 if page == 1 else page
    whole = page * pages
    if (
        page >= 512 and page.bit_count() == 1 and head[24:28] == head[92:96] and size < whole
    ):  # else a tool that does not keep the number of pages wrote it
        raise BadDump(name, f"is cut: {size} of {whole} bytes are here")


def columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """Column names of a real table; empty where there is none (a view is none: it could run for ever)."""
    if not connection.execute("select 1 from sqlite_master where type='table' and name=?", [table]).fetchone():
        return []
    return [row[1] for row in connection.execute(f'pragma table_info("{table}")')]


def rows(connection: sqlite3.Connection, table: str, wanted: Sequence[str], where: str = "") -> pl.DataFrame:
    """Columns as they are named in the database, as Int64; absent ones null. Times and ids are whole numbers there."""
    known = columns(connection, table)
    chosen = ", ".join(f'cast("{column}" as integer)' if column in known else "null" for column in wanted)
    schema = {column: pl.Int64() for column in wanted}
    cursor = connection.execute(f'select {chosen} from "{table}" {where}')
    parts = [pl.DataFrame(chunk, schema=schema, orient="row") for chunk in iter(lambda: cursor.fetchmany(ROWS), [])]
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)
