"""Follows growing logs: rotation and truncation included, each line once, over restarts."""

from __future__ import annotations

import json
import os
from typing import Any

from stepscope_agent.logs import StepParser

MOST_BYTES = 4 * 1024 * 1024
"""Read at most so much of a log in one pass: a huge old log does not hold up the rest."""


class Tail:
    """One followed file. `row` is its memory: kept by the caller, JSON-able."""

    def __init__(self, path: str, row: dict[str, Any]) -> None:
        self.path = path
        self.row = row
        self._next: dict[str, Any] = dict(row)

    def read(self) -> list[dict[str, Any]]:
        """Records of the lines added since the last `keep`. Reading again without `keep` gives them again."""
        aside = self._set_aside()
        try:
            with open(aside or self.path, "rb") as stream:
                stat = os.fstat(stream.fileno())
                offset, parser = self._place(stat)
                stream.seek(offset)
                data = stream.read(MOST_BYTES)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if (not end and len(data) == MOST_BYTES) or (aside and len(data) < MOST_BYTES):
            end = len(data)  # a line of megabytes is no step line; a log that was set aside gets no more
        text = data[:end].decode("utf-8", errors="replace")
        records = self._jsonl(text) if self.path.endswith(".jsonl") else self._steps(text, parser)
        self._next = {"offset": offset + end, "file": _identity(stat), "parser": parser.state()}
        return records

    def keep(self) -> None:
        """The records read have arrived: go on behind them."""
        self.row.clear()
        self.row.update(self._next)

    def still(self) -> bool:
        """Whether it ends where it was read to, so that it need not even be opened."""
        try:
            stat = os.stat(self.path)
        except OSError:
            return True
        return _identity(stat) == self.row.get("file") and stat.st_size == self.row.get("offset")

    def _set_aside(self) -> str | None:
        """The log read so far, when it was renamed by rotation before its end was read."""
        known, offset = self.row.get("file"), self.row.get("offset")
        try:
            if not isinstance(offset, int) or not known or _identity(os.stat(self.path)) == known:
                return None
            folder, name = os.path.split(self.path)
            for other in sorted(os.listdir(folder)):
                if other != name and other.startswith(name):
                    stat = os.stat(os.path.join(folder, other))
                    if _identity(stat) == known and stat.st_size > offset:
                        return os.path.join(folder, other)
        except OSError:
            pass
        return None

    def _place(self, stat: os.stat_result) -> tuple[int, StepParser]:
        parser = StepParser()
        offset = self.row.get("offset")
        same = self.row.get("file") == _identity(stat)
        if not isinstance(offset, int) or not same or offset > stat.st_size:
            return 0, parser  # new, rotated or truncated: from its beginning
        if isinstance(self.row.get("parser"), list):
            parser.restore(self.row["parser"])
        return offset, parser

    @staticmethod
    def _steps(text: str, parser: StepParser) -> list[dict[str, Any]]:
        return [record for line in text.split("\n") for record in parser.feed(line)]

    @staticmethod
    def _jsonl(text: str) -> list[dict[str, Any]]:
        records = []
        for line in text.split("\n"):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and type(record.get("step")) is int:
                records.append(record)
        return records


def _identity(stat: os.stat_result) -> list[int]:
    return [stat.st_dev, stat.st_ino]
