"""A process forked after Polars has worked hangs. So importing our modules must not make it work: Celery forks after
the import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import importlib, os, pkgutil, threading
import analysis
for module in pkgutil.walk_packages(analysis.__path__, "analysis."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
child = os.fork()
if child == 0:
    import polars as pl
    assert pl.DataFrame({"a": list(range(100_000))}).group_by(pl.col("a") % 7).len().height == 7
    os._exit(0)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_forked_after_importing_everything_can_use_polars():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
