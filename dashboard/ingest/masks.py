"""Secrets hidden in what clients tell of a run, before any of it is stored.

Our agent hides them before they leave the host; browsers and other clients do not. The rules are the agent's own, read
from the sources that this server hands out as its agent: the two share a file and no import.
"""

from __future__ import annotations

import runpy
from functools import lru_cache
from typing import Any

from django.conf import settings


@lru_cache(maxsize=2)
def _of_agent(module: str) -> dict[str, Any]:
    """What a module of the agent defines; only of those that need nothing but the standard library."""
    return runpy.run_path(str(settings.BASE_DIR / "agents" / "stepscope_agent" / f"{module}.py"))


def kept_config(name: str, text: str) -> str:
    """What is kept of a run's configuration: a YAML or JSON file with secrets hidden; of a Megatron or MindSpeed job's
    script or log its sizes and switches alone. Of what the agent has made of one nothing changes."""
    arguments = _of_agent("arguments")
    found = arguments["arguments_in"](text) if arguments["holds_arguments"](name) else None
    return str(_of_agent("masks")["masked_config"](text) if found is None else found)


def masked_meta(value: Any) -> Any:
    """Metadata of a run with secrets hidden in all its texts, and what names have that sound like one; numbers stay."""
    if isinstance(value, dict):
        return {key: _MASK if _may_hide(str(key), item) else masked_meta(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked_meta(item) for item in value]
    return _of_agent("masks")["masked"](value) if isinstance(value, str) else value


_MASK = "***"


def _may_hide(name: str, value: Any) -> bool:
    return bool(value) and isinstance(value, str | list | dict) and _sounds_secret(name)


@lru_cache(maxsize=4096)
def _sounds_secret(name: str) -> bool:
    """Whether a configuration's value of that name would be hidden."""
    line = f"{name}: value\n"
    return bool(_of_agent("masks")["masked_config"](line) != line)
