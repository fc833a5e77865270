"""Which of a dump's kernels hold a text in name or type, without a look at a million names.

Kernels repeat a few thousand names. Two files beside the Parquet files: `.json`, the different pairs of name and type,
and `.bin`, the number of each row's pair, in the order of rows.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.lanes import WORTH_KEEPING
from analysis.schema import NAMES_FILE
from analysis.store import scan
from analysis.words import as_categories, combined

COLUMNS = ("name", "type")
MOST_PAIRS = 1 << 16
"""What two bytes count to. Of more different ones the names themselves are searched."""

Mask = npt.NDArray[np.bool_]


def write_names(folder: Path, kernels: pl.DataFrame) -> bool:
    """Leave the two files for these kernels in `folder`; False, and none, where too many names differ."""
    codes, rows = combined([kernels[name] for name in COLUMNS])
    if len(rows) > MOST_PAIRS:
        return False
    pairs = kernels.select(pl.col(COLUMNS).cast(pl.String))[rows].rows()
    # Two searches may make them at once: each writes its own, and both hold the same.
    spare = folder / f"names-{uuid.uuid4().hex[:12]}.part"
    spare.write_bytes(codes.astype("<u2").tobytes())
    os.replace(spare, folder / f"{NAMES_FILE}.bin")
    spare.write_text(json.dumps(pairs), encoding="utf-8")
    os.replace(spare, folder / f"{NAMES_FILE}.json")
    return True


def rows_with(folder: Path, text: str) -> Mask:
    """For each row of the kernels in `folder`, whether its name or type holds `text` in any case.

    Makes the files where they are worth it and missing. FileNotFoundError where no kernels are kept.
    """
    if not (folder / f"{NAMES_FILE}.json").exists():
        kernels = scan(folder, "kernels").select(COLUMNS).collect()
        if kernels.height < WORTH_KEEPING or not write_names(folder, as_categories(kernels)):
            return _with(kernels, text)
    pairs = json.loads((folder / f"{NAMES_FILE}.json").read_bytes())
    codes = np.fromfile(folder / f"{NAMES_FILE}.bin", "<u2")
    found = _with(pl.DataFrame(pairs, dict.fromkeys(COLUMNS, pl.String()), orient="row"), text)
    return found.take(codes)


def _with(frame: pl.DataFrame, text: str) -> Mask:
    # A pattern that takes no account of case is quicker than names made lower.
    pattern = f"(?i){pl.escape_regex(text)}"
    holds = pl.any_horizontal(pl.col(name).str.contains(pattern) for name in COLUMNS)
    found: Mask = frame.select(holds.fill_null(False)).to_series().to_numpy()
    return found
