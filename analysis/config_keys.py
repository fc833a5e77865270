"""A run's configuration as flat keys, and which of them differ from one run to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from analysis import megatron

MOST_KEYS = 5000
# libyaml reads a config in a tenth of the time; PyYAML may have been built without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class KeyChange(NamedTuple):
    """A key whose value is not the same in two configurations; None where one does not have it."""

    key: str
    old: str | None
    new: str | None


def config_keys(text: str) -> dict[str, str]:
    """Dotted key -> value as text, in the file's order, of a configuration that `config.read_config` has read.

    A Megatron job's arguments are its keys. Empty for a text that is no configuration. At most `MOST_KEYS`.
    """
    arguments = megatron.read_arguments(text)
    if arguments is not None:
        return {name: str(value) for name, value in arguments.values.items()}
    try:
        data = yaml.load(text, _LOADER)
    except (yaml.YAMLError, ValueError, ArithmeticError, AttributeError, LookupError, TypeError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    return dict(pair for pair, _place in zip(_flat("", data), range(MOST_KEYS), strict=False))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """Values below `prefix`; lists of plain values are one, lists of sections go by their places."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), item)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for place, item in enumerate(value):
            yield from _flat(f"{prefix}.{place}", item)
    else:
        yield prefix, "" if value is None else str(value)


def changed_keys(old: Mapping[str, str], new: Mapping[str, str]) -> list[KeyChange]:
    """What differs between two configurations, in the order of the new one; keys that are gone come last."""
    names = [*new, *(name for name in old if name not in new)]
    return [KeyChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]
