"""trace_view.json: the events that tell about layers and about free time, streamed through DuckDB.

Traces reach gigabytes. DuckDB reads them in a bounded memory into a Parquet file that holds what matters.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl

from analysis.errors import BadDump
from analysis.readers.text import first_line, plain

MAX_TRACE_BYTES = 8 << 30
_EVENTS = (
    "{ph: 'VARCHAR', cat: 'VARCHAR', name: 'VARCHAR', tid: 'VARCHAR', ts: 'VARCHAR', dur: 'VARCHAR', id: 'VARCHAR'}"
)
_QUERY = """
    copy (
        select ph, cat, tid, hash(id) as id,
               cast(cast(trim(ts) as decimal(22, 3)) * 1000 as bigint) as start_ns,
               cast(cast(trim(dur) as decimal(22, 3)) * 1000 as bigint) as duration_ns,
               regexp_extract(name, '^nn\\.Module: (.+)_(\\d+)$', 1) as class,
               try_cast(regexp_extract(name, '^nn\\.Module: (.+)_(\\d+)$', 2) as bigint) as number,
               case when ph = 'X' and not starts_with(name, 'nn.Module: ') then name end as name
        from read_json(?, format = 'array', columns = {columns})
        where cat in ('async_npu', 'fwdbwd', 'HostToDevice')
           or (ph = 'X' and (cat in ('cpu_op', 'GC') or name = 'GC' or name like '%ProfilerStep#%'
                             or starts_with(name, 'AscendCL@aclrt') or regexp_matches(name, '^\\w+::\\w+::')
                             or (cat = 'python_function' and starts_with(name, 'nn.Module: '))))
    ) to '{target}' (format parquet)
"""


def read_events(path: Path, name: str) -> pl.DataFrame:
    """ph, cat, tid, id, start_ns, duration_ns, class and number of modules, name of other ranges.

    Kept are flows from host to device and from forward to backward, module ranges, host operators, calls of the
    runtime, collections of garbage and the profiler's steps. Raises BadDump for a trace that is broken.
    """
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {"threads": 2, "memory_limit": "400MB"}
    settings["autoinstall_known_extensions"] = False
    with plain(path, name) as file, tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        size = file.stat().st_size
        if not 0 < size <= MAX_TRACE_BYTES:
            raise BadDump(name, "is empty (zero bytes)" if not size else f"is {size >> 30} GiB: not read")
        target = Path(folder) / "events.parquet"
        query = _QUERY.format(columns=_EVENTS, target=target)
        try:
            with duckdb.connect(config=settings) as base:
                base.execute(query, [str(file)])
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise BadDump(name, f"is not a trace that can be read, or was cut ({first_line(error)})") from error
        return pl.read_parquet(target)
