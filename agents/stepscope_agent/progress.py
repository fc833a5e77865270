"""A progress bar on a terminal; plain lines, and few of them, elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

EVERY_S = 0.2


class Progress:
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.total = self.done = self.dumps = 0
        self._began = self._drawn = 0.0
        self._said = ""
        self._width = 0

    def begin(self, dumps: int, total: int) -> None:
        self.dumps, self.total, self._began = dumps, total, time.monotonic()

    def add(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if self.terminal and self.total and now - self._drawn >= EVERY_S:
            self._drawn = now
            import shutil  # of all commands only those on a terminal need it

            self._draw(self.text(now - self._began, shutil.get_terminal_size().columns))

    def text(self, elapsed: float, columns: int) -> str:
        share = min(1.0, max(0.0, self.done / float(self.total))) if self.total else 1.0
        rate = self.done / elapsed / 1e6 if elapsed > 0 else 0.0
        tail = " %3.0f %%  %.1f of %.1f MB  %.1f MB/s" % (share * 100, self.done / 1e6, self.total / 1e6, rate)
        bar = max(0, min(40, columns - len(tail) - 3))
        return ("[%s%s]" % ("#" * int(bar * share), "." * (bar - int(bar * share))) if bar else "") + tail

    def note(self, text: str) -> None:
        self._clear()
        self.stream.write(text + "\n")
        self.stream.flush()

    def note_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.note(text)

    def end(self) -> None:
        self._clear()

    def _draw(self, text: str) -> None:
        self.stream.write("\r" + text.ljust(self._width))
        self.stream.flush()
        self._width = len(text)

    def _clear(self) -> None:
        if self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self.stream.flush()
            self._width = 0
