"""Files of our own that the agent's callback writes next to a dump."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from analysis.readers.text import plain

STEP_KEYS = ("loss", "lr", "global_norm", "step_time_ms", "tflops_per_device", "loss_scale")
MAX_LINE = 1 << 16
MAX_STEPS = 1_000_000


def read_step_records(path: Path, name: str, warnings: list[str]) -> list[dict[str, Any]]:
    """Step records of stepscope_steps.jsonl in step order; a later record of a step completes the earlier one."""
    steps: dict[int, dict[str, Any]] = {}
    bad: list[int] = []
    with plain(path, name) as file, file.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE), b""), 1):
            record = _record(line) if line.strip() else {}
            if record is None or len(steps) >= MAX_STEPS:
                bad.append(number)
            elif record:
                known = steps.setdefault(record["step"], {"step": record["step"]})
                known.update({key: value for key, value in record.items() if value is not None})
    if bad:
        more = f", and {len(bad) - 1} more such lines" if len(bad) > 1 else ""
        warnings.append(f"{name}: line {bad[0]}: is not a step record{more}")
    return [_complete(steps[step]) for step in sorted(steps)]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = value.get("step") if isinstance(value, dict) else None
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        return None
    numbers = {key: _finite(value.get(key)) for key in STEP_KEYS}
    overflow = value.get("overflow")
    return {"step": step, **numbers, "overflow": overflow if isinstance(overflow, bool) else None}


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def _complete(record: dict[str, Any]) -> dict[str, Any]:
    return {"step": record["step"], **{key: record.get(key) for key in (*STEP_KEYS, "overflow")}}
