"""Where the Parquet files of a digested dump are."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

NAME = re.compile(r"\d+-[0-9a-f]{12}")


def frames_path(name: str) -> Path:
    """The folder of a digest's Parquet files, by `Dump.frames`. ValueError for any other text."""
    if not NAME.fullmatch(name):
        raise ValueError(f"not a frames folder: {name[:80]!r}")
    return Path(settings.DATA_ROOT) / "frames" / name
