"""Where the Parquet files of a digested dump are."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

from django.conf import settings

NAME = re.compile(r"\d+-[0-9a-f]{12}")


def frames_path(name: str) -> Path:
    """The folder of a digest's Parquet files, by `Dump.frames`. ValueError for any other text."""
    if not NAME.fullmatch(name):
        raise ValueError(f"not a frames folder: {name[:80]!r}")
    return Path(settings.DATA_ROOT) / "frames" / name


def nameless_file() -> BinaryIO:
    """A file on the disk of the data that is gone as soon as nobody has it open, a killed process included."""
    root = Path(settings.DATA_ROOT)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return cast(BinaryIO, tempfile.TemporaryFile(dir=root))
