"""Large JSON objects of objects, one entry at a time: memory is that of the largest entry, whatever the file's size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from analysis.errors import BadDump
from analysis.readers.text import BLOCK, first_line, plain

MAX_ENTRY = 16 << 20
"""Characters of one entry. Those of communication.json take about 2 000."""
_BLANK = re.compile(r"[ \t\r\n]*")


def entries(path: Path, name: str, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(keys, value) of every value that lies `depth` objects deep, and of shallower ones that are no object.

    Decimals come as the text they are, so that none loses a digit. Raises BadDump naming the line where the text stops
    being JSON.
    """
    with plain(path, name) as file:
        if not file.stat().st_size:
            raise BadDump(name, "is empty (zero bytes)")
        with file.open(encoding="utf-8-sig", newline="") as source:
            text = _Text(source, name)
            try:
                yield from _walk(text, depth, ())
                text.end()
            except UnicodeDecodeError as error:
                raise BadDump(name, f"line {text.line()}: is not UTF-8 text") from error


def _walk(text: _Text, depth: int, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not depth or text.peek() != "{":
        yield keys, text.value()
        return
    text.take("{")
    while text.peek() != "}":
        key = text.value()
        if not isinstance(key, str):
            raise text.error("a name in quotes is missing")
        text.take(":")
        yield from _walk(text, depth - 1, (*keys, key))
        if text.peek() == ",":
            text.take(",")
            if text.peek() == "}":
                raise text.error("a name in quotes is missing")
        elif text.peek() != "}":
            raise text.error("a comma is missing")
    text.take("}")


class _Text:
    """Text of which only a piece is in memory; `at` is the place in it."""

    def __init__(self, source: IO[str], name: str) -> None:
        self.source = source
        self.name = name
        self.piece = ""
        self.at = 0
        self.lines = 0
        self.ended = False
        self.decoder = json.JSONDecoder(parse_float=str)

    def peek(self) -> str:
        """The next character that is no blank; "" at the end."""
        if self.at < len(self.piece) and self.piece[self.at] > " ":
            return self.piece[self.at]
        while True:
            match = _BLANK.match(self.piece, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.piece):
                return self.piece[self.at]
            if not self._more():
                return ""

    def take(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.error(f"{sign!r} is missing")
        self.at += 1

    def value(self) -> Any:
        """The next whole value. A number at the end of the piece may go on in the next one."""
        if not self.peek():
            raise self.error("it ends in the middle")
        while True:
            try:
                value, end = self.decoder.raw_decode(self.piece, self.at)
                if end < len(self.piece) or not self._more():
                    self.at = end
                    return value
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self.error(error.msg) from error
            except RecursionError as error:
                raise BadDump(self.name, "is nested too deep for a profiler's file") from error
            except ValueError as error:
                raise BadDump(self.name, f"is not usable JSON ({first_line(error)})") from error

    def end(self) -> None:
        if self.peek():
            raise self.error("something stands after its end")

    def _more(self) -> bool:
        """Read on, forgetting what was taken. Reads twice as much when an entry did not fit."""
        if self.ended or len(self.piece) - self.at > MAX_ENTRY:
            return False
        block = self.source.read(max(BLOCK, len(self.piece) - self.at))
        self.ended = not block
        self.lines += self.piece.count("\n", 0, self.at)
        self.piece, self.at = self.piece[self.at :] + block, 0
        return bool(block)

    def line(self) -> int:
        return self.lines + self.piece.count("\n", 0, self.at) + 1

    def error(self, what: str) -> BadDump:
        if not self.ended and len(self.piece) - self.at > MAX_ENTRY:
            return BadDump(self.name, f"line {self.line()}: one entry is longer than {MAX_ENTRY >> 20} MiB")
        return BadDump(self.name, f"line {self.line()}: is not valid JSON, or was cut ({what})")
