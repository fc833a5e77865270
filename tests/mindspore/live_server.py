"""A running product for tests of another virtual environment: each line read is a program to run with its settings.

Run with the server's own Python; prints the server's address first, then one line of JSON for each line read.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.live import live  # noqa: E402


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # the product's processes end with it
with live(pages=True, STEPSCOPE_HEARTBEAT_SECONDS="1", STEPSCOPE_LOG_LEVEL="WARNING") as product:
    answer({"url": product.url, "token": product.token, "project": product.project})
    for line in sys.stdin:
        program = json.loads(line)
        answer(product.python(program["code"], *program["arguments"]))
