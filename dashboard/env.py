"""Settings from the environment. Each name used here stands in deploy/.env.example."""

from __future__ import annotations

import os
from pathlib import Path


def env_str(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def env_bool(name: str, default: bool) -> bool:
    return env_str(name, str(default)).strip().lower() in {"1", "true", "yes", "on"}


def env_int(name: str, default: int) -> int:
    text = env_str(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name} must be a whole number, not {text!r}") from error


def env_list(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in env_str(name, default).split(",") if part.strip()]


def env_secret(name: str, default: str = "") -> str:
    """The value of `name`, or the content of the file that `name`_FILE names (Docker and Kubernetes secrets)."""
    path = os.environ.get(f"{name}_FILE")
    return Path(path).read_text().strip() if path else env_str(name, default)
