"""The Parquet files of a dump: one per table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from analysis.words import category_columns


def write_frames(folder: Path, frames: Mapping[str, pl.DataFrame]) -> list[Path]:
    """Write each frame to `<table>.parquet`, whole or not at all. The folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {folder / f"{table}.parquet": frame for table, frame in sorted(frames.items())}
    pl.collect_all([_written(_unfinished(path), frame) for path, frame in paths.items()])
    return [_unfinished(path).replace(path) for path in paths]


def _unfinished(path: Path) -> Path:
    return path.with_suffix(".parquet.part")


def _written(path: Path, frame: pl.DataFrame) -> pl.LazyFrame:
    # as a stream: categories become text a row group at a time, not a second table in memory
    stream = frame.lazy().cast(dict.fromkeys(category_columns(frame), pl.String()))
    return stream.sink_parquet(path, compression="zstd", compression_level=3, row_group_size=1 << 17, lazy=True)


def scan(folder: Path, table: str) -> pl.LazyFrame:
    """One table of a dump, read as far as the query needs. FileNotFoundError where it was never written."""
    path = folder / f"{table}.parquet"
    if not path.exists():
        raise FileNotFoundError(path)
    return pl.scan_parquet(path)
