"""Whether it pays to pack bytes on their way to the server."""

from __future__ import annotations

import time
from typing import Callable, Mapping, NamedTuple

FAST = 50e6
"""Bytes a second. A way as fast as this gains nothing from gzip, and the processor belongs to the training."""
MEASURED = 4 * 1024 * 1024
"""Less than this says nothing of the way: it fits into buffers."""
REMEMBERED_S = 600.0
PACKED_NAMES = (".gz", ".zip", ".tgz")


class Offer(NamedTuple):
    """How much the server takes in one request of many contents."""

    most_bytes: int
    most_files: int


class Link:
    """The way to one server. `local`: it does not leave this host. `takes_gzip`, `offer`: the server said so."""

    def __init__(
        self, local: bool = False, takes_gzip: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.local, self.takes_gzip, self.clock = local, takes_gzip, clock
        self.offer: Offer | None = None
        self._rate: float | None = None
        self._measured_at = 0.0

    def hear(self, headers: Mapping[str, str]) -> None:
        """What an answer to an announced dump says of the server's abilities. An older one says nothing."""
        told = [part.strip() for part in headers.get("stepscope-contents", "").split(",")]
        numbers = [int(part) for part in told if part.isdigit()]
        self.offer = Offer(*numbers) if len(numbers) == len(told) == 2 and min(numbers) > 0 else None
        self.hear_encodings(headers)

    def hear_encodings(self, headers: Mapping[str, str]) -> None:
        self.takes_gzip = "gzip" in headers.get("stepscope-encodings", "").split(",")

    def note(self, count: int, seconds: float) -> None:
        """`count` plain bytes took `seconds` to leave."""
        if count >= MEASURED:
            self._rate, self._measured_at = count / max(seconds, 1e-6), self.clock()

    def pays(self, name: str, size: int, capped: bool) -> bool:
        """Whether the next `size` bytes of file `name` should be packed; `capped`: a person limits the bandwidth.

        Where nobody knows how fast the way is, a large stretch goes plain, to find out.
        """
        if not self.takes_gzip or name.endswith(PACKED_NAMES):
            return False
        if capped:
            return True
        if self.local:
            return False
        if self._rate is None or self.clock() - self._measured_at > REMEMBERED_S:
            return size < MEASURED
        return self._rate < FAST


def is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
