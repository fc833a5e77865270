"""trace_view.json: the events that tell about layers and about free time, streamed through DuckDB.

Traces reach gigabytes. DuckDB reads them in a bounded memory into a Parquet file that holds what matters.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl

from analysis.errors import BadDump
from analysis.readers.kernel_details import MAX_DURATION_NS, MAX_TIME_NS
from analysis.readers.text import first_line, plain

MAX_TRACE_BYTES = 8 << 30
_EVENTS = (
    "{ph: 'VARCHAR', cat: 'VARCHAR', name: 'VARCHAR', tid: 'VARCHAR', ts: 'VARCHAR', dur: 'VARCHAR', id: 'VARCHAR'}"
)
_QUERY = """
    copy (
        select ph, cat, tid, hash(id) as id,
               try_cast(try_cast(trim(ts) as decimal(22, 3)) * 1000 as bigint) as start_ns,
               try_cast(try_cast(trim(dur) as decimal(22, 3)) * 1000 as bigint) as duration_ns,
               regexp_extract(name, '^nn\\.Module: (.+)_(\\d+)$', 1) as class,
               try_cast(regexp_extract(name, '^nn\\.Module: (.+)_(\\d+)$', 2) as bigint) as number,
               case when ph = 'X' and not starts_with(name, 'nn.Module: ') then name end as name
        from read_json(?, format = 'array', columns = {columns})
        where cat in ('async_npu', 'fwdbwd', 'HostToDevice')
           or (ph = 'X' and (cat in ('cpu_op', 'GC') or name = 'GC' or name like '%ProfilerStep#%'
                             or starts_with(name, 'AscendCL@aclrt') or starts_with(name, 'Node@launch')
                             or regexp_matches(name, '^\\w+::\\w+::')
                             or (cat = 'python_function' and starts_with(name, 'nn.Module: '))))
    ) to '{target}' (format parquet)
"""
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2,
    "memory_limit": "400MB",
    "preserve_insertion_order": False,  # kept, rows wait in memory for the pieces of the file before them
    "autoinstall_known_extensions": False,
}


def read_events(path: Path, name: str, warnings: list[str]) -> pl.DataFrame:
    """ph, cat, tid, id, start_ns, duration_ns, class and number of modules, name of other ranges; by start, the longer
    range first.

    Kept are flows from host to device and from forward to backward, module ranges, host operators, calls of the
    runtime, collections of garbage and the profiler's steps. Raises BadDump for a trace that is broken.
    """
    import duckdb

    with plain(path, name) as file, tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        size = file.stat().st_size
        if not 0 < size <= MAX_TRACE_BYTES:
            raise BadDump(name, "is empty (zero bytes)" if not size else f"is {size >> 30} GiB: not read")
        target = Path(folder) / "events.parquet"
        query = _QUERY.format(columns=_EVENTS, target=target)
        try:
            with duckdb.connect(config=SETTINGS) as base:
                base.execute(query, [str(file)])
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise BadDump(name, f"is not a trace that can be read, or was cut ({first_line(error, file)})") from error
        return sound(pl.scan_parquet(target), name, warnings)


def sound(events: pl.LazyFrame, name: str, warnings: list[str]) -> pl.DataFrame:
    """Events whose times can be, in order of time. Never the unordered table beside the ordered one."""
    start, duration = pl.col("start_ns"), pl.col("duration_ns")
    timed = (start >= 0) & (start <= MAX_TIME_NS)
    ranged = (pl.col("ph") != "X") | ((duration >= 0) & (duration <= MAX_DURATION_NS))
    keys, down = ("start_ns", "duration_ns", "ph", "tid", "name"), [False, True, False, False, False]
    good = events.filter((timed & ranged).fill_null(False)).sort(*keys, descending=down).collect()
    if bad := int(events.select(pl.len()).collect().item()) - good.height:
        warnings.append(f"{name}: {bad} events have no time that can be; they are left out")
    return good


def profiler_steps(events: pl.DataFrame) -> dict[str, float]:
    """Step -> length in us of the profiler's own step ranges; empty where the trace has none."""
    ranges = events.lazy().filter((pl.col("ph") == "X") & pl.col("name").str.contains("ProfilerStep#", literal=True))
    steps = ranges.select(pl.col("name").str.extract(r"#([^#]*)$"), "duration_ns").collect()
    return {step: length / 1000 for step, length in steps.iter_rows() if step and length}
