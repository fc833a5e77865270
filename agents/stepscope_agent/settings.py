"""Where the agent's settings come from: the command line, the environment, a file; and where it keeps its own state."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

from stepscope_agent.captures import Windows
from stepscope_agent.errors import AgentError

if TYPE_CHECKING:
    from configparser import ConfigParser

SETTINGS_FILE = "/etc/stepscope-agent.ini"
_QUOTED = re.compile(r"^([\"'])(.*?)\1\s*(?:#.*)?$")
"""A value as TOML has it; Python before 3.11 cannot read TOML, and our few settings look alike in both."""
_COMMENT = re.compile(r"(?:^|\s+)[#;].*$", re.DOTALL)
_CALLED = {"server": "server address"}


def setting(options: argparse.Namespace, name: str) -> str:
    """Raises AgentError that says how to give it."""
    value = getattr(options, name) or os.environ.get("STEPSCOPE_" + name.upper(), "") or from_file(options, name)
    if not value:
        text = "no %s given: use --%s, STEPSCOPE_%s, or `%s = ...` under [stepscope] in %s"
        place = _settings_file(options) or SETTINGS_FILE
        raise AgentError(text % (_CALLED.get(name, name), name, name.upper(), name, place))
    return str(value).strip()


def from_file(options: argparse.Namespace, name: str) -> str:
    """Empty where no file gives it."""
    path = _settings_file(options)
    value = _read(path).get("stepscope", name, fallback="") if path else ""
    quoted = _QUOTED.match(value)
    return quoted.group(2) if quoted else _COMMENT.sub("", value)


def _settings_file(options: argparse.Namespace) -> str:
    """The file that was named, or the usual one where there is one."""
    named = options.settings or os.environ.get("STEPSCOPE_SETTINGS", "")
    return str(named or (SETTINGS_FILE if os.path.exists(SETTINGS_FILE) else ""))


def _read(path: str) -> ConfigParser:
    import configparser  # only hosts with such a file need its memory

    parser = configparser.ConfigParser(interpolation=None)
    try:
        with open(path, encoding="utf-8-sig") as stream:
            parser.read_file(stream)
    except OSError as exc:
        raise AgentError("cannot read %s: %s" % (path, exc.strerror)) from exc
    except configparser.MissingSectionHeaderError as exc:
        raise AgentError("%s has no line [stepscope] above its settings" % path) from exc
    except (configparser.Error, UnicodeDecodeError) as exc:
        raise AgentError("%s is not an INI or TOML file: %s" % (path, str(exc).splitlines()[0])) from exc
    return parser


def state_folder() -> str:
    """Where the agent keeps what it can afford to lose."""
    own = os.environ.get("STEPSCOPE_STATE")
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return own or os.path.join(base, "stepscope-agent")


def spool_path() -> str:
    return os.path.join(state_folder(), "watch.json")


def hashes_path() -> str:
    return os.path.join(state_folder(), "hashes.json")


def windows_of_this_host() -> Windows:
    return Windows(os.path.join(state_folder(), "windows.json"))
