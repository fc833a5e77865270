"""A run's configuration as flat keys, and which of them differ from one run to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import yaml

from analysis import megatron

LONGEST = 100_000
"""Characters of a configuration whose keys are told: some of the largest that may be sent take seconds each."""
MOST_KEYS = 5000
MOST_CHARACTERS = 1 << 20
"""Of keys and values together: aliases and names of sections may repeat a few long words thousands of times."""
MOST_LEVELS = 50
"""No configuration is so deep, but one that holds itself."""
UNTOLD = "…"
# libyaml reads a config in a tenth of the time; PyYAML may have been built without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class KeyChange(NamedTuple):
    """A key whose value is not the same in two configurations; None where one does not have it."""

    key: str
    old: str | None
    new: str | None


def config_keys(text: str) -> dict[str, str]:
    """Dotted key -> value as text, in the file's order, of a configuration that `config.read_config` has read.

    A Megatron job's arguments are its keys. Empty for a text that is no configuration, or is over `LONGEST`. At most
    `MOST_KEYS` and `MOST_CHARACTERS`; `UNTOLD` stands for what is deeper than `MOST_LEVELS`, and for numbers too long
    to be written.
    """
    if len(text) > LONGEST:
        return {}
    arguments = megatron.read_arguments(text)
    if arguments is not None:
        return {name: str(value) for name, value in arguments.values.items()}
    try:
        data = yaml.load(text, _LOADER)
    except (yaml.YAMLError, ValueError, ArithmeticError, AttributeError, LookupError, TypeError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    found: dict[str, str] = {}
    room = MOST_CHARACTERS
    for key, value in islice(_flat("", data, MOST_LEVELS), MOST_KEYS):
        room -= len(key) + len(value)
        if room < 0:
            break
        found[key] = value
    return found


def _flat(prefix: str, value: Any, levels: int) -> Iterator[tuple[str, str]]:
    """Values below `prefix`; lists of plain values are one, lists of sections go by their places."""
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict) or not value:
        yield prefix, "" if value is None else _text(value)
    elif not levels:
        yield prefix, UNTOLD
    else:
        for name, item in value.items():
            yield from _flat(f"{prefix}.{_text(name)}" if prefix else _text(name), item, levels - 1)


def _text(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # Python writes whole numbers of some thousand digits at most
        return UNTOLD


def changed_keys(old: Mapping[str, str], new: Mapping[str, str]) -> list[KeyChange]:
    """What differs between two configurations, in the order of the new one; keys that are gone come last."""
    names = [*new, *(name for name in old if name not in new)]
    return [KeyChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]
