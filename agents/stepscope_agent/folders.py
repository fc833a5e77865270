"""What is below the watched folders, remembered so that a look costs little where nothing changed.

A folder's time tells that something came or went in it: only then is it listed anew. Two doubts are met. Within one
tick of a file system's clock a folder may change twice and show one time: a listing counts only once the same time was
seen again later. And some file systems keep no such times: each folder is listed anew every few minutes anyhow.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Sequence

FRESH_S = 5.0
"""A look over many dumps takes minutes: what is asked in the middle of it is looked up anew after so long."""
COARSEST_S = 4.0
"""No file system's clock is coarser than half of this."""
LISTED_S, SPREAD_S = 200.0, 100
"""How long a listing counts where the folder shows no change, and how far such listings are spread."""
_OF_A_WINDOW = re.compile(r"^(?:step_\d+_\d+|request_\d+|rank\d+_start\d+_stop\d+|.*_ascend_(?:pt|ms))$")
_OF_A_RANK = re.compile(r"^rank_?\d+.*$")
_OURS = re.compile(r"^stepscope_|^profiler_config\.json$")


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


class _Place:
    """What is kept of one folder."""

    __slots__ = ("homes", "listed_at", "look", "ours", "sign", "since", "version")

    def __init__(self) -> None:
        self.look = self.version = 0
        self.sign: int | None = None
        self.since = self.listed_at = 0.0  # when a listing first had this sign, and when it was last listed
        self.ours: tuple[str, ...] = ()
        self.homes: tuple[str, ...] = ()  # of a watched folder: those right below it that may be a run's


class Folders:
    def __init__(self, tops: Sequence[str], clock: Callable[[], float]) -> None:
        self.tops = [os.path.abspath(top) for top in tops]
        self.moved = False
        """Whether a folder showed another time than before since somebody set this to false."""
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._look, self._since = 1, clock()

    def forget(self) -> None:
        """What is asked from now on is looked up anew."""
        self._look, self._since = self._look + 1, self._clock()

    def version(self, folder: str) -> int:
        """Another number whenever what is in the folder may have changed."""
        return self._place(folder).version

    def ours(self, folder: str) -> tuple[str, ...]:
        """The names in a folder of files that callbacks, people and profilers leave for the agent, in their order."""
        return self._place(folder).ours

    def homes(self) -> list[str]:
        """The watched folders and those right below, also one of a rank, that hold files left for the agent."""
        return [home for top in self.tops for home in (top, *self._place(top).homes) if self._place(home).ours]

    def above(self, folder: str) -> list[str]:
        """The folders around one, up to the one right below a watched folder."""
        found = []
        while any(os.path.dirname(folder).startswith(top + os.sep) for top in self.tops):
            folder = os.path.dirname(folder)
            found.append(folder)
        return found

    def leave(self, folder: str) -> None:
        """Forgets a folder that is not asked for again."""
        self._places.pop(folder, None)

    def sweep(self) -> None:
        """Forgets the folders that nobody asks for any more."""
        long_ago = self._clock() - LISTED_S - SPREAD_S
        for path in [path for path, place in self._places.items() if place.listed_at < long_ago]:
            del self._places[path]

    def _place(self, folder: str) -> _Place:
        if self._clock() - self._since > FRESH_S:
            self.forget()
        place = self._places.get(folder)
        if place is None:
            place = self._places[folder] = _Place()
        if place.look != self._look:
            place.look = self._look
            self._check(folder, place)
        return place

    def _check(self, folder: str, place: _Place) -> None:
        """Lists the folder where it may have changed. The sign is taken before the names, never after."""
        now, sign = self._clock(), _sign(folder)
        if place.version and sign == place.sign and sign is not None:
            settled = place.listed_at - place.since >= COARSEST_S
            if settled and now - place.listed_at < LISTED_S + hash(folder) % SPREAD_S:
                return
        else:
            self.moved = True
            place.sign, place.since = sign, now
        place.version, place.listed_at = place.version + 1, now
        names, below = listing(folder)
        place.ours = tuple(filter(_OURS.match, names))
        if folder in self.tops:
            place.homes = tuple(os.path.join(folder, name) for name in below if not _OF_A_WINDOW.match(name))


def listing(folder: str) -> tuple[list[str], list[str]]:
    """All names in a folder, and those of real folders among them; none where it may not be read."""
    try:
        with os.scandir(folder) as entries:
            rows = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError:
        return [], []
    return [name for name, _ in rows], [name for name, is_folder in rows if is_folder]


def _sign(folder: str) -> int | None:
    """Changes when something comes or goes in a folder, or when another lies in its place."""
    try:
        stat = os.stat(folder)
    except OSError:
        return None
    return hash((stat.st_mtime_ns, stat.st_ino, stat.st_dev))
