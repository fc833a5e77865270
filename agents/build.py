"""Builds dist/stepscope-agent.pyz: the same bytes from the same sources, wherever and whenever."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHEBANG = b"#!/usr/bin/env python3\n"
EPOCH = (1980, 1, 1, 0, 0, 0)
MAIN = "import sys\n\nfrom stepscope_agent.cli import main\n\nsys.exit(main())\n"


def build(target: Path) -> Path:
    """Writes the archive to `target`, all of it or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_bytes(archive())
    temporary.chmod(0o755)
    temporary.replace(target)
    return target


def archive() -> bytes:
    """The archive; it runs by itself and also stands on PYTHONPATH."""
    stream = io.BytesIO()
    stream.write(SHEBANG)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr(_entry("__main__.py"), MAIN)
        for path in sorted((HERE / "stepscope_agent").glob("*.py")):
            packed.writestr(_entry("stepscope_agent/" + path.name), path.read_bytes())
    return stream.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3
    return entry


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "dist" / "stepscope-agent.pyz"))
