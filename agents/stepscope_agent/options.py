"""What the command line takes, in tables: one row per option."""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import Any, Callable, Mapping, Sequence, Tuple

from stepscope_agent import __version__, align
from stepscope_agent.settings import SETTINGS_FILE

Option = Tuple[str, Mapping[str, Any]]
_AsWritten = argparse.RawDescriptionHelpFormatter
EXIT_CODES = """exit codes: 0 done, 1 analysis failed, 2 usage or nothing to upload, 3 server unreachable,
4 refused by the server (token, limit), 5 timeout, 6 worse than the baseline (--gate), 70 a bug in the agent,
130 interrupted"""


def parser(commands: Mapping[str, Callable[[argparse.Namespace], int]]) -> argparse.ArgumentParser:
    """The parser; its `command` is the function of the command that was named."""
    made = argparse.ArgumentParser(
        "stepscope-agent",
        description="Brings Ascend profiler dumps and step records to a Stepscope server.",
        epilog=EXIT_CODES,
        formatter_class=_AsWritten,
    )
    made.add_argument("--version", action="version", version="stepscope-agent " + __version__)
    made.set_defaults(command=lambda options: _usage(made))
    below = made.add_subparsers(metavar="COMMAND", prog="stepscope-agent")
    for name, command in commands.items():
        _add(below, name, command)
    return made


def _usage(made: argparse.ArgumentParser) -> int:
    made.print_help(sys.stderr)
    return 2


def _add(below: Any, name: str, command: Callable[[argparse.Namespace], int]) -> None:
    shown, rows = _COMMANDS[name]
    made = below.add_parser(name, formatter_class=_AsWritten if "epilog" in shown else argparse.HelpFormatter, **shown)
    for option, more in rows:
        made.add_argument(option, **more)
    if name in ("upload", "watch"):
        group = made.add_argument_group("server")
        for option, more in _SERVER:
            group.add_argument(option, **more)
    made.set_defaults(command=command, **_DEFAULTS.get(name, {}))


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("%r is not a number" % text) from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError("must not be less than 0, nor endless")
    return value


def _positive(text: str) -> float:
    value = _not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _rename(text: str) -> tuple[str, str]:
    pattern, between, replacement = text.partition("=")
    try:
        re.compile(pattern)
    except re.error as exc:
        raise argparse.ArgumentTypeError("%r is no regular expression: %s" % (pattern, exc)) from exc
    if not between or not pattern:
        raise argparse.ArgumentTypeError("must look like OLD=NEW")
    return pattern, replacement


def _text(name: str, metavar: str, told: str, **more: Any) -> Option:
    return name, {"metavar": metavar, "help": told, **more}


def _switch(name: str, told: str) -> Option:
    return name, {"action": "store_true", "help": told}


def _seconds(name: str, default: float, told: str, kind: Callable[[str], float] = _positive) -> Option:
    return _text(name, "S", "%s (%g)" % (told, default), type=kind, default=default)


_SERVER = (
    _text("--server", "URL", "its address; else STEPSCOPE_SERVER"),
    _text("--token", "TOKEN", "agent token of the project; better in STEPSCOPE_TOKEN: everybody on this host sees a "
          "command line in ps"),
    _text("--project", "PROJECT", "the project's short name; else STEPSCOPE_PROJECT"),
    _text("--ca", "FILE", "certificates (PEM) to trust, for a server signed by a private CA"),
    _text("--settings", "FILE", "INI or TOML file, [stepscope] server, token, project, ca; else " + SETTINGS_FILE),
)  # fmt: skip
_UPLOAD = (
    _text("path", "PATH", "a dump, or a folder with dumps anywhere under it"),
    _text("--run", "NAME", "the run these dumps belong to, unless the callback was told"),
    _text("--run-key", "K", "its key, when the name alone would not be unique"),
    _text("--capture", "KEY", "one key for all dumps under PATH, instead of finding it out"),
    _text("--config", "FILE", "the run's MindSpore Transformers YAML, or the script or log of a Megatron or MindSpeed "
          "job: brings MFU"),
    _text("--soc", "CHIP", "chip, such as Ascend910B3, where a dump does not tell: brings MFU"),
    _text("--log", "FILE", "a training log with step lines: brings loss and step time"),
    _switch("--with-trace", "send trace_view.json too (large; stays here by default)"),
    _text("--alignment", "FILE", "what `align` found, unless %s lies in PATH" % align.EVIDENCE),
    _switch("--reference", "compare the loss of the project's other runs with this one's"),
    _switch("--replace", "replace dumps the server has with other content"),
    _switch("--wait", "wait for the analysis; print its page and checklist"),
    _switch("--json", "wait, then print the capture's report as JSON"),
    _switch("--gate", "wait, then exit with 6 where a rule of the project finds a capture worse"),
    _text("--against", "K", "with --gate: the run key to compare with, not those before", default=""),
    _switch("--strict", "with --gate: 6 also where worse or better is not sure"),
    _switch("--dry-run", "only say what would be sent"),
    _seconds("--timeout", 3600.0, "give up after S seconds"),
    _seconds("--retry-for", 120.0, "bear a silent server so long"),
)  # fmt: skip
_WATCH = (
    _text("folders", "DIR", "folders under which training jobs leave dumps", nargs="+"),
    _text("--run", "NAME", "run of all dumps; else told by the callback or the folder's name"),
    _text("--log", "GLOB", "training logs to follow; repeatable", action="append", default=[]),
    _seconds("--every", 10.0, "look every S seconds"),
    _seconds("--quiet", 120.0, "without marker a dump is whole after resting S seconds", _not_negative),
    _switch("--with-trace", "send trace_view.json too"),
    _switch("--analyse", "analyse raw dumps here, at lowest priority, one at a time"),
    _text("--python", "P", "Python that has MindSpore or torch_npu", default=sys.executable),
    _seconds("--analyse-limit", 7200.0, "longest analysis"),
    _text("--limit-rate", "MB", "send at most MB megabytes a second", type=_positive),
    _seconds("--grace", 10.0, "when ended, send what is whole for S seconds", _not_negative),
    _switch("--once", "look once and leave; for cron and trying out"),
)
_ALIGN = (
    _text("ours", "OURS", "recording of the network to check"),
    _text("theirs", "THEIRS", "recording of the network it must agree with"),
    _text("--rename", "OLD=NEW", "for names of THEIRS; OLD is a regular expression; repeatable", type=_rename,
          action="append", default=[]),
    _text("--tolerance", "X", "largest |a - b| / |b|; else by data type, 1e-4 for float32", type=_positive),
    _text("--output", "FILE", "else %s beside OURS" % align.EVIDENCE),
)  # fmt: skip
_DEFAULTS = {"watch": {"timeout": None, "retry_for": 20.0}}
_COMMANDS: Mapping[str, tuple[Mapping[str, str], Sequence[Option]]] = {
    "upload": ({
        "help": "send the dumps under a folder",
        "description": "Finds profiler dumps under PATH and sends them. Repeating it sends only what is still missing.",
        "epilog": EXIT_CODES,
    }, _UPLOAD),
    "watch": ({
        "help": "send new dumps and step lines as they come",
        "description": "Looks for new dumps and step records under each DIR, sends them when they are whole,\n"
        "and carries out captures asked for on a run's page. It goes on until it is ended, at low priority;\n"
        "`status` says what it did.",
        "epilog": EXIT_CODES,
    }, _WATCH),
    "status": ({
        "help": "what the watching agent sent, failed to send and skipped",
        "description": "What `watch` of this user (or of STEPSCOPE_STATE) sent, failed to send and skipped, and why.",
    }, (_switch("--json", "as JSON"),)),
    "align": ({
        "help": "compare two recordings of layer outputs",
        "description": "Compares what each layer of two networks gave for the same input (record_mindspore, "
        "record_torch) and names the first that differs. The result goes up with the run. Exit code 1: layers differ.",
    }, _ALIGN),
}  # fmt: skip
