"""What JSON from outside may be: finite numbers, text that PostgreSQL can hold, not too deep."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dashboard.ingest.errors import ApiError

DEEPEST = 50
"""Levels of a body: pages walk what was sent, level by level."""


def check_body(body: Any) -> None:
    """Raise ApiError 400 for JSON that cannot be kept or shown."""
    for value in _leaves(body):
        _check_leaf(value)


def _leaves(body: Any) -> Iterator[Any]:
    waiting = [(body, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEEPEST:
            raise ApiError(400, "bad_request", f"the JSON is nested more than {DEEPEST} deep")
        if isinstance(value, dict):
            waiting.extend((part, depth + 1) for pair in value.items() for part in pair)
        elif isinstance(value, list):
            waiting.extend((part, depth + 1) for part in value)
        else:
            yield value


def _check_leaf(value: Any) -> None:
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise ApiError(400, "bad_request", f"text with a NUL or half a surrogate pair: {ascii(value)[:60]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ApiError(400, "bad_request", "a number is too large")
