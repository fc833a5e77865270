"""Secrets hidden again, by the rules of today, in what was stored by the rules of earlier versions.

Nothing else of a row changes: fingerprints are of sizes, so that no series of alerts begins anew, and no capture is
summed up again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db.models import F, Func, JSONField, Model, QuerySet, TextField, Value
from django.db.models.expressions import Combinable

from dashboard.ingest.masks import kept_config, masked_meta
from dashboard.ingest.models import IncomingArchive
from dashboard.runs.models import Capture, Dump, Run

BATCH = 500


@dataclass(frozen=True)
class Place:
    """A column with texts of clients, or the value at a path of keys in a column of JSON."""

    name: str
    model: type[Model]
    column: str
    hidden: Callable[..., Any]
    path: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    """Further columns that `hidden` needs."""

    @property
    def lookup(self) -> str:
        return "__".join((self.column, *self.path))

    def rows(self, after: int) -> list[tuple[Any, ...]]:
        rows: QuerySet[Any, Any] = self.model._default_manager.filter(pk__gt=after).order_by("pk")
        return list(rows.values_list("pk", self.lookup, *self.beside)[:BATCH])

    def hide(self, pk: int, told: Any, *beside: Any) -> int:
        """Number of rows changed. One that a client has changed meanwhile was masked when that came."""
        shown = self.hidden(told, *beside) if told else told
        if shown == told:
            return 0
        same = self.model._default_manager.filter(**{"pk": pk, self.lookup: told})
        return same.update(**{self.column: self._with(shown)})

    def _with(self, shown: Any) -> Any:
        if not self.path:
            return shown
        place: list[Combinable] = [F(self.column), Value(list(self.path), ArrayField(TextField()))]
        return Func(*place, Value(shown, JSONField()), function="jsonb_set")


def _config(text: str, name: str) -> str:
    return kept_config(name, text)


def _environment(told: Any) -> Any:
    return json.loads(_masked_json(json.dumps(told, ensure_ascii=False)))


@lru_cache(maxsize=4096)
def _masked_json(text: str) -> str:
    """A thousand ranks tell the same environment."""
    return json.dumps(masked_meta(json.loads(text)), ensure_ascii=False)


PLACES = (
    Place("configs of runs", Run, "config_text", _config, beside=("config_name",)),
    Place("metadata of runs", Run, "meta", masked_meta),
    Place("configs of archives", IncomingArchive, "config_text", _config, beside=("config_name",)),
    Place("environments of dumps", Dump, "source", _environment, path=("environment",)),
    Place("environments of captures", Capture, "report", _environment, path=("source", "environment")),
)


def hide_again() -> Iterator[tuple[str, int, int, bool]]:
    """Go through all places in batches; yields the place's name, how many of its rows were read and changed so far, and
    whether it is done. What was stopped goes on after its last batch, unless the rules are others by then."""
    started = _Position.read()
    for number, place in enumerate(PLACES[started.place :], started.place):
        at = started if number == started.place else _Position(started.rules, number)
        while rows := place.rows(at.after):
            at.read_rows, at.changed = at.read_rows + len(rows), at.changed + sum(place.hide(*row) for row in rows)
            at.after = rows[-1][0]
            at.write()
            yield place.name, at.read_rows, at.changed, False
        yield place.name, at.read_rows, at.changed, True
    _Position.file().unlink(missing_ok=True)


@dataclass
class _Position:
    """How far it got, in a file of the data folder."""

    rules: str
    place: int = 0
    after: int = 0
    read_rows: int = 0
    changed: int = 0

    @staticmethod
    def file() -> Any:
        return settings.DATA_ROOT / "hide_secrets.json"

    @classmethod
    def read(cls) -> _Position:
        source = settings.BASE_DIR / "agents" / "stepscope_agent"
        rules = hashlib.sha256(b"".join((source / f"{name}.py").read_bytes() for name in ("masks", "arguments")))
        try:
            found = cls(**json.loads(cls.file().read_text()))
        except (OSError, ValueError, TypeError):
            found = cls("")
        return found if found.rules == rules.hexdigest() else cls(rules.hexdigest())

    def write(self) -> None:
        self.file().parent.mkdir(parents=True, exist_ok=True)
        partial = self.file().with_suffix(".part")
        partial.write_text(json.dumps(self.__dict__))
        os.replace(partial, self.file())
