"""cluster_analysis_output, which msprof-analyze writes about a whole job: steps, communication and links of every rank,
as CSV and JSON or as one database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from analysis.errors import BadDump
from analysis.readers.communication import ROLL_UP, SAMPLE, Link, add_pairs, link_rows, operation_of, scaled, table_of
from analysis.readers.json_stream import entries
from analysis.readers.profiler_db import largest_links, matrix_links, operation_row
from analysis.readers.sqlite_file import columns, database
from analysis.schema import STEP_COLUMNS, polars_schema

MAX_RANKS = 100_000


def read_communication(rank: int | None) -> Callable[[Path, str, list[str]], pl.DataFrame]:
    """A reader of one rank's operations in cluster_communication.json: group, step, operation, rank."""

    def read(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
        told = (_operation(keys, value, name, warnings) for keys, value in _of_rank(path, name, rank))
        frame = table_of(row for row in told if row)
        if frame.is_empty():
            raise BadDump(name, f"has no rows of rank {rank}")
        return frame

    return read


def _of_rank(path: Path, name: str, rank: int | None) -> Iterator[tuple[tuple[str, ...], Any]]:
    for keys, value in entries(path, name, 4):
        if not keys:
            raise BadDump(name, "is not an object of steps")
        if len(keys) == 4 and keys[3] == str(rank) and keys[2].partition("@")[0] != ROLL_UP:
            yield keys, value


def _operation(keys: tuple[str, ...], value: Any, name: str, warnings: list[str]) -> list[Any] | None:
    return operation_of(keys[1].removeprefix("step"), keys[2], value, name, warnings)


def ranks_of_communication(path: Path, name: str) -> list[int]:
    """Ranks that a cluster_communication.json holds, in order."""
    found = {keys[3] for keys, _ in entries(path, name, 4) if len(keys) == 4}
    return sorted(int(rank) for rank in found if rank.isdigit() and len(rank) < 8)


def read_links(rank: int | None) -> Callable[[Path, str, list[str]], list[dict[str, Any]]]:
    """A reader of the links that start at a rank in cluster_communication_matrix.json; its ranks are the job's."""

    def read(path: Path, name: str, warnings: list[str]) -> list[dict[str, Any]]:
        single: dict[tuple[Any, ...], Link] = {}
        totals: dict[tuple[Any, ...], Link] = {}
        for keys, value in entries(path, name, 3):
            if len(keys) != 3 or not isinstance(value, dict):
                continue
            label, _, group = keys[2].partition("@")
            own = {pair: told for pair, told in value.items() if str(pair).partition("-")[0] == str(rank)}
            key = (keys[1].removeprefix("step"), group)
            if label.endswith("-total"):
                add_pairs(totals, (*key, label.removesuffix("-total")), own)
            elif not SAMPLE.search(label) and not label.startswith(ROLL_UP):
                add_pairs(single, (*key, label.split("__")[0].rstrip("_")), own)
        return _of_job(link_rows(totals or single, {}))

    return read


def _of_job(links: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "within_group": False} for row in links]


def ranks_of_database(path: Path, name: str) -> list[int]:
    """Ranks whose steps or communication a cluster_analysis.db holds, in order."""
    found: set[int] = set()
    with database(path, name) as connection:
        if columns(connection, "ClusterStepTraceTime"):
            query = "select distinct cast(\"index\" as integer) from ClusterStepTraceTime where type = 'rank' limit ?"
            found |= _whole(connection, query)
        if columns(connection, "ClusterCommunicationTime"):
            query = "select distinct cast(rank_id as integer) from ClusterCommunicationTime limit ?"
            found |= _whole(connection, query)
    return sorted(found)


def _whole(connection: sqlite3.Connection, query: str) -> set[int]:
    return {row[0] for row in connection.execute(query, [MAX_RANKS]) if isinstance(row[0], int) and row[0] >= 0}


def read_database_steps(rank: int | None) -> Callable[[Path, str, list[str]], pl.DataFrame]:
    """A reader of one rank's rows of ClusterStepTraceTime, with `STEP_COLUMNS`. Times there are us."""

    def read(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
        with database(path, name) as connection:
            titles = columns(connection, "ClusterStepTraceTime")
            chosen = [column.removesuffix("_ns") for column in STEP_COLUMNS]
            listed = ", ".join(f'"{column}"' if column in titles else "null" for column in chosen)
            query = f"select {listed} from ClusterStepTraceTime where type = 'rank' and \"index\" = ? limit 100000"
            found = connection.execute(query, [str(rank)]).fetchall() if titles else []
        table = [
            [str(row[0]) if row[0] not in (None, "") else None, *(scaled(v, 1000) for v in row[1:])] for row in found
        ]
        if not table:
            raise BadDump(name, f"has no rows of rank {rank}")
        return pl.DataFrame(table, schema=polars_schema(STEP_COLUMNS), orient="row")

    return read


def read_database_communication(rank: int | None) -> Callable[[Path, str, list[str]], pl.DataFrame]:
    """A reader of one rank's rows of ClusterCommunicationTime."""

    def read(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
        with database(path, name) as connection:
            if rank is None or not columns(connection, "ClusterCommunicationTime"):
                raise BadDump(name, f"has no rows of rank {rank}")
            sizes = {}
            if columns(connection, "ClusterCommunicationBandwidth"):
                where = f"where rank_id = {int(rank)}"
                sizes = largest_links(connection, "ClusterCommunicationBandwidth", "band_type", where)
            query = (
                "select step, group_name, hccl_op_name, start_timestamp, elapsed_time, transit_time, wait_time "
                "from ClusterCommunicationTime where rank_id = ?"
            )
            frame = table_of(row for told in connection.execute(query, [rank]) if (row := operation_row(told, sizes)))
        if frame.is_empty():
            raise BadDump(name, f"has no rows of rank {rank}")
        return frame

    return read


def read_database_links(rank: int | None) -> Callable[[Path, str, list[str]], list[dict[str, Any]]]:
    """A reader of the links that start at a rank in ClusterCommunicationMatrix; its ranks are the job's."""

    def read(path: Path, name: str, warnings: list[str]) -> list[dict[str, Any]]:
        with database(path, name) as connection:
            if not columns(connection, "ClusterCommunicationMatrix"):
                raise BadDump(name, "has no communication matrix")
            found = matrix_links(connection, "ClusterCommunicationMatrix", {})
        return _of_job([row for row in found if row["src"] == rank])

    return read


def database_metadata(path: Path, name: str) -> dict[str, Any]:
    """Groups and parallel sizes of a cluster_analysis.db, in the form of communication_group.json and
    profiler_metadata.json."""
    told: dict[str, Any] = {}
    with database(path, name) as connection:
        if columns(connection, "CommunicationGroupMapping"):
            query = "select group_name, pg_name, rank_set from CommunicationGroupMapping limit 100000"
            told["comm_group_parallel_info"] = [
                {"group_name": str(group), "pg_name": kind, "rank_set": _ranks(ranks)}
                for group, kind, ranks in connection.execute(query)
            ]
        if columns(connection, "ClusterBaseInfo"):
            query = "select value from ClusterBaseInfo where key = 'distributed_args' limit 1"
            value = next((row[0] for row in connection.execute(query)), None)
            told["distributed_args"] = _json(value)
    return told


def _ranks(text: object) -> list[int] | None:
    """`(0,8)` as a list."""
    parts = [part.strip() for part in str(text).strip("()[]").split(",") if part.strip()]
    return [int(part) for part in parts] if all(part.isdigit() and len(part) < 8 for part in parts) else None


def _json(value: object) -> dict[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
