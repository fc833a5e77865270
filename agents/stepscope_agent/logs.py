"""Step lines of training logs -> step records.

MindSpore Transformers (graph and PyNative), MindRLHF, MindYOLO, LossMonitor with TimeMonitor, MindSpeed and Megatron.
What a line does not say, or says unreadably, is absent from its record.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import zlib
from typing import Any, Iterable, Iterator

from stepscope_agent.records import SET_ASIDE

LONGEST_LINE = 16 * 1024
LONGEST_EPOCH = 20000
"""Of an epoch with more reported steps the first ones get no mean time."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[nN]a[nN]|[-+]?inf"
_BRACED = re.compile(
    r"(?:Epoch:?\s*\[?\s*(?P<epoch>\d+)\s*/\s*(?P<epochs>\d+)\s*\]?\s*,\s*)?"
    r"\b[sS]tep:?\s*\[?\s*(?P<step>\d+)\s*/\s*(?P<steps>\d+)\s*\]?\s*,(?P<rest>.*)"
)
_MEGATRON = re.compile(r"\biteration\s+(?P<step>\d+)\s*/\s*\d+\s*\|(?P<rest>.*)")
_LOSS_MONITOR = re.compile(r"\bepoch:\s*(?P<epoch>\d+),?\s+step:\s*(?P<step>\d+),\s*loss is\s+(?P<loss>%s)" % _NUMBER)
_TIME_MONITOR = re.compile(
    r"\bepoch time:\s*(?P<total>%s)\s*ms,\s*per step time:\s*(?P<each>%s)\s*ms" % (_NUMBER, _NUMBER), re.IGNORECASE
)
_FIELDS = (
    ("loss", re.compile(r"(?:^|[\s,|{])(?:lm )?loss:?\s*\[?\s*(%s)" % _NUMBER)),
    ("lr", re.compile(r"(?:^|[\s,|{])(?:cur_)?(?:lr|learning rate):\s*\(?\[?\s*(%s)" % _NUMBER)),
    ("global_norm", re.compile(r"(?:global_norm|grad_norm|grad norm):?\s*\[?\s*(%s)\s*(?:\]|,|\||\}|$)" % _NUMBER)),
    ("step_time_ms", re.compile(r"(?:per_step_time|step time|\btime|per iteration \(ms\)):\s*(%s)" % _NUMBER)),
    ("tflops_per_device", re.compile(r"(?:train_throughput_per_npu|\bthroughput):\s*(%s)\s*T" % _NUMBER)),
    ("tflops_per_device", re.compile(r"\bTFLOPs:\s*(%s)" % _NUMBER)),
    ("loss_scale", re.compile(r"(?:loss_scale|loss scale):\s*\[?\s*(%s)" % _NUMBER)),
)
_OVERFLOW = re.compile(r"overflow cond:\s*\[?\s*(True|False)")
_OVERFLOW_NOTE = re.compile(r"\boverflow\b.*loss scale adjust to\s+(%s)" % _NUMBER)
_NAN_ITERATIONS = re.compile(r"number of nan iterations:\s*(\d+)")
_TAIL = re.compile(r"^\s*iterations:.*\|")


class StepParser:
    """Line by line, since some reports take two lines and steps are counted within epochs."""

    def __init__(self) -> None:
        self._base = 0  # steps of the epochs before the running one
        self._epoch: int | None = None
        self._last = 0  # last step seen in the running epoch
        self._broken: int | None = None  # step of a Megatron line whose end is on the next line
        self._overflow_scale: float | None = None  # told by the line before a step line
        self._timeless: list[int] = []  # steps of the running epoch without a time of their own

    def state(self) -> list[Any]:
        """What to keep over a restart."""
        return [self._base, self._epoch, self._last, self._broken, self._overflow_scale, self._timeless]

    def restore(self, state: list[Any]) -> None:
        """Goes on from what `state` gave; one of another version is passed over."""
        if len(state) == len(self.state()):
            self._base, self._epoch, self._last, self._broken, self._overflow_scale, self._timeless = state

    def feed(self, line: str) -> list[dict[str, Any]]:
        """Records this line holds; a record may repeat a step with more of its values."""
        records = []
        for piece in line[-LONGEST_LINE:].split("\r"):
            match = _TIME_MONITOR.search(piece)
            if match and not _LOSS_MONITOR.search(piece):
                records += self._time_monitor(match)
                continue
            record = self._piece(piece)
            if record is not None:
                records.append(self._with_overflow(record))
        return records

    def _with_overflow(self, record: dict[str, Any]) -> dict[str, Any]:
        scale, self._overflow_scale = self._overflow_scale, None
        return record if scale is None else {"overflow": True, "loss_scale": scale, **record}

    def _piece(self, text: str) -> dict[str, Any] | None:
        broken, self._broken = self._broken, None
        match = _MEGATRON.search(text)
        if match:
            self._broken = int(match.group("step")) if not text.rstrip().endswith("|") else None
            return _record(int(match.group("step")), match.group("rest"))
        if broken is not None and _TAIL.match(text):
            return _record(broken, text)
        match = _LOSS_MONITOR.search(text)
        if match:
            return self._loss_monitor(match)
        match = _BRACED.search(text)
        if match:
            epoch = max(0, int(match.group("epoch") or 1) - 1)
            return _record(epoch * int(match.group("steps")) + int(match.group("step")), "," + match.group("rest"))
        match = _OVERFLOW_NOTE.search(text)
        if match:
            self._overflow_scale = float(match.group(1))
        return None

    def _loss_monitor(self, match: re.Match[str]) -> dict[str, Any]:
        epoch, step = int(match.group("epoch")), int(match.group("step"))
        if self._epoch is None or epoch < self._epoch:
            self._base = 0
        elif epoch > self._epoch:
            self._base += self._last
        if epoch != self._epoch:
            self._timeless = []
        self._epoch, self._last = epoch, step
        self._timeless = self._timeless[-LONGEST_EPOCH:] + [self._base + step]
        return {"step": self._base + step, **_finite("loss", match.group("loss"))}

    def _time_monitor(self, match: re.Match[str]) -> list[dict[str, Any]]:
        """The mean step time of an epoch belongs to each of its steps."""
        total, each = float(match.group("total")), float(match.group("each"))
        if self._epoch is None or not each > 0:
            return []
        self._last = max(self._last, round(total / each))
        steps, self._timeless = self._timeless, []
        return [{"step": step, "step_time_ms": each} for step in steps]


def read_log(lines: Iterable[str]) -> list[dict[str, Any]]:
    """All step records of a log, one a step, in the order of steps; a later word on a value wins."""
    parser, steps = StepParser(), {}  # type: StepParser, dict[int, dict[str, Any]]
    for line in lines:
        for record in parser.feed(line):
            steps.setdefault(record["step"], {}).update(record)
    return [steps[step] for step in sorted(steps)]


def read_log_file(path: str) -> list[dict[str, Any]]:
    """Of a plain log or one packed with gzip. Raises OSError, also for one that is damaged."""
    import gzip  # a watching agent reads no packed log

    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="\n") as stream:
            return read_log(bounded_lines(stream))
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise OSError(errno.EIO, "it is damaged: %s" % exc, path) from exc


def read_records_file(path: str) -> list[dict[str, Any]]:
    """Records our callback wrote, one JSON a line, with those it set aside; a line cut by a crash is passed over."""
    steps: dict[int, dict[str, Any]] = {}
    for part in (path + SET_ASIDE, path):
        if not os.path.exists(part):
            continue
        with open(part, encoding="utf-8", errors="replace") as stream:
            for record in map(_read_record, bounded_lines(stream)):
                if record is not None:
                    steps.setdefault(record["step"], {}).update({k: v for k, v in record.items() if _storable(v)})
    return [steps[step] for step in sorted(steps)]


def _read_record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and type(record.get("step")) is int and record["step"] >= 0 else None


def bounded_lines(stream: Any) -> Iterator[str]:
    """Lines of a text file; of a monstrous one, its pieces: memory stays flat."""
    while True:
        line = stream.readline(LONGEST_LINE)
        if not line:
            return
        yield line


def _record(step: int, text: str) -> dict[str, Any]:
    record: dict[str, Any] = {"step": step}
    for name, pattern in _FIELDS:
        match = pattern.search(text)
        if match and name not in record:
            record.update(_finite(name, match.group(1)))
    match = _OVERFLOW.search(text)
    if match:
        record["overflow"] = match.group(1) == "True"
    match = _NAN_ITERATIONS.search(text)
    if match:
        record["overflow"] = int(match.group(1)) > 0
    return record


def _finite(name: str, text: str) -> dict[str, float]:
    value = float(text)
    return {name: value} if math.isfinite(value) else {}


def _storable(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))
