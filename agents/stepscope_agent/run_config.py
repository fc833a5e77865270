"""The run's configuration: read with its secrets hidden, found beside dumps, left there by the callback."""

from __future__ import annotations

import os
import re
from typing import Iterable, Sequence

from stepscope_agent.arguments import arguments_of, holds_arguments
from stepscope_agent.errors import AgentError
from stepscope_agent.masks import masked_config

LARGEST_CONFIG = 1 << 20
CONFIG_FILE = "stepscope_config.yaml"
"""What the callback leaves. A person may leave one too, also .yml, .json, or .sh, .log, .txt with arguments."""
_LEFT = re.compile(r"stepscope_config\.(?:ya?ml|json|sh|log|txt)")
_OPTIONS = ("--config", "--config_path", "--yaml_file")


def read_config(path: str) -> dict[str, str]:
    """The run's YAML with secrets hidden, or the sizes out of a job's script or log, as the protocol wants it."""
    try:
        if holds_arguments(path):
            arguments = arguments_of(path)
            if arguments is None:
                raise AgentError("%s gives no --num-layers and --hidden-size, and is no .yaml or .json" % path)
            return {"name": os.path.basename(path), "text": arguments}
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(LARGEST_CONFIG + 1)
    except OSError as exc:
        raise AgentError("cannot read %s: %s" % (path, exc.strerror)) from exc
    if len(text.encode("utf-8")) > LARGEST_CONFIG:
        raise AgentError("%s is larger than the 1 MiB a run config may have" % path)
    return {"name": os.path.basename(path), "text": masked_config(text)}


def config_among(names: Iterable[str]) -> str | None:
    """The name of a configuration left for us, the first of several."""
    return next((name for name in sorted(names) if _LEFT.fullmatch(name)), None)


def config_left_in(folders: Sequence[str]) -> str | None:
    """The path of the first configuration left in one of these folders."""
    for folder in folders:
        try:
            name = config_among(os.listdir(folder))
        except OSError:
            continue
        if name is not None:
            return os.path.join(folder, name)
    return None


def config_on_command_line(arguments: Sequence[str]) -> str | None:
    """The YAML that a training was started with, as MindSpore Transformers' run_mindformer.py takes it."""
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option in _OPTIONS:
            path = value if equals else next(iter(arguments[place + 1 : place + 2]), "")
            if path.endswith((".yaml", ".yml")) and os.path.isfile(path):
                return path
    return None
