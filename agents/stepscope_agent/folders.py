"""The watched folders, each listed once a look however many ask what is in it."""

from __future__ import annotations

import os
import re
from typing import Callable, Sequence

FRESH_S = 5.0
"""A look over many dumps takes minutes: what is asked in the middle of it is listed anew after so long."""
_OF_A_WINDOW = re.compile(r"^(?:step_\d+_\d+|request_\d+|rank\d+_start\d+_stop\d+|.*_ascend_(?:pt|ms))$")
_OF_A_RANK = re.compile(r"^rank_?\d+.*$")


def is_part_of_a_run(name: str) -> bool:
    """Whether a folder of this name holds one window or one rank, and so is not a run's own."""
    return bool(_OF_A_WINDOW.match(name) or _OF_A_RANK.match(name))


def home_of(root: str) -> str:
    """The folder of the run that a dump lies in: the nearest above it that is not of one window or rank."""
    home = os.path.dirname(root)
    while is_part_of_a_run(os.path.basename(home)):
        home = os.path.dirname(home)
    return home


def name_of(home: str) -> str:
    """A run's name where nobody told one: its folder's; of a single rank's, that of the folder around it."""
    name = os.path.basename(home)
    return os.path.basename(home_of(home)) if is_part_of_a_run(name) else name


class Folders:
    def __init__(self, tops: Sequence[str], clock: Callable[[], float]) -> None:
        self.tops = [os.path.abspath(top) for top in tops]
        self._clock = clock
        self._seen: dict[str, tuple[list[str], list[str]]] = {}
        self._since = clock()

    def forget(self) -> None:
        """What is asked from now on is looked up anew."""
        self._seen, self._since = {}, self._clock()

    def listed(self, folder: str) -> tuple[list[str], list[str]]:
        """All names in a folder, and those of real folders among them; none where it may not be read."""
        if self._clock() - self._since > FRESH_S:
            self.forget()
        known = self._seen.get(folder)
        if known is None:
            known = self._seen[folder] = listing(folder)
        return known

    def homes(self) -> list[str]:
        """The watched folders and those right below them, also one of a rank: where a callback leaves its files."""
        return [home for top in self.tops for home in [top] + self._below(top)]

    def above(self, folder: str) -> list[str]:
        """The folders around one, up to the one right below a watched folder."""
        found = []
        while any(os.path.dirname(folder).startswith(top + os.sep) for top in self.tops):
            folder = os.path.dirname(folder)
            found.append(folder)
        return found

    def _below(self, top: str) -> list[str]:
        return [os.path.join(top, name) for name in self.listed(top)[1] if not _OF_A_WINDOW.match(name)]


def listing(folder: str) -> tuple[list[str], list[str]]:
    try:
        with os.scandir(folder) as entries:
            rows = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError:
        return [], []
    return [name for name, _ in rows], [name for name, is_folder in rows if is_folder]
