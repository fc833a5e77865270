"""The command line; the only module that prints."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import sys
import time
from typing import Any, Sequence

from stepscope_agent import __version__, align, analyse, client, gate, upload, watch
from stepscope_agent.captures import Windows, shown
from stepscope_agent.errors import INTERNAL, INTERRUPTED, OK, AgentError, AnalysisFailed, NothingToUpload
from stepscope_agent.manifest import HashCache
from stepscope_agent.progress import Progress
from stepscope_agent.spool import Spool, hold, is_held
from stepscope_agent.transport import Transport

DEFAULT_TIMEOUT = 3600.0
SETTINGS_FILE = "/etc/stepscope-agent.ini"
LAYERS_DIFFER = 1
_QUOTED = re.compile(r"^([\"'])(.*?)\1\s*(?:#.*)?$")
"""A value as TOML has it; Python before 3.11 cannot read TOML, and our few settings look alike in both."""
_COMMENT = re.compile(r"(?:^|\s+)[#;].*$", re.DOTALL)
_CALLED = {"server": "server address"}
EXIT_CODES = """exit codes: 0 done, 1 analysis failed, 2 usage or nothing to upload, 3 server unreachable,
4 refused by the server (token, limit), 5 timeout, 6 worse than the baseline (--gate), 70 a bug in the agent,
130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code. A person never sees a traceback unless STEPSCOPE_DEBUG is set."""
    try:
        options = _parser().parse_args(arguments)
        code: int = options.command(options)
        return code
    except AgentError as exc:
        return _fail(str(exc), exc.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on where this one stopped", INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the reader of our output has left
        return OK
    except Exception as exc:
        if os.environ.get("STEPSCOPE_DEBUG"):
            sys.excepthook(type(exc), exc, exc.__traceback__)
        return _fail("a bug in the agent: %s: %s (STEPSCOPE_DEBUG=1 shows more)" % (type(exc).__name__, exc), INTERNAL)


def script() -> None:
    """The installed command."""
    sys.exit(main())


def _fail(text: str, code: int) -> int:
    say("stepscope-agent: " + text)
    return code


def say(text: str) -> None:
    """A line for the person, on standard error: standard output is for results."""
    print(shown(text), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "stepscope-agent",
        description="Brings Ascend profiler dumps and step records to a Stepscope server.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version="stepscope-agent " + __version__)
    commands = parser.add_subparsers(metavar="COMMAND", prog="stepscope-agent")
    parser.set_defaults(command=lambda options: _usage(parser))
    _add_upload(commands)
    _add_watch(commands)
    _add_status(commands)
    _add_align(commands)
    return parser


def _usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return AgentError.exit_code


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--server", metavar="URL", help="its address; else STEPSCOPE_SERVER")
    group.add_argument(
        "--token",
        help="agent token of the project; better in STEPSCOPE_TOKEN: everybody on this host sees a command line in ps",
    )
    group.add_argument("--project", help="the project's short name; else STEPSCOPE_PROJECT")
    group.add_argument("--ca", metavar="FILE", help="certificates (PEM) to trust, for a server signed by a private CA")

    group.add_argument(
        "--settings",
        metavar="FILE",
        help="INI or TOML file, [stepscope] server, token, project, ca; else " + SETTINGS_FILE,
    )


def _add_upload(commands: Any) -> None:
    parser = commands.add_parser(
        "upload",
        help="send the dumps under a folder",
        description="Finds profiler dumps under PATH and sends them. Repeating it sends only what is still missing.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="a dump, or a folder with dumps anywhere under it")
    parser.add_argument("--run", metavar="NAME", help="the run these dumps belong to, unless the callback was told")
    parser.add_argument("--run-key", metavar="K", help="its key, when the name alone would not be unique")
    parser.add_argument("--capture", metavar="KEY", help="one key for all dumps under PATH, instead of finding it out")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the run's MindSpore Transformers YAML, or the script or log of a Megatron or MindSpeed job: brings MFU",
    )
    parser.add_argument(
        "--soc", metavar="CHIP", help="chip, such as Ascend910B3, where a dump does not tell: brings MFU"
    )
    parser.add_argument("--log", metavar="FILE", help="a training log with step lines: brings loss and step time")
    parser.add_argument(
        "--with-trace", action="store_true", help="send trace_view.json too (large; stays here by default)"
    )
    parser.add_argument(
        "--alignment", metavar="FILE", help="what `align` found, unless %s lies in PATH" % align.EVIDENCE
    )
    parser.add_argument(
        "--reference",
        action="store_true",
        help="compare the loss of the project's other runs with this one's",
    )
    parser.add_argument("--replace", action="store_true", help="replace dumps the server has with other content")
    parser.add_argument("--wait", action="store_true", help="wait for the analysis; print its page and checklist")
    parser.add_argument("--json", action="store_true", help="wait, then print the capture's report as JSON")
    parser.add_argument(
        "--gate", action="store_true", help="wait, then exit with 6 where a rule of the project finds a capture worse"
    )
    parser.add_argument(
        "--against", metavar="K", default="", help="with --gate: the run key to compare with, not those before"
    )
    parser.add_argument("--strict", action="store_true", help="with --gate: 6 also where worse or better is not sure")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be sent")
    parser.add_argument(
        "--timeout", type=_positive, default=DEFAULT_TIMEOUT, metavar="S", help="give up after S seconds (3600)"
    )
    parser.add_argument(
        "--retry-for", type=_positive, default=120.0, metavar="S", help="bear a silent server so long (120)"
    )
    _add_server(parser)
    parser.set_defaults(command=_upload)


def _add_watch(commands: Any) -> None:
    parser = commands.add_parser(
        "watch",
        help="send new dumps and step lines as they come",
        description="Looks for new dumps and step records under each DIR, sends them when they are whole,\n"
        "and carries out captures asked for on a run's page. It goes on until it is ended, at low priority;\n"
        "`status` says what it did.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", help="folders under which training jobs leave dumps")
    parser.add_argument(
        "--run", metavar="NAME", help="run of all dumps; else told by the callback or the folder's name"
    )
    parser.add_argument(
        "--log", metavar="GLOB", action="append", default=[], help="training logs to follow; repeatable"
    )
    parser.add_argument("--every", type=_positive, default=10.0, metavar="S", help="look every S seconds (10)")
    parser.add_argument(
        "--quiet",
        type=_not_negative,
        default=120.0,
        metavar="S",
        help="without marker a dump is whole after resting S seconds (120)",
    )
    parser.add_argument("--with-trace", action="store_true", help="send trace_view.json too")
    parser.add_argument(
        "--analyse", action="store_true", help="analyse raw dumps here, at lowest priority, one at a time"
    )
    parser.add_argument("--python", default=sys.executable, metavar="P", help="Python that has MindSpore or torch_npu")
    parser.add_argument("--analyse-limit", type=_positive, default=7200.0, metavar="S", help="longest analysis (7200)")
    parser.add_argument("--limit-rate", type=_positive, metavar="MB", help="send at most MB megabytes a second")
    parser.add_argument(
        "--grace",
        type=_not_negative,
        default=10.0,
        metavar="S",
        help="when ended, send what is whole for S seconds (10)",
    )
    parser.add_argument("--once", action="store_true", help="look once and leave; for cron and trying out")
    _add_server(parser)
    parser.set_defaults(command=_watch, timeout=None, retry_for=20.0)


def _add_status(commands: Any) -> None:
    parser = commands.add_parser(
        "status",
        help="what the watching agent sent, failed to send and skipped",
        description="What `watch` of this user (or of STEPSCOPE_STATE) sent, failed to send and skipped, and why.",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(command=_status)


def _add_align(commands: Any) -> None:
    parser = commands.add_parser(
        "align",
        help="compare two recordings of layer outputs",
        description="Compares what each layer of two networks gave for the same input (record_mindspore, record_torch) "
        "and names the first that differs. The result goes up with the run. Exit code 1: layers differ.",
    )
    parser.add_argument("ours", metavar="OURS", help="recording of the network to check")
    parser.add_argument("theirs", metavar="THEIRS", help="recording of the network it must agree with")
    parser.add_argument(
        "--rename", type=_rename, action="append", default=[], metavar="OLD=NEW",
        help="for names of THEIRS; OLD is a regular expression; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance",
        type=_positive,
        metavar="X",
        help="largest |a - b| / |b|; else by data type, 1e-4 for float32",
    )
    parser.add_argument("--output", metavar="FILE", help="else %s beside OURS" % align.EVIDENCE)
    parser.set_defaults(command=_align)


def _rename(text: str) -> tuple[str, str]:
    pattern, between, replacement = text.partition("=")
    try:
        re.compile(pattern)
    except re.error as exc:
        raise argparse.ArgumentTypeError("%r is no regular expression: %s" % (pattern, exc)) from exc
    if not between or not pattern:
        raise argparse.ArgumentTypeError("must look like OLD=NEW")
    return pattern, replacement


def _align(options: argparse.Namespace) -> int:
    ours, theirs = (align.read_recording(path) for path in (options.ours, options.theirs))
    evidence = align.align(ours, theirs, options.rename, options.tolerance)
    target = options.output or os.path.join(os.path.dirname(os.path.abspath(options.ours)), align.EVIDENCE)
    align.write_evidence(evidence, target)
    for row in evidence["layers"]:
        if not row["aligned"]:
            error = row.get("relative_error")
            print("differs  %s  %s" % (row["name"], "shape or values" if error is None else "%.3g" % error))
    print("%d of %d outputs agree" % (evidence["compared"] - evidence["differing"], evidence["compared"]))
    if evidence["first"]:
        print("the first that differs: %s" % evidence["first"])
    say("written to %s" % target)
    return LAYERS_DIFFER if evidence["differing"] else OK


def _positive(text: str) -> float:
    value = _not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("%r is not a number" % text) from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError("must not be less than 0, nor endless")
    return value


def _setting(options: argparse.Namespace, name: str) -> str:
    value = getattr(options, name) or os.environ.get("STEPSCOPE_" + name.upper(), "") or _from_file(options, name)
    if not value:
        text = "no %s given: use --%s, STEPSCOPE_%s, or `%s = ...` under [stepscope] in %s"
        place = _settings_file(options) or SETTINGS_FILE
        raise AgentError(text % (_CALLED.get(name, name), name, name.upper(), name, place))
    return str(value).strip()


def _settings_file(options: argparse.Namespace) -> str:
    """The file that was named, or the usual one where there is one."""
    named = options.settings or os.environ.get("STEPSCOPE_SETTINGS", "")
    return str(named or (SETTINGS_FILE if os.path.exists(SETTINGS_FILE) else ""))


def _from_file(options: argparse.Namespace, name: str) -> str:
    path = _settings_file(options)
    if not path:
        return ""
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
    value = parser.get("stepscope", name, fallback="")
    quoted = _QUOTED.match(value)
    return quoted.group(2) if quoted else _COMMENT.sub("", value)


def _transport(options: argparse.Namespace, notify: Any) -> Transport:
    return Transport(
        _setting(options, "server"),
        _setting(options, "token"),
        ca_file=options.ca or _from_file(options, "ca") or None,
        retry_for=options.retry_for,
        deadline=None if options.timeout is None else time.monotonic() + options.timeout,
        notify=notify,
    )


def _upload(options: argparse.Namespace) -> int:
    job = upload.Job(
        options.path,
        "" if options.dry_run else _setting(options, "project"),
        options.run,
        options.run_key,
        options.capture,
        options.config,
        options.log,
        options.with_trace,
        options.replace,
        options.alignment,
        options.reference,
        options.soc,
    )
    if options.dry_run:
        return _list_plan(upload.plan(job, say, windows=windows_of_this_host()))
    progress = Progress(sys.stderr)
    with contextlib.closing(_transport(options, progress.note)) as http:
        return _send(http, job, options, progress)


def _send(http: Transport, job: upload.Job, options: argparse.Namespace, progress: Progress) -> int:
    cache, windows = HashCache(os.path.join(state_folder(), "hashes.json")), windows_of_this_host()
    planned = upload.plan(job, say, cache, windows)
    cache.save()
    windows.save()
    progress.begin(len(planned), sum(item.size for item in planned))
    try:
        outcome = upload.upload(http, job, planned, progress.add, progress.note)
    finally:
        progress.end()
    say(_summary(outcome))
    captures: list[dict[str, Any]] = []
    if outcome.captures and (options.wait or options.json or options.gate):
        captures = _report(http, outcome, options.json)
    if outcome.last_error is not None:
        return outcome.last_error.exit_code
    if options.gate:
        gate.check(http, captures, options.against, options.strict, say if options.json else print)
    return OK


def _watch(options: argparse.Namespace) -> int:
    for folder in options.folders:
        if not os.path.isdir(folder):
            raise AgentError("%s is not a folder" % folder)
    watch.step_down()
    signal.signal(signal.SIGTERM, _end)
    plan = watch.Plan(
        options.folders,
        _setting(options, "server"),
        _setting(options, "project"),
        options.run,
        options.log,
        options.every,
        options.quiet,
        options.with_trace,
        options.analyse,
        options.python,
        options.analyse_limit,
        state_folder(),
    )
    held = hold(state_folder())
    spool, cache = Spool(spool_path()), HashCache(os.path.join(state_folder(), "hashes.json"))
    with held or contextlib.nullcontext(), contextlib.closing(_transport(options, say)) as http:
        http.bytes_per_s = options.limit_rate * 1e6 if options.limit_rate else None
        missing = analyse.what_is_missing(options.python) if options.analyse else None
        if missing:
            say("MindSpore's and torch_npu's raw dumps will fail: " + missing)
        spool.agent["folders"] = [os.path.abspath(folder) for folder in options.folders]
        say("watching %s for project %s at %s" % (", ".join(options.folders), plan.project, plan.server))
        watcher = watch.Watcher(plan, http, spool, cache, say)
        try:
            if not options.once:
                _watch_until_ended(watcher, options.grace)
            watcher.once()
            watcher.finish_analyses()
        finally:
            watcher.close()
    return OK if watcher.trouble is None else watcher.trouble.exit_code


def _end(number: int, frame: Any) -> None:
    """SIGTERM; a second one ends at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(OK)


def _watch_until_ended(watcher: watch.Watcher, grace: float) -> None:
    try:
        watcher.run_forever()
    except SystemExit:
        if grace:
            watcher.last_look(grace)
        raise


def _status(options: argparse.Namespace) -> int:
    spool, held = Spool(spool_path()), is_held(state_folder())
    if options.json:
        rows = {"dumps": spool.dumps, "logs": spool.logs, "files": spool.files}
        print(json.dumps({"agent": spool.agent, "watching": held, "counts": spool.counts(), **rows}))
        return OK
    folders = ", ".join(spool.agent.get("folders") or ["something"])
    print(shown("an agent is watching %s" % folders if held else "no agent is watching"))
    if spool.agent.get("trouble"):
        print(shown("trouble: %s" % spool.agent["trouble"]))
    for root, row in spool.dumps.items():
        told = "  ".join(str(row[name]) for name in ("url", "error") if row.get(name))
        print(shown("%-8s %s  %s" % (row["state"], root, told)))
    for path, row in list(spool.logs.items()) + list(spool.files.items()):
        if row.get("error"):
            print(shown("%-8s %s  %s" % ("failed", path, row["error"])))
    print(", ".join("%d %s" % (count, state) for state, count in sorted(spool.counts().items())) or "nothing seen yet")
    return OK


def spool_path() -> str:
    return os.path.join(state_folder(), "watch.json")


def windows_of_this_host() -> Windows:
    return Windows(os.path.join(state_folder(), "windows.json"))


def _list_plan(planned: Sequence[upload.Planned]) -> int:
    if not planned:
        raise NothingToUpload("nothing to upload")
    for item in planned:
        print(
            "%s rank %d: %s (%d files, %s)"
            % (item.capture, item.rank, item.dump.root, len(item.files), size(item.size))
        )
        for entry in item.files:
            print("    %s  %s" % (entry.name, size(entry.size)))
    return OK


def _summary(outcome: upload.Outcome) -> str:
    text = "%d %s arrived" % (len(outcome.dumps), "dump" if len(outcome.dumps) == 1 else "dumps")
    if outcome.steps:
        text += ", %d step records" % outcome.steps
    if outcome.failures:
        text += ", %d failed" % len(outcome.failures)
    return "%s: %s" % (text, outcome.run.get("url", ""))


def _report(http: Transport, outcome: upload.Outcome, as_json: bool) -> list[dict[str, Any]]:
    captures = upload.wait(http, outcome.captures, Progress(sys.stderr).note_once)
    failed = [capture for capture in captures if capture.get("state") == "failed"]
    if as_json:
        reports = [client.get_report(http, int(capture["id"])) for capture in captures if capture not in failed]
        if reports:
            print(json.dumps(reports[0] if len(captures) == 1 else reports, ensure_ascii=False))
    else:
        for capture in captures:
            print("\n".join(_checklist(capture)))
    for capture in failed:
        say("%s: the analysis failed; see %s" % (capture.get("key"), capture.get("url")))
    if failed:
        raise AnalysisFailed("%d of %d captures could not be analysed" % (len(failed), len(captures)))
    return captures


def _checklist(capture: dict[str, Any]) -> list[str]:
    lines = ["%s %s" % (capture.get("key"), capture.get("url"))]
    checklist = capture.get("checklist")
    if not isinstance(checklist, dict):
        return lines
    lines.append(
        "checklist: %s passed, %s failed, %s unknown"
        % tuple(checklist.get(name, "?") for name in ("passed", "failed", "unknown"))
    )
    order = {"fail": 0, "unknown": 1, "pass": 2}
    items = [item for item in checklist.get("items") or [] if isinstance(item, dict)]
    for item in sorted(items, key=lambda item: order.get(str(item.get("status")), 3)):
        lines.append("  %-7s %-20s %s" % (item.get("status"), item.get("id"), item.get("summary") or ""))
    return lines


def state_folder() -> str:
    """Where the agent keeps what it can afford to lose."""
    own = os.environ.get("STEPSCOPE_STATE")
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return own or os.path.join(base, "stepscope-agent")


def size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return "%.0f %s" % (count, unit) if unit == "B" else "%.1f %s" % (count, unit)
        count /= 1000.0
    return "%.1f GB" % count
