"""Training logs -> step records: MindSpore Transformers, MindRLHF, MindYOLO, LossMonitor, Megatron, MindSpeed.

Reads in pieces of bounded size, so neither a log of gigabytes nor a line of gigabytes fills memory. A line that looks
like a step line and cannot be read is counted; a value in one that cannot be read is null and counted as well.
"""

from __future__ import annotations

import codecs
import gzip
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from statistics import median
from typing import Any

from analysis.errors import BadDump
from analysis.thresholds import limit

Json = dict[str, Any]

CHUNK = 1 << 20
MAX_LINE = 1 << 13
MAX_STEPS = 1_000_000
_SHOWN = 5

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_VALUE = rf"(?P<value>{_NUMBER}(?![\w.])|[-+]?(?i:nan|inf)\b)"
_MS = rf"(?P<value>{_NUMBER})\s*ms\b"
_BREAKS = re.compile(rb"([\r\n])")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_STEP = re.compile(
    r"""(?:\bEpoch:?\s*\[?\s*(?P<epoch>\d+)\s*(?:/\s*\d+\s*)?\]?,\s*)?
        \bstep:?\s*(?P<open>\[)?\s*(?P<step>\d+)\s*/\s*(?P<of>\d+)\s*(?(open)\])""",
    re.VERBOSE | re.IGNORECASE,
)
_ITERATION = re.compile(r"\biteration\s+(?P<step>\d+)\s*/\s*(?P<of>\d+)\s*\|")
_MONITOR = re.compile(r"\bepoch:\s*(?P<epoch>\d+),?\s+step:\s*(?P<step>\d+),\s*loss\s+is\b")
_EPOCH_TIME = re.compile(rf"\bepoch time:\s*(?P<total>{_NUMBER})\s*ms,\s*per step time:\s*(?P<each>{_NUMBER})\s*ms")
_OVERFLOW_NOTE = re.compile(rf"\boverflow\b.*loss scale adjust to\s+(?P<scale>{_NUMBER})")
_LOOKS_LIKE = re.compile(
    r"per_step_time\s*:|elapsed time per iteration|\bstep time\s*:|\bloss\s+is\b"
    r"|\bstep:?\s*\[[^\]]*\].*\bloss\b|\biteration\s+\S*/\S*\s*\|"
)

_WORTH = re.compile(r"step|iteration|epoch|overflow", re.IGNORECASE)

# Fields that are looked for in the text after the step number. `key`: where it is, `value`: what follows it.
_FIELDS: dict[str, tuple[re.Pattern[str], re.Pattern[str]]] = {
    "loss": (re.compile(r"(?<![\w])loss(?:\s+is\s|\s*:)\s*"), re.compile(rf"\[?\s*{_VALUE}")),
    "lr": (re.compile(r"(?<!\w)(?:lr|cur_lr|learning rate)\s*:\s*"), re.compile(rf"\[?\s*{_VALUE}")),
    "global_norm": (
        re.compile(r"(?<!\w)(?:global_norm|global norm|grad_norm|grad norm)\s*:?\s*(?=[\[\d.+\-nNiI])"),
        re.compile(rf"(?P<open>\[)?\s*{_VALUE}(?(open)\s*\])"),
    ),
    "step_time_ms": (
        re.compile(r"(?<!\w)(?:per_step_time|step time|time)\s*:\s*|elapsed time per iteration \(ms\)\s*:\s*"),
        re.compile(rf"{_MS}|(?P<bare>{_NUMBER})(?=\s*(?:\||$))"),
    ),
    "tflops_per_device": (
        re.compile(
            r"(?<!\w)(?:train_throughput_per_npu|throughput|TFLOPs|throughput per [GN]PU \(TFLOP/s/[GN]PU\))\s*:\s*"
        ),
        re.compile(rf"(?P<value>{_NUMBER})(?=T\b|\s*(?:\||$|\}}))"),
    ),
    "loss_scale": (re.compile(r"(?<!\w)loss[_ ]scale\s*:\s*"), re.compile(rf"\[?\s*{_VALUE}")),
}
_OVERFLOW = re.compile(r"\boverflow cond\s*:\s*\[?\s*(?P<value>True|False)")
_NAN_ITERATIONS = re.compile(r"number of nan iterations:\s*(?P<value>\d+)")
_EXTRA_LOSS = re.compile(rf"\b(?P<name>[a-z]\w*_loss)\s*:\s*{_VALUE}")
_NOT_AVAILABLE = re.compile(r"N/A\b")


@dataclass
class LogResult:
    """Step records in order. `unreadable`: step lines that could not be read; `unreadable_values`: values in read ones.

    A record has `step` and those of loss, lr, global_norm, step_time_ms, tflops_per_device, loss_scale and overflow
    that its line gave (null when given but unknown), `nonfinite` naming values that were NaN or infinite,
    `extra_losses`, and `compile` on a first step that took far longer than the rest.
    """

    steps: list[Json]
    unreadable: int = 0
    warnings: list[str] = field(default_factory=list)
    unreadable_values: int = 0


def read_log(path: Path) -> LogResult:
    """Reads a log of any known form, plain or gzip, UTF-8, UTF-16 or near it. BadDump when it cannot be opened."""
    reader = _Reader()
    try:
        for number, text in _lines(path, reader):
            reader.take(number, text)
    except (OSError, EOFError, gzip.BadGzipFile) as exc:
        if not reader.records:
            raise BadDump(path.name, f"cannot be read: {exc}") from exc
        reader.warnings.append(f"reading stopped: {exc}")
    return reader.result()


def _lines(path: Path, reader: _Reader) -> Iterator[tuple[int, str]]:
    """(line number, text), cut at carriage returns as well; of a piece over MAX_LINE only the beginning."""
    number, kept, size = 1, b"", 0
    with _open(path) as stream:
        for chunk in _bytes(stream):
            for piece in _BREAKS.split(chunk):
                if piece not in (b"\n", b"\r"):
                    size += len(piece)
                    kept += piece[: max(0, MAX_LINE - len(kept))]
                    continue
                if kept:
                    yield number, _text(kept)
                reader.long_lines += size > MAX_LINE
                number, kept, size = number + (piece == b"\n"), b"", 0
    reader.long_lines += size > MAX_LINE
    yield number, _text(kept)


def _text(line: bytes) -> str:
    return _ANSI.sub("", line.decode("utf-8", errors="replace"))


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as probe:
        packed = probe.read(2) == b"\x1f\x8b"
    return gzip.GzipFile(path) if packed else path.open("rb")


def _bytes(stream: gzip.GzipFile | BufferedReader) -> Iterator[bytes]:
    """The file as UTF-8, in pieces. UTF-16 is told by its mark."""
    chunk = stream.read1(CHUNK)
    wide = chunk[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    decode = codecs.getincrementaldecoder("utf-16")("replace").decode if wide else None
    while chunk:
        yield decode(chunk).encode("utf-8", "replace") if decode else chunk
        chunk = stream.read1(CHUNK)


class _Reader:
    """What has been read so far; lines of one step, and lines broken in the middle, are put together."""

    def __init__(self) -> None:
        self.records: list[Json] = []
        self.warnings: list[str] = []
        self.unreadable: list[int] = []
        self.bad_values: list[tuple[int, str]] = []
        self.long_lines = 0
        self._tail = ""  # an iteration line that its writer broke in the middle
        self._overflow_scale: float | None = None
        self._offset = 0  # steps of the epochs before, where lines number steps within the epoch
        self._epoch: int | None = None  # the running epoch, where lines name it
        self._last = 0  # last step known of it
        self._epoch_start = 0  # index of the first record of the running epoch

    def take(self, number: int, text: str) -> None:
        if len(self.records) >= MAX_STEPS or not (self._tail or _WORTH.search(text)):
            return
        tail, self._tail = self._tail, ""
        if tail and "|" in text and not _ITERATION.search(text):
            self._merge_tail(number, tail + " " + text)
        elif match := _STEP.search(text) or _ITERATION.search(text):
            self._step(number, match, text)
        elif match := _MONITOR.search(text):
            self._monitor(number, match, text)
        elif match := _EPOCH_TIME.search(text):
            self._epoch_time(match)
        elif match := _OVERFLOW_NOTE.search(text):
            self._overflow_scale = float(match["scale"])
        elif _LOOKS_LIKE.search(text):
            self.unreadable.append(number)

    def _step(self, number: int, match: re.Match[str], text: str) -> None:
        rest = text[match.end() :]
        values = self._values(number, rest)
        if not values:
            if _LOOKS_LIKE.search(text):
                self.unreadable.append(number)
            return
        step, per_epoch = int(match["step"]), int(match["of"])
        epoch = match.groupdict().get("epoch")
        if epoch is not None:
            step += (max(1, int(epoch)) - 1) * per_epoch
        self._add(step, values)
        if "elapsed time" in rest and not rest.rstrip().endswith("|"):
            self._tail = rest

    def _merge_tail(self, number: int, text: str) -> None:
        self.records[-1].update(self._values(number, text))

    def _monitor(self, number: int, match: re.Match[str], text: str) -> None:
        values = self._values(number, text[match.end() - len("loss is") :])
        if values.get("loss") is None and "nonfinite" not in values:
            self.unreadable.append(number)
            return
        epoch, step = int(match["epoch"]), int(match["step"])
        if self._epoch is None or epoch < self._epoch:  # the run began, or began again
            self._offset = 0
        elif epoch > self._epoch:
            self._offset += self._last
        if epoch != self._epoch:
            self._epoch_start = len(self.records)
        self._epoch, self._last = epoch, step
        self._add(self._offset + step, values)

    def _epoch_time(self, match: re.Match[str]) -> None:
        """The mean step time of an epoch belongs to each of its steps that has none."""
        total, each = float(match["total"]), float(match["each"])
        epoch = self.records[self._epoch_start :] if each > 0 else []
        for record in epoch:
            record.setdefault("step_time_ms", each)
        self._epoch_start = len(self.records)
        if each > 0:
            self._last = max(self._last, round(total / each))

    def _add(self, step: int, values: Json) -> None:
        if self._overflow_scale is not None:
            values = {"overflow": True, "loss_scale": self._overflow_scale, **values}
            self._overflow_scale = None
        last = self.records[-1] if self.records else None
        if last is not None and last["step"] == step and not set(values) & set(last):
            last.update(values)
        else:
            self.records.append({"step": step, **values})

    def _values(self, number: int, text: str) -> Json:
        found: Json = {}
        for name, (key, value) in _FIELDS.items():
            place = key.search(text)
            if place is None:
                continue
            match = value.match(text, place.end())
            if match is None:
                found[name] = None
                if not _NOT_AVAILABLE.match(text, place.end()):
                    self.bad_values.append((number, name))
                continue
            groups = match.groupdict()
            told = float(groups.get("value") or groups["bare"])
            if name == "step_time_ms" and told < 0:  # the host's clock was set back within the step
                found[name] = None
                self.bad_values.append((number, name))
                continue
            _put(found, name, told)
        if match := _OVERFLOW.search(text):
            found["overflow"] = match["value"] == "True"
        elif match := _NAN_ITERATIONS.search(text):
            found["overflow"] = int(match["value"]) > 0
        extra = {match["name"]: float(match["value"]) for match in _EXTRA_LOSS.finditer(text)}
        extra = {name: value for name, value in extra.items() if math.isfinite(value)}
        return {**found, "extra_losses": extra} if extra else found

    def result(self) -> LogResult:
        records = self._unique()
        _mark_compile(records)
        self._warn()
        return LogResult(records, len(self.unreadable), self.warnings, len(self.bad_values))

    def _unique(self) -> list[Json]:
        """One record a step, in order; when a run was started again its later values count."""
        by_step: dict[int, Json] = {}
        again = 0
        for record in self.records:
            again += record["step"] in by_step
            by_step[record["step"]] = record
        if again:
            self.warnings.append(f"{again} steps occur again (the run was started again); the last values are kept")
        return [by_step[step] for step in sorted(by_step)]

    def _warn(self) -> None:
        if self.unreadable:
            self.warnings.append(f"{len(self.unreadable)} step lines could not be read: {_places(self.unreadable)}")
        if self.bad_values:
            names = ", ".join(sorted({name for _, name in self.bad_values}))
            places = _places([number for number, _ in self.bad_values])
            self.warnings.append(f"{len(self.bad_values)} values could not be read ({names}): {places}")
        if self.long_lines:
            self.warnings.append(f"{self.long_lines} lines are over {MAX_LINE} bytes; only their beginning was read")
        if len(self.records) >= MAX_STEPS:
            self.warnings.append(f"only the first {MAX_STEPS} steps were read")
        if not self.records:
            self.warnings.append("no step lines found")


def _put(found: Json, name: str, value: float) -> None:
    found[name] = value if math.isfinite(value) else None
    if not math.isfinite(value):
        found.setdefault("nonfinite", []).append(name)


def _places(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_SHOWN])
    return f"line{'s' if len(numbers) > 1 else ''} {shown}" + (" and others" if len(numbers) > _SHOWN else "")


def _mark_compile(records: list[Json]) -> None:
    """The first step of a run holds the compilation when it is far longer than the rest."""
    times = [record["step_time_ms"] for record in records if record.get("step_time_ms")]
    if len(times) < 2 or not records[0].get("step_time_ms"):
        return
    if records[0]["step_time_ms"] > limit("warmup_factor") * median(times[1:]):
        records[0]["compile"] = True
