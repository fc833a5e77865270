"""`python -m analysis.nursery`: has everything imported and forks a child for each command it is given.

Imports are half of what a small rank costs, and a capture has a thousand of those. Orders are lines of JSON on standard
input, answers lines on standard output: the child's process id at once, its exit code at its end. Each child has the
limits of its order and handles nothing else, so that a hostile dump still kills only itself. Polars is imported here
but never works here: a child forked after that would hang.
"""

from __future__ import annotations

import ctypes
import encodings.utf_8_sig  # noqa: F401 - imported at the first use, as the next ones
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from typing import Any, NoReturn

import duckdb  # noqa: F401
import numpy.ma  # noqa: F401
import polars
import polars._utils.parquet

import analysis.checklist
import analysis.facts
import analysis.free_time
import analysis.kernel_names
import analysis.lanes
import analysis.layers
import analysis.rank
import analysis.store
import analysis.verdict  # noqa: F401 - imported for the children
from analysis.cli import main as command

YOUNG = 10_000
"""New objects before the collector looks at them."""


def main() -> None:
    """Serve orders until standard input ends."""
    _freeze()
    _answer({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _work(order, parent)
        _answer({"pid": child})
        _, status = os.waitpid(child, 0)
        _answer({"code": os.waitstatus_to_exitcode(status)})


def _freeze() -> None:
    """What is imported stays: a child whose collector looked at it would copy that memory, a tenth of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)


def _answer(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _work(order: dict[str, Any], parent: int) -> NoReturn:
    """The child: limits first, then the command, and never back into the loop."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        errors = os.open(order["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for target, source in enumerate((nothing, nothing, errors)):
            os.dup2(source, target)
        resource.setrlimit(resource.RLIMIT_AS, (order["memory"], order["memory"]))
        resource.setrlimit(resource.RLIMIT_CPU, (order["seconds"], order["seconds"] + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(10)
        if order["threads"] > 1:  # of Polars; it keeps the number that stood in the environment at its import
            polars.Config.load(json.dumps({"environment": {"POLARS_MAX_THREADS": str(order["threads"])}}))
        tempfile.tempdir = order["folder"]
        code = command(order["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
