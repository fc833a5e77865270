"""Which dumps below the watched folders want attention: found once, then looked into only as long as it takes."""

from __future__ import annotations

import os
from typing import Callable, Iterator

from stepscope_agent.discover import FoundDump, may_hold_dumps, recognised, too_deep
from stepscope_agent.folders import Folders, listing

PARKED_EACH_LOOK, PARKED_SHARE = 100, 6
"""Of dumps given up or skipped so many are looked at again each time, or such a part where that is more."""


class Ground:
    """`rests` tells whether nothing is to be done about a dump now, `ended` whether that is for good."""

    def __init__(self, folders: Folders, rests: Callable[[str], bool], ended: Callable[[str], bool]) -> None:
        self.folders, self.rests, self.ended = folders, rests, ended
        self._plain: dict[str, tuple[int, tuple[str, ...]]] = {}  # folders that are no dump: version, those in them
        self._open: set[str] = set()
        self._parked: dict[str, None] = {}  # those whose turn it is soonest first

    def dumps(self) -> list[FoundDump]:
        """Dumps that do not rest, not yet looked into, in the order of their folders."""
        self._wake()
        found = [dump for root in sorted(self._open) for dump in self._again(root)]
        for top in self.folders.tops:
            found += self._walk(top)
        return sorted(found, key=lambda dump: dump.root)

    def _wake(self) -> None:
        """Opens those parked dumps that rest no longer, of those that it is the turn of."""
        share = max(PARKED_EACH_LOOK, len(self._parked) // PARKED_SHARE)
        for root in list(self._parked)[:share]:
            del self._parked[root]
            if not self._resting(root):
                self._open.add(root)

    def _resting(self, root: str) -> bool:
        if not self.rests(root):
            return False
        if not self.ended(root):
            self._parked[root] = None
        return True

    def _again(self, root: str) -> list[FoundDump]:
        if self._resting(root):
            self._open.discard(root)
            return []
        found = recognised(root, listing(root)[0])
        if not found:  # gone, or no dump any more: whoever walks the folder around it finds out
            self._open.discard(root)
            self._drop(os.path.dirname(root))
        return found

    def _walk(self, folder: str) -> Iterator[FoundDump]:
        """What is new at or below a folder."""
        if folder in self._open or folder in self._parked:
            return
        version, plain = self._plain.get(folder, (0, ()))
        if not version and self._resting(folder):
            return
        now = self.folders.version(folder)
        if now == version:
            for path in plain:
                yield from self._walk(path)
            return
        names, below = listing(folder)
        found = recognised(folder, names)
        if found:
            self._drop(folder)
            self.folders.leave(folder)
            self._open.add(folder)
            yield from found
            return
        paths = [os.path.join(folder, name) for name in below if may_hold_dumps(name) and not too_deep(folder)]
        for path in paths:
            yield from self._walk(path)
        for path in set(plain).difference(paths):
            self._drop(path)
        self._plain[folder] = now, tuple(path for path in paths if path in self._plain)

    def _drop(self, folder: str) -> None:
        """Forgets a folder and what is below it."""
        for path in self._plain.pop(folder, (0, ()))[1]:
            self._drop(path)
